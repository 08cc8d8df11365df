"""The reference executor: any well-typed module on numpy, operator by operator.

Slow and obvious on purpose: every other executor is compared with it. Call by value, arguments left
to right, each node once per activation of its scope. Calls keep a stack of their own, so recursion
in the program is bounded by memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.at_work import at_work
from compiler.errors import CompilerError, EvaluationError
from compiler.ir.adt import (
    Constructor,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
)
from compiler.ir.dataflow import UNROLL_INNER
from compiler.ir.expr import Expr, Function, GlobalVar, Op, Tuple, TupleGetItem, Var, describe
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import closed
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.evaluate import Value, apply_rule, evaluate_op, flatten, shaped_like
from compiler.runtime.executor import Inputs
from compiler.runtime.kernels import Kernel
from compiler.targets.reference.inputs import checked_inputs
from compiler.targets.reference.plan import Block, Do, Plan, Step, make_plan

Tap = Callable[[Expr, Value], None]


@dataclass(slots=True, eq=False)
class Closure:
    """A function with the values it captured, in the order of ``plan.captures``; operators such as
    scan call it with ``run``."""

    plan: Plan
    captured: list[Any]
    run: Callable[[Closure, list[Any]], Any]

    def __call__(self, *args: Any) -> Any:
        """The value for values of the parameters."""
        return self.run(self, list(args))


@dataclass(slots=True, eq=False)
class Cell:
    """A mutable reference."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class AdtValue:
    """A value of an algebraic data type."""

    constructor: Constructor
    fields: tuple[Any, ...]


class ReferenceExecutor:
    """Runs one function of a module; implements ``runtime.executor.Executor``.

    Args:
        mod: a well-typed module; types are inferred when they are missing.
        function: name of the global function.
        kernels: run lowered functions, by their names; the others are evaluated with numpy or
            through their Relay body.
        tap: called as ``tap(node, value)`` with every parameter and every computed node (calls,
            tuples, items, Ifs, Matches), in the order of evaluation.
    Raises:
        TypeInferenceError: the module is ill-typed.
        EvaluationError: the function has free variables.
    """

    def __init__(
        self,
        mod: IRModule,
        function: str = "main",
        tap: Tap | None = None,
        kernels: Mapping[str, Kernel] | None = None,
    ) -> None:
        if mod[function].checked_type_or_none is None:
            mod = infer_module(mod)
        if function == "main":
            mod = closed(mod)
        self._mod = mod
        self._function: Function = mod[function]
        self.input_names = tuple(p.name_hint for p in self._function.params)
        self._tap = tap
        self._kernels = kernels or {}
        self._plans: dict[str, Plan] = {function: make_plan(self._function)}
        self._name = function

    def run(self, inputs: Inputs) -> list[NDArray[Any]]:
        """The results, tuples flattened from left to right.

        Args:
            inputs: a value for every parameter, of its dtype and shape, by name or in order.
        Raises:
            EvaluationError: an input does not fit, or the program cannot go on.
        """
        args = checked_inputs(self._function, inputs)
        with np.errstate(all="ignore"):
            machine = _Machine(self._plan_of, self._kernel, self._tap)
            value = machine.run(self._plans[self._name], args)
        results = flatten([value])
        for result in results:
            if not isinstance(result, np.ndarray):
                raise EvaluationError(
                    f"the result of @{self._name} holds a {type(result).__name__}, not only arrays"
                )
        return results

    def _kernel(self, name: str) -> Kernel | None:
        """Return the kernel of a lowered function; None where its Relay body runs."""
        found = self._mod[name]
        if isinstance(found, LoweredFunction):
            own = found.evaluate
        else:
            own = None
        return self._kernels.get(name, own)

    def _plan_of(self, name: str) -> Plan:
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plans[name] = make_plan(self._mod[name])
        return plan


@dataclass(slots=True, eq=False)
class _Frame:
    """A block on its way: which step comes next, and where its value goes.

    Attributes:
        step, target: the step that waits for the value, in the slots it is waiting in.
    """

    block: Block
    slots: list[Any]
    step: Step | None
    target: list[Any]
    at: int = 0


@dataclass(slots=True, eq=False)
class _Machine:
    """Runs plans with an explicit stack of frames."""

    plan_of: Callable[[str], Plan]
    kernel: Callable[[str], Kernel | None]
    tap: Tap | None
    inner: bool = False
    _frames: list[_Frame] = field(default_factory=list)

    def call(self, closure: Closure, args: list[Any]) -> Any:
        """A function that an operator calls, on a machine of its own.

        Raises:
            EvaluationError: such a function calls another one so.
        """
        if self.inner:
            raise EvaluationError("a loop within a loop is not evaluated", fix=UNROLL_INNER)
        inner = _Machine(self.plan_of, self.kernel, self.tap, inner=True)
        return inner.run(closure.plan, args, closure.captured)

    def run(self, plan: Plan, args: list[Any], captured: Any = ()) -> Any:
        result: list[Any] = [None]
        self._enter_function(plan, captured, args, None, result)
        frames = self._frames
        while frames:
            frame = frames[-1]
            steps = frame.block.steps
            if frame.at == len(steps):
                frames.pop()
                value = frame.slots[frame.block.result]
                if frame.step is None:
                    result[0] = value
                else:
                    self._finish(frame.step, frame.target, value)
                continue
            step = steps[frame.at]
            frame.at += 1
            at_work(_place, step.node)
            try:
                self._do(step, frame.slots)
            except CompilerError as error:
                error.add_note(f"while evaluating {_place(step.node)}")
                raise
        return result[0]

    def _callable(self, value: Any) -> Any:
        """A function of the module as what operators call; other values as they are."""
        if isinstance(value, GlobalVar):
            return Closure(self.plan_of(value.name_hint), [], self.call)
        return value

    def _finish(self, step: Step, slots: list[Any], value: Any) -> None:
        slots[step.out] = value
        if self.tap is not None and step.do not in (Do.MOVE, Do.CLOSURE):
            self.tap(step.node, value)
        for slot in step.frees:
            slots[slot] = None

    def _do(self, step: Step, slots: list[Any]) -> None:
        do = step.do
        value: Any
        if do is Do.OPERATOR:
            compute, op, attrs, out_type = step.detail
            args = [self._callable(slots[a]) for a in step.args]
            value = apply_rule(compute, op, attrs, args, out_type)
        elif do is Do.MOVE:
            value = slots[step.args[0]]
            if step.detail is not None:
                value.captured[step.detail] = value
        elif do is Do.RECORD:
            value = _of_record(step.node, [slots[a] for a in step.args])
        elif do is Do.CLOSURE:
            plan: Plan = step.detail
            value = Closure(plan, [slots[outer] for outer, _ in plan.captures], self.call)
        else:
            self._control(step, slots)
            return
        self._finish(step, slots, value)

    def _control(self, step: Step, slots: list[Any]) -> None:
        """Steps whose value is that of another block."""
        args = [slots[a] for a in step.args]
        if step.do is Do.KERNEL:
            self._call_kernel(step, args, slots)
        elif step.do is Do.CALL:
            self._call_value(args[0], args[1:], step, slots)
        elif step.do is Do.IF:
            branch = step.detail[0] if bool(args[0]) else step.detail[1]
            self._frames.append(_Frame(branch, slots, step, slots))
        else:
            self._match(args[0], step, slots)

    def _call_kernel(self, step: Step, args: list[Any], slots: list[Any]) -> None:
        """A lowered function; one that another compiler took keeps its Relay body."""
        name, reshape_only = step.detail
        ty = step.node.checked_type
        if reshape_only and isinstance(ty, TensorType):
            self._finish(step, slots, args[0].reshape(ty.concrete_shape))
            return
        kernel = self.kernel(name)
        if kernel is None:
            self._enter_function(self.plan_of(name), (), args, step, slots)
            return
        self._finish(step, slots, shaped_like(iter(kernel(flatten(args))), ty))

    def _call_value(self, callee: Any, args: list[Any], step: Step, slots: list[Any]) -> None:
        callee = self._callable(callee)
        if isinstance(callee, Closure):
            self._enter_function(callee.plan, callee.captured, args, step, slots)
        elif isinstance(callee, Op):
            attrs = callee.attrs_type.make() if callee.attrs_type else None
            value = evaluate_op(callee, attrs, args, step.node.checked_type)
            self._finish(step, slots, value)
        elif isinstance(callee, Constructor):
            self._finish(step, slots, AdtValue(callee, tuple(args)))
        else:
            raise EvaluationError(f"a {type(callee).__name__} cannot be called")

    def _enter_function(
        self, plan: Plan, captured: Any, args: list[Any], step: Step | None, target: list[Any]
    ) -> None:
        slots: list[Any] = [None] * len(plan.nodes)
        for slot, constant in plan.constants:
            slots[slot] = constant
        for (_, slot), value in zip(plan.captures, captured):
            slots[slot] = value
        for slot, value in zip(plan.params, args):
            slots[slot] = value
        if self.tap is not None:
            for param, value in zip(plan.function.params, args):
                self.tap(param, value)
        self._frames.append(_Frame(plan.body, slots, step, target))

    def _match(self, value: Any, step: Step, slots: list[Any]) -> None:
        for clause in step.detail:
            found: dict[Var, Any] = {}
            if _matches(clause.pattern, value, found):
                for var, bound in found.items():
                    slots[clause.slots[var]] = bound
                self._frames.append(_Frame(clause.block, slots, step, slots))
                return
        if isinstance(value, AdtValue):
            name = value.constructor.name_hint
        else:
            name = "the value"
        raise EvaluationError(f"no clause matches {name}", span=step.node.span)


def _of_record(node: Expr, args: list[Any]) -> Any:
    """Return the value of a tuple, of a field of one, or of an operation on a reference."""
    if isinstance(node, Tuple):
        return tuple(args)
    if isinstance(node, TupleGetItem):
        return args[0][node.index]
    if isinstance(node, RefCreate):
        return Cell(args[0])
    if isinstance(node, RefRead):
        return args[0].value
    args[0].value = args[1]
    return ()


def _matches(pattern: Pattern, value: Any, found: dict[Var, Any]) -> bool:
    stack = [(pattern, value)]
    while stack:
        top, held = stack.pop()
        if isinstance(top, PatternVar):
            found[top.var] = held
        elif isinstance(top, PatternTuple):
            stack.extend(zip(top.patterns, held))
        elif isinstance(top, PatternConstructor):
            wanted = top.constructor
            have = held.constructor
            if (wanted.belong_to, wanted.name_hint) != (have.belong_to, have.name_hint):
                return False
            stack.extend(zip(top.patterns, held.fields))
    return True


def _place(node: Expr) -> str:
    if node.span is not None:
        return f"{describe(node)}, {node.span}"
    return describe(node)
