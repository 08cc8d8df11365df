"""cast(dtype): float to int truncates toward zero and saturates (NaN gives 0), int to narrower int
wraps, anything to bool is "not zero", int to float rounds to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Args, Call, Expr, is_op_call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import NARROW_DTYPES, TensorType, Type, bits, integer_range, is_integer
from compiler.lir.index import imm, plus
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Bin, Cast, Scalar
from compiler.ops.arg_types import Types, tensor
from compiler.ops.number_format import Array, convert, storage_dtype
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.annotate import FQAnnotateRewrite, annotated
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.integer_calls import cast as cast_call
from compiler.ops.rules.lower import FLower, elementwise, like_first
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, integers
from compiler.ops.tensor.clip import ClipAttrs
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind


class CastAttrs(OpAttrs):
    """The dtype of the result."""

    dtype: str


@define_op("cast", pattern=OpPattern.ELEMWISE)
def cast(types: Types, attrs: CastAttrs) -> Type:
    """Shape of the data, dtype of the attribute.

    Raises:
        TypeInferenceError: it is no dtype of a tensor.
    """
    if attrs.dtype in ("", "void"):
        raise TypeInferenceError(f"cast: dtype {attrs.dtype!r} is no dtype of a tensor")
    return TensorType(tensor("cast", types, 0, "data").shape, attrs.dtype)


@FNumpyCompute.register(cast)
def cast_numpy(attrs: CastAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The data in ``dtype``: integers wrap, floats truncate and saturate."""
    return [convert(args[0], attrs.dtype)]


intrinsics.register("cast")(convert)


@intrinsics.register("saturating_cast")
def saturated(array: Array, dtype: str) -> Array:
    """Integers clamped to the range of ``dtype``; floats as ``cast`` does."""
    if array.dtype.kind != "f":
        own = np.iinfo(array.dtype)
        low, high = integer_range(dtype)
        array = np.clip(array, max(low, own.min), min(high, own.max))
    return convert(array, dtype)


def _shortest(dtype: str, x: Scalar) -> Scalar:
    """The cast without inner casts that keep all bits that the outer cast keeps."""
    while (
        isinstance(x, Cast)
        and is_integer(dtype)
        and is_integer(x.to)
        and is_integer(x.a.dtype)
        and bits(x.to) >= bits(dtype)
    ):
        x = x.a
    if x.dtype == dtype:
        return x
    return Cast(dtype, x)


@FLower.register(cast)
@elementwise
def cast_lower(attrs: CastAttrs, x: Scalar) -> Scalar:
    """One cast; to 4 bits in the byte that holds them."""
    if attrs.dtype not in NARROW_DTYPES:
        return _shortest(attrs.dtype, x)
    low, high = integer_range(attrs.dtype)
    storage = str(storage_dtype(attrs.dtype))
    if x.dtype.startswith("float"):
        return Cast(storage, Bin("max", Bin("min", x, like_first(high, x)), like_first(low, x)))
    # Wraps to the 16 values from the lowest on.
    rest = Bin("&", plus(_shortest("int32", x), -low), imm(15))
    return Cast(storage, plus(rest, low))


def _whole_limits(call: Call) -> tuple[int, int] | None:
    """Limits of the whole numbers that become float32: truth values, such as a mask that was
    computed, and integers behind a clip, such as the scores of trees; None for others."""
    (data,) = call.args
    if call.tensor_type.dtype != "float32":
        return None
    if data.tensor_type.dtype == "bool":
        return 0, 1
    whole = is_integer(data.tensor_type.dtype)
    if not whole or not isinstance(data, Call) or not is_op_call(data, "clip"):
        return None
    held = ClipAttrs.of(data)
    limits = int(held.a_min), int(held.a_max)
    if max(map(abs, limits)) < 1 << 31:
        return limits
    return None


@FQAnnotateRewrite.register(cast, needs_tables=True)
def cast_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Whole numbers are integers already; other casts stay."""
    limits = _whole_limits(ref_call)
    if limits is None or ctx.check_to_skip(ref_call):
        return None
    if limits == (0, 1):
        kind = QAnnotateKind.INPUT
    else:
        kind = QAnnotateKind.ACTIVATION
    return annotated(ref_call, args, kind)


@FQRealizeRewrite.register(cast, needs_tables=True)
def cast_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The same numbers at the scale 1; integers of that scale become others without a float."""
    data = args[0]
    if isinstance(data, QRealizeIntExpr) and is_integer(ref_call.tensor_type.dtype):
        dtype = ref_call.tensor_type.dtype
        one = data.trailing is None and data.dom_scale.data == 1
        if not one or bits(dtype) < 32:  # which integers would wrap around, and floats saturate
            return None
        return cast_call(data.centred(ctx.qconfig.dtype_activation).data, dtype)
    limits = _whole_limits(ref_call)
    if limits is None:
        return None
    if limits == (0, 1):
        dtype = ctx.qconfig.dtype_input
    else:
        dtype = ctx.qconfig.dtype_activation
    return integers(cast_call(args[0], dtype), DomScale(as_scale(1.0)), dtype, ctx.bounds_of)
