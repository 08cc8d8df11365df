"""CanonicalizeOps: one spelling per computation.

    before                                after
    nn.bias_add(%x, %b, axis=1)           add(%x, expand_dims(%b, axis=1, num_newaxis=2))
    nn.batch_matmul(%x, w[k,n])           nn.dense(%x, w[n,k])
    nn.batch_matmul(w[b,m,k], %x)         nn.conv2d(%x, w[b*m,k,1,1], groups=b), reshaped
    nn.conv2d_transpose(%x, w)            nn.conv2d(zeros between %x, w)

So one axis of every constant weight holds the output channels.
Source: Relay v0.10 transforms/canonicalize_ops.cc.
"""

from __future__ import annotations

from compiler.ir.expr import Call, Expr, Function
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.walk import operators_of
from compiler.ops.rules.simplify import FCanonicalize
from compiler.passes.opaque_primitives import OpaquePrimitives


class _Canonicalizer(OpaquePrimitives):
    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        rule = FCanonicalize.get(pre.op)
        if rule is None:
            return post
        return rule(pre, post.args)


@register_pass("CanonicalizeOps", opt_level=3, required=("InferType",))
class CanonicalizeOps(FunctionPass):
    """Replace operators that are shorthands of others."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The canonical function, itself when there is nothing to replace."""
        if not any(op in FCanonicalize for op in operators_of(fn)):
            return fn
        return _Canonicalizer().mutate(fn)
