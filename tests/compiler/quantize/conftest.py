"""Graphs of the quantizer's tests: a short notation becomes Relay text, parsed and bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from compiler import parse
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, TupleGetItem, Var
from compiler.ir.module import IRModule
from compiler.quantize import bind_params

KINDS = {"input": 1, "weight": 2, "activation": 3}
SQ = "relay.op.annotation.simulated_quantize"
_CONST = re.compile(r"const<(\S+?)(')? \(([^)]*)\) (\w+)>")
_POINT = re.compile(r"simulated_quantize\((%\w+), kind=(\w+)\)")


def _tensor(shape: str, dtype: str) -> str:
    dims = [d.strip() for d in shape.split(",") if d.strip()]
    return f"Tensor[({', '.join(dims)}), {dtype}]"


def relay_text(notation: str) -> str:
    """The cases' notation as Relay text; constants and points become parameters."""
    params: dict[str, str] = {}

    def constant(found: re.Match[str]) -> str:
        name = found[1] + ("_folded" if found[2] else "")
        params.setdefault(name, _tensor(found[3], found[4]))
        return f"%{name}"

    def point(found: re.Match[str]) -> str:
        count = sum(name.startswith("dom_scale") for name in params)
        names = [f"{name}_{count}" for name in ("dom_scale", "clip_min", "clip_max")]
        params.update(dict.fromkeys(names, "float32"))
        variables = ", ".join(f"%{name}" for name in names)
        return f"{SQ}({found[1]}, {variables}, kind={KINDS[found[2]]})"

    text = _CONST.sub(constant, notation)
    text = "\n".join(_POINT.sub(point, line) for line in text.splitlines())
    text = re.sub(r"(%\w+): \(([^)]*)\) (\w+)", lambda m: f"{m[1]}: {_tensor(m[2], m[3])}", text)
    text = re.sub(r"dtype=(\w+)", r'dtype="\1"', text)
    head, body = re.match(r"\s*(def @\w+\(.*?)\) \{(.*)", text, re.S).groups()  # type: ignore[union-attr]
    declared = "".join(f", %{name}: {ty}" for name, ty in params.items())
    if head.endswith("("):
        declared = declared[2:]
    return f'#[version = "0.0.5"]\n{head}{declared}) {{{body}'


def constants_of(mod: IRModule) -> list[Constant]:
    """Constants of rank 1 and more in visiting order, each once."""
    return [
        node
        for node in post_order(mod["main"].body)
        if isinstance(node, Constant) and node.data.ndim > 0
    ]


@pytest.fixture
def graph() -> Callable[..., IRModule]:
    """``graph(notation, W0=array)``: the module; constants not given stay parameters."""

    def make(notation: str, **constants: np.ndarray[Any, Any]) -> IRModule:
        return bind_params(parse(relay_text(notation)), constants)

    return make


@pytest.fixture
def folded(graph: Callable[..., IRModule]) -> Callable[[str, IRModule], IRModule]:
    """``folded(notation, actual)``: the expected module, with the constants that ``actual`` holds.

    A primed constant of a case has no values there; its place, shape and dtype are what counts.
    """

    def make(notation: str, actual: IRModule) -> IRModule:
        names = list(dict.fromkeys(f"{n}_folded" for n, _, _, _ in _CONST.findall(notation)))
        held = [node.data for node in constants_of(actual)]
        assert len(names) == len(held), f"{len(held)} constants where {names} are expected"
        return graph(notation, **dict(zip(names, held)))

    return make


def skeleton(function: Function) -> tuple[list[Any], list[float]]:
    """The shape of a graph, and the numbers in it: scalars, and numeric attributes."""
    index: dict[Expr, int] = {}
    shape: list[Any] = []
    numbers: list[float] = []
    for node in post_order(function):
        if isinstance(node, Op):
            continue
        operands = tuple(index[o] for o in node.operands() if o in index)
        fact: Any = type(node).__name__
        if isinstance(node, Constant):
            fact = ("constant", node.data.shape, str(node.data.dtype))
            if node.data.ndim == 0:
                numbers.append(float(node.data))
        elif isinstance(node, Call):
            attrs = dict(node.attrs.items()) if node.attrs is not None else {}
            values = {k: v for k, v in attrs.items() if isinstance(v, (int, float))}
            numbers.extend(float(v) for v in values.values())
            rest = tuple((k, v) for k, v in attrs.items() if k not in values)
            assert isinstance(node.op, Op)
            fact = (node.op.name, rest)
        elif isinstance(node, (Var, Tuple, TupleGetItem)):
            fact = (type(node).__name__, str(node.checked_type))
        index[node] = len(shape)
        shape.append((fact, operands))
    return shape, numbers


@pytest.fixture
def assert_close_graphs() -> Callable[[IRModule, IRModule], None]:
    """Same graph; the numbers in it agree to 1e-6, for ranges that depend on summation order."""

    def check(actual: IRModule, expected: IRModule) -> None:
        shape, numbers = skeleton(actual["main"])
        wanted_shape, wanted = skeleton(expected["main"])
        assert shape == wanted_shape
        np.testing.assert_allclose(numbers, wanted, rtol=1e-6)

    return check


@pytest.fixture
def points() -> Callable[[IRModule], list[tuple[str, float, float]]]:
    """``points(report)``: (kind, S, dom_scale) of every quantize point."""

    def read(report: Any) -> list[tuple[str, float, float]]:
        return [(p.kind, p.range_s, p.dom_scale) for p in report.points]

    return read


Params = Mapping[str, np.ndarray[Any, Any]]
