"""nn.upsampling: height and width times a factor; nearest neighbour, bilinear or bicubic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.image.resampling import Interpolation, check_method, resample
from compiler.ops.nn.pool import from_nchw, to_nchw
from compiler.ops.nn.window import arrange, axes_of, restore
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.layout import FConvertLayout, image_layout
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "nn.upsampling"


@dataclass(frozen=True, eq=False)
class UpSamplingAttrs(OpAttrs):
    """Factors, layout and method; ``align_corners`` keeps the corner pixels in place."""

    scale_h: float = 1.0
    scale_w: float = 1.0
    layout: str = "NCHW"
    method: str = "nearest_neighbor"
    align_corners: bool = False


@define_op(OP, arg_names=("data",), attrs_type=UpSamplingAttrs, pattern=OpPattern.INJECTIVE)
def upsampling(types: Types, attrs: UpSamplingAttrs) -> Type:
    """Sizes are rounded to the nearest int.

    Raises:
        TypeInferenceError: a scale is not positive and finite.
    """
    data = tensor_of_rank(OP, types, 0, "data", 4)
    axes = axes_of(OP, attrs.layout, "NCHW", "layout")
    check_method(OP, attrs.method, data.dtype)
    if not (0 < attrs.scale_h < math.inf and 0 < attrs.scale_w < math.inf):
        raise TypeInferenceError(
            f"{OP}: scales {attrs.scale_h} and {attrs.scale_w} are not both positive and finite"
        )
    n, c, h, w = arrange(data.shape, axes)
    sizes = (_scaled(h, attrs.scale_h), _scaled(w, attrs.scale_w))
    return TensorType(restore((n, c, *sizes), axes), data.dtype)


def _scaled(size: Dim, scale: float) -> Dim:
    return size if isinstance(size, AnyDim) else round(size * scale)


@FNumpyCompute.register(upsampling)
def upsampling_numpy(attrs: UpSamplingAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Asymmetric coordinates, nearest rounds down, unless the corners are aligned."""
    data = to_nchw(args[0], attrs.layout)
    size = (round(data.shape[2] * attrs.scale_h), round(data.shape[3] * attrs.scale_w))
    return [from_nchw(resample(data, size, _interpolation(attrs)), attrs.layout)]


def _interpolation(attrs: UpSamplingAttrs) -> Interpolation:
    coordinates = "align_corners" if attrs.align_corners else "asymmetric"
    return Interpolation(attrs.method, coordinates, "round" if attrs.align_corners else "floor")


FConvertLayout.register(upsampling)(image_layout)


@FBody.register(upsampling)
def upsampling_body(step: Step, words: Words) -> Value:
    """image.resize2d to the same size."""
    attrs, how, result = step.attrs, _interpolation(step.attrs), step.results[0].type
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
