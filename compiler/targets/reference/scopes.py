"""Which scope every node of a function belongs to: the nearest one that encloses all its uses.

Scopes are the body of the function and of every function literal, every branch of an If and every
clause of a Match. A node that both branches use is computed before the If; a node that one branch
uses is computed in that branch.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.adt import Match, pattern_vars
from compiler.ir.analysis import post_order
from compiler.ir.expr import Constant, Expr, Function, GlobalVar, If, Let, Op, Var
from compiler.ir.scope_tree import Scope, nearest_common


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
        self.root = root
        self.owner: dict[Expr, Scope] = {}
        self.inside: dict[Expr, list[Scope]] = {}
        self.used_inside: dict[Expr, list[Expr]] = {}
        self.bound: set[Var] = set()
        order = list(post_order(root))
        self._assign_owners(order)
        self._find_outer_uses(order)

    def _assign_owners(self, order: list[Expr]) -> None:
        outside = Scope(self.root)
        self.owner[self.root] = outside
        for node in reversed(order):
            scope = self.owner.get(node)
            if scope is None:
                continue
            self._open(node, scope)
            for child, use in self._uses(node, scope):
                held = self.owner.get(child)
                self.owner[child] = use if held is None else nearest_common(held, use)
        self._bind(order)

    def _open(self, node: Expr, scope: Scope) -> None:
        count = 0
        if isinstance(node, Function):
            count = 1
        elif isinstance(node, If):
            count = 2
        elif isinstance(node, Match):
            count = len(node.clauses)
        if count:
            self.inside[node] = [Scope(node, scope) for _ in range(count)]

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

    def _uses(self, node: Expr, scope: Scope) -> Iterator[tuple[Expr, Scope]]:
        """Operands that are computed, each with the scope that reads it."""
        if isinstance(node, Function):
            operands = [(node.body, self.inside[node][0])]
        elif isinstance(node, If):
            yes, no = self.inside[node]
            operands = [(node.cond, scope), (node.true_branch, yes), (node.false_branch, no)]
        elif isinstance(node, Match):
            operands = [(node.data, scope)]
            operands += [(c.rhs, s) for c, s in zip(node.clauses, self.inside[node])]
        elif isinstance(node, Let):
            operands = [(node.value, scope), (node.body, scope)]
        else:
            operands = [(child, scope) for child in node.operands()]
        for child, use in operands:
            if not isinstance(child, (Constant, Op, GlobalVar)):
                yield child, use

    def _find_outer_uses(self, order: list[Expr]) -> None:
        found: dict[Expr, dict[Expr, None]] = {}
        position = {node: k for k, node in enumerate(order)}
        for node in order:
            for child, use in self._uses(node, self.owner[node]) if node in self.owner else ():
                owner, scope = self.owner[child], use
                while scope is not owner and scope.parent is not None:
                    assert scope.construct is not None
                    known = found.setdefault(scope.construct, {})
                    if child in known:
                        break
                    known[child] = None
                    scope = scope.parent
        for construct, nodes in found.items():
            self.used_inside[construct] = sorted(nodes, key=position.__getitem__)
