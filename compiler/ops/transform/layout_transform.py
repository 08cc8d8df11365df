"""layout_transform(src_layout, dst_layout): axes permuted by their letters, NCHW to NHWC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, tensor
from compiler.ops.nn.window import axes_of
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, permutation_layout
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "layout_transform"


@dataclass(frozen=True, eq=False)
class LayoutTransformAttrs(OpAttrs):
    """One letter per axis; both layouts have the same letters."""

    src_layout: str
    dst_layout: str


@define_op(OP, arg_names=("data",), attrs_type=LayoutTransformAttrs, pattern=OpPattern.INJECTIVE)
def layout_transform(types: Types, attrs: LayoutTransformAttrs) -> Type:
    """The permuted shape.

    Raises:
        TypeInferenceError: the source layout does not name the axes of the data.
    """
    data = tensor(OP, types, 0, "data")
    axes = axes_of(OP, attrs.src_layout, attrs.dst_layout, "src_layout")
    if len(axes) != len(data.shape) or len(set(attrs.src_layout)) != len(axes):
        raise TypeInferenceError(f"{OP}: {attrs.src_layout!r} does not name the axes of {data}")
    return TensorType(tuple(data.shape[a] for a in axes), data.dtype)


@FNumpyCompute.register(layout_transform)
def layout_transform_numpy(attrs: LayoutTransformAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [args[0].transpose(axes_of(OP, attrs.src_layout, attrs.dst_layout, "src_layout"))]


@FConvertLayout.register(layout_transform)
def layout_transform_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """Data that lie in an order of their own stay where they are."""
    attrs = LayoutTransformAttrs.of(call)
    axes = axes_of(OP, attrs.src_layout, attrs.dst_layout, "src_layout")
    return permutation_layout(orders[0], axes)


@FBody.register(layout_transform)
def layout_transform_body(step: Step, words: Words) -> Value:
    """A transposition by letters."""
    axes = axes_of(OP, step.attrs.src_layout, step.attrs.dst_layout, "src_layout")
    return words.transpose(step.args[0], axes)
