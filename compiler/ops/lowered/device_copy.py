"""device_copy: the identity; moves a value from one virtual device to another."""

from __future__ import annotations

from typing import NamedTuple

from compiler.ir.expr import Call, Expr
from compiler.ir.op import NON_COMPUTATIONAL
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.ops.annotation.on_device import get_on_device_props
from compiler.ops.identity import identity_op
from compiler.ops.op_attrs import OpAttrs


class DeviceCopyAttrs(OpAttrs):
    """Device of the value, and device of the copy."""

    src_virtual_device: VirtualDevice = UNCONSTRAINED
    dst_virtual_device: VirtualDevice = UNCONSTRAINED


device_copy = identity_op("device_copy", DeviceCopyAttrs, (NON_COMPUTATIONAL,))


class DeviceCopyProps(NamedTuple):
    """A ``device_copy`` taken apart."""

    body: Expr
    src_virtual_device: VirtualDevice
    dst_virtual_device: VirtualDevice


def get_device_copy_props(expr: Expr) -> DeviceCopyProps | None:
    """The parts of a ``device_copy``, seen through fixed on_device; None for anything else."""
    props = get_on_device_props(expr)
    if props is not None and props.is_fixed:
        expr = props.body
    if not isinstance(expr, Call) or expr.op is not device_copy:
        return None
    attrs = DeviceCopyAttrs.of(expr)
    return DeviceCopyProps(expr.args[0], attrs.src_virtual_device, attrs.dst_virtual_device)


def make_device_copy(body: Expr, src: VirtualDevice, dst: VirtualDevice) -> Call:
    """``device_copy(body, src, dst)``, typed where the body is."""
    call = Call(device_copy, (body,), DeviceCopyAttrs(src, dst), span=body.span)
    call.set_checked_type(body.checked_type_or_none)
    return call
