"""SimplifyExpr: algebra that needs no data: what cancels out, and pairs that are one operator.

    before                                          after
    reshape(reshape(%x, …), newshape=[4, 6])        reshape(%x, newshape=[4, 6])
    transpose(transpose(%x, [1, 0]), [1, 0])        %x
    add(%x, 0f), multiply(%x, 1f)                   %x
    divide(%x, 4f)                                  multiply(%x, 0.25f)
    nn.conv2d(nn.pad(%x, 0f, …), %w)                nn.conv2d(%x, %w, padding=…)
    clip(clip(%x, 0, 6), -1, 4)                     clip(%x, 0, 4)
    maximum(%x, -inff), minimum(%x, inff)           %x
    cast(take(integers, %i), dtype="float32")       take(floats, %i)

Every result has the type of the expression that it replaces. Operators take part through
ops/rules/simplify.py. Source: Relay v0.10 transforms/simplify_expr.cc, which has fewer rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import CompilerError, PassError, legal_names
from compiler.ir.expr import Call, Expr, Function, Op
from compiler.ir.inference.infer_type import infer_expr
from compiler.ir.module import IRModule
from compiler.ir.op import all_ops
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ops.rules.simplify import FSimplifyExpr
from compiler.passes.opaque_primitives import TypedMutator


@register_pass("SimplifyExpr", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class SimplifyExpr(FunctionPass):
    """Remove operators that cancel out; merge operators that make one.

    Args:
        ops: names of the operators to look at, such as ("cast",); () looks at all.

    Raises:
        CompilerError: an operator is unknown or has no rule.
    """

    ops: tuple[str, ...] = ()

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The simplified function, itself when nothing applies.

        Raises:
            PassError: a rule changed the type of the function.
        """
        new = _Simplifier(self._chosen()).visit(fn)
        if new is fn:
            return fn
        new = infer_expr(new, mod)
        if new.checked_type != fn.checked_type:
            raise PassError(
                "a simplification changed the type of the function",
                pass_name="SimplifyExpr",
                where=f"{fn.checked_type} became {new.checked_type}",
                fix="this is a defect of a rule in FSimplifyExpr, please report the model",
            )
        assert isinstance(new, Function)
        return new

    def _chosen(self) -> frozenset[Op]:
        """The operators whose rules are asked."""
        ruled = {op.name: op for op in all_ops() if FSimplifyExpr.get(op) is not None}
        for name in self.ops:
            if name not in ruled:
                raise CompilerError(
                    f"SimplifyExpr has no rule for operator {name!r}", fix=legal_names(name, ruled)
                )
        return frozenset(ruled[name] for name in self.ops or ruled)


class _Simplifier(TypedMutator):
    def __init__(self, chosen: frozenset[Op]) -> None:
        super().__init__()
        self.chosen = chosen

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        rule = FSimplifyExpr.get(post.op)
        if rule is None or post.op not in self.chosen:
            return post
        if post is not pre:
            self.types[post] = pre.checked_type
        new = rule(post, self.type_of)
        if new is None:
            return post
        return new
