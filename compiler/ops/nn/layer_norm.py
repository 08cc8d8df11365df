"""nn.layer_norm: (x - mean) / sqrt(variance + epsilon) over one axis, times gamma, plus beta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.normalize import affine, affine_norm_rel, standardize, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class LayerNormAttrs(OpAttrs):
    """Normalised axis, the constant added to the variance, and which of beta and gamma count."""

    type_key: ClassVar[str] = "LayerNormAttrs"
    axis: int = -1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


layer_norm = register_op(
    "nn.layer_norm",
    arg_names=("data", "gamma", "beta"),
    attrs_type=LayerNormAttrs,
    rel=affine_norm_rel("nn.layer_norm"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(layer_norm)
def layer_norm_numpy(attrs: LayerNormAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The variance divides by N."""
    data, gamma, beta = (working(a) for a in args)
    y = standardize(data, (attrs.axis,), attrs.epsilon)
    y = affine(y, gamma if attrs.scale else None, beta if attrs.center else None, attrs.axis)
    return [y.astype(args[0].dtype, copy=False)]
