"""device_copy: the identity; moves a value from one virtual device to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.ir.op import NON_COMPUTATIONAL, OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ir.type_relation import identity_rel
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, same_value
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class DeviceCopyAttrs(OpAttrs):
    """Where the value is, and where it shall be."""

    type_key: ClassVar[str] = "DeviceCopyAttrs"
    src_virtual_device: VirtualDevice = UNCONSTRAINED
    dst_virtual_device: VirtualDevice = UNCONSTRAINED


device_copy = register_op(
    "device_copy",
    arg_names=("data",),
    attrs_type=DeviceCopyAttrs,
    rel=identity_rel,
    pattern=OpPattern.OPAQUE,
    flags=(NON_COMPUTATIONAL,),
)


@FNumpyCompute.register(device_copy)
def device_copy_numpy(attrs: DeviceCopyAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The value itself: one memory serves the reference executor."""
    return list(args)


FLower.register(device_copy)(same_value)
