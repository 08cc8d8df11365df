"""nn.pad(data, pad_value): (before, after) elements on every axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir import index
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Scalar, Select
from compiler.ops.arg_types import Types, same_dtype, tensor, tensor_of_rank
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.rules.annotate import FQAnnotateRewrite, unannotated, with_args
from compiler.ops.rules.dom_scale import FQDomScale, moved_scale
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.layout import FConvertLayout, following
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import annotate_pass_through, movable
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, integer_limits
from compiler.ops.rules.with_tables import LEVEL
from compiler.ops.rules.zero_point import FQZeroPoint, kept
from compiler.qtypes.context import QuantizeContext


class PadAttrs(OpAttrs):
    """(before, after) per axis, and the mode: "constant", "edge" or "reflect"."""

    pad_width: tuple[Sizes, ...]
    pad_mode: str = "constant"


_MODES = ("constant", "edge", "reflect")


def _padded(op: str, data: TensorType, width: tuple[tuple[int, ...], ...], reflect: bool) -> Type:
    if len(width) != len(data.shape) or any(len(w) != 2 for w in width):
        raise TypeInferenceError(
            f"{op}: pad_width {[list(w) for w in width]} needs a pair for each axis of {data}"
        )
    dims: list[Dim] = []
    for size, (before, after) in zip(data.shape, width):
        if isinstance(size, AnyDim):
            dims.append(size)
            continue
        if size + before + after < 0 or min(before, after) < -size:
            raise TypeInferenceError(f"{op}: padding ({before}, {after}) removes more than {size}")
        if reflect and max(before, after) >= max(size, 1):
            raise TypeInferenceError(
                f"{op}: reflection by ({before}, {after}) needs more than {size} elements"
            )
        dims.append(size + before + after)
    return TensorType(tuple(dims), data.dtype)


@define_op("nn.pad", arg_names=("data", "pad_value"), pattern=OpPattern.INJECTIVE)
def pad(types: Types, attrs: PadAttrs) -> Type:
    """Every axis grows by its pair; negative values crop.

    Raises:
        TypeInferenceError: the mode is unknown.
    """
    data = tensor("nn.pad", types, 0, "data")
    same_dtype("nn.pad", data, tensor_of_rank("nn.pad", types, 1, "pad_value", 0))
    if attrs.pad_mode not in _MODES:
        raise TypeInferenceError(
            f"nn.pad: pad_mode {attrs.pad_mode!r} is unknown", fix=f"legal: {', '.join(_MODES)}"
        )
    return _padded("nn.pad", data, attrs.pad_width, attrs.pad_mode == "reflect")


@FNumpyCompute.register(pad)
def pad_numpy(attrs: PadAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Crop what is negative, then pad; a scalar has nothing to pad."""
    data, value = args
    if not attrs.pad_width:
        return [data]
    crop = tuple(
        slice(max(0, -before), size - max(0, -after))
        for size, (before, after) in zip(data.shape, attrs.pad_width)
    )
    width = [(max(0, before), max(0, after)) for before, after in attrs.pad_width]
    if attrs.pad_mode == "constant":
        return [np.pad(data[crop], width, constant_values=value)]
    return [np.pad(data[crop], width, mode="edge" if attrs.pad_mode == "edge" else "reflect")]


def _padded_view(data: TensorView, width: Sequence[Sequence[int]], fill: Scalar) -> TensorView:
    shape = [n + low + high for n, (low, high) in zip(data.shape, width)]

    def element(at: tuple[Scalar, ...]) -> Scalar:
        places = [index.plus(i, -low) for i, (low, _) in zip(at, width)]
        guard = index.all_of([index.within(i, n) for i, n in zip(places, data.shape)])
        if guard is None:
            return data.at(places)
        return Select(guard, data.at(places), fill)

    return TensorView.of(shape, element)


@FLower.register(pad)
def pad_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered | None:
    """A guard with a constant."""
    data, value = inputs
    attrs = PadAttrs.of(call)
    if attrs.pad_mode != "constant" or any(count < 0 for pair in attrs.pad_width for count in pair):
        return None
    return [_padded_view(data, attrs.pad_width, value.at(()))]


FConvertLayout.register("nn.pad")(
    following(lambda attrs, order: {"pad_width": tuple(attrs.pad_width[axis] for axis in order)})
)


@FBody.register("nn.pad")
def pad_body(step: Step, words: Words) -> Value | None:
    """Cropped first; what repeats elements takes them axis by axis."""
    data = step.args[0]
    attrs = step.attrs
    width = attrs.pad_width
    mode: Any = attrs.pad_mode
    cropped = [(max(0, -before), max(0, -after)) for before, after in width]
    if mode == "constant" and not any(map(any, cropped)) and width:
        return None
    for axis, (before, after) in enumerate(cropped):
        data = words.slice(data, axis, before, shape_of(data)[axis] - after)
    more = [(max(0, before), max(0, after)) for before, after in width]
    if mode == "constant":
        return words.pad(data, more, step.args[1])
    for axis, pair in enumerate(more):
        if any(pair):
            places = np.pad(np.arange(shape_of(data)[axis]), pair, mode)
            data = words.take(data, places, axis)
    return data


@FQAnnotateRewrite.register("nn.pad", level=LEVEL, needs_tables=True)
def pad_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The padding must be known, so that it can be an integer."""
    if not isinstance(unannotated(args[1]), Constant):
        return None
    return annotate_pass_through(ref_call, args, ctx)


@FQRealizeRewrite.register("nn.pad", level=LEVEL, needs_tables=True)
def pad_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Padding is rounded to the scale of the data and kept within their dtype."""
    data, value = args
    if not isinstance(data, QRealizeIntExpr) or not isinstance(value, Constant):
        return None
    data = movable(data, ref_call, ctx)
    units = float(value.data) / float(data.dom_scale.data)
    low, high = integer_limits(data.dtype)
    padding = int(np.clip(np.rint(units) + data.zero_point, low, high))
    return data.like(with_args(ref_call, (data.data, scalar(padding, data.dtype))))


FQDomScale.register("nn.pad")(moved_scale)
FQZeroPoint.register("nn.pad", level=LEVEL)(kept)
FNeverNegative.register("nn.pad")(all_positive)
