"""split(indices_or_sections, axis): a tuple of pieces, equal (an int) or cut at given points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, Tuple
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, TupleType, Type
from compiler.ops.arg_types import Types, normalize_axis, tensor
from compiler.ops.op_attrs import Count, OpAttrs, Sizes
from compiler.ops.op_call import pieces_of
from compiler.ops.rules.annotate import FQAnnotateRewrite, QAnnotateExpr, kind_of, with_args
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import movable, moved_operand
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, of_integers
from compiler.ops.rules.with_tables import LEVEL
from compiler.qtypes.context import QuantizeContext


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


@FNumpyCompute.register(split)
def split_numpy(attrs: SplitAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Views."""
    return list(np.split(args[0], attrs.indices_or_sections, axis=attrs.axis))


@FBody.register("split")
def split_body(step: Step, words: Words) -> Sequence[Value]:
    """Slices of one axis, one behind the other."""
    (data,) = step.args
    axis, begin, found = step.attrs.axis % len(data.type.shape), 0, []
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
    attrs, rank = SplitAttrs.of(ref_call), len(ref_call.args[0].tensor_type.shape)
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
