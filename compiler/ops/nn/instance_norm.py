"""nn.instance_norm: normalisation over every axis but the batch (axis 0) and ``axis``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder
from compiler.ops.nn.normalization_loops import affine_view, standardized
from compiler.ops.nn.normalize import affine, affine_norm_rel, standardize, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.reduce.reduction_loops import total_dtype
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class InstanceNormAttrs(OpAttrs):
    """Channel axis, the constant added to the variance, and which of beta and gamma count."""

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


instance_norm = register_op(
    "nn.instance_norm",
    arg_names=("data", "gamma", "beta"),
    attrs_type=InstanceNormAttrs,
    rel=affine_norm_rel("nn.instance_norm"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(instance_norm)
def instance_norm_numpy(attrs: InstanceNormAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The variance divides by N."""
    data, gamma, beta = (working(a) for a in args)
    axis = attrs.axis % data.ndim
    axes = tuple(k for k in range(1, data.ndim) if k != axis)
    y = standardize(data, axes, attrs.epsilon)
    y = affine(y, gamma if attrs.scale else None, beta if attrs.center else None, axis)
    return [y.astype(args[0].dtype, copy=False)]


@FLower.register(instance_norm)
def instance_norm_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Mean, deviation, then one line per element."""
    attrs = InstanceNormAttrs.of(call)
    data, gamma, beta = inputs
    axis = attrs.axis % len(data.shape)
    axes = tuple(k for k in range(1, len(data.shape)) if k != axis)
    y = standardized(b, data.cast(total_dtype(data.dtype)), axes, attrs.epsilon)
    y = affine_view(y, gamma if attrs.scale else None, beta if attrs.center else None, axis)
    return [y.cast(data.dtype)]
