"""nn.l2_normalize: x / sqrt(max(sum(x * x), eps)) over some axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Intrin, Scalar, literal
from compiler.ops.arg_types import Types, check_floats, normalize_axes, tensor
from compiler.ops.number_format import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.reduce.reduction_loops import reduce_axes, total_dtype
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class L2NormalizeAttrs(OpAttrs):
    """Smallest sum of squares, and the axes of the norm."""

    eps: float
    axis: tuple[int, ...]


@define_op(
    "nn.l2_normalize",
    arg_names=("data",),
    attrs_type=L2NormalizeAttrs,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)
def l2_normalize(types: Types, attrs: L2NormalizeAttrs) -> Type:
    """Type of the data, floats.

    Raises:
        TypeInferenceError: the data are no floats, or no axis is given.
    """
    data = tensor("nn.l2_normalize", types, 0, "data")
    if not attrs.axis:
        raise TypeInferenceError("nn.l2_normalize: no axis is given", fix="name one or more")
    normalize_axes("nn.l2_normalize", attrs.axis, len(data.shape))
    check_floats("nn.l2_normalize", data)
    return data


@FNumpyCompute.register(l2_normalize)
def l2_normalize_numpy(attrs: L2NormalizeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """eps is rounded to the dtype of the data."""
    data = working(args[0])
    squares = np.square(data).sum(axis=attrs.axis, keepdims=True)
    norm = np.sqrt(np.maximum(squares, data.dtype.type(attrs.eps)))
    return [(data / norm).astype(args[0].dtype, copy=False)]


@FLower.register(l2_normalize)
def l2_normalize_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """The norm, then quotients."""
    attrs = L2NormalizeAttrs.of(call)
    data = b.reusable(inputs[0].cast(total_dtype(inputs[0].dtype)))
    axes = tuple(sorted(axis % len(data.shape) for axis in attrs.axis))
    least = literal(attrs.eps, data.dtype)

    def root(total: Scalar, at: tuple[Scalar, ...]) -> Scalar:
        return Intrin("sqrt", (Bin("max", total, least),))

    norm = reduce_axes(
        b,
        data.shape,
        axes,
        Reduction("sum", literal(0, data.dtype), post=root),
        lambda at: Bin("*", data.at(at), data.at(at)),
        keepdims=True,
    )
    y = TensorView.of(data.shape, lambda at: Bin("/", data.at(at), norm.broadcast_at(at)))
    return [y.cast(inputs[0].dtype)]
