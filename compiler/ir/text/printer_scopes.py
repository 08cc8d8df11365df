"""Which scope of the text a node belongs to: the nearest one that encloses all its uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from operator import methodcaller

from compiler.ir.adt import Match
from compiler.ir.expr import Constant, Expr, Function, If, Let, Op
from compiler.ir.scope_tree import Scope, placed, scoped_operands
from compiler.ir.walk import nodes_of, post_order

SCOPED = (Function, If, Match)
_SCOPES = (*SCOPED, Let)
_OPERANDS = methodcaller("operands")


@dataclass(slots=True)
class ScopePlan:
    """What the printer needs to know before it starts.

    ``uses`` counts parent edges, but in a text of one scope. ``flat_lets`` are lets printed as
    lines of the scope they end; any other let is a braced block. ``captured`` lists, per node that
    opens scopes, what of the surrounding scope is used inside, in post-order.
    """

    uses: Counter[Expr]
    flat_lets: set[Expr] = field(default_factory=set)
    captured: dict[Expr, list[Expr]] = field(default_factory=dict)


def plan_scopes(root: Expr) -> ScopePlan:
    """Plan the scopes below ``root``.

    A node's scope is the lowest common ancestor of the scopes of its uses, found users first.
    """
    if isinstance(root, Function) and is_flat(root):
        # Nothing is used from outside, and the result by nothing inside.
        return ScopePlan(Counter())
    order = list(post_order(root))
    plan = ScopePlan(Counter(chain.from_iterable(map(_OPERANDS, order))))
    nested = any(issubclass(kind, _SCOPES) for kind in set(map(type, order[:-1])))
    if nested or isinstance(root, Let):
        _place(root, order, plan)
    return plan


def is_flat(function: Function) -> bool:
    """Whether the body of a function is one scope of calls and tuples."""
    return bool(nodes_of(function)) and function.is_dataflow


class ScalarUses:
    """How often some expressions use each scalar constant; counted when it is first asked for."""

    def __init__(self, *roots: Expr) -> None:
        self._roots = roots
        self._uses: Counter[Expr] | None = None

    def of(self, constant: Constant) -> int:
        """Parent edges of one."""
        if self._uses is None:
            nodes = chain.from_iterable(map(post_order, self._roots))
            edges = chain.from_iterable(map(_OPERANDS, nodes))
            self._uses = Counter(n for n in edges if type(n) is Constant and n.is_scalar)
        return self._uses[constant]


def _place(root: Expr, order: list[Expr], plan: ScopePlan) -> None:
    edges: list[tuple[Expr, Scope]] = []
    if isinstance(root, Let):
        plan.flat_lets.add(root)

    def places(node: Expr, scope: Scope) -> list[tuple[Expr, Scope]]:
        found = _operand_scopes(node, scope, plan)
        used = [(child, where) for child, where in found if not isinstance(child, Op)]
        edges.extend(used)
        return used

    owner = placed(order, places)
    captured: dict[Expr, set[Expr]] = {}
    for child, scope in edges:
        home = owner[child]
        if scope is not home:
            inside = scope.at_depth(home.depth + 1).construct
            assert inside is not None
            captured.setdefault(inside, set()).add(child)
    position = {node: i for i, node in enumerate(order)}
    plan.captured = {
        node: sorted(found, key=position.__getitem__) for node, found in captured.items()
    }


def _operand_scopes(node: Expr, scope: Scope, plan: ScopePlan) -> list[tuple[Expr, Scope]]:
    def opened(result: Expr, around: Scope) -> Scope:
        if isinstance(result, Let) and plan.uses[result] == 1:
            plan.flat_lets.add(result)
        return Scope(node, around)

    if isinstance(node, Let):
        if node not in plan.flat_lets:
            scope = Scope(node, scope)
        if isinstance(node.body, Let) and plan.uses[node.body] == 1:
            plan.flat_lets.add(node.body)
    return scoped_operands(node, scope, opened)
