"""Real models as integer modules, with ranges that need no data; and a checker of groups that
shares no code with the matcher."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import CompilerError
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, Var
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, build_candidate, prerequisite_optimize

_SHAPE_ONLY = ("reshape", "squeeze", "expand_dims", "nn.batch_flatten")


@pytest.fixture(scope="session")
def integer_model(shared_data: Path) -> Callable[[str], IRModule]:
    """``integer_model("fashion_resnet")``: fully integral, scales of 1/16 everywhere."""

    @functools.cache
    def build(name: str) -> IRModule:
        mod, params = load(shared_data / f"{name}.onnx")
        mod = prerequisite_optimize(mod, params, 3)
        qconfig = QConfig.recommended().with_overrides(calibrate_mode="global_scale")
        partitioned = build_candidate(mod, qconfig, None).partitioned
        assert partitioned is not None
        return partitioned

    return build


@pytest.fixture(scope="session")
def description_text() -> Callable[[str], str]:
    """The TOML text of a shipped description."""

    def read(name: str) -> str:
        folder = files("compiler.fusion.hardware") / "descriptions"
        return (folder / f"{name}.toml").read_text(encoding="utf-8")

    return read


@pytest.fixture(scope="session")
def check_groups() -> Callable[[IRModule, str], int]:
    """``check_groups(mod, toml_text)``: raise AssertionError unless every group is legal."""
    return _check_groups


def _check_groups(mod: IRModule, description: str) -> int:
    """Number of groups, all of them legal by what the TOML says, read with tomllib alone."""
    hardware = tomllib.loads(description)
    units = {unit["name"]: unit for unit in hardware["stages"]}
    nexts = {name: {b for a, b in hardware["links"] if a == name} for name in units}
    groups = 0
    for function in mod.functions.values():
        for node in post_order(function):
            if isinstance(node, Function) and node.get_attr("Compiler") == hardware["name"]:
                _check_group(node, hardware, units, nexts)
                groups += 1
    return groups


def _check_group(
    group: Function, hardware: Any, units: dict[str, Any], nexts: dict[str, set[str]]
) -> None:
    stages, ops = list(group.get_attr("hdfg_stages")), list(group.get_attr("hdfg_ops"))
    assert len(stages) == len(ops) > 0
    for stage in stages:
        allowed = units[stage].get("max_uses", 1)
        assert allowed in ("unbounded", None) or stages.count(stage) <= allowed
    assert stages[0] == hardware["root"] or stages[0] in _passing({hardware["root"]}, units, nexts)
    for before, after in pairwise(stages):
        assert after in _passing(nexts[before], units, nexts), f"no way from {before} to {after}"
    chain = _chain(group, set(hardware["free_ops"]))
    assert [call.op.name for call in chain if isinstance(call.op, Op)] == ops
    for stage, call in zip(stages, chain):
        assert isinstance(call.op, Op)
        assert call.op.name in units[stage]["accepts"], f"{stage} does not take {call.op.name}"
        for condition in units[stage]["accepts"][call.op.name]:
            _check_condition(condition, call)


def _passing(start: set[str], units: dict[str, Any], nexts: dict[str, set[str]]) -> set[str]:
    """Units that can come next: those of ``start``, and what lies behind those one may bypass."""
    found: set[str] = set()
    todo = set(start)
    while todo:
        unit = todo.pop()
        if unit not in found:
            found.add(unit)
            if units[unit].get("optional", True):
                todo |= nexts[unit]
    return found


def _chain(group: Function, free: set[str]) -> list[Call]:
    """The calls that occupy units: each feeds only the next, seen through free operators.

    The next one may use a value several times, directly and through free operators.
    """
    depends: dict[Expr, bool] = {}
    users: dict[Expr, list[Expr]] = {}
    chain: list[Call] = []
    for node in post_order(group.body):
        operands = [o for o in node.operands() if not isinstance(o, Op)]
        depends[node] = isinstance(node, Var) or any(depends[o] for o in operands)
        for operand in operands:
            users.setdefault(operand, []).append(node)
        if isinstance(node, Call) and depends[node] and node.op.name not in free:  # type: ignore[attr-defined]
            chain.append(node)
    for call, following in pairwise(chain):
        reached: set[Expr] = set()
        todo: list[Expr] = [call]
        while todo:
            for user in users[todo.pop()]:
                if _name(user) in free or isinstance(user, Tuple):
                    todo.append(user)
                else:
                    reached.add(user)
        assert reached == {following}, f"{call.op} feeds {len(reached)} calls, not the next alone"
    assert chain[-1] is group.body, "the group's value is not its last call"
    return chain


def _name(expr: Expr) -> str | None:
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else None


def _unshaped(expr: Expr) -> Expr:
    """The value behind reshapes, by the names of the operators that only change a shape."""
    while isinstance(expr, Call) and _name(expr) in _SHAPE_ONLY:
        expr = expr.args[0]
    return expr


def _check_condition(condition: str, call: Call) -> None:
    """The conditions of opu and opu_q, written once more."""
    name, _, rest = condition.rstrip(")").partition("(")
    args = [word.strip() for word in rest.split(",")] if rest else []
    constant = [isinstance(arg, Constant) for arg in call.args]
    if name == "const_operand":
        assert any(constant) if args == ["any"] else constant[int(args[0])], condition
    elif name == "no_const_operand":
        assert not any(constant)
    elif name == "distinct_operands":
        assert len(set(map(_unshaped, call.args))) == len(call.args)
    elif name == "same_shape_operands":
        assert len({arg.tensor_type.shape for arg in call.args}) == 1
    elif name == "dtype_in":
        assert {e.tensor_type.dtype for e in (call, *call.args)} <= set(args), condition
    elif name == "attr":
        value = getattr(call.attrs, args[0])
        wanted = args[2] if isinstance(value, str) else json.loads(args[2])
        assert args[1] == "=="
        assert value == wanted, condition
    elif name in ("scalar_const", "scalar_or_channel_const"):
        for arg in (a for a in call.args if isinstance(a, Constant)):
            shape = arg.data.shape
            channel = len(call.tensor_type.shape) - (3 if len(call.tensor_type.shape) == 4 else 1)
            axis = len(shape) - (len(call.tensor_type.shape) - channel)
            rest_of_shape = [d for a, d in enumerate(shape) if a != axis]
            assert arg.data.size == 1 or (
                name == "scalar_or_channel_const" and set(rest_of_shape) <= {1}
            ), condition
    elif name == "spatial_pad_only":
        assert [tuple(pair) for pair in call.attrs.pad_width[:2]] == [(0, 0)] * 2  # type: ignore[union-attr]
    elif name == "sole_consumer_in":
        pass  # the consumer may be in another function; test_conditions.py has cases
    else:
        raise CompilerError(f"the checker does not know condition {name!r}")
