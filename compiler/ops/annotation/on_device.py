"""annotation.on_device: the identity; says where a value, or the body making it, is computed."""

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
class OnDeviceAttrs(OpAttrs):
    """The device, and whether it binds the result, the body, or both."""

    type_key: ClassVar[str] = "OnDeviceAttrs"
    virtual_device: VirtualDevice = UNCONSTRAINED
    constrain_result: bool = False
    constrain_body: bool = True


on_device = register_op(
    "annotation.on_device",
    arg_names=("body",),
    attrs_type=OnDeviceAttrs,
    rel=identity_rel,
    pattern=OpPattern.OPAQUE,
    flags=(NON_COMPUTATIONAL,),
)


@FNumpyCompute.register(on_device)
def on_device_numpy(attrs: OnDeviceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The value itself."""
    return list(args)


FLower.register(on_device)(same_value)
