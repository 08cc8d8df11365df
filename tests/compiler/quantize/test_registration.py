"""Rules for another operator, as compiler/quantize/README.md describes: nn.pad stays integer."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.errors import CompilerError, UnknownOpError
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import annotate_pass_through
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr
from compiler.quantize import (
    QConfig,
    QuantizeContext,
    quantize,
    register_annotate_function,
    register_partition_function,
    register_realize_function,
)


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten behind it."""
    for table in (FQPartitionRewrite, FQAnnotateRewrite, FQRealizeRewrite):
        monkeypatch.setattr(table, "_rules", dict(table._rules))


def register_pad() -> None:
    @register_annotate_function("nn.pad")
    def pad_annotate(ref_call: Any, args: Any, ctx: Any) -> Any:
        return annotate_pass_through(ref_call, args, ctx)

    @register_realize_function("nn.pad")
    def pad_realize(ref_call: Any, args: Any, ctx: Any) -> Any:
        data, _zero = args
        if not isinstance(data, QRealizeIntExpr):
            return None
        padded = with_args(ref_call, (data.data, scalar(0, data.dtype)))
        return data.like(padded)


def padded_network() -> Any:
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 2, 4, 4))
    first, second = (
        relay.const(rng.uniform(-0.5, 0.5, (2, 2, 3, 3)).astype(np.float32)) for _ in "ab"
    )
    y = relay.op.nn.conv2d(x, first)
    width = ((0, 0), (0, 0), (1, 1), (1, 1))
    y = relay.op.nn.pad(y, relay.const(np.float32(0)), pad_width=width)
    return relay.module(relay.Function([x], relay.op.nn.conv2d(y, second)))


def statuses(mod: Any, **config: Any) -> list[tuple[str, str]]:
    context = QuantizeContext(QConfig(skip_conv_layers=[], **config))
    quantize(mod, context=context)
    return [(r.op, r.status) for r in context.report.calls]


@pytest.mark.parametrize("name", [field.name for field in fields(QuantizeContext)])
def test_a_rule_cannot_change_a_field_of_the_run(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(QuantizeContext(QConfig()), name, None)


def test_a_rule_that_stops_the_run_ends_quantization_behind_it() -> None:
    register_pad()
    assert {status for _, status in statuses(padded_network())} == {"integer"}

    @register_annotate_function("nn.pad", level=11)
    def pad_annotate(ref_call: Any, args: Any, ctx: Any) -> Any:
        ctx.stop()

    assert statuses(padded_network())[-1] == ("nn.conv2d", "float")


def test_a_registered_operator_becomes_integer() -> None:
    mod = padded_network()
    assert statuses(mod) == [
        ("nn.conv2d", "integer"),
        ("nn.pad", "float"),
        ("nn.conv2d", "integer"),
    ]
    register_pad()
    assert {status for _, status in statuses(mod)} == {"integer"}
    context = QuantizeContext(QConfig(skip_conv_layers=[], partition_conversions="fully_integral"))
    result = quantize(mod, context=context)
    x = np.random.default_rng(1).normal(0, 1, (1, 2, 4, 4)).astype(np.float32)
    assert np.abs(evaluate(result, [x])[0] - evaluate(mod, [x])[0]).max() < 0.15


def test_a_registered_rule_runs_behind_the_guard() -> None:
    register_pad()
    assert ("nn.pad", "float") in statuses(padded_network(), debug_enabled_ops=["add"])


def test_a_higher_level_overrides_and_the_same_level_is_refused() -> None:
    register_pad()
    register_realize_function("nn.pad", lambda ref_call, args, ctx: None, level=11)
    assert ("nn.pad", "float") in statuses(padded_network())
    with pytest.raises(CompilerError, match="level 11"):
        register_realize_function("nn.pad", lambda ref_call, args, ctx: None, level=11)


def test_a_partition_rule_keeps_an_operator_in_its_region() -> None:
    from compiler.ops.rules.partition import QPartitionExpr

    register_pad()

    @register_partition_function("nn.pad")
    def pad_partition(ref_call: Any, args: Any, ctx: Any) -> Any:
        data, zero = args
        if not isinstance(data, QPartitionExpr):
            return None
        return QPartitionExpr(with_args(ref_call, (data.expr, zero)), data.dtype)

    assert {status for _, status in statuses(padded_network())} == {"integer"}


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(UnknownOpError, match=r"nn\.padd"):
        register_realize_function("nn.padd", lambda ref_call, args, ctx: None)
