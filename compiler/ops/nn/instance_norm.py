"""nn.instance_norm: normalisation over every axis but the batch (axis 0) and ``axis``."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.op import OpPattern, register_op
from compiler.ops.arg_types import vectors_along_axis
from compiler.ops.nn.normalize import register_norm
from compiler.ops.op_attrs import OpAttrs


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
    rel=vectors_along_axis("nn.instance_norm", "gamma", "beta"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


register_norm(
    instance_norm,
    lambda attrs, shape: (
        shape,
        tuple(k for k in range(1, len(shape)) if k != attrs.axis % len(shape)),
    ),
)
