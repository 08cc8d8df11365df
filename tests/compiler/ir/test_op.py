"""Operators and their rule tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import CompilerError, UnknownOpError
from compiler.ir.expr import Var
from compiler.ir.op import OpRule, get_op, register_op_attr, rule_tables, temp_op_attr

RELU, TANH = get_op("nn.relu"), get_op("tanh")


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> OpRule[Any]:
    """A table of its own, which is forgotten again."""
    from compiler.ir import op

    monkeypatch.setattr(op, "_RULE_TABLES", dict(op._RULE_TABLES))
    return OpRule("FColour", asked_by="the painter")


def test_a_higher_level_overrides_and_an_equal_one_is_refused(colours: OpRule[Any]) -> None:
    register_op_attr("nn.relu", "FColour", lambda: "red")
    register_op_attr("nn.relu", "FColour", lambda: "pale", level=5)
    assert colours.require(RELU)() == "red"
    register_op_attr("nn.relu", "FColour", lambda: "blue", level=11)
    assert (colours.require(RELU)(), colours.level(RELU)) == ("blue", 11)
    with pytest.raises(CompilerError, match="level 11 already"):
        register_op_attr("nn.relu", "FColour", lambda: "green", level=11)
    assert "FColour" in rule_tables()
    assert list(colours.names()) == ["nn.relu"]


def test_a_missing_rule_names_the_place_to_write_one(colours: OpRule[Any]) -> None:
    assert colours.get(TANH) is None
    with pytest.raises(CompilerError, match="the painter needs FColour of operator 'tanh'") as none:
        colours.require(TANH)
    assert "compiler/ops" in (none.value.fix or "")
    with pytest.raises(CompilerError, match="<%x>, which has none"):
        colours.require(Var("x"))


def test_unknown_names_come_with_the_nearest(colours: OpRule[Any]) -> None:
    with pytest.raises(UnknownOpError, match=r"nn\.rel") as operator:
        register_op_attr("nn.rel", "FColour", lambda: "red")
    assert "nn.relu" in (operator.value.fix or "")
    with pytest.raises(CompilerError, match="'FColor'") as table:
        register_op_attr("nn.relu", "FColor", lambda: "red")
    assert "'FColour'" in (table.value.fix or "")


def test_a_rule_is_replaced_for_a_block_only() -> None:
    x = relay.var("x", (2,))
    mod = relay.module(relay.Function((x,), relay.op.tanh(x)))
    halves = np.full(2, 0.5, np.float32)
    before = compiler.evaluate(mod, [halves])[0]
    with temp_op_attr("tanh", "FNumpyCompute", lambda attrs, args, ty: [args[0] * 2]):
        np.testing.assert_array_equal(compiler.evaluate(mod, [halves])[0], [1.0, 1.0])
    np.testing.assert_array_equal(compiler.evaluate(mod, [halves])[0], before)
