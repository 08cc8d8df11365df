"""The calls and constants that the quantization rules build graphs from."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.ir.expr import Call, Constant, Expr, Quant
from compiler.ops.op_call import op_call
from compiler.ops.rules.dom_scale import DomScale


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
lookup = partial(op_call, "lookup")


def requantize(data: Expr, *vectors: NDArray[Any], **attrs: Any) -> Call:
    """``qnn.requantize`` with int32 vectors along an axis."""
    fields = (Constant(np.asarray(each, np.int32)) for each in vectors)
    return op_call("qnn.requantize", data, *fields, **attrs)


def worth(call: Call, scale: DomScale | float, zero_point: int = 0, bits: int = 0) -> Call:
    """A call whose integers stand for (integer - zero_point) * scale; scale is a float32."""
    if isinstance(scale, DomScale):
        held = scale
    else:
        held = DomScale(np.asarray(scale, np.float32))
    along = along_axis(held.values, held.trailing, "float32")
    one = along if held.is_vector else float(along.data)
    return call.with_fields(quant=Quant(one, zero_point, bits))


def stop_fusion(data: Expr) -> Call:
    """Identity that no fusion crosses."""
    return _identity("annotation.stop_fusion", data)


def border(data: Expr, dtype: str) -> Call:
    """End of an integer region: stop_fusion(cast_hint(data, dtype))."""
    return stop_fusion(_identity("annotation.cast_hint", data, dtype=dtype))


def _identity(name: str, data: Expr, **attrs: Any) -> Call:
    call = op_call(name, data, **attrs)
    call.set_checked_type(data.checked_type_or_none)
    return call


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
