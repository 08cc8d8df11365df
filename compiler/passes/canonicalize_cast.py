"""CanonicalizeCast: every elementwise consumer of a widening cast gets a cast of its own.

    before                                after
    %0 = cast(%x, dtype="int32");         %0 = cast(%x, dtype="int32");
    %1 = add(%0, %a);                     %1 = add(%0, %a);
    %2 = add(%0, %b);                     %2 = cast(%x, dtype="int32");
                                          %3 = add(%2, %b);

A shared cast would end the producer's fused kernel, which then writes the wide type to memory; one
cast per consumer is fused into the consumer, and the producer writes the narrow type. Casts feeding
convolutions and other operators that are not broadcast-like stay shared and are not counted.
Source: Relay v0.10 transforms/canonicalize_cast.cc.
"""

from __future__ import annotations

from collections import Counter

from compiler.ir.expr import Call, Expr, Function, Op, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.op import OpPattern
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import TensorType, bits
from compiler.ir.walk import operators_of
from compiler.passes.opaque_primitives import OpaquePrimitives

Edge = tuple[Call, int]


@register_pass("CanonicalizeCast", opt_level=3, required=("InferType",))
class CanonicalizeCast(FunctionPass):
    """Give elementwise and broadcast consumers their own widening casts."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with duplicated casts, itself when none is shared."""
        if Op.get("cast") in operators_of(fn):
            edges = _edges_to_split(fn)
        else:
            edges = set()
        if not edges:
            return fn
        return _CastSplitter(edges).mutate(fn)


class _CastSplitter(OpaquePrimitives):
    def __init__(self, edges: set[Edge]) -> None:
        super().__init__()
        self.edges = edges

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        args = [
            arg.fresh_copy() if (pre, index) in self.edges else arg
            for index, arg in enumerate(post.args)
        ]
        return post.with_fields(args=tuple(args))


def _edges_to_split(fn: Function) -> set[Edge]:
    """Edges that reach a widening cast for the second time or later, in visiting order.

    The order is that of a recursive mutator: an argument is counted once it and everything below
    it has been visited, before the next argument. It decides which consumer keeps the old cast.
    """
    split: set[Edge] = set()
    uses: Counter[Expr] = Counter()
    seen: set[Expr] = set()
    stack: list[Expr | Edge] = [fn]
    while stack:
        top = stack.pop()
        if isinstance(top, tuple):
            call, index = top
            cast = call.args[index]
            uses[cast] += 1
            if uses[cast] > 1:
                split.add(top)
        elif top not in seen:
            seen.add(top)
            stack.extend(reversed(_below(top)))
    return split


def _below(node: Expr) -> list[Expr | Edge]:
    """Return the children of a node, an edge to be counted behind the argument it leads to."""
    if isinstance(node, Function) and node.has_nonzero_attr("Primitive"):
        return []
    if not isinstance(node, Call) or not _is_broadcast_like(node.op):
        return list(node.operands())
    found: list[Expr | Edge] = []
    for index, arg in enumerate(node.args):
        found.append(arg)
        if _is_widening_cast(arg):
            found.append((node, index))
    return found


def _is_broadcast_like(op: Expr) -> bool:
    return isinstance(op, Op) and op.pattern is not None and op.pattern <= OpPattern.BROADCAST


def _is_widening_cast(expr: Expr) -> bool:
    if not is_op_call(expr, "cast"):
        return False
    narrow = expr.args[0].checked_type
    wide = expr.checked_type
    return (
        isinstance(narrow, TensorType)
        and isinstance(wide, TensorType)
        and bits(narrow.dtype) < bits(wide.dtype)
    )
