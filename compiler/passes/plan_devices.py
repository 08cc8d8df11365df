"""PlanDevices: every expression gets a device; values are copied where devices meet.

    before                                  after
    %0 = on_device(exp(%x), npu);           %0 = on_device(exp(%x), npu, fixed);
    tanh(%0)                                %1 = device_copy(%0, npu, cpu);
                                            tanh(%1)

An operator or kernel runs where its operands are and leaves its result there, unless on_device says
otherwise; branches and results lie where their If lies, conditions on the host. Expressions are
joined into domains by union-find, first what is said, then along the operands of calls; where two
domains that have different devices meet, a device_copy is put on the operand. A value that nothing
places goes to the default device. Afterwards a function has the ``virtual_device`` of its result,
each parameter has its own, and every change of device inside is a fixed on_device.
Not handled: values that go through references or algebraic data types (they stay on the default).
Source: Relay v0.10 transforms/device_planner.cc, simplified.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import CompilerError
from compiler.ir.analysis import post_order
from compiler.ir.disjoint_sets import DisjointSets
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import ModulePass, PassContext, register_pass
from compiler.ir.rebuild import with_operands
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice, default, join
from compiler.ops.annotation.on_device import get_on_device_props, maybe_on_device
from compiler.ops.lowered.device_copy import get_device_copy_props, make_device_copy
from compiler.passes.opaque_primitives import is_kernel, outside_kernels
from compiler.targets.compilation_config import CompilationConfig, device_of


@register_pass("PlanDevices", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class PlanDevices(ModulePass):
    """Place every expression.

    Args:
        config: devices and targets, or the text of the one target of all that is not placed.

    Raises:
        CompilerError: unknown target; on_device calls that contradict each other.
    """

    config: CompilationConfig | str = "c"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        config = self.config
        if isinstance(config, str):
            config = CompilationConfig.of(config)
        planned = {
            gv: _plan(fn, config)
            for gv, fn in mod.functions.items()
            if isinstance(fn, Function) and not is_kernel(fn)
        }
        return infer_module(mod.updated(planned))


def _plan(fn: Function, config: CompilationConfig) -> Function:
    order = outside_kernels(list(post_order(fn)), is_kernel)
    return _Placer(order, _Domains(order, config)).place(fn)


class _Domains:
    """Sets of expressions on one device."""

    def __init__(self, order: list[Expr], config: CompilationConfig) -> None:
        self._sets = DisjointSets[Expr]()
        self._device: dict[Expr, VirtualDevice] = {}
        self._config = config
        # What an accelerator computes is copied to it and from it; nothing else moves there.
        self._alone: set[Expr] = set()
        for node in order:
            self._say(node)
        for node in order:
            for operand in _carried(node):
                self._join(node, operand)

    def device(self, node: Expr) -> VirtualDevice:
        """Return the device of a node's value."""
        found = self._device.get(self._sets.root(node), UNCONSTRAINED)
        return default(found, self._config.default_primitive)

    def _say(self, node: Expr) -> None:
        """Record the devices that annotations, kernels of other compilers and scopes fix."""
        props = get_on_device_props(node)
        if props is not None:
            copy = None
        else:
            copy = get_device_copy_props(node)
        if props is not None:
            if props.constrain_body:
                self._fix(props.body, props.virtual_device)
            if props.constrain_result:
                self._fix(node, props.virtual_device)
        elif copy is not None:
            self._fix(copy.body, copy.src_virtual_device)
            self._fix(node, copy.dst_virtual_device)
        elif isinstance(node, Var):
            self._fix(node, node.virtual_device)
        elif isinstance(node, If):
            self._fix(node.cond, self._config.host)
        elif isinstance(node, Call) and isinstance(node.op, Function):
            target = self._config.targets_by_kind.get(node.op.get_attr("Compiler", ""))
            if target is not None:
                self._alone.add(node)
                self._fix(node, device_of(target))

    def _fix(self, node: Expr, device: VirtualDevice) -> None:
        if device.is_fully_unconstrained or not _has_device(node):
            return
        root = self._sets.root(node)
        joined = join(self._device.get(root, UNCONSTRAINED), device)
        if joined is None:
            raise CompilerError(
                f"{describe(node)} is asked to be on two devices: "
                f"{self._device[root]} and {device}",
                fix="put a device_copy or another on_device between the two",
                span=node.span,
            )
        self._device[root] = joined

    def _join(self, a: Expr, b: Expr) -> None:
        """Put two expressions together, unless they are on different devices."""
        if not (_has_device(a) and _has_device(b)) or a in self._alone or b in self._alone:
            return
        a = self._sets.root(a)
        b = self._sets.root(b)
        if a is b:
            return
        joined = join(self._device.get(a, UNCONSTRAINED), self._device.get(b, UNCONSTRAINED))
        if joined is None:
            return
        self._sets.merge(b, a)
        self._device[a] = joined


def _has_device(node: Expr) -> bool:
    """Operators and names have none; a constant is wherever it is read."""
    return not isinstance(node, (Op, GlobalVar, Constant, Function))


def _carried(node: Expr) -> tuple[Expr, ...]:
    """Operands that are on the device of the node itself."""
    if get_on_device_props(node) is not None or get_device_copy_props(node) is not None:
        return ()
    if isinstance(node, Call):
        return node.args
    if isinstance(node, (Tuple, TupleGetItem)):
        return node.operands()
    if isinstance(node, Let):
        return (node.body,)
    if isinstance(node, If):
        return (node.true_branch, node.false_branch)
    return ()


class _Placer:
    """Rebuilds a function with on_device and device_copy where domains meet."""

    def __init__(self, order: list[Expr], domains: _Domains) -> None:
        self._order = order
        self._domains = domains
        self._new: dict[Expr, Expr] = {}
        self._copies: dict[tuple[Expr, VirtualDevice], Expr] = {}
        self._value_device: dict[Var, VirtualDevice] = {}

    def place(self, fn: Function) -> Function:
        for node in self._order:
            if isinstance(node, Let):
                self._value_device[node.var] = self._domains.device(node.value)
        for node in self._order:
            self._new[node] = self._placed(node)
        result = self._new[fn]
        assert isinstance(result, Function)
        return result

    def _device(self, node: Expr) -> VirtualDevice:
        """A let variable is where its value is."""
        if isinstance(node, Var):
            held = self._value_device.get(node)
        else:
            held = None
        if held is None:
            return self._domains.device(node)
        return held

    def _placed(self, node: Expr) -> Expr:
        if isinstance(node, Var):
            return self._placed_var(node)
        if isinstance(node, Function):
            if is_kernel(node):
                return node
            return self._placed_function(node)
        placed = get_on_device_props(node) or get_device_copy_props(node)
        if placed is not None:
            return self._operand(placed.body, self._device(node))
        carried = set(map(id, _carried(node)))
        mine = self._device(node)
        operands: list[Expr] = []
        for operand in node.operands():
            if id(operand) in carried:
                operands.append(self._operand(operand, mine))
            elif isinstance(node, If) and operand is node.cond:
                operands.append(self._elsewhere(operand, self._domains._config.host, mine))
            elif isinstance(node, Let) and operand is node.value:
                operands.append(self._wrapped(operand, mine))
            else:
                operands.append(self._new[operand])
        new = with_operands(node, operands)
        return _typed(new, node)

    def _placed_var(self, var: Var) -> Expr:
        device = self._device(var)
        if var.virtual_device is device or var in self._value_device:
            return var
        new = var.with_fields(virtual_device=device)
        return _typed(new, var)

    def _placed_function(self, function: Function) -> Function:
        params = tuple(self._new[p] for p in function.params)
        device = self._device(function.body)
        new = function.with_fields(
            params=params, body=self._new[function.body], virtual_device=device
        )
        new.set_checked_type(function.checked_type_or_none)
        return new

    def _operand(self, node: Expr, wanted: VirtualDevice) -> Expr:
        """The value of ``node`` where it is wanted, read in a region of that device."""
        return self._elsewhere(node, wanted, wanted)

    def _elsewhere(self, node: Expr, wanted: VirtualDevice, region: VirtualDevice) -> Expr:
        """The value of ``node`` on ``wanted``, read in a region of device ``region``."""
        if not _has_device(node):
            return self._new[node]
        have = self._device(node)
        if have is wanted:
            return self._wrapped(node, region)
        copied = self._copies.get((node, wanted))
        if copied is None:
            inner = maybe_on_device(self._new[node], have, True, True)
            copied = self._copies[node, wanted] = make_device_copy(inner, have, wanted)
        if wanted is region:
            return copied
        return maybe_on_device(copied, wanted, True, True)

    def _wrapped(self, node: Expr, region: VirtualDevice) -> Expr:
        """``node`` as it is in a region of its own device, in a fixed on_device elsewhere."""
        device = self._device(node)
        if not _has_device(node) or device is region:
            return self._new[node]
        return maybe_on_device(self._new[node], device, True, True)


def _typed(new: Expr, old: Expr) -> Expr:
    if new is not old:
        new.set_checked_type(old.checked_type_or_none)
    return new
