"""QuantizeRealize: run on integers what quantize points surround.

    before                                        after (w' folds to an int8 constant)
    %0 = simulated_quantize(%x, 0.0625f, …);      %0 = clip(round(multiply(%x, 16f)), -127, 127);
    %1 = simulated_quantize(w, 0.0078125f, …);    %1 = nn.conv2d(cast(%0, "int8"), w',
    nn.conv2d(%0, %1)                                            out_dtype="int32");
                                                  multiply(cast(%1, "float32"), 0.00048828125f)

Operators take part through ops/rules/realize.py. Source: Relay v0.10 quantize/realize.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from compiler.ir.expr import Call, Expr, Function, Op, Tuple
from compiler.ir.functor.forward_rewriter import ForwardRewriter
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.static_shapes import require_static
from compiler.ir.ty import holds_float
from compiler.ir.walk import nodes_of
from compiler.ops.rules.dom_scale import keeps_scale
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr
from compiler.ops.rules.zero_point import plainly, zero_point_answer
from compiler.passes.inline_requantize import InlineRequantize
from compiler.qtypes.report import OPERAND_FLOAT, call_places
from compiler.quantize.run_context import RunPass, context_or_new
from compiler.quantize.scales.bind_scales import bound_grid
from compiler.ranges.expressions import ExpressionRanges


@register_pass("QuantizeRealize", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class QuantizeRealize(RunPass, FunctionPass):
    """Replace simulated quantization by integer arithmetic.

    Raises:
        IntegerOverflowError: a sum may leave its dtype for some input.
        InternalQuantizeError: a scale is not bound, or values would be cast without a clip.
    """

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        require_static(fn, self.info.name)
        run = context_or_new(self.context)
        run = replace(run, bounds_of=ExpressionRanges().of, reach=_reaches(fn))
        places = call_places(fn)
        report = run.report

        def realized(ref_call: Call, args: tuple[Expr, ...], _ctx: object) -> Expr | None:
            rule = FQRealizeRewrite.get(ref_call.op)
            if rule is not None:
                args = tuple(
                    plainly(arg, zero_point_answer(ref_call, place), run.qconfig)
                    for place, arg in enumerate(args)
                )
            result = None if rule is None else rule(ref_call, args, run)
            place = places.get(ref_call)
            if place is None:
                return result
            if _is_integer(ref_call, result):
                report.set_call(place, "integer")
            elif place < len(report.calls) and report.calls[place].status == "integer":
                if rule is None:
                    reason = "no_rule:QuantizeRealize"
                elif any(isinstance(arg, QRealizeIntExpr) for arg in args):
                    reason = "rule_aborted"
                else:
                    reason = OPERAND_FLOAT
                report.set_call(place, "float", reason)
            return result

        made = fn.with_fields(body=ForwardRewriter(realized).rewrite_body(fn))
        if not run.qconfig.is_relay:
            return made
        plain: Function = InlineRequantize()(infer_module(IRModule.from_expr(made)))["main"]
        return plain


def _reaches(fn: Function) -> dict[Expr, float]:
    """``QuantizeContext.reach``: the largest limit of the quantize points that read a value, behind
    what hands on its integers; O(edges)."""
    read: dict[Expr, float] = {fn.body: math.inf}
    for node in reversed(nodes_of(fn)):
        grid = bound_grid(node) if isinstance(node, Call) else None
        within = math.inf
        if grid is not None:
            scale, low, high = grid
            within = scale * (max(-low, high) + 1)
        elif isinstance(node, Call) and keeps_scale(node.op):
            within = read[node]
        calls_op = isinstance(node, Call) and isinstance(node.op, Op)
        for operand in node.operands()[calls_op:]:
            read[operand] = max(read.get(operand, 0.0), within)
    return read


def realize() -> QuantizeRealize:
    """The pass, for the QConfig that is current when it runs."""
    return QuantizeRealize()


def _is_integer(ref_call: Call, result: Expr | None) -> bool:
    """True for integers with a scale, and for numbers without one, such as a position."""
    if result is not None and not holds_float(ref_call.checked_type):
        return True
    fields = result.fields if isinstance(result, Tuple) else (result,)
    return all(isinstance(field, QRealizeIntExpr) for field in fields)
