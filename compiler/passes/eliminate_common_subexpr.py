"""EliminateCommonSubexpr: equal calls on the very same arguments become one.

    before                                after
    %0 = add(%x, 1f);                     %0 = add(%x, 1f);
    %1 = add(%x, 1f);                     multiply(%0, %0)
    multiply(%0, %1)

Only calls of operators that keep no state, and tuple items. Two rank-0 constants of the same bits
count as the same argument. Source: Relay v0.10 transforms/eliminate_common_subexpr.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.ir.expr import Call, Constant, Expr, Function, Op, TupleGetItem
from compiler.ir.module import IRModule
from compiler.ir.op import STATEFUL
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.passes.opaque_primitives import OpaquePrimitives

SkipCall = Callable[[Call], bool]


@register_pass("EliminateCommonSubexpr", opt_level=3, required=("InferType",))
@dataclass(frozen=True, slots=True)
class EliminateCommonSubexpr(FunctionPass):
    """Compute equal things once.

    Args:
        fskip: calls for which it answers True are never merged.
    """

    fskip: SkipCall | None = None

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The merged function, itself when nothing is computed twice."""
        return _Merger(self.fskip).mutate(fn)


def _key(node: Expr) -> Any:
    """Equal for calls that are equal but for their attributes, and for equal items."""
    if isinstance(node, TupleGetItem):
        return node.tuple, node.index
    assert isinstance(node, Call)
    # Hardly any two calls have the same operator and arguments: only these read attributes.
    return (node.op, *[_argument_key(a) for a in node.args])


class _Merger(OpaquePrimitives):
    def __init__(self, fskip: SkipCall | None) -> None:
        super().__init__()
        self.fskip = fskip
        self.first: dict[Any, Expr] = {}
        self.variants: dict[Any, Expr] = {}

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        op = post.op
        if not isinstance(op, Op) or STATEFUL in op.flags:
            return post
        if self.fskip is not None and self.fskip(post):
            return post
        key = _key(post)
        same = self.first.setdefault(key, post)
        assert isinstance(same, Call)
        if same is post or (
            same.virtual_device is post.virtual_device and same.attrs == post.attrs
        ):
            return same
        return self.variants.setdefault((key, post.attrs, post.virtual_device), post)

    def rewrite_tuple_getitem(self, pre: TupleGetItem, post: TupleGetItem) -> Expr:
        return self.first.setdefault(_key(post), post)


def _argument_key(arg: Expr) -> Any:
    if isinstance(arg, Constant) and arg.is_scalar:
        return str(arg.data.dtype), arg.data.tobytes()
    return arg
