"""broadcast_to(shape) and broadcast_to_like(data, like): axes of size 1 are repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Shape, TensorType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.ops.arg_types import Types, shape_text, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_shape


@dataclass(frozen=True, eq=False)
class BroadcastToAttrs(OpAttrs):
    """The shape of the result."""

    shape: tuple[int, ...]


def _repeated(op: str, data: TensorType, shape: Shape) -> Type:
    if broadcast_shape(op, data.shape, shape) != shape:
        raise TypeInferenceError(
            f"{op}: {shape_text(data.shape)} does not broadcast to {shape_text(shape)}"
        )
    return TensorType(shape, data.dtype)


@define_op(
    "broadcast_to", arg_names=("data",), attrs_type=BroadcastToAttrs, pattern=OpPattern.BROADCAST
)
def broadcast_to(types: Types, attrs: BroadcastToAttrs) -> Type:
    """The named shape.

    Raises:
        TypeInferenceError: the data do not broadcast to it.
    """
    if any(d < 0 for d in attrs.shape):
        raise TypeInferenceError(f"broadcast_to: shape {list(attrs.shape)} has a negative size")
    return _repeated("broadcast_to", tensor("broadcast_to", types, 0, "data"), attrs.shape)


@define_op("broadcast_to_like", arg_names=("data", "like"), pattern=OpPattern.BROADCAST)
def broadcast_to_like(types: Types, attrs: Any) -> Type:
    """The shape of argument 1."""
    data = tensor("broadcast_to_like", types, 0, "data")
    like = tensor("broadcast_to_like", types, 1, "like")
    return _repeated("broadcast_to_like", data, like.shape)


@FNumpyCompute.register(broadcast_to)
def broadcast_to_numpy(attrs: BroadcastToAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy, so that every element has memory of its own."""
    return [np.array(np.broadcast_to(args[0], attrs.shape))]


@FNumpyCompute.register(broadcast_to_like)
def broadcast_to_like_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """As broadcast_to."""
    return [np.array(np.broadcast_to(args[0], args[1].shape))]


@FLower.register(broadcast_to, broadcast_to_like)
def broadcast_to_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Index 0 on axes of size 1."""
    data = inputs[0]
    return [TensorView.of(out_types[0].concrete_shape, data.broadcast_at)]


@FBody.register("broadcast_to_like")
def broadcast_to_like_body(step: Step, words: Words) -> Value:
    """broadcast_to with the shape of the other."""
    return words.broadcast(step.args[0], shape_of(step.results[0]))
