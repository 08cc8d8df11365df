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

from dataclasses import dataclass

from compiler.ir.expr import Call, Expr, Function, Tuple, is_op_call
from compiler.ir.functor.forward_rewriter import ForwardRewriter
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.static_shapes import require_static
from compiler.ops.rules.integer_calls import border
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.quantize._run_context import RunPass, context_or_new


@register_pass("QuantizePartition", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class QuantizePartition(RunPass, FunctionPass):
    """Insert cast_hint and stop_fusion where integer regions end."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        require_static(fn, self.info.name)
        run = context_or_new(self.context)
        body = ForwardRewriter(FQPartitionRewrite, fcontext=lambda _call: run).rewrite_body(fn)
        if run.qconfig.narrow_results:
            body = _with_borders(body, run.qconfig.dtype_input)
        elif run.qconfig.keep_output_wide:
            body = _without_border(fn.body, body)
        return fn.with_fields(body=body)


def partition() -> QuantizePartition:
    """The pass, for the QConfig that is current when it runs."""
    return QuantizePartition()


def _with_borders(body: Expr, dtype: str) -> Expr:
    """``body`` with a border behind every result that has none."""
    if isinstance(body, Tuple):
        return body.with_fields(fields=tuple(_bordered(field, dtype) for field in body.fields))
    return _bordered(body, dtype)


def _bordered(result: Expr, dtype: str) -> Expr:
    return result if is_op_call(result, "annotation.stop_fusion") else border(result, dtype)


def _without_border(before: Expr, after: Expr) -> Expr:
    """``after`` with the borders taken off that this pass put behind results of the function."""
    if isinstance(before, Tuple) and isinstance(after, Tuple):
        fields = tuple(_inner(b, a) for b, a in zip(before.fields, after.fields))
        return after.with_fields(fields=fields)
    return _inner(before, after)


def _inner(before: Expr, after: Expr) -> Expr:
    if is_op_call(before, "annotation.stop_fusion") or not is_op_call(
        after, "annotation.stop_fusion"
    ):
        return after
    assert isinstance(after, Call)
    hint = after.args[0]
    assert isinstance(hint, Call)
    return hint.args[0]
