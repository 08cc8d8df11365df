"""SplitConcat: a concatenation of very many tensors becomes a tree of smaller ones.

    before (max_args=4)                        after
    concatenate((%a, %b, %c, %d, %e))          %0 = concatenate((%a, %b, %c));
                                               %1 = concatenate((%d, %e));
                                               concatenate((%0, %1))

Some accelerators and loaders limit the number of kernel arguments. FuseOps with
``relay.FuseOps.max_args`` keeps to the limit, but cannot divide one operator. Run this pass before
FuseOps, with the same number. The result counts as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import CompilerError
from compiler.ir.expr import Call, Expr, Function, Tuple, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.passes.opaque_primitives import OpaquePrimitives

_LEAST = 3


@register_pass("SplitConcat", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class SplitConcat(FunctionPass):
    """Split concatenations with more than ``max_args`` inputs and outputs.

    Args:
        max_args: at least 3.

    Raises:
        CompilerError: fewer, with which nothing can be joined.
    """

    max_args: int = 128

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        if self.max_args < _LEAST:
            raise CompilerError(
                f"SplitConcat: max_args is {self.max_args}",
                fix=f"give at least {_LEAST}: two inputs and the result",
            )
        return _Splitter(self.max_args - 1).mutate(fn)


class _Splitter(OpaquePrimitives):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        if not is_op_call(post, "concatenate"):
            return post
        packed = post.args[0]
        if not isinstance(packed, Tuple) or len(packed.fields) <= self.width:
            return post
        parts: list[Expr] = list(packed.fields)
        while len(parts) > self.width:
            parts = [
                self._joined(post, parts[i : i + self.width])
                for i in range(0, len(parts), self.width)
            ]
        return self._joined(post, parts)

    def _joined(self, like: Call, parts: list[Expr]) -> Expr:
        if len(parts) == 1:
            return parts[0]
        return Call(like.op, (Tuple(tuple(parts), span=like.span),), like.attrs, span=like.span)
