"""DeviceAwareExprVisitor and DeviceAwareExprMutator: traversals that know the device in force.

Dataflow, Let chains and the regions of fixed on_device calls are walked with an explicit stack:
a region is entered and left on the way. Only nested functions, branches and clauses recurse.
A node shared by two regions is handled in the one that reaches it first.

    pick            to                                         override
    the visitor     look, with the device at hand              device_aware_visit_function, …_call,
    the mutator     rewrite, with the device at hand           pre_visit_let_block, …_binding,
                                                               post_visit_let, post_visit_let_block

LexicalOnDeviceMixin knows which virtual device is in force: it keeps the devices of the enclosing
on_device calls and functions, of the variables in scope and of the module's functions.
Source: Relay v0.10 transforms/device_aware_visitors.cc.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from compiler.errors import CompilerError
from compiler.ir.adt import Constructor
from compiler.ir.expr import (
    Call,
    Expr,
    Function,
    GlobalVar,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.functor.expr_functor import DepthGuard
from compiler.ir.functor.mutator import ExprMutator
from compiler.ir.functor.traversal import dataflow_children, expand_dataflow
from compiler.ir.functor.visitor import ExprVisitor
from compiler.ir.module import IRModule
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.ops.annotation.on_device import get_on_device_props, maybe_on_device

Token = bool
"""``push_virtual_device`` returns one, and ``pop_virtual_device`` takes it."""


class LexicalOnDeviceMixin:
    """State of a traversal; ``mod`` gives the devices of global functions, None gives none."""

    def __init__(self, mod: IRModule | None = None) -> None:
        self._devices: list[VirtualDevice] = []
        self._var_devices: dict[Var, VirtualDevice] = {}
        self._functions = mod if mod is not None else IRModule()

    def get_virtual_device(self, expr: Expr) -> VirtualDevice:
        """Return the device of ``expr``, if it stands where the traversal stands."""
        props = get_on_device_props(expr)
        if props is not None and props.is_fixed:
            return props.virtual_device
        if isinstance(expr, Var):
            return self._var_devices.get(expr, UNCONSTRAINED)
        if isinstance(expr, GlobalVar):
            if expr.name_hint in self._functions:
                fn = self._functions[expr]
            else:
                fn = None
            if isinstance(fn, Function):
                return fn.virtual_device
            return UNCONSTRAINED
        if isinstance(expr, Function) and not expr.has_nonzero_attr("Primitive"):
            return expr.virtual_device
        if self._devices:
            return self._devices[-1]
        return UNCONSTRAINED

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


class _RegionWalk(LexicalOnDeviceMixin, ABC):
    """The walk that visitor and mutator share: through dataflow, in and out of regions."""

    _guard: DepthGuard

    @abstractmethod
    def _done(self, expr: Expr) -> bool:
        """True when a node needs no (further) handling."""

    @abstractmethod
    def _close(self, expr: Expr) -> None:
        """Handle a node whose dataflow children have been handled."""

    @abstractmethod
    def device_aware_visit_function(self, function: Function) -> Any:
        """Hook: what stands for a function, whose region has been entered."""

    def visit(self, expr: Expr, *args: Any) -> Any:
        """Handle ``expr`` and what it reaches."""
        if not self._done(expr):
            self._guard.enter(expr)
            try:
                self._walk(expr)
            finally:
                self._guard.leave()

    def visit_function(self, function: Function, *args: Any) -> Any:
        if function.has_nonzero_attr("Primitive"):
            return self.device_aware_visit_function(function)
        token = self.enter_function(function)
        result = self.device_aware_visit_function(function)
        self.leave_function(function, token)
        return result

    def _walk(self, root: Expr) -> None:
        regions: list[tuple[Expr, Token]] = []

        def opened(expr: Expr) -> Sequence[Expr]:
            region = _region(expr)
            if region is None:
                return dataflow_children(expr)
            body, device = region
            regions.append((expr, self.push_virtual_device(device)))
            return (body,)

        def left(expr: Expr) -> None:
            if regions and regions[-1][0] is expr:
                self.pop_virtual_device(regions.pop()[1])
            self._close(expr)

        expand_dataflow(root, self._done, left, opened)


def _region(expr: Expr) -> tuple[Expr, VirtualDevice] | None:
    """Body and device of a fixed on_device call."""
    props = get_on_device_props(expr)
    if props is not None and props.is_fixed:
        return (props.body, props.virtual_device)
    return None


class DeviceAwareExprVisitor(_RegionWalk, ExprVisitor):
    """Visits every node once; ``self.get_virtual_device(node)`` answers inside the hooks."""

    def __init__(self, mod: IRModule | None = None) -> None:
        LexicalOnDeviceMixin.__init__(self, mod)
        ExprVisitor.__init__(self)

    def _done(self, expr: Expr) -> bool:
        count = self.visit_counter.get(expr, 0)
        if count:
            self.visit_counter[expr] = count + 1
        return count > 0

    def _close(self, expr: Expr) -> None:
        self.dispatch(expr)
        self.visit_counter[expr] = 1

    def visit_call(self, call: Call, *args: Any) -> None:
        if _region(call) is None:
            self.device_aware_visit_call(call)

    def visit_tuple(self, tup: Tuple, *args: Any) -> None:
        """Hook; the fields have been visited."""

    def visit_tuple_getitem(self, item: TupleGetItem, *args: Any) -> None:
        """Hook; the tuple has been visited."""

    def visit_let(self, let: Let, *args: Any) -> None:
        self.pre_visit_let_block(let)
        chain: list[Let] = []
        node: Expr = let
        while isinstance(node, Let) and (node is let or node not in self.visit_counter):
            self.push_bound_var(node.var, self.get_virtual_device(node.value))
            self.pre_visit_let_binding(node.var, node.value)
            chain.append(node)
            node = node.body
        self.visit(node)
        for inner in reversed(chain):
            self.pop_bound_var(inner.var)
            self.post_visit_let(inner)
            if inner is not let:
                self.visit_counter[inner] = 1
        self.post_visit_let_block(let)

    def device_aware_visit_function(self, function: Function) -> None:
        """Hook: parameters and body of a function."""
        ExprVisitor.visit_function(self, function)

    def device_aware_visit_call(self, call: Call) -> None:
        """Hook: a call whose callee and arguments have been visited."""

    def pre_visit_let_block(self, let: Let) -> None:
        """Hook: the first Let of a chain, before its bindings."""

    def pre_visit_let_binding(self, var: Var, value: Expr) -> None:
        """Hook: one binding, from the outside inwards."""
        self.visit(var)
        self.visit(value)

    def post_visit_let(self, let: Let) -> None:
        """Hook: one Let, from the inside outwards; its variable is out of scope."""

    def post_visit_let_block(self, let: Let) -> None:
        """Hook: the first Let of a chain, after all."""


class DeviceAwareExprMutator(_RegionWalk, ExprMutator):
    """Rewrites every node once; ``self.get_virtual_device(node)`` answers inside the hooks."""

    def __init__(self, mod: IRModule | None = None) -> None:
        LexicalOnDeviceMixin.__init__(self, mod)
        ExprMutator.__init__(self)

    def visit(self, expr: Expr, *args: Any) -> Expr:
        """The new form of ``expr``."""
        super().visit(expr)
        return self.memo[expr]

    def _done(self, expr: Expr) -> bool:
        return expr in self.memo

    def _close(self, expr: Expr) -> None:
        self._rebuild(expr)

    def visit_call(self, call: Call, *args: Any) -> Expr:
        props = get_on_device_props(call)
        if props is None or not props.is_fixed:
            return self.device_aware_visit_call(call)
        body = self.visit(props.body)
        if body is props.body:
            return call
        return maybe_on_device(body, props.virtual_device, True, True)

    def visit_let(self, let: Let, *args: Any) -> Expr:
        self.pre_visit_let_block(let)
        chain: list[tuple[Let, Var, Expr]] = []
        node: Expr = let
        while isinstance(node, Let) and node not in self.memo:
            # Before the value is visited: a recursive function sees itself.
            self.push_bound_var(node.var, self.get_virtual_device(node.value))
            var, value = self.pre_visit_let_binding(node.var, node.value)
            chain.append((node, var, value))
            node = node.body
        result = self.visit(node)
        for pre, var, value in reversed(chain):
            self.pop_bound_var(pre.var)
            post = pre.with_fields(var=var, value=value, body=result)
            result = self.post_visit_let(pre, post)
            if pre is not let:
                self.memo[pre] = result
        return self.post_visit_let_block(let, result)

    def device_aware_visit_function(self, function: Function) -> Expr:
        """Hook: the new form of a function."""
        return ExprMutator.visit_function(self, function)

    def device_aware_visit_call(self, call: Call) -> Expr:
        """Hook: the new form of a call whose callee and arguments have been rewritten."""
        return ExprMutator.visit_call(self, call)

    def pre_visit_let_block(self, let: Let) -> None:
        """Hook: the first Let of a chain, before its bindings."""

    def pre_visit_let_binding(self, var: Var, value: Expr) -> tuple[Var, Expr]:
        """Hook: the new variable and value of one binding, from the outside inwards."""
        return self.visit_binder(var), self.visit(value)

    def post_visit_let(self, pre_let: Let, post_let: Let) -> Expr:
        """Hook: what stands for one Let, from the inside outwards; may drop the binding.

        ``post_let`` is ``pre_let`` itself where nothing has changed.
        """
        return post_let

    def post_visit_let_block(self, pre_let: Let, post: Expr) -> Expr:
        """Hook: the replacement of a whole Let chain; it need not be a Let."""
        return post


def recover_virtual_device_map(mod: IRModule | None, expr: Expr) -> dict[Expr, VirtualDevice]:
    """The device of every node below ``expr`` but operators and constructors."""
    recorder = _Recorder(mod)
    recorder.visit(expr)
    return recorder.found


class _Recorder(DeviceAwareExprVisitor):
    def __init__(self, mod: IRModule | None) -> None:
        super().__init__(mod)
        self.found: dict[Expr, VirtualDevice] = {}

    def dispatch(self, expr: Expr, *args: Any) -> None:
        if not isinstance(expr, (Op, Constructor)):
            self.found[expr] = self.get_virtual_device(expr)
        super().dispatch(expr)
