"""A function as a list of steps over numbered slots, so that it runs without walking the graph.

Every node has one slot; a step frees the slots it reads last. Branches and clauses are blocks of
their own within the same slots, a function literal is a plan of its own. A node belongs to the
nearest scope that encloses all its uses (the body of a function, a branch, a clause): a node that
both branches of an If use is computed before the If.

Exporters and C read ``compiler/ir/dataflow.py``. The plan is independent of it, because the
reference executor is what their results are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from compiler.errors import EvaluationError
from compiler.ir.adt import Constructor, Match, Pattern, RefCreate, RefRead, RefWrite, pattern_vars
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
from compiler.ir.scope_tree import Scope, placed, scoped_operands
from compiler.ir.walk import post_order
from compiler.ops.lowered.call_lowered import get_call_lowered_props
from compiler.ops.rules.numpy_compute import FNumpyCompute

# Stages of a node on the stack of a block under construction.
_OPEN = 0
_BIND = 1
_EMIT = 2


class Do(IntEnum):
    """Kind of a step."""

    OPERATOR = 0
    RECORD = 1
    MOVE = 2
    CALL = 3
    CLOSURE = 4
    IF = 5
    MATCH = 6
    KERNEL = 7


@dataclass(slots=True, eq=False)
class Step:
    """Compute ``node`` into slot ``out`` from the slots ``args``, then empty the slots ``frees``.

    ``detail`` is what the kind needs besides: the numpy function, a kernel's name, blocks, a plan.
    """

    do: Do
    node: Expr
    out: int
    args: tuple[int, ...] = ()
    detail: Any = None
    frees: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Block:
    """Steps that run in order; the value is then in slot ``result``."""

    steps: list[Step] = field(default_factory=list)
    result: int = -1


@dataclass(slots=True, eq=False)
class ClausePlan:
    """A clause of a Match: its pattern, the slots of its variables and the block of its value."""

    pattern: Pattern
    slots: dict[Var, int]
    block: Block


@dataclass(slots=True, eq=False)
class Plan:
    """A function, ready to run.

    Attributes:
        function: what it was made from.
        params: slots of the parameters.
        captures: (slot in the enclosing function's plan, slot here), one per captured value.
        constants: (slot, array or named thing), put in place before the first step.
        body: the steps.
        slots: node → slot; ``nodes`` is the inverse.
    """

    function: Function
    params: tuple[int, ...] = ()
    captures: tuple[tuple[int, int], ...] = ()
    constants: list[tuple[int, Any]] = field(default_factory=list)
    body: Block = field(default_factory=Block)
    slots: dict[Expr, int] = field(default_factory=dict)
    nodes: list[Expr] = field(default_factory=list)

    def slot(self, node: Expr) -> int:
        """The slot of a node, made on first use; constants are noted for the start."""
        held = self.slots.get(node)
        if held is None:
            held = len(self.nodes)
            self.slots[node] = held
            self.nodes.append(node)
            if isinstance(node, Constant):
                self.constants.append((held, node.data))
            elif isinstance(node, (Op, GlobalVar, Constructor)):
                self.constants.append((held, node))
        return held


_Work = tuple[Plan, Scope, Expr, Block]


def make_plan(function: Function) -> Plan:
    """The plan of a global function, and a plan for each function literal inside.

    Raises:
        EvaluationError: a free variable, or a node that cannot be evaluated.
    """
    scopes = ScopeMap(function)
    plan = Plan(function)
    plan.params = tuple(plan.slot(p) for p in function.params)
    work: list[_Work] = [(plan, scopes.inside[function][0], function.body, plan.body)]
    while work:
        _fill(scopes, *work.pop(), work)
    return plan


def _fill(
    scopes: ScopeMap, plan: Plan, scope: Scope, root: Expr, block: Block, work: list[_Work]
) -> None:
    """Write the steps of one block; nested blocks and plans are appended to ``work``."""
    builder = _BlockBuilder(scopes, plan, scope, block, work)
    stack: list[tuple[Expr, int]] = [(root, _OPEN)]
    done: set[Expr] = set()
    while stack:
        node, stage = stack.pop()
        if node in done or builder.given(node):
            continue
        if stage == _EMIT:
            done.add(node)
            builder.emit(node)
        elif stage == _BIND:
            assert isinstance(node, Let)
            builder.bind(node)
        elif isinstance(node, Let):
            # Bound before the body is looked at: what the body computes may read the variable.
            stack += [(node, _EMIT), (node.body, _OPEN), (node, _BIND), (node.value, _OPEN)]
        else:
            stack.append((node, _EMIT))
            stack.extend((n, _OPEN) for n in reversed(builder.needs(node)))
    block.result = plan.slot(root)
    _place_frees(block, plan, scope, scopes)


class _BlockBuilder:
    """Steps of the nodes one scope owns."""

    def __init__(
        self, scopes: ScopeMap, plan: Plan, scope: Scope, block: Block, work: list[_Work]
    ) -> None:
        self.scopes = scopes
        self.plan = plan
        self.scope = scope
        self.steps = block.steps
        self.work = work

    def given(self, node: Expr) -> bool:
        """True when no step of this block computes the node: bound, constant, or owned outside."""
        if isinstance(node, (Constant, Op, GlobalVar, Constructor)):
            return True
        if isinstance(node, Var):
            if node not in self.scopes.bound:
                raise EvaluationError(
                    f"free variable {describe(node)}", fix="make it a parameter", span=node.span
                )
            return True
        return self.scopes.owner[node] is not self.scope

    def needs(self, node: Expr) -> list[Expr]:
        """Nodes that are computed before this one, in order."""
        outer = self.scopes.used_inside.get(node, [])
        if isinstance(node, If):
            return [node.cond, *outer]
        if isinstance(node, Match):
            return [node.data, *outer]
        if isinstance(node, Function):
            return list(outer)
        lowered = get_call_lowered_props(node)
        if lowered is not None:
            return list(lowered.arguments)
        return list(node.operands())

    def bind(self, let: Let) -> None:
        """Append the step that gives a Let's variable its value."""
        self._add(Do.MOVE, let, (let.value,), self._self_capture(let), out=let.var)

    def emit(self, node: Expr) -> None:
        """Append the step of one node."""
        if isinstance(node, Let):
            self._add(Do.MOVE, node, (node.body,))
        elif isinstance(node, Call):
            self._call(node)
        elif isinstance(node, (Tuple, TupleGetItem, RefCreate, RefRead, RefWrite)):
            self._add(Do.RECORD, node, node.operands())
        elif isinstance(node, If):
            blocks = [
                self._block(scope, branch)
                for scope, branch in zip(
                    self.scopes.inside[node], (node.true_branch, node.false_branch)
                )
            ]
            self._add(Do.IF, node, (node.cond,), blocks)
        elif isinstance(node, Match):
            self._add(Do.MATCH, node, (node.data,), self._clauses(node))
        elif isinstance(node, Function):
            self._add(Do.CLOSURE, node, (), self._literal(node))
        else:
            raise EvaluationError(f"a {type(node).__name__} has no value", span=node.span)

    def _add(
        self,
        do: Do,
        node: Expr,
        args: tuple[Expr, ...],
        detail: Any = None,
        out: Expr | None = None,
    ) -> None:
        slots = tuple(self.plan.slot(a) for a in args)
        self.steps.append(Step(do, node, self.plan.slot(out or node), slots, detail))

    def _call(self, call: Call) -> None:
        lowered = get_call_lowered_props(call)
        if lowered is not None:
            name = lowered.lowered_func.name_hint
            reshapes = bool(lowered.attrs.metadata.get("relay.reshape_only"))
            self._add(Do.KERNEL, call, lowered.arguments, (name, reshapes))
        elif isinstance(call.op, Op):
            compute: Callable[..., Any] = FNumpyCompute.require(call.op)
            self._add(
                Do.OPERATOR, call, call.args, (compute, call.op, call.attrs, call.checked_type)
            )
        else:
            self._add(Do.CALL, call, (call.op, *call.args))

    def _block(self, scope: Scope, root: Expr) -> Block:
        block = Block()
        self.work.append((self.plan, scope, root, block))
        return block

    def _clauses(self, match: Match) -> list[ClausePlan]:
        found = []
        for clause, scope in zip(match.clauses, self.scopes.inside[match]):
            slots = {v: self.plan.slot(v) for v in pattern_vars(clause.lhs)}
            found.append(ClausePlan(clause.lhs, slots, self._block(scope, clause.rhs)))
        return found

    def _literal(self, function: Function) -> Plan:
        inner = Plan(function)
        inner.params = tuple(inner.slot(p) for p in function.params)
        captured = self.scopes.used_inside.get(function, [])
        inner.captures = tuple((self.plan.slot(n), inner.slot(n)) for n in captured)
        self.work.append((inner, self.scopes.inside[function][0], function.body, inner.body))
        return inner

    def _self_capture(self, let: Let) -> int | None:
        """Return the place of a recursive closure among its own captured values."""
        captured = self.scopes.used_inside.get(let.value, [])
        if isinstance(let.value, Function) and let.var in captured:
            return captured.index(let.var)
        return None


def _place_frees(block: Block, plan: Plan, scope: Scope, scopes: ScopeMap) -> None:
    """Let every slot this scope owns be emptied by the step that touches it last."""
    seen = {block.result}
    for step in reversed(block.steps):
        if step.do is not Do.MOVE:
            outer = scopes.used_inside.get(step.node, [])
        else:
            outer = []
        freed = []
        for slot in (step.out, *step.args, *(plan.slots[n] for n in outer)):
            if slot not in seen and scopes.owner.get(plan.nodes[slot]) is scope:
                freed.append(slot)
            seen.add(slot)
        step.frees = tuple(freed)


class ScopeMap:
    """Owner scope of every node reachable from one global function.

    Attributes:
        owner: node → its scope; absent for constants, operators and global names.
        inside: construct → its scopes: [body] of a Function, [true, false] of an If, clauses of a
            Match.
        bound: parameters, Let and pattern variables.
        used_inside: construct → nodes owned further out that something inside reads, in post-order.
    """

    def __init__(self, root: Function) -> None:
        self.inside: dict[Expr, list[Scope]] = {}
        self.bound: set[Var] = set()
        order = list(post_order(root))
        uses: list[tuple[Expr, Scope]] = []

        def places(node: Expr, scope: Scope) -> list[tuple[Expr, Scope]]:
            def opened(_: Expr, around: Scope) -> Scope:
                inner = Scope(node, around)
                self.inside.setdefault(node, []).append(inner)
                return inner

            found = scoped_operands(node, scope, opened)
            used = [
                (n, where) for n, where in found if not isinstance(n, (Constant, Op, GlobalVar))
            ]
            uses.extend(used)
            return used

        self.owner = placed(order, places)
        self._bind(order)
        self.used_inside = self._outer_uses(uses, order)

    def _bind(self, order: list[Expr]) -> None:
        """Variables belong to the scope that binds them, wherever they are used."""

        def bind(var: Var, scope: Scope) -> None:
            self.bound.add(var)
            self.owner[var] = scope

        for node in order:
            if isinstance(node, Function):
                for param in node.params:
                    bind(param, self.inside[node][0])
            elif isinstance(node, Let):
                bind(node.var, self.owner[node])
            elif isinstance(node, Match):
                for clause, scope in zip(node.clauses, self.inside[node]):
                    for var in pattern_vars(clause.lhs):
                        bind(var, scope)

    def _outer_uses(
        self, uses: list[tuple[Expr, Scope]], order: list[Expr]
    ) -> dict[Expr, list[Expr]]:
        found: dict[Expr, set[Expr]] = {}
        for node, scope in uses:
            owner = self.owner[node]
            while scope is not owner and scope.parent is not None:
                known = found.setdefault(scope.construct, set())
                if node in known:
                    break
                known.add(node)
                scope = scope.parent
        position = {node: k for k, node in enumerate(order)}
        return {
            construct: sorted(nodes, key=position.__getitem__) for construct, nodes in found.items()
        }
