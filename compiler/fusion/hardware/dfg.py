"""DFG: the nodes of one function between which hardware groups are drawn, with their users.

A node per Call, Tuple, TupleGetItem, Constant and Var; anything else (Let, If, Function …) is a
node of kind "other", which never enters a group and makes what it uses ``extern``. Function
literals are not entered: each is a scope, and a DFG, of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Op, Tuple, TupleGetItem, Var
from compiler.ir.op import STATEFUL

KINDS: dict[type[Expr], str] = {
    Call: "call",
    Tuple: "tuple",
    TupleGetItem: "getitem",
    Constant: "constant",
    Var: "var",
}
OTHER = "other"


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One expression of the function.

    Attributes:
        ref: the expression.
        index: its place in post-order.
        kind: a value of KINDS, or "other".
        preds: its operands in order, one entry per use; operators and global names are left out.
        succs: its users, one entry per use.
        extern: used where no group may look: the function's result, or by a node of kind "other".
        constant: a Constant, or computed from constants only.
    """

    ref: Expr
    index: int
    kind: str
    preds: list[Node] = field(default_factory=list)
    succs: list[Node] = field(default_factory=list)
    extern: bool = False
    constant: bool = False

    @property
    def op_name(self) -> str | None:
        """Name of the operator it calls; None for anything else."""
        ref = self.ref
        if isinstance(ref, Call) and isinstance(ref.op, Op):
            return ref.op.name
        return None

    @property
    def call(self) -> Call:
        """The expression of a node that calls an operator."""
        assert isinstance(self.ref, Call)
        return self.ref

    def __repr__(self) -> str:
        return f"<{self.index}: {self.op_name or self.kind}>"


@dataclass(frozen=True, slots=True, eq=False)
class DFG:
    """The nodes of one function body in post-order, and the node of each expression."""

    nodes: list[Node]
    node_of: dict[Expr, Node]

    def unlink(self) -> None:
        """Nodes forget each other, when all has been read: reference counts then free them."""
        for node in self.nodes:
            node.preds = []
            node.succs = []

    def calls(self) -> Iterator[Node]:
        """Nodes that call an operator, in post-order."""
        return (node for node in self.nodes if node.op_name is not None)


class Creator:
    """Builds the DFG of a function: post-order, one node per expression, links."""

    @staticmethod
    def prepare(function: Function) -> DFG:
        """The DFG of the body of ``function``; linear in its size, without recursion."""
        nodes: list[Node] = []
        node_of: dict[Expr, Node] = {}
        for expr in scope_post_order(function.body):
            if isinstance(expr, (Op, GlobalVar)):
                continue
            node = Node(expr, len(nodes), KINDS.get(type(expr), OTHER))
            nodes.append(node)
            node_of[expr] = node
            if not isinstance(expr, Function):
                _link(node, node_of)
            node.constant = _is_constant(node)
        node_of[function.body].extern = True
        return DFG(nodes, node_of)


def scope_post_order(root: Expr) -> Iterator[Expr]:
    """Nodes of one scope, operands before users; a function literal is yielded, not entered."""
    return post_order(root, lambda node: () if isinstance(node, Function) else node.operands())


def _link(node: Node, node_of: dict[Expr, Node]) -> None:
    for operand in node.ref.operands():
        pred = node_of.get(operand)
        if pred is None:
            continue
        node.preds.append(pred)
        pred.succs.append(node)
        if node.kind == OTHER:
            pred.extern = True


def _is_constant(node: Node) -> bool:
    if node.kind == "constant":
        return True
    if node.kind == "call":
        op = node.call.op
        if not isinstance(op, Op) or STATEFUL in op.flags:
            return False
    elif node.kind not in ("tuple", "getitem"):
        return False
    return bool(node.preds) and all(pred.constant for pred in node.preds)
