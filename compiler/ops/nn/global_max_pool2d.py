"""nn.global_max_pool2d: the largest value of each channel."""

from __future__ import annotations

from typing import Any

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.pool import (
    GlobalPool2DAttrs,
    from_nchw,
    global_pool2d_rel,
    to_nchw,
)
from compiler.ops.rules.layout import FConvertLayout, image_layout
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

global_max_pool2d = register_op(
    "nn.global_max_pool2d",
    arg_names=("data",),
    attrs_type=GlobalPool2DAttrs,
    rel=global_pool2d_rel("nn.global_max_pool2d"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(global_max_pool2d)
def global_max_pool2d_numpy(attrs: GlobalPool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """NaN in a channel gives NaN."""
    largest = to_nchw(args[0], attrs.layout).max(axis=(2, 3), keepdims=True)
    return [from_nchw(largest, attrs.layout)]


FConvertLayout.register(global_max_pool2d)(image_layout)


@FBody.register("nn.global_max_pool2d")
def global_max_pool2d_body(step: Step, words: Words) -> Value:
    """The largest of height and width."""
    axes = sorted(step.attrs.layout.index(letter) for letter in "HW")
    return words.reduce("max", step.args[0], axes)
