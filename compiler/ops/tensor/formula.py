"""Functions of one real variable in postfix notation, such as "x x sigmoid multiply" (swish).

A word is ``x``, a number, or an operator that takes its arguments from the stack:

    x 3.0 add 0.0 maximum 6.0 minimum x multiply 6.0 divide        hard-swish

The operators are Relay's, with the meaning they have on tensors. The text is a value: it compares,
prints and travels as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np

from compiler.errors import AttrError
from compiler.ir.expr import Op
from compiler.ir.ty import TupleType
from compiler.ops.number_format import Array
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ops.tensor.unary import ANY_NUMBER, FLOAT_ONLY

MAX_WORDS = 96

COMPARISONS = ("greater", "greater_equal", "less", "less_equal")
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum")
OPERATORS: dict[str, int] = {
    **{name: 1 for name in (*FLOAT_ONLY, *ANY_NUMBER) if name != "copy"},
    **dict.fromkeys((*_ARITHMETIC, *COMPARISONS), 2),
    "where": 3,
}
"""Operator → how many arguments it takes."""


@lru_cache(maxsize=256)
def words(formula: str) -> tuple[str | float, ...]:
    """The words of a formula, numbers as floats.

    Raises:
        AttrError: an unknown word, or operators that do not leave one real value.
    """
    found: list[str | float] = []
    stack: list[str] = []
    for word in formula.split():
        if word == "x":
            stack.append("real")
            found.append(word)
        elif word in OPERATORS:
            count = OPERATORS[word]
            taken = stack[-count:]
            if word == "where":
                wanted = ["bool", "real", "real"]
            else:
                wanted = ["real"] * count
            if taken != wanted:
                raise AttrError(f"formula {formula!r}: {word} finds {taken or 'nothing'}")
            del stack[-count:]
            stack.append("bool" if word in COMPARISONS else "real")
            found.append(word)
        else:
            stack.append("real")
            found.append(_number(word, formula))
    if stack != ["real"]:
        raise AttrError(f"formula {formula!r} leaves {stack}, one real value is needed")
    return tuple(found)


def _number(word: str, formula: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise AttrError(f"formula {formula!r}: {word!r} is unknown") from None
    if math.isnan(value):
        raise AttrError(f"formula {formula!r} holds a NaN")
    return value


def reduce_words(
    formula: str,
    variable: Any,
    number: Callable[[float], Any],
    apply: Callable[..., Any],
) -> Any:
    """Walk a formula with a stack of values of the caller's kind.

    Args:
        variable: what ``x`` stands for.
        number: makes the value of a number.
        apply: computes the value of an operator from the values of its arguments.
    """
    stack: list[Any] = []
    for word in words(formula):
        if isinstance(word, float):
            stack.append(number(word))
        elif word == "x":
            stack.append(variable)
        else:
            count = OPERATORS[word]
            stack[-count:] = [apply(word, *stack[-count:])]
    return stack[0]


def evaluate(formula: str, x: Array) -> Array:
    """The function at every element, computed in the dtype of ``x``; shape of ``x``."""

    def apply(word: str, *arguments: Any) -> Any:
        compute = FNumpyCompute.require(Op.get(word))
        return compute(None, list(map(np.asarray, arguments)), TupleType())[0]

    with np.errstate(all="ignore"):
        value = reduce_words(formula, x, x.dtype.type, apply)
    return np.broadcast_to(np.asarray(value, x.dtype), x.shape)


_FAR: Final = 64.0
_STEPS: Final = 1 << 14
_FLAT: Final = 2.0**-12
"""Share of the largest value over [-1, 1] that counts as no change."""


@lru_cache(maxsize=256)
def varying_part(formula: str) -> tuple[float, float]:
    """Return the ends between which the function varies: beyond them it is as good as constant.

    Found on a grid of 1/128 over [-64, 64]; an end is infinite where the function still varies
    there or farther out, or is not finite.

    Example:
        >>> varying_part("x 3.0 add 0.0 maximum 6.0 minimum x multiply 6.0 divide")
        (-3.0, inf)
    """
    grid = np.linspace(-_FAR, _FAR, _STEPS + 1)
    values = evaluate(formula, grid)
    if not np.isfinite(values).all():
        return -math.inf, math.inf
    least = _FLAT * float(np.abs(values[np.abs(grid) <= 1]).max())
    (below,), (above,) = (np.nonzero(np.abs(values - end) > least) for end in values[[0, -1]])
    if below.size == 0 or below[0] <= 1:
        low = -math.inf
    else:
        low = float(grid[below[0] - 1])
    if above.size == 0 or above[-1] >= _STEPS - 1:
        high = math.inf
    else:
        high = float(grid[above[-1] + 1])
    far = _FAR * 2.0 ** np.arange(1, 40)
    with np.errstate(all="ignore"):
        below_it, above_it = (
            np.abs(evaluate(formula, at) - end) <= least
            for at, end in ((-far, values[0]), (far, values[-1]))
        )
    low = low if below_it.all() else -math.inf
    high = high if above_it.all() else math.inf
    return min(low, 0.0), max(high, 0.0)
