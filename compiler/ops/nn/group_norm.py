"""nn.group_norm: channels in groups, each normalised over the axes from the channel axis on."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType
from compiler.ir.type_relation import Reporter
from compiler.ops.arg_types import Types, vectors_along_axis
from compiler.ops.nn.normalize import register_norm
from compiler.ops.op_attrs import OpAttrs


@dataclass(frozen=True, eq=False)
class GroupNormAttrs(OpAttrs):
    """Number of groups, channel axis, epsilon, and which of beta and gamma count."""

    num_groups: int
    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


_AFFINE = vectors_along_axis("nn.group_norm", "gamma", "beta")


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


def _groups(
    attrs: GroupNormAttrs, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The channel axis is split in place; axes in front of it are not reduced."""
    axis = attrs.axis % len(shape)
    size = shape[axis] // attrs.num_groups
    split = (*shape[:axis], attrs.num_groups, size, *shape[axis + 1 :])
    return split, tuple(range(axis + 1, len(split)))


register_norm(group_norm, _groups)
