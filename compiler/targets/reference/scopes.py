"""Which scope every node of a function belongs to: the nearest one that encloses all its uses.

Scopes are the body of the function and of every function literal, every branch of an If and every
clause of a Match. A node that both branches use is computed before the If; a node that one branch
uses is computed in that branch.
"""

from __future__ import annotations

from compiler.ir.adt import Match, pattern_vars
from compiler.ir.expr import Constant, Expr, Function, GlobalVar, Let, Op, Var
from compiler.ir.scope_tree import Scope, placed, scoped_operands
from compiler.ir.walk import post_order


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
