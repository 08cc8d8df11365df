"""Plan how many inputs and rounds a test of a module runs, from types and attributes alone.

``declared_work`` adds up one run of ``main``; ``run_seconds`` says how long it takes in every form.
This is a plan: limits of the process end a module that takes more than it declares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from compiler.errors import ArtifactError, CompilerError
from compiler.ir.adt import Match, RefCreate, RefRead, RefWrite
from compiler.ir.expr import Call, Expr, Function, GlobalVar, If, Op
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, bits, tensor_fields
from compiler.ir.walk import nodes_of, post_order
from compiler.ops.lowered.call_lowered import CallLoweredAttrs
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.transform.scan import ScanAttrs

MAX_CPU_S: Final = 60
"""Upper limit of the planned CPU seconds of one run in every form."""
RUN_S_PER_UNIT: Final = 1.3e-9
"""CPU seconds of a unit: a multiplication of efficientnet_lite0 with its share of all else."""
RUN_S_PER_STEP: Final = 1e-4
"""CPU seconds of a call of an operator in every form, however small."""
RUN_S_PER_TURN: Final = 1e-5
"""The same within a loop, which calls nothing but the operators of its body."""
REPLAY_CPU_S: Final = 15
"""CPU seconds of all inputs that a verification runs."""
KINDS: Final = 3
"""Inputs that run in any case: a real one, special floats, and the ends of the core's ranges."""
MAX_INPUTS: Final = 64
_RUN_STEPS: Final = 12
"""Operators that take as long as a run has to be begun and compared."""
_MOST: Final = 1 << 80
_BRANCHES: Final = (If, Match, RefCreate, RefRead, RefWrite)
_MOVES: Final = ("reshape", "squeeze", "expand_dims", "nn.batch_flatten", "copy")
_ELEMENT_UNITS: Final = 36
"""Units of an element that an operator reads or writes; 4 to 60 are measured of most."""
_PRODUCT_UNITS: Final = ((8, 0.25, 12), (32, 10, 40), (64, 50, 60))
"""Bits of the operands, units of a multiplication and of an element of the result: a product of 8
bits is one matrix product on BLAS, wider ones are several, or none."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one run.

    Attributes:
        macs: multiplications with their additions.
        units: cost of all operators; see ``RUN_S_PER_UNIT``.
        steps: operators that every form holds.
        calls: operators that one run calls; those of a loop in each of its turns.
    """

    macs: int = 0
    units: int = 0
    steps: int = 0
    calls: int = 0

    def plus(self, other: Work, times: int = 1) -> Work:
        """Add work that is done some times; a form holds its steps once."""
        return Work(
            min(self.macs + other.macs * times, _MOST),
            min(self.units + other.units * times, _MOST),
            min(self.steps + other.steps, _MOST),
            min(self.calls + other.calls * times, _MOST),
        )


def declared_work(mod: IRModule, function: str = "main") -> Work:
    """Add up the work of one run of a function.

    Args:
        mod: typed.
    Raises:
        ArtifactError: the work has no bound: recursion, a closure, a branch, an unknown shape.
    """
    done: dict[Any, Work] = {}
    begun: set[Any] = set()
    waiting: list[Any] = [mod[function]]
    while waiting:
        fn = waiting[-1]
        if fn in done or not isinstance(fn, Function):
            done.setdefault(fn, Work())
            waiting.pop()
            continue
        nodes = nodes_of(fn)
        if any(type(node) is Function for node in nodes):
            nodes = tuple(
                post_order(fn.body, lambda n: () if type(n) is Function else n.operands())
            )
        called = [_callee(mod, node) for node in nodes if isinstance(node, GlobalVar | Function)]
        missing = [callee for callee in called if callee not in done]
        if not missing:
            done[fn] = _of_nodes(mod, nodes, done)
            waiting.pop()
        elif fn in begun:
            raise _unbounded("a function calls itself")
        else:
            begun.add(fn)
            waiting.extend(dict.fromkeys(missing))
    return done[mod[function]]


def _callee(mod: IRModule, node: Expr) -> Any:
    if isinstance(node, GlobalVar):
        return mod[node]
    return node


def _of_nodes(mod: IRModule, nodes: Sequence[Expr], done: Mapping[Any, Work]) -> Work:
    total = Work()
    for node in nodes:
        if isinstance(node, _BRANCHES):
            raise _unbounded(f"it holds a {type(node).__name__}")
        if not isinstance(node, Call):
            continue
        if isinstance(node.op, Op):
            total = total.plus(_of_call(node, node.op))
            for arg in node.args:
                if isinstance(arg, GlobalVar | Function):
                    total = total.plus(done[_callee(mod, arg)], _turns(node))
        elif isinstance(node.op, GlobalVar | Function):
            total = total.plus(done[_callee(mod, node.op)])
        else:
            raise _unbounded("it calls a value")
    return total


def _turns(loop: Call) -> int:
    """Return the number of calls of a function that an operator takes."""
    if isinstance(loop.attrs, ScanAttrs):
        return loop.attrs.length
    if isinstance(loop.attrs, CallLoweredAttrs):
        return 1
    raise _unbounded(f"{getattr(loop.op, 'name', 'a value')} takes a function")


def _of_call(call: Call, op: Op) -> Work:
    operands = [ty for arg in call.args for ty in tensor_fields(arg.checked_type)]
    results = tensor_fields(call.checked_type)
    tensors = (*operands, *results)
    if any(not isinstance(dim, int) for ty in tensors for dim in ty.shape):
        raise _unbounded(f"{op.name} has a result of unknown shape")
    widest = max((bits(ty.dtype) for ty in operands), default=0)
    out = sum(map(_elements, results))
    product = FQProductShape.get(op)
    if product is not None:
        macs = out * product(call).terms
        of_mac, of_element = next(units for most, *units in _PRODUCT_UNITS if widest <= most)
        return Work(macs, int(of_mac * macs) + int(of_element) * out, 1, 1)
    if op.name in _MOVES:
        return Work(steps=1, calls=1)
    # Every tap of a window is two nodes of the integer ONNX, whose time grows with their square.
    taps = math.prod(getattr(call.attrs, "pool_size", ()))
    touched = taps * max(map(_elements, tensors), default=0)
    return Work(0, _ELEMENT_UNITS * touched + 17 * (taps * taps - 1), 1, 1)


def _elements(ty: TensorType) -> int:
    """Count elements; an axis of 0 counts as 1, since operators index the others."""
    return math.prod(max(size, 1) for size in ty.concrete_shape)


def _unbounded(what: str) -> ArtifactError:
    return ArtifactError(
        f"how much work the module is cannot be told: {what}",
        fix="--allow-large runs it all the same, for as long as it takes",
    )


def known_work(mod: IRModule) -> Work | None:
    """Return the work of one run of main; None if it has no bound."""
    try:
        return declared_work(mod)
    except CompilerError:
        return None


def run_seconds(work: Work) -> float:
    """CPU seconds of one run in every form that ships, about."""
    calls = RUN_S_PER_STEP * (work.steps + _RUN_STEPS) + RUN_S_PER_TURN * (work.calls - work.steps)
    return RUN_S_PER_UNIT * work.units + calls


def replay_inputs(work: Work) -> int:
    """Return the number of inputs that a verification runs; 1 if one takes most of MAX_CPU_S."""
    seconds = run_seconds(work)
    least = max(1, min(KINDS, int(MAX_CPU_S / seconds)))
    return min(MAX_INPUTS, max(least, int(REPLAY_CPU_S / seconds)))


def planned_seconds(work: Work) -> float:
    """CPU seconds of the replay and the stepped forms of a verification, at most."""
    return 2 * run_seconds(work) * replay_inputs(work)


def check_work(work: Work) -> None:
    """Refuse a module that is planned to run longer than MAX_CPU_S.

    Raises:
        ArtifactError: one run takes more.
    """
    seconds = run_seconds(work)
    if seconds > MAX_CPU_S:
        raise ArtifactError(
            f"the module declares {seconds:.3g} CPU seconds for one run in every form, more than "
            f"{MAX_CPU_S}",
            fix="--allow-large runs it all the same, if you trust where it comes from",
        )


def refusal_expected(mod: IRModule) -> str:
    """Explain why ``verify`` will refuse the module of a float module; "" if it will not.

    Args:
        mod: typed; its products will have 8 bits.
    """
    try:
        work = declared_work(mod)
        check_work(replace(work, units=work.units - 9 * work.macs))
    except ArtifactError as error:
        return f"`qsearch verify` will refuse the module without --allow-large: {error.what}"
    return ""
