"""argmax and argmin: the position of the largest or smallest element along one axis, or of all.

Quantized: the position among integers at one scale, which is exact; accumulators are compared as
wide as they are, so that what 8 bits would hold equal stays told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr, is_op_call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type, holds_float
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.index import plus, times
from compiler.lir.nodes import Combiner
from compiler.lir.scalars import INDEX_DTYPE, Cast, Scalar, literal
from compiler.ops.annotation.attach_simulated_quantize import SQ, as_input, is_given
from compiler.ops.arg_types import Types, check_integer_dtype, check_no_bools, tensor
from compiler.ops.number_format import storage_dtype
from compiler.ops.reduce.axes import ReduceAttrs, reduced_axes, reduced_shape, reduction_layout
from compiler.ops.reduce.reduction_loops import highest, lowest, reduce_axes
from compiler.ops.rules.annotate import FQAnnotateRewrite, kind_of, unannotated, with_args
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, is_natural
from compiler.ops.rules.lower import FLower, Lowered, LowerRule, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import in_integers, partition_inside
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, of_integers
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.unify_scales import stored
from compiler.ops.rules.zero_point import FQZeroPoint, taken
from compiler.qtypes.context import QuantizeContext


class ArgReduceAttrs(ReduceAttrs):
    """Attributes as ReduceAttrs; of equal elements the first counts, or the last if asked."""

    select_last_index: bool = False
    dtype: str = "int32"


def _register(name: str, function: Any) -> None:
    @define_op(name, pattern=OpPattern.COMM_REDUCE)
    def op(types: Types, attrs: ArgReduceAttrs) -> Type:
        data = tensor(name, types, 0, "data")
        check_no_bools(name, data)
        check_integer_dtype(name, attrs.dtype)
        axes = reduced_axes(name, len(data.shape), attrs.axis, attrs.exclude)
        if any(data.shape[a] == 0 and isinstance(data.shape[a], int) for a in axes):
            raise TypeInferenceError(f"{name}: argument 0 (data) is {data}, an axis is empty")
        return TensorType(reduced_shape(data.shape, axes, attrs.keepdims), attrs.dtype)

    @FNumpyCompute.register(op)
    def compute(attrs: ArgReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
        data = args[0]
        axes = reduced_axes(name, data.ndim, attrs.axis, attrs.exclude)
        kept = tuple(k for k in range(data.ndim) if k not in axes)
        # Several axes count as one, row-major, as Relay does.
        rows = data.transpose(*kept, *axes).reshape(*(data.shape[k] for k in kept), -1)
        if attrs.select_last_index:
            found = rows.shape[-1] - 1 - function(rows[..., ::-1], axis=-1)
        else:
            found = function(rows, axis=-1)
        shape = reduced_shape(data.shape, axes, attrs.keepdims)
        return [np.asarray(found).reshape(shape).astype(storage_dtype(attrs.dtype))]


_register("argmax", np.argmax)
_register("argmin", np.argmin)


def _arg_reduce(combiner: Combiner) -> LowerRule:
    def rule(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        if inputs[0].dtype != "bool":
            data = inputs[0]
        else:
            data = inputs[0].cast("int8")
        attrs = ArgReduceAttrs.of(call)
        axes = reduced_axes(combiner, len(data.shape), attrs.axis, attrs.exclude)
        dtype = str(storage_dtype(attrs.dtype))
        if not axes:
            zero = literal(0, dtype)
            return [TensorView.of(data.shape, lambda at: zero)]
        if combiner == "argmax":
            init = lowest(data.dtype)
        else:
            init = highest(data.dtype)
        last = math.prod(data.shape[k] for k in axes) - 1

        def value(at: tuple[Scalar, ...]) -> Scalar:
            if not attrs.select_last_index:
                return data.at(at)
            # Walked from the end, the first of equals is the last.
            turned = list(at)
            for k in axes:
                turned[k] = plus(times(at[k], -1), data.shape[k] - 1)
            return data.at(turned)

        def post(place: Scalar, at: tuple[Scalar, ...]) -> Scalar:
            if attrs.select_last_index:
                found = plus(times(place, -1), last)
            else:
                found = place
            if dtype == INDEX_DTYPE:
                return found
            return Cast(dtype, found)

        found = reduce_axes(
            b,
            data.shape,
            axes,
            Reduction(combiner, init, post=post),
            value,
            keepdims=attrs.keepdims,
        )
        return [found]

    return rule


FLower.register("argmax")(_arg_reduce("argmax"))
FLower.register("argmin")(_arg_reduce("argmin"))


_SUMS: Final = ("add", "subtract", "nn.bias_add", "nn.dense", "nn.matmul", "nn.conv2d")
_MOVES: Final = ("reshape", "take", "squeeze", "expand_dims")
_BORDERS: Final = ("annotation.stop_fusion", "annotation.cast_hint")
_BOTH: Final = ("argmax", "argmin")
_PLACES: Final = (*_BOTH, "topk")
FQPartitionRewrite.register(*_PLACES, needs_tables=True)(partition_inside)


@FQAnnotateRewrite.register(*_PLACES, needs_tables=True)
def arg_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The position of a value that will be integer; a position itself has no scale."""
    (data,) = args
    if kind_of(data) is None or ctx.check_to_skip(ref_call) or holds_float(ref_call.checked_type):
        return None
    if ctx.qconfig.form.stores_values:
        return with_args(ref_call, (as_input(data, ctx),))
    return with_args(ref_call, (_wide(unannotated(data)),))


def _wide(data: Expr) -> Expr:
    """The elements of a sum that others read in 8 bits, as wide as the sum is; also where moves or
    a relu stand between, as between a convolution and the windows of a pool."""
    moves: list[Call] = []
    node = data
    while is_op_call(node, *_MOVES, *_BORDERS):
        moves += [] if is_op_call(node, *_BORDERS) else [node]
        node = node.args[0]
    if not is_op_call(node, SQ) or is_given(node):
        return data
    found = node.args[0]
    if is_op_call(found, "nn.relu"):
        source = found.args[0]
    else:
        source = found
    if not is_op_call(source, *_SUMS):
        return data
    for move in reversed(moves):
        found = with_args(move, (found, *move.args[1:]))
    return found


@FQRealizeRewrite.register(*_PLACES, needs_tables=True)
@of_integers
def arg_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """The position among the integers; scales per channel become one scale first.

    A zero point is the same for all elements and moves no position.
    """
    if holds_float(ref_call.checked_type):
        return None
    rank = len(ref_call.args[0].tensor_type.shape)
    at_one_scale = in_integers(to_scalar(data, rank, ctx.qconfig), ctx)
    if ctx.qconfig.form.stores_values:
        at_one_scale = stored(at_one_scale, ctx.qconfig)
    return with_args(ref_call, (at_one_scale.data,))


@FConvertLayout.register(*_BOTH)
def arg_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """Positions along one axis, where they lie as in the graph: they are wider than the data.
    Several axes are counted in the order of the graph."""
    attrs = ArgReduceAttrs.of(call)
    axes = reduced_axes("reduction", len(orders[0]), attrs.axis, attrs.exclude)
    if len(axes) == 1:
        found = reduction_layout(call, orders)
    else:
        found = None
    if found is not None and is_natural(found.out):
        return found
    return None


@FBody.register("argmin")
def argmin_body(step: Step, words: Words) -> Value:
    """argmax of what is turned around."""
    (data,) = step.args
    result = step.results[0]
    attrs = dict(step.attrs.items())
    turned = words.mirrored(data)
    return words.word("argmax", [turned], shape_of(result), result.type.dtype, **attrs)


FQZeroPoint.register("argmax", "argmin")(taken)
