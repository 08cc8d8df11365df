"""SimplifyInference: training-time operators become arithmetic, dropout goes away.

    before                                            after
    %0 = nn.batch_norm(%x, %g, %b, %m, %v);           multiply(%x, scale) + shift
    %0.0

    %0 = nn.dropout(%x);  %0.0                        %x

nn.layer_norm, nn.instance_norm, nn.group_norm, nn.l2_normalize and nn.lrn are replaced as a whole;
of nn.batch_norm and nn.dropout only field 0 is replaced; a use of another field keeps the call.
Operators take part through ops/rules/simplify.py.
Source: Relay v0.10 transforms/simplify_inference.cc.
"""

from __future__ import annotations

from compiler.ir.expr import Call, Expr, Function, TupleGetItem
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference
from compiler.passes.opaque_primitives import OpaquePrimitives


class _InferenceSimplifier(OpaquePrimitives):
    def __init__(self) -> None:
        super().__init__()
        self.field_zero: dict[Expr, Expr] = {}

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        rule = FSimplifyInference.get(pre.op)
        if rule is None:
            return post
        return rule(pre, post.args)

    def rewrite_tuple_getitem(self, pre: TupleGetItem, post: TupleGetItem) -> Expr:
        producer = pre.tuple
        new_producer = post.tuple
        if pre.index != 0 or not isinstance(producer, Call) or not isinstance(new_producer, Call):
            return post
        rule = FDefinition.get(producer.op)
        if rule is None:
            return post
        # Two items of one call are one computation, before and after.
        if producer not in self.field_zero:
            self.field_zero[producer] = rule(producer, new_producer.args).operands()[0]
        return self.field_zero[producer]


@register_pass("SimplifyInference", opt_level=0, required=("InferType",))
class SimplifyInference(FunctionPass):
    """Rewrite operators of training as arithmetic; a second run changes nothing."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The simplified function, itself when there is nothing to simplify."""
        return _InferenceSimplifier().mutate(fn)
