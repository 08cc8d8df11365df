"""IndexedForwardGraph: the nodes of a function in post-order, each with the edges that leave it.

An edge carries the pattern by which its value is read. A value that code outside kernels reads
(results, callees, operands of Let, If, Match and references) is marked ``extern_ref``: the kernel
that makes the value ends there.
Source: Relay v0.10 IndexedForwardGraph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from compiler.ir.adt import Constructor
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Let, Op, Tuple, TupleGetItem
from compiler.ir.op import OpPattern
from compiler.ir.ty import TensorType, TupleType, is_dynamic
from compiler.ir.walk import post_order
from compiler.passes.opaque_primitives import is_kernel

SIMPLE_DTYPES = frozenset({"int32", "int64", "float32", "float64", "bool"})
"""Rank-0 constants of these dtypes are written into every kernel that reads them."""


@dataclass(slots=True, eq=False)
class GraphNode:
    """One expression.

    Attributes:
        ref: the expression.
        index: its place in post-order.
        pattern: how the node may be fused.
        extern_ref: something other than an operator's kernel reads it.
        outputs: consumers and the pattern by which each reads the value.
    """

    ref: Expr
    index: int = -1
    pattern: int = OpPattern.OPAQUE
    extern_ref: bool = False
    outputs: list[tuple[GraphNode, int]] = field(default_factory=list)


def is_simple_constant(expr: Expr) -> bool:
    """True for a rank-0 constant that is cheaper to repeat than to pass."""
    return isinstance(expr, Constant) and expr.is_scalar and expr.tensor_type.dtype in SIMPLE_DTYPES


def is_inlined(expr: Expr, link_params: bool) -> bool:
    """True for a constant that lies inside the kernels that read it."""
    return is_simple_constant(expr) or (link_params and isinstance(expr, Constant))


class IndexedForwardGraph:
    """The graph of everything that ``root`` reaches; it must be typed. O(nodes + edges).

    Attributes:
        nodes: in post-order; ``nodes[i].index == i``.
        of: the node of an expression.
    """

    def __init__(self, root: Expr) -> None:
        self.of: dict[Expr, GraphNode] = {}
        self.nodes: list[GraphNode] = []
        self._extern(root)
        for expr in post_order(root, self._enter):
            self._add(expr)

    def _enter(self, expr: Expr) -> tuple[Expr, ...]:
        """The edges into an expression; what is numbered before it."""
        return _ENTER.get(type(expr), IndexedForwardGraph._opaque)(self, expr)

    def _node(self, expr: Expr) -> GraphNode:
        node = self.of.get(expr)
        if node is None:
            node = self.of[expr] = GraphNode(expr)
        return node

    def _extern(self, *exprs: Expr) -> None:
        for expr in exprs:
            if type(expr) not in _WITHOUT_NODE:
                self._node(expr).extern_ref = True

    def _edge(self, source: Expr, target: GraphNode, pattern: int) -> None:
        if type(source) not in _WITHOUT_NODE:
            self._node(source).outputs.append((target, pattern))

    def _add(self, expr: Expr) -> None:
        """Number a node whose children have been numbered."""
        if type(expr) in _WITHOUT_NODE:
            return
        node = self._node(expr)
        node.index = len(self.nodes)
        self.nodes.append(node)
        if is_simple_constant(expr):
            node.pattern = OpPattern.ELEMWISE

    def _call(self, call: Call) -> tuple[Expr, ...]:
        node = self._node(call)
        if not isinstance(call.op, Op):
            self._edge(call.op, node, OpPattern.OPAQUE)
            self._extern(call.op)
            for arg in call.args:
                self._edge(arg, node, OpPattern.OPAQUE)
            return (call.op, *call.args)
        pattern = OpPattern.OPAQUE if call.op.pattern is None else call.op.pattern
        result = call.checked_type
        if is_dynamic(result) and SHAPE_DATA_DEPENDENT in call.op.flags:
            pattern = OpPattern.OPAQUE
        node.pattern = pattern
        shape = result.shape if isinstance(result, TensorType) else None
        for arg in call.args:
            edge = pattern
            if pattern == OpPattern.BROADCAST:
                ty = arg.checked_type
                if isinstance(ty, TensorType) and ty.shape == shape:
                    edge = OpPattern.ELEMWISE
            self._edge(arg, node, edge)
        return call.args

    def _tuple(self, tup: Tuple) -> tuple[Expr, ...]:
        node = self._node(tup)
        node.pattern = OpPattern.TUPLE
        for field_ in tup.fields:
            if isinstance(field_.checked_type, TensorType):
                self._edge(field_, node, OpPattern.INJECTIVE)
            else:
                self._extern(field_)
        return tup.fields

    def _tuple_getitem(self, item: TupleGetItem) -> tuple[Expr, ...]:
        node = self._node(item)
        ty = item.tuple.checked_type
        if isinstance(ty, TupleType) and all(isinstance(f, TensorType) for f in ty.fields):
            node.pattern = OpPattern.INJECTIVE
            self._edge(item.tuple, node, OpPattern.INJECTIVE)
        else:
            self._extern(item.tuple)
        return (item.tuple,)

    def _function(self, function: Function) -> tuple[Expr, ...]:
        if is_kernel(function):
            return ()
        return self._opaque(function)

    def _opaque(self, expr: Expr) -> tuple[Expr, ...]:
        """Return the operands of If, Match, references and functions: they read values, not loop
        nests."""
        children = expr.operands()
        self._extern(*children)
        return children

    def _let(self, let: Let) -> tuple[Expr, ...]:
        self._extern(let.var, let.value, let.body)
        return (let.value, let.var, let.body)


SHAPE_DATA_DEPENDENT = "TShapeDataDependent"

_WITHOUT_NODE = frozenset((Function, GlobalVar, Op, Constructor))

_ENTER: dict[type[Expr], Callable[..., tuple[Expr, ...]]] = {
    Call: IndexedForwardGraph._call,
    Tuple: IndexedForwardGraph._tuple,
    TupleGetItem: IndexedForwardGraph._tuple_getitem,
    Function: IndexedForwardGraph._function,
    Let: IndexedForwardGraph._let,
}
