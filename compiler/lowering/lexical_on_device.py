"""LexicalOnDeviceMixin: which virtual device is in force where a traversal stands.

It keeps the devices of the enclosing on_device calls and functions, of the variables in scope and
of the module's functions. Source: Relay v0.10 transforms/device_aware_visitors.cc.
"""

from __future__ import annotations

from compiler.errors import CompilerError
from compiler.ir.expr import Expr, Function, GlobalVar, Var, describe
from compiler.ir.module import IRModule
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.ops.annotation.on_device import get_on_device_props

Token = bool
"""What ``push_virtual_device`` returns and ``pop_virtual_device`` takes."""


class LexicalOnDeviceMixin:
    """State of a traversal; ``mod`` gives the devices of global functions, None gives none."""

    def __init__(self, mod: IRModule | None = None) -> None:
        self._devices: list[VirtualDevice] = []
        self._var_devices: dict[Var, VirtualDevice] = {}
        self._functions = mod if mod is not None else IRModule()

    def get_virtual_device(self, expr: Expr) -> VirtualDevice:
        """Where ``expr`` is computed, if it stands where the traversal stands."""
        props = get_on_device_props(expr)
        if props is not None and props.is_fixed:
            return props.virtual_device
        if isinstance(expr, Var):
            return self._var_devices.get(expr, UNCONSTRAINED)
        if isinstance(expr, GlobalVar):
            fn = self._functions[expr] if expr.name_hint in self._functions else None
            return fn.virtual_device if isinstance(fn, Function) else UNCONSTRAINED
        if isinstance(expr, Function) and not expr.has_nonzero_attr("Primitive"):
            return expr.virtual_device
        return self._devices[-1] if self._devices else UNCONSTRAINED

    def push_virtual_device(self, device: VirtualDevice) -> Token:
        """Enter a region; an unconstrained device leaves the outer one in force."""
        if device.is_fully_unconstrained:
            return False
        self._devices.append(device)
        return True

    def pop_virtual_device(self, token: Token) -> None:
        """Leave the region that gave this token."""
        if token:
            self._devices.pop()

    def push_bound_var(self, var: Var, device: VirtualDevice) -> None:
        """A variable comes into scope.

        Raises:
            CompilerError: it is in scope already.
        """
        if device.is_fully_unconstrained:
            return
        if var in self._var_devices:
            raise CompilerError(f"{describe(var)} is bound twice", span=var.span)
        self._var_devices[var] = device

    def pop_bound_var(self, var: Var) -> None:
        """A variable goes out of scope; one without a device was never noted."""
        self._var_devices.pop(var, None)

    def enter_function(self, function: Function) -> Token:
        """Bind the parameters of a function and enter its region."""
        for param in function.params:
            self.push_bound_var(param, param.virtual_device)
        return self.push_virtual_device(function.virtual_device)

    def leave_function(self, function: Function, token: Token) -> None:
        """Undo ``enter_function``."""
        self.pop_virtual_device(token)
        for param in function.params:
            self.pop_bound_var(param)
