"""concatenate(tuple; axis): the fields of one tuple, end to end along an axis.
stack(tuple; axis): the fields of one tuple along a new axis.
split(indices_or_sections, axis): a tuple of pieces, equal (an int) or cut at given points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, Tuple, describe
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, TupleType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.index import imm, plus
from compiler.lir.scalars import Bin, Scalar, Select, literal
from compiler.ops.annotation.attach_simulated_quantize import as_input, attach_simulated_quantize
from compiler.ops.arg_types import (
    Types,
    merge_dim,
    normalize_axis,
    same_dtype,
    tensor,
    tensor_tuple,
)
from compiler.ops.evaluate import computes_by_body
from compiler.ops.op_attrs import Count, OpAttrs, Sizes
from compiler.ops.op_call import pieces_of
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive, first_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import movable, moved_operand
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, of_integers
from compiler.ops.rules.unify_scales import unify_for_concatenate
from compiler.ops.rules.with_tables import LEVEL
from compiler.ops.rules.zero_point import FQZeroPoint, kept, taken
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind

OP = "concatenate"


class ConcatenateAttrs(OpAttrs):
    """The axis that grows."""

    axis: int = 0


@define_op(OP, pattern=OpPattern.INJECTIVE)
def concatenate(types: Types, attrs: ConcatenateAttrs) -> Type:
    """Sizes along the axis add up; all else must agree.

    Raises:
        TypeInferenceError: ranks, dtypes or other sizes differ.
    """
    fields = tensor_tuple(OP, types, 0, "data")
    axis = normalize_axis(OP, attrs.axis, len(fields[0].shape))
    dims = _merged(OP, fields, axis)
    known = [d for field in fields if not isinstance(d := field.shape[axis], AnyDim)]
    dims[axis] = sum(known) if len(known) == len(fields) else AnyDim()
    return TensorType(tuple(dims), fields[0].dtype)


def _merged(op: str, fields: Sequence[TensorType], grows: int | None = None) -> list[Dim]:
    """The sizes of all fields, which agree but for the axis that grows."""
    dims: list[Dim] = list(fields[0].shape)
    for index, field in enumerate(fields[1:], start=1):
        if len(field.shape) != len(dims):
            raise TypeInferenceError(f"{op}: field 0 is {fields[0]} but field {index} is {field}")
        same_dtype(op, fields[0], field)
        for k, size in enumerate(field.shape):
            if k != grows:
                what = f"size of axis {k} (field {index} is {field})"
                dims[k] = merge_dim(op, dims[k], size, what)
    return dims


@FNumpyCompute.register(concatenate)
def concatenate_numpy(attrs: ConcatenateAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy, row-major."""
    return [np.concatenate(list(args), axis=attrs.axis)]


@FQAnnotateRewrite.register(concatenate)
def concatenate_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """With one quantized field, plain fields are quantized finely and all are concatenated; LiteRT
    files concatenate narrow integers."""
    if ctx.check_to_skip(ref_call):
        return None
    (data,) = args
    if not isinstance(data, Tuple) or all(kind_of(field) is None for field in data.fields):
        return None
    stores = ctx.qconfig.form.stores_values
    fields = [
        as_input(field, ctx)
        if stores
        else attach_simulated_quantize(field, QAnnotateKind.ACTIVATION, context=ctx)
        if kind_of(field) is None
        else unannotated(field)
        for field in data.fields
    ]
    return annotated(ref_call, (Tuple(tuple(fields), span=data.span),))


@FQRealizeRewrite.register(concatenate)
def concatenate_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """All fields in one dtype at one scale; float when one field is float."""
    (data,), (ref_data,) = args, ref_call.args
    if not isinstance(data, Tuple) or not isinstance(ref_data, Tuple):
        return None
    values = tuple(field for field in data.fields if isinstance(field, QRealizeIntExpr))
    if len(values) != len(data.fields):
        if values:
            ctx.report.diagnostics.append(
                f"{describe(ref_call)} runs in float: "
                f"{len(values)} of {len(data.fields)} fields are quantized"
            )
        return None
    fields = unify_for_concatenate(ref_data.fields, values, ctx.qconfig)
    call = with_args(ref_call, (Tuple(tuple(field.data for field in fields), span=data.span),))
    return fields[0].like(call)


@FLower.register(concatenate)
def concatenate_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """The fields end to end: a search for the one that holds the index."""
    axis = ConcatenateAttrs.of(call).axis % len(inputs[0].shape)

    def at(indices: tuple[Scalar, ...]) -> Scalar:
        end = 0
        ranges = list[tuple[int, Scalar]]()
        for field in inputs:
            start = end
            end = end + field.shape[axis]
            own = (*indices[:axis], plus(indices[axis], -start), *indices[axis + 1 :])
            if start < end:
                ranges.append((end, field.at(own)))
        while len(ranges) > 1:
            pairs = [
                (last, Select(Bin("<", indices[axis], imm(end)), low, high))
                for (end, low), (last, high) in zip(ranges[::2], ranges[1::2])
            ]
            ranges = pairs + ranges[len(ranges) & ~1 :]
        if ranges:
            return ranges[0][1]
        return literal(0, inputs[0].dtype)

    return [TensorView.of(out_types[0].concrete_shape, at)]


# ---- stack -------------------------------------------------------------------------------------


class StackAttrs(OpAttrs):
    """Axis of the result at which the operands are stacked."""

    axis: int = 0


@define_op("stack", pattern=OpPattern.INJECTIVE)
def stack(types: Types, attrs: StackAttrs) -> Type:
    """The common shape with the number of fields inserted.

    Raises:
        TypeInferenceError: the types of the fields differ.
    """
    fields = tensor_tuple("stack", types, 0, "data")
    dims = _merged("stack", fields)
    axis = normalize_axis("stack", attrs.axis, len(dims) + 1)
    return TensorType((*dims[:axis], len(fields), *dims[axis:]), fields[0].dtype)


@FNumpyCompute.register(stack)
def stack_numpy(attrs: StackAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    return [np.stack(list(args), axis=attrs.axis)]


# All fields have one scale, for every axis.
FQAnnotateRewrite.register(stack, needs_tables=True)(concatenate_annotate)
FQRealizeRewrite.register(stack, needs_tables=True)(concatenate_realize)


@FBody.register("stack")
def stack_body(step: Step, words: Words) -> Value:
    """Joined along a new axis."""
    shape = list(shape_of(step.results[0]))
    axis = step.attrs.axis % len(shape)
    shape[axis] = 1
    return words.concatenate([words.reshape(part, shape) for part in step.args], axis)


# ---- split ---------------------------------------------------------------------------------------


class SplitAttrs(OpAttrs):
    """A number of equal sections, or ascending cut points, along ``axis``."""

    indices_or_sections: Count | Sizes
    axis: int = 0


def _sizes(size: Dim, where: int | tuple[int, ...]) -> list[Dim]:
    if isinstance(where, int):
        if where < 1 or (isinstance(size, int) and size % where):
            raise TypeInferenceError(f"split: {size} elements do not make {where} equal sections")
        return [size if isinstance(size, AnyDim) else size // where] * where
    cuts = (0, *where)
    if list(cuts) != sorted(cuts) or (isinstance(size, int) and cuts[-1] > size):
        raise TypeInferenceError(
            f"split: cut points {list(where)} are not ascending within {size} elements"
        )
    sizes: list[Dim] = [b - a for a, b in pairwise(cuts)]
    sizes.append(size if isinstance(size, AnyDim) else size - cuts[-1])
    return sizes


@define_op("split", pattern=OpPattern.INJECTIVE)
def split(types: Types, attrs: SplitAttrs) -> Type:
    """A tuple with one tensor per piece.

    Raises:
        TypeInferenceError: the sections do not divide the axis, or cut points are out of order.
    """
    data = tensor("split", types, 0, "data")
    axis = normalize_axis("split", attrs.axis, len(data.shape))
    return TupleType(
        tuple(
            TensorType((*data.shape[:axis], size, *data.shape[axis + 1 :]), data.dtype)
            for size in _sizes(data.shape[axis], attrs.indices_or_sections)
        )
    )


@computes_by_body(split)
@FBody.register("split")
def split_body(step: Step, words: Words) -> Sequence[Value]:
    """Slices of one axis, one behind the other."""
    (data,) = step.args
    axis = step.attrs.axis % len(data.type.shape)
    begin = 0
    found = []
    for result in step.results:
        end = begin + shape_of(result)[axis]
        found.append(words.slice(data, axis, begin, end))
        begin = end
    return found


@FQAnnotateRewrite.register("split", level=LEVEL, needs_tables=True)
def split_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Every piece has the kind of the whole."""
    kind = kind_of(args[0])
    if kind is None or ctx.check_to_skip(ref_call):
        return None
    data, kind = moved_operand(ref_call, args[0], kind, ctx)
    pieces = pieces_of(with_args(ref_call, (data,)), ref_call)
    return Tuple(tuple(QAnnotateExpr(piece, kind) for piece in pieces), span=ref_call.span)


@FQRealizeRewrite.register("split", level=LEVEL, needs_tables=True)
@of_integers
def split_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """Pieces of the integers, each with the scales of its channels."""
    attrs = SplitAttrs.of(ref_call)
    rank = len(ref_call.args[0].tensor_type.shape)
    along = data.trailing == rank - 1 - attrs.axis % rank and data.channel_clip is None
    data = data if along else movable(data, ref_call, ctx)
    pieces = pieces_of(with_args(ref_call, (data.data,)), ref_call)
    values = [data.dom_scale.data] * len(pieces)
    if along:
        values = np.split(data.dom_scale.data, attrs.indices_or_sections)
    found: list[Expr] = []
    for piece, part in zip(pieces, values):
        scale = DomScale(part, data.trailing)
        held = {"dom_scale": Constant(scale.values), "trailing": scale.trailing}
        found.append(data.like(piece, **held))
    return Tuple(tuple(found), span=ref_call.span)


FQZeroPoint.register(concatenate)(taken)
FQZeroPoint.register("split", level=LEVEL)(kept)
FNeverNegative.register(concatenate)(all_positive)
FNeverNegative.register("split")(first_positive)
