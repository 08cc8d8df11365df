"""Models in half or double precision are quantized like their float32 selves."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, build_candidate, prerequisite_optimize

op = relay.op
SHAPE = (2, 3, 8, 8)


def network(dtype: str) -> IRModule:
    """A layer in ``dtype``, a sum in float32 between casts, and a clip."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float16)
    x = relay.var("x", SHAPE, dtype)
    layer = op.nn.conv2d(x, relay.const(weight.astype(dtype)), padding=(1, 1))
    wide = op.add(op.cast(layer, dtype="float32"), relay.const(np.float32(0.5)))
    body = op.nn.relu(op.cast(wide, dtype=dtype))
    return infer_module(relay.module(relay.Function((x,), body)))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_same_integers_as_in_float32(dtype: str) -> None:
    image = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    found = []
    for mod in (network(dtype), network("float32")):
        ready = prerequisite_optimize(mod, None, 3, simplify=True)
        assert ready["main"].params[0].checked_type.dtype == "float32"
        made = build_candidate(ready, QConfig.recommended(), None).partitioned
        assert made is not None
        found.append(evaluate(made, {"x": image})[0])
    np.testing.assert_array_equal(found[0], found[1])


def test_float32_is_left_alone() -> None:
    mod = network("float32")
    ready = prerequisite_optimize(mod, None, 0, simplify=True)
    assert ready["main"].params[0] is mod["main"].params[0]
