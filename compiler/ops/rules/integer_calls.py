"""The calls and constants that the quantization rules build graphs from."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.ir.expr import Call, Constant, Expr
from compiler.ops.op_call import op_call

_FLOAT_DIGITS: Final = 24


def cast(data: Expr, dtype: str) -> Call:
    """A cast node, also when ``data`` has this dtype already."""
    return op_call("cast", data, dtype=dtype)


def clip(data: Expr, low: float, high: float) -> Call:
    """max(min(data, high), low)."""
    return op_call("clip", data, a_min=float(low), a_max=float(high))


# Of two operands, broadcast; right_shift is arithmetic.
add = partial(op_call, "add")
subtract = partial(op_call, "subtract")
multiply = partial(op_call, "multiply")
minimum = partial(op_call, "minimum")
maximum = partial(op_call, "maximum")
right_shift = partial(op_call, "right_shift")
left_shift = partial(op_call, "left_shift")


def requantize(data: Expr, *vectors: NDArray[Any], **attrs: Any) -> Call:
    """``qnn.requantize`` with int32 vectors along an axis."""
    fields = (Constant(np.asarray(each, np.int32)) for each in vectors)
    return op_call("qnn.requantize", data, *fields, **attrs)


def fixed_point_rescale(
    data: Expr,
    multiplier: NDArray[Any],
    shift: NDArray[Any],
    axis: int | None,
    scale: float = 0.0,
    once: bool = False,
) -> Call:
    """data (int32) times multiplier * 2^(shift - 31), rounded twice, or once.

    Args:
        axis: of the data, along which factors vary; None for one factor.
        scale: what a step of the result is worth, a float32; 0 where that is of no use.
    """
    unit, exponent = worth(scale)
    return op_call(
        "fixed_point_rescale",
        data,
        Constant(np.asarray(multiplier, np.int32).reshape(-1)),
        Constant(np.asarray(shift, np.int32).reshape(-1)),
        axis=axis,
        unit=unit,
        exponent=exponent,
        once=once,
    )


def worth(scale: float) -> tuple[int, int]:
    """A float32 as unit * 2^exponent: what a step of an integer is worth."""
    fraction, exponent = math.frexp(scale)
    unit = int(math.ldexp(fraction, _FLOAT_DIGITS))
    return unit, exponent - _FLOAT_DIGITS if unit else 0


def lookup(data: Expr, table: Constant, scale: float = 0.0, zero_point: int = 0) -> Call:
    """The entries of a table, the first one for the smallest value of the dtype of ``data``.

    Args:
        scale: what a step of the entries is worth, a float32; 0 where that is of no use.
        zero_point: the entry that stands for 0, where the scale is given.
    """
    unit, exponent = worth(scale)
    return op_call("lookup", data, table, unit=unit, exponent=exponent, zero_point=zero_point)


def stop_fusion(data: Expr) -> Call:
    """Identity that no fusion crosses."""
    return op_call("annotation.stop_fusion", data)


def border(data: Expr, dtype: str) -> Call:
    """End of an integer region: stop_fusion(cast_hint(data, dtype))."""
    return stop_fusion(op_call("annotation.cast_hint", data, dtype=dtype))


def scalar(value: ArrayLike, dtype: str) -> Constant:
    """A rank-0 constant."""
    return Constant(np.array(value, dtype=dtype))


def along_axis(values: NDArray[Any], trailing: int | None, dtype: str) -> Constant:
    """``values`` as a constant that broadcasts along one axis.

    Args:
        values: rank 0, or one value per channel.
        trailing: number of axes behind the channel axis; None when ``values`` has rank 0.
        dtype: of the constant.
    """
    array = np.asarray(values)
    if trailing is None:
        return Constant(np.array(array, dtype=dtype))
    return Constant(array.astype(dtype).reshape(-1, *(1,) * trailing))
