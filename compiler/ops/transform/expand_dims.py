"""expand_dims(axis, num_newaxis): that many axes of size 1 in front of ``axis``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.errors import AttrError
from compiler.ir.op import RESHAPE, OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, normalize_axis, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class ExpandDimsAttrs(OpAttrs):
    """Where and how many; a negative axis counts from behind the last axis of the data."""

    axis: int
    num_newaxis: int = 1

    def __post_init__(self) -> None:
        OpAttrs.__post_init__(self)
        if self.num_newaxis < 0:
            raise AttrError(f"{self.type_key}: num_newaxis {self.num_newaxis} is negative")


def _expanded(shape: tuple[Any, ...], attrs: ExpandDimsAttrs) -> tuple[Any, ...]:
    at = normalize_axis("expand_dims", attrs.axis, len(shape) + 1)
    return (*shape[:at], *(1 for _ in range(attrs.num_newaxis)), *shape[at:])


@define_op(
    "expand_dims",
    arg_names=("data",),
    attrs_type=ExpandDimsAttrs,
    pattern=OpPattern.BROADCAST,
    flags=(RESHAPE,),
)
def expand_dims(types: Types, attrs: ExpandDimsAttrs) -> Type:
    """The shape with ones inserted."""
    data = tensor("expand_dims", types, 0, "data")
    return TensorType(_expanded(data.shape, attrs), data.dtype)


@FNumpyCompute.register(expand_dims)
def expand_dims_numpy(attrs: ExpandDimsAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [args[0].reshape(_expanded(args[0].shape, attrs))]
