"""Scale of an operator: the real factor by which it multiplies, read from its constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr, Op
from compiler.ops.qnn.requantize import OP, factors_of

Factor = Callable[[Any, list[NDArray[Any]]], NDArray[np.float64]]


def _fixed_point(multiplier: Any, shift: Any) -> NDArray[np.float64]:
    return np.ldexp(np.asarray(multiplier, np.float64), np.asarray(shift, np.int64) - 31)


def _requantized(attrs: Any, given: list[NDArray[Any]]) -> NDArray[np.float64]:
    return factors_of(attrs, given, 1).scale


_FACTORS: Final[Mapping[str, tuple[int, Factor]]] = {
    "multiply": (1, lambda _attrs, given: np.asarray(given[0], np.float64)),
    "left_shift": (1, lambda _attrs, given: np.ldexp(1.0, given[0])),
    "right_shift": (1, lambda _attrs, given: np.ldexp(1.0, -given[0])),
    "fixed_point_multiply": (0, lambda attrs, _given: _fixed_point(attrs.multiplier, attrs.shift)),
    "fixed_point_multiply_per_axis": (2, lambda _attrs, given: _fixed_point(*given)),
    "fixed_point_rescale": (2, lambda _attrs, given: _fixed_point(*given)),
}
"""By operator: how many constants stand behind the data, and the factor from its attributes and
these constants."""


def scale_text(node: Expr) -> str:
    """``× 0.0123``, or the range of factors of several channels; "" where there is none.

    Args:
        node: any node.
    """
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return ""
    wanted, factor = _FACTORS.get(node.op.name, (None, _requantized))
    given = [arg.data for arg in node.args[1:] if isinstance(arg, Constant)]
    if node.op.name == OP:
        wanted = len(given)
    if len(given) != wanted or len(node.args) != wanted + 1:
        return ""
    factors = factor(node.attrs, given)
    if factors.size == 0:
        return ""
    least, greatest = float(factors.min()), float(factors.max())
    if least == greatest:
        return f"× {least:.6g}"
    return f"× {least:.6g} … {greatest:.6g}, {factors.size} factors"
