"""FoldRequantize: a fixed-point multiplication by constants is a product, a sum and two shifts.

    before                                             after
    %1 = nn.relu(add(%0, b));            %1 = multiply(cast(%0, "int64"), cast(m, "int64"));
    %2 = cast(%1, dtype="int64");                      %2 = right_shift(add(%1, c), 32);
    %3 = fixed_point_multiply_per_axis(%2, m, s);      %3 = right_shift(cast(%2, "int32"), -1 - s);
    clip(%3, a_min=0f, a_max=255f)                     cast(clip(%3, a_min=0f, a_max=255f), "int64")

with c = b * m + 2^(30 - s): bias and rounding are one number. The high half of the sum is all that
is needed, so the shifts behind it and the clip are done in 32 bits. A relu moves behind the
multiplication, where a clip at 0 or above takes its place. Fires on int64 data cast from 32 bits or
fewer, for shifts of -31 .. -1; the bias joins where the sums before it leave room in int32.
Not handled: multiplications in other dtypes, shifts to the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array
from compiler.ops.op_call import op_call, scalar
from compiler.ops.rules.product_shape import FQProductShape
from compiler.passes.opaque_primitives import OpaquePrimitives

_NARROW = ("int8", "uint8", "int16", "uint16", "int32")
_HIGH = 32


@register_pass("FoldRequantize", opt_level=3, required=("InferType",))
@dataclass(frozen=True, slots=True)
class FoldRequantize(FunctionPass):
    """Write requantizations as a product, a sum and shifts."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function in that form, or itself."""
        return _Folder().mutate(fn)


class _Folder(OpaquePrimitives):
    def __init__(self) -> None:
        super().__init__()
        # int32 values by the int64 values that they were widened to.
        self._narrow: dict[Expr, Expr] = {}

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        if is_op_call(pre, "fixed_point_multiply", "fixed_point_multiply_per_axis"):
            return self._folded(pre, post)
        source = self._narrow.get(post.args[0]) if post.args else None
        if source is None:
            return post
        if is_op_call(pre, "cast"):
            return source if pre.tensor_type.dtype == "int32" else post.with_fields(args=(source,))
        if is_op_call(pre, "clip"):
            attrs: Any = pre.attrs
            if is_op_call(source, "nn.relu") and attrs.a_min >= 0:
                source = source.args[0]
            return self._widened(post.with_fields(args=(source,)), post)
        return post

    def _widened(self, value: Expr, post: Call) -> Expr:
        wide = op_call("cast", value, dtype="int64", span=post.span)
        self._narrow[wide] = value
        return wide

    def _folded(self, pre: Call, post: Call) -> Expr:
        data, widening = pre.args[0], post.args[0]
        factor = _factor(pre)
        if factor is None or not is_op_call(data, "cast") or not is_op_call(widening, "cast"):
            return post
        old, new = data.args[0], widening.args[0]
        if old.tensor_type.dtype not in _NARROW or data.tensor_type.dtype != "int64":
            return post
        multiplier, shift = factor
        relu = False
        if is_op_call(old, "nn.relu") and is_op_call(new, "nn.relu"):
            relu, old, new = True, old.args[0], new.args[0]
        addend = np.int64(1) << (30 - shift.astype(np.int64))
        bias = _bias(old)
        if bias is not None and is_op_call(new, "add"):
            new = new.args[1 - bias[0]]
            addend = addend + bias[1] * multiplier

        def call(name: str, *args: Expr, **attrs: Any) -> Call:
            return op_call(name, *args, span=post.span, **attrs)

        wide = call("cast", Constant(multiplier), dtype="int64")
        product = call("multiply", call("cast", new, dtype="int64"), wide)
        high = call("right_shift", call("add", product, Constant(addend)), scalar(_HIGH, "int64"))
        value: Expr = call("cast", high, dtype="int32")
        rest = (-1 - shift).astype(np.int32)
        if rest.any():
            value = call("right_shift", value, Constant(rest))
        return self._widened(call("nn.relu", value) if relu else value, post)


def _factor(call: Call) -> tuple[Array, Array] | None:
    """Multiplier and shift as int32 arrays that broadcast with the data."""
    attrs: Any = call.attrs
    if len(call.args) == 1:
        multiplier, shift = np.int32(attrs.multiplier), np.int64(attrs.shift)
        found = np.asarray(multiplier), np.asarray(shift)
    else:
        if not all(isinstance(arg, Constant) for arg in call.args[1:]):
            return None
        rank = len(call.tensor_type.shape)
        full = (-1, *(1,) * (rank - 1 - attrs.axis % rank))
        given = [arg.data for arg in call.args[1:] if isinstance(arg, Constant)]
        found = given[0].reshape(full), given[1].reshape(full)
    if found[1].size == 0 or found[1].min() < -31 or found[1].max() > -1 or found[0].min() < 0:
        return None
    return found


def _bias(total: Expr) -> tuple[int, Array] | None:
    """Which argument of a sum can be added behind the product instead, and its values as int64."""
    if not is_op_call(total, "add"):
        return None
    for index in (1, 0):
        product, held = total.args[1 - index], total.args[index]
        if not isinstance(held, Constant) or not isinstance(product, Call):
            continue
        values = held.data.astype(np.int64)
        largest = _largest(product)
        fits = largest is not None and largest + int(np.abs(values).max(initial=0)) < 1 << 31
        if fits and product.tensor_type.shape == total.tensor_type.shape:
            return index, values
    return None


def _largest(call: Call) -> int | None:
    """Bound of |sum of products| of integers; None where nothing is known."""
    rule = FQProductShape.get(call.op)
    if rule is None or not call.tensor_type.dtype.startswith("int"):
        return None
    size = rule(call).terms
    for arg in call.args[:2]:
        dtype = arg.tensor_type.dtype
        if dtype not in _NARROW:
            return None
        low, high = integer_range(dtype)
        size *= max(-low, high)
    return size
