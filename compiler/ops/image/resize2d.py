"""image.resize2d: another height and width; coordinates and rounding as in ONNX's Resize.
nn.upsampling: height and width times a factor; nearest neighbour, bilinear or bicubic.
"""

from __future__ import annotations

import math
from typing import Any

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError, legal_names
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.image.interpolated_integers import Weights, mixed_scale, realize_mixing
from compiler.ops.image.resampling import (
    COORDINATES,
    ROUNDINGS,
    Interpolation,
    check_method,
    mixing_weights,
    nearest_body,
    resample,
    resample_loops,
)
from compiler.ops.nn.pool import from_nchw, to_nchw
from compiler.ops.nn.window import arrange, axes_of, full_pair, restore
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, moved_scale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import (
    annotate_accumulating,
    annotate_max_pool,
    realize_moving_channels,
)
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.with_tables import LEVEL
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

OP = "image.resize2d"


class Resize2DAttrs(OpAttrs):
    """Output (height, width) and how positions map; for rounding "" see ``nearest``."""

    size: Sizes
    layout: str = "NCHW"
    method: str = "linear"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = ""
    cubic_alpha: float = -0.5

    def __post_init__(self) -> None:
        OpAttrs.__post_init__(self)
        object.__setattr__(self, "size", full_pair(self.type_key, "size", self.size))

    @property
    def interpolation(self) -> Interpolation:
        """Method by which elements are computed."""
        coordinates = self.coordinate_transformation_mode
        return Interpolation(self.method, coordinates, self.rounding_method, self.cubic_alpha)


@define_op(OP, pattern=OpPattern.INJECTIVE)
def resize2d(types: Types, attrs: Resize2DAttrs) -> Type:
    """The data's type with another height and width.

    Raises:
        TypeInferenceError: an unknown mode, or integers to be interpolated.
    """
    data = tensor_of_rank(OP, types, 0, "data", 4)
    axes = axes_of(OP, attrs.layout, "NCHW", "layout")
    check_method(OP, attrs.method, data.dtype)
    mode = attrs.coordinate_transformation_mode
    rounding = attrs.rounding_method
    if mode not in COORDINATES:
        raise TypeInferenceError(
            f"{OP}: coordinate_transformation_mode {mode!r} is unknown",
            fix=legal_names(mode, COORDINATES),
        )
    if rounding not in ROUNDINGS:
        raise TypeInferenceError(
            f"{OP}: rounding_method {rounding!r} is unknown", fix=legal_names(rounding, ROUNDINGS)
        )
    n, c, _, _ = arrange(data.shape, axes)
    return TensorType(restore((n, c, *attrs.size), axes), data.dtype)


@FNumpyCompute.register(resize2d)
def resize2d_numpy(attrs: Resize2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Rows first, then columns."""
    size = (attrs.size[0], attrs.size[1])
    out = resample(to_nchw(args[0], attrs.layout), size, attrs.interpolation)
    return [from_nchw(out, attrs.layout)]


@FLower.register(resize2d)
def resize2d_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered | None:
    """Rows first, then columns; the nearest neighbours are taken by number."""
    attrs = Resize2DAttrs.of(call)
    if attrs.method == "nearest_neighbor":
        return None
    size = (attrs.size[0], attrs.size[1])
    return [resample_loops(b, inputs[0], attrs.layout, size, attrs.interpolation)]


@FBody.register(resize2d)
def resize2d_body(step: Step, words: Words) -> Value | None:
    """Rows and columns by number; what lies between elements is no integer."""
    return nearest_body(step, words, step.attrs.layout, step.attrs.interpolation)


# ---- upsampling --------------------------------------------------------------------------------

UPSAMPLED = "nn.upsampling"


class UpSamplingAttrs(OpAttrs):
    """Factors, layout and method; ``align_corners`` keeps the corner pixels in place."""

    scale_h: float = 1.0
    scale_w: float = 1.0
    layout: str = "NCHW"
    method: str = "nearest_neighbor"
    align_corners: bool = False

    @property
    def interpolation(self) -> Interpolation:
        """Asymmetric coordinates, nearest rounds down, unless the corners are aligned."""
        if self.align_corners:
            return Interpolation(self.method, "align_corners", "round")
        return Interpolation(self.method, "asymmetric", "floor")


@define_op(UPSAMPLED, pattern=OpPattern.INJECTIVE)
def upsampling(types: Types, attrs: UpSamplingAttrs) -> Type:
    """Sizes are rounded to the nearest int.

    Raises:
        TypeInferenceError: a scale is not positive and finite.
    """
    data = tensor_of_rank(UPSAMPLED, types, 0, "data", 4)
    axes = axes_of(UPSAMPLED, attrs.layout, "NCHW", "layout")
    check_method(UPSAMPLED, attrs.method, data.dtype)
    if not (0 < attrs.scale_h < math.inf and 0 < attrs.scale_w < math.inf):
        raise TypeInferenceError(
            f"{UPSAMPLED}: scales {attrs.scale_h} and {attrs.scale_w} are not positive and finite"
        )
    n, c, h, w = arrange(data.shape, axes)
    sizes = (_scaled(h, attrs.scale_h), _scaled(w, attrs.scale_w))
    return TensorType(restore((n, c, *sizes), axes), data.dtype)


def _scaled(size: Dim, scale: float) -> Dim:
    if isinstance(size, AnyDim):
        return size
    return round(size * scale)


@FNumpyCompute.register(upsampling)
def upsampling_numpy(attrs: UpSamplingAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Rows first, then columns."""
    data = to_nchw(args[0], attrs.layout)
    size = (round(data.shape[2] * attrs.scale_h), round(data.shape[3] * attrs.scale_w))
    return [from_nchw(resample(data, size, attrs.interpolation), attrs.layout)]


@FBody.register(upsampling)
def upsampling_body(step: Step, words: Words) -> Value:
    """image.resize2d to the same size."""
    attrs = step.attrs
    how = step.attrs.interpolation
    result = step.results[0].type
    shape = result.concrete_shape
    return words.word(
        "image.resize2d",
        step.args,
        shape,
        result.dtype,
        size=tuple(shape[attrs.layout.index(letter)] for letter in "HW"),
        layout=attrs.layout,
        method=attrs.method,
        coordinate_transformation_mode=how.coordinates,
        rounding_method=how.rounding,
    )


RESIZERS = ("image.resize2d", "nn.upsampling")


def _moves(call: Call) -> bool:
    attrs: Any = call.attrs
    return bool(attrs.method == "nearest_neighbor")


def _weights(call: Call) -> tuple[Weights, ...]:
    """The axes whose size changes, with the weights of neighbours along each."""
    attrs: Any = call.attrs
    shape = call.args[0].tensor_type.concrete_shape
    out = call.tensor_type.concrete_shape
    return tuple(
        (axis, mixing_weights(shape[axis], out[axis], attrs.interpolation))
        for axis in (attrs.layout.index(letter) for letter in "HW")
        if shape[axis] != out[axis]
    )


@FQAnnotateRewrite.register(*RESIZERS, level=LEVEL, needs_tables=True)
def resize_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Elements are repeated or mixed: narrow ones, which are cheaper."""
    if _moves(ref_call):
        annotate = annotate_max_pool
    else:
        annotate = annotate_accumulating
    return annotate(ref_call, args, ctx)


@FQRealizeRewrite.register(*RESIZERS, level=LEVEL, needs_tables=True)
def resize_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The operator itself, or sums of weighted neighbours."""
    if _moves(ref_call):
        return realize_moving_channels(ref_call, args, ctx)
    return realize_mixing(ref_call, args, _weights(ref_call), ctx)


@FQDomScale.register(*RESIZERS)
def resize_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The scale of the data, over the denominators of the weights."""
    if _moves(call):
        return moved_scale(call, scales, qconfig)
    return mixed_scale(scales[0], _weights(call))


@FQZeroPoint.register(*RESIZERS, level=LEVEL)
def resize_zero_point(call: Call, place: int) -> ZeroPoint:
    """Picking elements keeps it; interpolation computes with them."""
    if _moves(call):
        return ZeroPoint.KEEPS
    return ZeroPoint.CENTRES


@FNeverNegative.register(*RESIZERS)
def resize_sign(call: Call, operands: tuple[bool, ...]) -> bool:
    """Picked elements and linear mixtures keep it; cubic ones overshoot."""
    attrs: Any = call.attrs
    return operands[0] and attrs.method in ("nearest_neighbor", "linear", "bilinear")
