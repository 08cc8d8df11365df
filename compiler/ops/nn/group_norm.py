"""nn.group_norm: channels in groups, each normalised over the axes from the channel axis on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import Reporter
from compiler.lir.builder import LirBuilder
from compiler.ops.arg_types import Types
from compiler.ops.nn.normalization_loops import affine_view, standardized
from compiler.ops.nn.normalize import affine, affine_norm_rel, standardize, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.reduce.reduction_loops import total_dtype
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.row_major import reshaped


@dataclass(frozen=True, eq=False)
class GroupNormAttrs(OpAttrs):
    """Number of groups, channel axis, epsilon, and which of beta and gamma count."""

    num_groups: int
    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


_AFFINE = affine_norm_rel("nn.group_norm")


def group_norm_rel(
    types: Types, num_inputs: int, attrs: GroupNormAttrs, reporter: Reporter
) -> bool:
    """As layer_norm; the groups must divide the channels.

    Raises:
        TypeInferenceError: they do not.
    """
    if not _AFFINE(types, num_inputs, attrs, reporter):
        return False
    data = types[0]
    assert isinstance(data, TensorType)
    channels = data.shape[attrs.axis]
    if attrs.num_groups < 1 or (isinstance(channels, int) and channels % attrs.num_groups):
        raise TypeInferenceError(
            f"nn.group_norm: num_groups={attrs.num_groups} does not divide {channels} channels"
        )
    return True


group_norm = register_op(
    "nn.group_norm",
    arg_names=("data", "gamma", "beta"),
    attrs_type=GroupNormAttrs,
    rel=group_norm_rel,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(group_norm)
def group_norm_numpy(attrs: GroupNormAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The channel axis is split in place; axes in front of it are not reduced."""
    data, gamma, beta = (working(a) for a in args)
    axis = attrs.axis % data.ndim
    channels = data.shape[axis]
    shape = data.shape
    split = (*shape[:axis], attrs.num_groups, channels // attrs.num_groups, *shape[axis + 1 :])
    axes = tuple(range(axis + 1, len(split)))
    y = standardize(data.reshape(split), axes, attrs.epsilon).reshape(shape)
    y = affine(y, gamma if attrs.scale else None, beta if attrs.center else None, axis)
    return [y.astype(args[0].dtype, copy=False)]


@FLower.register(group_norm)
def group_norm_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Normalised with the channel axis split, then one line per element."""
    attrs = GroupNormAttrs.of(call)
    data, gamma, beta = inputs
    shape, axis = data.shape, attrs.axis % len(data.shape)
    size = shape[axis] // attrs.num_groups
    split = (*shape[:axis], attrs.num_groups, size, *shape[axis + 1 :])
    axes = tuple(range(axis + 1, len(split)))
    held = reshaped(data.cast(total_dtype(data.dtype)), split)
    y = reshaped(standardized(b, held, axes, attrs.epsilon), shape)
    y = affine_view(y, gamma if attrs.scale else None, beta if attrs.center else None, axis)
    return [y.cast(data.dtype)]
