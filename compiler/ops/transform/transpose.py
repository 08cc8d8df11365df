"""transpose(axes): output axis k is input axis axes[k]; None reverses.
layout_transform(src_layout, dst_layout): axes permuted by their letters, NCHW to NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir.scalars import Scalar
from compiler.ops.arg_types import Types, normalize_axes, tensor
from compiler.ops.evaluate import computes_by_body
from compiler.ops.nn.window import axes_of
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.axes import Axes, FAxes
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, permutation_layout
from compiler.ops.rules.lower import FLower, moved
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import moves_elements


class TransposeAttrs(OpAttrs):
    """The permutation; None reverses the axes."""

    axes: tuple[int, ...] | None = None


def permutation(axes: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    """The axes counted from the front.

    Raises:
        TypeInferenceError: they are no permutation of all axes.
    """
    if axes is None:
        return tuple(reversed(range(rank)))
    found = normalize_axes("transpose", axes, rank, "axes")
    if len(found) != rank:
        raise TypeInferenceError(
            f"transpose: axes {list(axes)} name {len(axes)} of {rank} axes",
            fix="name every axis once",
        )
    return found


@define_op("transpose", pattern=OpPattern.INJECTIVE)
def transpose(types: Types, attrs: TransposeAttrs) -> Type:
    """The permuted shape."""
    data = tensor("transpose", types, 0, "data")
    axes = permutation(attrs.axes, len(data.shape))
    return TensorType(tuple(data.shape[a] for a in axes), data.dtype)


@FNumpyCompute.register(transpose)
def transpose_numpy(attrs: TransposeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [args[0].transpose(permutation(attrs.axes, args[0].ndim))]


moves_elements(transpose)


@FLower.register(transpose)
@moved
def transpose_lower(call: Call, at: tuple[Scalar, ...]) -> list[Scalar]:
    """Axis axes[k] of the data is read at index k."""
    attrs = TransposeAttrs.of(call)
    order = permutation(attrs.axes, len(at))
    return [at[order.index(axis)] for axis in range(len(at))]


@FAxes.register(transpose)
def transpose_axes(call: Call) -> Axes:
    """Every factor passes, along the axis where its channels then are."""
    axes = permutation(TransposeAttrs.of(call).axes, len(call.tensor_type.shape))
    return Axes(tied={0: {source: axis for axis, source in enumerate(axes)}})


@FConvertLayout.register(transpose)
def transpose_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """Data that lie in an order of their own stay where they are, and images of NHWC as well."""
    axes = permutation(TransposeAttrs.of(call).axes, len(orders[0]))
    return permutation_layout(orders[0], axes, images=True)


@FBody.register("transpose")
def transpose_body(step: Step, words: Words) -> Value | None:
    """Every axis by its number."""
    axes = permutation(step.attrs.axes, len(step.args[0].type.shape))
    if axes == step.attrs.axes:
        return None
    return words.transpose(step.args[0], axes)


# ---- layout_transform --------------------------------------------------------------------------

RELAID = "layout_transform"


class LayoutTransformAttrs(OpAttrs):
    """One letter per axis; both layouts have the same letters."""

    src_layout: str
    dst_layout: str


@define_op(RELAID, pattern=OpPattern.INJECTIVE)
def layout_transform(types: Types, attrs: LayoutTransformAttrs) -> Type:
    """The permuted shape.

    Raises:
        TypeInferenceError: the source layout does not name the axes of the data.
    """
    data = tensor(RELAID, types, 0, "data")
    axes = axes_of(RELAID, attrs.src_layout, attrs.dst_layout, "src_layout")
    if len(axes) != len(data.shape) or len(set(attrs.src_layout)) != len(axes):
        raise TypeInferenceError(f"{RELAID}: {attrs.src_layout!r} does not name the axes of {data}")
    return TensorType(tuple(data.shape[a] for a in axes), data.dtype)


@FConvertLayout.register(layout_transform)
def layout_transform_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """Data that lie in an order of their own stay where they are."""
    attrs = LayoutTransformAttrs.of(call)
    axes = axes_of(RELAID, attrs.src_layout, attrs.dst_layout, "src_layout")
    return permutation_layout(orders[0], axes)


@computes_by_body(layout_transform)
@FBody.register(layout_transform)
def layout_transform_body(step: Step, words: Words) -> Value:
    """A transposition by letters."""
    axes = axes_of(RELAID, step.attrs.src_layout, step.attrs.dst_layout, "src_layout")
    return words.transpose(step.args[0], axes)
