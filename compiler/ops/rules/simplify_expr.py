"""SimplifyExpr: operands that change nothing, moves that cancel out, and padding of windows.

A pad in front of a convolution or pool becomes the padding of that operator.

    nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w)
    nn.conv2d(%x, %w, padding=[1, 1, 1, 1])

The pad must be constant, on spatial axes only, with the value the operator pads with itself: 0 for
convolutions and averages that count it, minus infinity for maxima. Source: Relay v0.10
transforms/fold_explicit_padding.cc.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Op, Tuple, is_op_call
from compiler.ir.op import RESHAPE
from compiler.ir.ty import TensorType, is_dynamic, is_float
from compiler.ops.number_format import convert
from compiler.ops.op_call import op_call
from compiler.ops.rules.simplify import FSimplifyExpr, TypeOf
from compiler.ops.transform.transpose import TransposeAttrs, permutation

_NEUTRAL = {
    "add": 0,
    "subtract": 0,
    "multiply": 1,
    "divide": 1,
    "maximum": -math.inf,
    "minimum": math.inf,
}
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum")


def _is_all(expr: Expr, value: float) -> bool:
    return isinstance(expr, Constant) and bool(np.all(expr.data == value))


def _same_static_type(expr: Expr, call: Call, type_of: TypeOf) -> bool:
    return type_of(expr) == type_of(call) and not is_dynamic(type_of(call))


@FSimplifyExpr.register("add", "subtract", "multiply", "maximum", "minimum")
def without_neutral(call: Call, type_of: TypeOf) -> Expr | None:
    """x + 0, x - 0, x * 1, max(x, -inf), min(x, inf): x, unless broadcasting made it larger."""
    lhs, rhs = call.args
    assert isinstance(call.op, Op)
    name = call.op.name
    value = _NEUTRAL[name]
    if _is_all(rhs, value) and _same_static_type(lhs, call, type_of):
        return lhs
    commutes = name in _COMMUTATIVE
    if commutes and _is_all(lhs, value) and _same_static_type(rhs, call, type_of):
        return rhs
    return None


@FSimplifyExpr.register("divide")
def simplify_divide(call: Call, type_of: TypeOf) -> Expr | None:
    """x / 1: x; x / c for a float constant c: x * (1/c), where 1/c is finite."""
    same = without_neutral(call, type_of)
    if same is not None:
        return same
    data, divisor = call.args
    if not isinstance(divisor, Constant) or isinstance(data, Constant):
        return None
    values = divisor.data
    if not is_float(str(values.dtype)):
        return None
    with np.errstate(all="ignore"):
        reciprocal = np.asarray(1 / values).astype(values.dtype)
    if not np.isfinite(reciprocal).all():
        return None
    return op_call("multiply", data, Constant(reciprocal, span=divisor.span), span=call.span)


@FSimplifyExpr.register("cast")
def simplify_cast(call: Call, type_of: TypeOf) -> Expr | None:
    """The data, when it has the dtype already; elements of a table of integers that are cast to
    float are elements of the table as float."""
    data = call.args[0]
    ty = type_of(call)
    if type_of(data) == ty:
        return data
    if not is_op_call(data, "take", "gather") or not isinstance(ty, TensorType):
        return None
    assert isinstance(data, Call)
    table, indices = data.args
    if not isinstance(table, Constant) or not is_float(ty.dtype) or is_float(str(table.data.dtype)):
        return None
    floats = Constant(convert(table.data, ty.dtype), span=table.span)
    return Call(data.op, (floats, indices), data.attrs, span=data.span)


@FSimplifyExpr.register("clip")
def simplify_clip(call: Call, type_of: TypeOf) -> Expr | None:
    """clip(clip(x, a, b), c, d): one clip, to [a, b] clipped to [c, d]."""
    inner = call.args[0]
    if not is_op_call(inner, "clip"):
        return None
    assert isinstance(inner, Call)
    first: Any = inner.attrs
    second: Any = call.attrs
    if not (first.a_min <= first.a_max and second.a_min <= second.a_max):
        return None
    low = min(max(first.a_min, second.a_min), second.a_max)
    high = max(min(first.a_max, second.a_max), second.a_min)
    ty = type_of(call)
    assert isinstance(ty, TensorType)
    bounds = (first.a_min, first.a_max, second.a_min, second.a_max)
    # On integers a fractional bound is rounded, the lower one and the upper one differently.
    if not is_float(ty.dtype) and not all(float(b).is_integer() for b in bounds):
        return None
    return op_call("clip", inner.args[0], a_min=low, a_max=high, span=call.span)


@FSimplifyExpr.register("where")
def simplify_where(call: Call, type_of: TypeOf) -> Expr | None:
    """The branch a constant condition chooses everywhere, unless broadcasting made it larger."""
    condition, if_true, if_false = call.args
    if not isinstance(condition, Constant) or not condition.data.size:
        return None
    truth = condition.data.astype(bool)
    if not truth.all() and truth.any():
        return None
    chosen = if_true if truth.all() else if_false
    if _same_static_type(chosen, call, type_of):
        return chosen
    return None


# ---- moves ---------------------------------------------------------------------------------------


def _only_reshapes(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op) and RESHAPE in expr.op.flags


@FSimplifyExpr.register("reshape", "squeeze", "expand_dims", "nn.batch_flatten")
def simplify_reshape(call: Call, type_of: TypeOf) -> Expr | None:
    """Nothing, when the shape is what it was before; one reshape for two."""
    out = type_of(call)
    data = call.args[0]
    assert isinstance(out, TensorType)
    if is_dynamic(out) or is_dynamic(type_of(data)):
        return None
    if type_of(data) == out:
        return data
    if not _only_reshapes(data):
        return None
    assert isinstance(data, Call)
    source = data.args[0]
    if is_dynamic(type_of(source)):
        return None
    if type_of(source) == out:
        return source
    # A 0 in newshape would mean "as before", so empty tensors keep their two steps.
    if not is_op_call(call, "reshape") or 0 in out.shape:
        return None
    return op_call("reshape", source, newshape=out.concrete_shape, span=call.span)


@FSimplifyExpr.register("transpose")
def simplify_transpose(call: Call, type_of: TypeOf) -> Expr | None:
    """Nothing, when every axis stays; one permutation for two."""
    source = call.args[0]
    axes = _permutation(call, type_of)
    merged = is_op_call(source, "transpose")
    if merged:
        assert isinstance(source, Call)
        inner = _permutation(source, type_of)
        source = source.args[0]
        axes = tuple(inner[a] for a in axes)
    if axes == tuple(range(len(axes))):
        return source
    if merged:
        return op_call("transpose", source, axes=axes, span=call.span)
    return None


def _permutation(call: Call, type_of: TypeOf) -> tuple[int, ...]:
    ty = type_of(call)
    assert isinstance(ty, TensorType)
    return permutation(TransposeAttrs.of(call).axes, len(ty.shape))


@FSimplifyExpr.register("concatenate")
def simplify_concatenate(call: Call, type_of: TypeOf) -> Expr | None:
    """Its only part."""
    parts = call.args[0]
    if isinstance(parts, Tuple) and len(parts.fields) == 1:
        return parts.fields[0]
    return None


@FSimplifyExpr.register("strided_slice")
def simplify_strided_slice(call: Call, type_of: TypeOf) -> Expr | None:
    """The data, when all of it is taken in order."""
    attrs: Any = call.attrs
    data = call.args[0]
    if is_dynamic(type_of(data)) or type_of(data) != type_of(call):
        return None
    # A size of 1 can be taken by any stride; otherwise full length means stride 1 or -1.
    in_order = attrs.slice_mode == "size" or all(s > 0 for s in attrs.strides or ())
    if in_order:
        return data
    return None


# ---- padding -------------------------------------------------------------------------------------


def _spatial_padding(pad: Expr, layout: str, value: float) -> tuple[int, ...] | None:
    """All amounts before, then all behind, along the spatial axes; None where not mergeable."""
    if not is_op_call(pad, "nn.pad"):
        return None
    assert isinstance(pad, Call)
    attrs: Any = pad.attrs
    filler = pad.args[1]
    if attrs.pad_mode != "constant":
        return None
    if not isinstance(filler, Constant) or not bool(np.all(filler.data == value)):
        return None
    before = []
    after = []
    for letter, (low, high) in zip(layout, attrs.pad_width):
        if letter in "HW":
            before.append(low)
            after.append(high)
        elif low or high:
            return None
    amounts = (*before, *after)
    if min(amounts, default=-1) >= 0:
        return amounts
    return None


def _padded(call: Call, amounts: tuple[int, ...], **changed: Any) -> Call:
    attrs: Any = call.attrs
    padding = tuple(old + more for old, more in zip(attrs.padding, amounts, strict=True))
    pad = call.args[0]
    assert isinstance(pad, Call)
    return call.with_fields(
        args=(pad.args[0], *call.args[1:]), attrs=attrs.with_values(padding=padding, **changed)
    )


def _fits_window(call: Call, amounts: tuple[int, ...]) -> bool:
    # Runtimes refuse a pooling window that can lie in the padding altogether.
    attrs: Any = call.attrs
    sums = [old + more for old, more in zip(attrs.padding, amounts)]
    return all(p < k for p, k in zip(sums, attrs.pool_size * 2))


@FSimplifyExpr.register("nn.conv2d")
def merge_pad_into_conv(call: Call, type_of: TypeOf) -> Expr | None:
    """Zeros around the data."""
    attrs: Any = call.attrs
    amounts = _spatial_padding(call.args[0], attrs.data_layout, 0.0)
    if amounts is None:
        return None
    return _padded(call, amounts)


@FSimplifyExpr.register("nn.max_pool2d")
def merge_pad_into_max_pool(call: Call, type_of: TypeOf) -> Expr | None:
    """Minus infinity around the data."""
    attrs: Any = call.attrs
    amounts = _spatial_padding(call.args[0], attrs.layout, -np.inf)
    if amounts is None or attrs.ceil_mode or not _fits_window(call, amounts):
        return None
    return _padded(call, amounts)


@FSimplifyExpr.register("nn.avg_pool2d")
def merge_pad_into_avg_pool(call: Call, type_of: TypeOf) -> Expr | None:
    """Zeros around the data that count as elements, like the zeros of the pad."""
    attrs: Any = call.attrs
    amounts = _spatial_padding(call.args[0], attrs.layout, 0.0)
    if amounts is None or attrs.ceil_mode or not _fits_window(call, amounts):
        return None
    if any(attrs.padding) and not attrs.count_include_pad:
        return None
    return _padded(call, amounts, count_include_pad=True)
