"""cumsum(axis, dtype, exclusive): running sums along one axis, or of the flat tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder
from compiler.lir.routines import externs
from compiler.ops.arg_types import Types, normalize_axis, tensor
from compiler.ops.number_format import convert, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.reduce.sum import added_up
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import annotate_accumulating
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.transform.row_major import reshaped
from compiler.qtypes.context import QuantizeContext


class ScanopAttrs(OpAttrs):
    """Axis (None: flat), dtype of the sums ("": the data's); exclusive leaves the element out."""

    axis: int | None = None
    dtype: str = ""
    exclusive: bool = False


@define_op("cumsum", pattern=OpPattern.OPAQUE)
def cumsum(types: Types, attrs: ScanopAttrs) -> Type:
    """Shape of the data, flat without an axis.

    Raises:
        TypeInferenceError: the sums would be bool.
    """
    data = tensor("cumsum", types, 0, "data")
    dtype = attrs.dtype or data.dtype
    if dtype == "bool":
        raise TypeInferenceError(
            f"cumsum: argument 0 (data) is {data}, and sums are no bool", fix="give a dtype"
        )
    if attrs.axis is not None:
        normalize_axis("cumsum", attrs.axis, len(data.shape))
        return TensorType(data.shape, dtype)
    total: Dim = 1
    for d in data.shape:
        total = AnyDim() if isinstance(total, AnyDim) or isinstance(d, AnyDim) else total * d
    return TensorType((total,), dtype)


@FNumpyCompute.register(cumsum)
def cumsum_numpy(attrs: ScanopAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Integers wrap; float16 adds in float32."""
    data = convert(args[0], attrs.dtype) if attrs.dtype else args[0]
    wide = working(data)
    flat = wide.reshape(-1) if attrs.axis is None else wide
    axis = 0 if attrs.axis is None else attrs.axis
    sums = np.cumsum(flat, axis=axis, dtype=wide.dtype)
    if attrs.exclusive:
        sums = np.roll(sums, 1, axis=axis)
        first = [slice(None)] * sums.ndim
        first[axis] = slice(0, 1)
        sums[tuple(first)] = 0
    return [sums.astype(data.dtype, copy=False)]


@FBody.register(cumsum)
def cumsum_body(step: Step, words: Words) -> Value:
    """Sums of 2, 4, 8, ... neighbours, each from two of the one before."""
    data, out = step.args[0], step.results[0]
    dtype = out.type.dtype
    sums = words.reshape(words.cast(data, dtype), shape_of(out))
    axis = (step.attrs.axis or 0) % len(shape_of(out))
    size = shape_of(out)[axis]

    def behind(x: Value, places: int) -> Value:
        """What lies so many places before, 0 in front of the first."""
        width = [(places * (k == axis), 0) for k in range(len(shape_of(out)))]
        return words.pad(words.slice(x, axis, 0, size - places), width, words.constant(0, dtype))

    places = 1
    while places < size:
        sums = words.add(sums, behind(sums, places))
        places *= 2
    return behind(sums, min(1, size)) if step.attrs.exclusive else sums


FQAnnotateRewrite.register(cumsum, needs_tables=True)(annotate_accumulating)


@FQRealizeRewrite.register(cumsum, needs_tables=True)
def cumsum_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The sums in the accumulator dtype, at the scale of their terms."""
    shape = ref_call.args[0].tensor_type.concrete_shape
    axis = ScanopAttrs.of(ref_call).axis
    count = math.prod(shape) if axis is None else shape[axis]
    return added_up(ref_call, args[0], count, ctx)


@externs.register("cumsum")
def cumsum_routine(attrs: Mapping[str, Any], arrays: Arrays) -> Arrays:
    """Running sums along ``axis`` (exclusive: without the element itself); integers wrap."""
    return cumsum_numpy(ScanopAttrs(**attrs), arrays, TensorType(()))


@FLower.register(cumsum)
def cumsum_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A routine; the dtype is that of the sums already."""
    attrs = ScanopAttrs.of(call)
    out = out_types[0]
    data = inputs[0].cast(out.dtype)
    if attrs.axis is None:
        data = reshaped(data, (math.prod(data.shape),))
    given = {"axis": attrs.axis or 0, "exclusive": attrs.exclusive}
    return b.extern("cumsum", [data], [(out.concrete_shape, out.dtype)], given)
