"""on_device: the identity; says where a value, or the body making it, is computed."""

from __future__ import annotations

from typing import NamedTuple

from compiler.ir.adt import Constructor
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Op, Var
from compiler.ir.op import NON_COMPUTATIONAL
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice, join
from compiler.ops.identity import identity_op
from compiler.ops.op_attrs import OpAttrs


class OnDeviceAttrs(OpAttrs):
    """The device, and whether it binds the result, the body, or both."""

    virtual_device: VirtualDevice = UNCONSTRAINED
    constrain_result: bool = False
    constrain_body: bool = True


on_device = identity_op("on_device", OnDeviceAttrs, (NON_COMPUTATIONAL,), "body")


class OnDeviceProps(NamedTuple):
    """An ``on_device`` taken apart."""

    body: Expr
    virtual_device: VirtualDevice
    constrain_result: bool
    constrain_body: bool

    @property
    def is_fixed(self) -> bool:
        """True when body and result are on the device: nothing is to be found out."""
        return self.constrain_result and self.constrain_body


def get_on_device_props(expr: Expr) -> OnDeviceProps | None:
    """The parts of an ``on_device``; None for any other expression."""
    if not isinstance(expr, Call) or expr.op is not on_device:
        return None
    attrs = OnDeviceAttrs.of(expr)
    return OnDeviceProps(
        expr.args[0], attrs.virtual_device, attrs.constrain_result, attrs.constrain_body
    )


def make_on_device(
    body: Expr,
    virtual_device: VirtualDevice,
    constrain_result: bool = False,
    constrain_body: bool = True,
) -> Call:
    """``on_device(body, …)``, typed where the body is."""
    attrs = OnDeviceAttrs(virtual_device, constrain_result, constrain_body)
    call = Call(on_device, (body,), attrs, span=body.span)
    call.set_checked_type(body.checked_type_or_none)
    return call


def maybe_on_device(
    body: Expr,
    virtual_device: VirtualDevice,
    constrain_result: bool = False,
    constrain_body: bool = True,
) -> Expr:
    """``on_device`` where it says something.

    ``body`` itself where nothing is known of the device, and for what has its device in itself or
    has none: operators, function literals, names, variables and constructors. An on_device that
    wraps another becomes one.
    """
    if virtual_device.is_fully_unconstrained or isinstance(body, _WITHOUT_DEVICE):
        return body
    inner = get_on_device_props(body)
    if inner is None:
        device = None
    else:
        device = join(inner.virtual_device, virtual_device)
    if inner is None or device is None:
        return make_on_device(body, virtual_device, constrain_result, constrain_body)
    return make_on_device(
        inner.body,
        device,
        inner.constrain_result or constrain_result,
        inner.constrain_body or constrain_body,
    )


_WITHOUT_DEVICE = (Op, Function, GlobalVar, Var, Constructor)
