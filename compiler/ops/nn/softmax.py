"""nn.softmax: exp(x - max) / sum(exp(x - max)) over one axis; nn.log_softmax: its logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type, is_float
from compiler.ir.type_relation import TypeRelation, result_rel
from compiler.ops.arg_types import normalize_axis, tensor_of_rank
from compiler.ops.nn.normalize import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class SoftmaxAttrs(OpAttrs):
    """The axis whose values sum to 1."""

    type_key: ClassVar[str] = "SoftmaxAttrs"
    axis: int = -1


def _softmax_rel(op: str) -> TypeRelation:
    def infer(types: Sequence[Any], attrs: SoftmaxAttrs) -> Type:
        data = tensor_of_rank(op, types, 0, "data", 1, at_least=True)
        normalize_axis(op, attrs.axis, len(data.shape))
        if not is_float(data.dtype):
            raise TypeInferenceError(f"{op}: data is {data}, a float dtype is needed")
        return data

    return result_rel(infer)


softmax = register_op(
    "nn.softmax",
    arg_names=("data",),
    attrs_type=SoftmaxAttrs,
    rel=_softmax_rel("nn.softmax"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(softmax)
def softmax_numpy(attrs: SoftmaxAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The maximum is taken away first, so that exp never overflows."""
    data = working(args[0])
    e = np.exp(data - data.max(axis=attrs.axis, keepdims=True))
    return [(e / e.sum(axis=attrs.axis, keepdims=True)).astype(args[0].dtype, copy=False)]


log_softmax = register_op(
    "nn.log_softmax",
    arg_names=("data",),
    attrs_type=SoftmaxAttrs,
    rel=_softmax_rel("nn.log_softmax"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(log_softmax)
def log_softmax_numpy(attrs: SoftmaxAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """x - max - log(sum(exp(x - max)))."""
    data = working(args[0])
    shifted = data - data.max(axis=attrs.axis, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=attrs.axis, keepdims=True))
    return [(shifted - total).astype(args[0].dtype, copy=False)]
