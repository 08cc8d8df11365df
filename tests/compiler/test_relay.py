from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import AttrError, EvaluationError, UnknownOpError
from compiler.ir.expr import Tuple


def test_operators_are_reached_by_their_dotted_names() -> None:
    x, w = relay.var("x", (1, 3, 8, 8)), relay.var("w", (4, 3, 3, 3))
    call = relay.op.nn.conv2d(x, w, padding=1)
    assert call.op.name == "nn.conv2d"
    assert call.attrs.padding == (1, 1, 1, 1)
    assert "conv2d" in dir(relay.op.nn)
    assert relay.op.relay.op.annotation.simulated_quantize.__name__.endswith("simulated_quantize")


def test_numbers_become_constants_in_the_dtype_of_the_first_operand() -> None:
    x = relay.var("x", (2,), "float16")
    assert str(relay.op.add(x, 2).args[1].data.dtype) == "float16"
    assert str((x * 3).args[1].data.dtype) == "float16"


def test_constants_default_to_float32_int32_and_bool() -> None:
    assert str(relay.const(1.5).data.dtype) == "float32"
    assert str(relay.const(1).data.dtype) == "int32"
    assert str(relay.const(True).data.dtype) == "bool"
    assert str(relay.const([1, 2], "int8").data.dtype) == "int8"
    assert str(relay.const(np.zeros(2)).data.dtype) == "float64"


def test_attributes_may_follow_the_arguments_in_order() -> None:
    x = relay.var("x", (2, 3))
    assert relay.op.reshape(x, (3, 2)).attrs.newshape == (3, 2)
    assert relay.op.clip(x, 0.0, 6.0).attrs.a_max == 6.0
    with pytest.raises(AttrError, match="twice"):
        relay.op.clip(x, 0.0, a_min=1.0, a_max=6.0)


def test_lists_of_expressions_become_tuples() -> None:
    x = relay.var("x", (2, 3))
    assert isinstance(relay.op.concatenate([x, x], axis=1).args[0], Tuple)


def test_slips_name_what_was_meant() -> None:
    with pytest.raises(UnknownOpError, match=r"nn\.conv2d"):
        relay.op.nn.conv2dd  # noqa: B018
    with pytest.raises(AttrError, match="padding"):
        relay.op.nn.conv2d(relay.var("x"), relay.var("w"), paddin=1)
    with pytest.raises(AttrError, match="no attributes"):
        relay.op.add(relay.var("x"), relay.var("y"), axis=1)


def test_evaluate_takes_expressions_and_knows_its_executors() -> None:
    assert compiler.evaluate(relay.const(1.0) + relay.const(2.0))[0].item() == 3
    with pytest.raises(EvaluationError, match="reference"):
        compiler.evaluate(relay.const(1.0), executor="referense")


def test_importing_the_compiler_does_not_import_onnx() -> None:
    code = "import sys, compiler, compiler.relay, compiler.pipeline; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_published_name_is_there() -> None:
    for name in compiler.__all__:
        assert getattr(compiler, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        compiler.nothing_of_the_kind  # noqa: B018


def test_the_root_offers_the_public_functions() -> None:
    assert {
        *("parse", "parse_expr", "text", "structural_equal", "assert_structural_equal"),
        *("structural_hash", "relay", "transform", "testing", "quantize", "evaluate", "lower"),
        *("fuse_report", "hw_report", "HDFG", "Stage", "register_external"),
    } <= set(compiler.__all__)
