from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import relay, transform
from compiler.errors import DynamicShapeError
from compiler.ir.analysis import extract_calls
from compiler.ir.module import IRModule
from compiler.ir.ty import Any as AnyDim
from compiler.quantize import annotate, calibrate, partition, quantize, realize
from compiler.span import Span

CONV = Span("onnx:stem")


def module(batch: int | AnyDim) -> IRModule:
    x = relay.var("x", (batch, 3, 8, 8))
    weight = relay.const(np.ones((4, 3, 3, 3), np.float32))
    conv = relay.op.nn.conv2d(x, weight).with_fields(span=CONV)
    return relay.module(relay.Function((x,), relay.op.nn.relu(conv)))


@pytest.mark.parametrize("make", [partition, annotate, calibrate, realize, transform.FuseOpHW])
def test_every_pass_refuses_unknown_sizes_and_names_the_first_operator(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(DynamicShapeError, match=r"nn\.conv2d.*\(\?, 4, 6, 6\)") as caught:
        make()(module(AnyDim()))
    assert caught.value.span == CONV


def test_quantize_refuses_unknown_sizes() -> None:
    with pytest.raises(DynamicShapeError, match=r"nn\.conv2d"):
        quantize(module(AnyDim()))


def test_a_parameter_is_named_where_no_operator_has_an_unknown_size() -> None:
    x = relay.var("x", (AnyDim(), 4))
    mod = relay.module(relay.Function((x,), relay.op.sum(x, axis=[0])))
    with pytest.raises(DynamicShapeError, match="%x"):
        partition()(mod)


def test_static_shapes_pass() -> None:
    divided = partition()(module(1))["main"]
    assert len(extract_calls(divided, "annotation.stop_fusion")) == 1
