"""Simulation of shifts that truncate (``round_for_shift=False``).

    before                                  after, s' the scale of the integers that are shifted
    simulated_quantize(%x, s, …)            simulated_quantize(subtract(%x, (s - s') / 2), s, …)

The reference's simulation rounds at every point, also where its shifts do not. Which points are
shifts is known once they are realised, so this is done to the simulated module afterwards; the op
itself keeps the one rounding that it has (spec/quantize.md section 5.1).
"""

from __future__ import annotations

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Function
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.integer_calls import along_axis, subtract
from compiler.qtypes.context import QuantizeContext


def truncating(simulated: IRModule, run: QuantizeContext) -> IRModule:
    """The simulated module with a floor wherever realization has found one; O(nodes).

    Args:
        simulated: the module that was realised.
        run: of that realization.
    """
    if not run.truncated:
        return simulated
    main: Function = simulated["main"]
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        new = with_operands(node, [done[child] for child in node.operands()])
        lost = run.truncated.get(node)
        if lost is not None:
            assert isinstance(new, Call)
            assert isinstance(lost, DomScale)
            data = subtract(new.args[0], along_axis(lost.values, lost.trailing, "float32"))
            new = new.with_fields(args=(data, *new.args[1:]))
        done[node] = new
    changed = main.with_fields(body=done[main.body])
    return infer_module(simulated.with_function("main", changed))
