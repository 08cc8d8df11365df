"""QuantizePartition: draw the borders of the regions that will compute on integers.

    before                                 after
    %0 = nn.conv2d(%x, w0);                %0 = nn.conv2d(%x, w0);
    %1 = nn.relu(%0);                      %1 = nn.relu(%0);
    nn.conv2d(%1, w1)                      %2 = annotation.cast_hint(%1, dtype="int8");
                                           %3 = annotation.stop_fusion(%2);
                                           %4 = nn.conv2d(%3, w1);
                                           %5 = annotation.cast_hint(%4, dtype="int8");
                                           annotation.stop_fusion(%5)

Operators take part through ops/rules/partition.py. With ``keep_output_wide`` the border at a result
of the function is left out; with a QConfig of ``narrow_results`` every result has one.
Source: Relay v0.10 quantize/_partition.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir.expr import Call, Expr, Function, Tuple, is_op_call
from compiler.ir.functor.forward_rewriter import ForwardRewriter
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.static_shapes import require_static
from compiler.ops.rules.integer_calls import border
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.quantize.run_context import RunPass, context_or_new


@register_pass("QuantizePartition", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class QuantizePartition(RunPass, FunctionPass):
    """Insert cast_hint and stop_fusion where integer regions end."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        require_static(fn, self.info.name)
        run = context_or_new(self.context)
        body = ForwardRewriter(FQPartitionRewrite, fcontext=lambda _call: run).rewrite_body(fn)

        def bordered(_before: Expr, after: Expr) -> Expr:
            bounded = is_op_call(after, "annotation.stop_fusion")
            if bounded:
                return after
            return border(after, run.qconfig.dtype_input)

        if run.qconfig.narrow_results:
            body = _each_result(fn.body, body, bordered)
        elif run.qconfig.keep_output_wide:
            body = _each_result(fn.body, body, _without_border)
        return fn.with_fields(body=body)


def partition() -> QuantizePartition:
    """The pass, for the QConfig that is current when it runs."""
    return QuantizePartition()


def _each_result(before: Expr, after: Expr, change: Callable[[Expr, Expr], Expr]) -> Expr:
    """``after`` with every result of the function changed, which was another one before."""
    if isinstance(before, Tuple) and isinstance(after, Tuple):
        return after.with_fields(fields=tuple(map(change, before.fields, after.fields)))
    return change(before, after)


def _without_border(before: Expr, after: Expr) -> Expr:
    """A result without the border that this pass put behind it."""
    if is_op_call(before, "annotation.stop_fusion") or not is_op_call(
        after, "annotation.stop_fusion"
    ):
        return after
    hint = after.args[0]
    assert isinstance(hint, Call)
    return hint.args[0]
