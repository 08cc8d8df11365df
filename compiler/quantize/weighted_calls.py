"""The weighted operators of a function, whose data calibration measures channel by channel."""

from __future__ import annotations

from compiler.ir.expr import Call, Constant, Function
from compiler.ir.walk import behind, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import SQ
from compiler.ops.rules.input_columns import FQInputColumns, InputColumns


def weighted_calls(main: Function) -> list[tuple[Call, InputColumns]]:
    """Calls with a constant weight, and how they read their data, in visiting order.

    Quantization keeps this order, so the n-th here is the n-th of the annotated function.
    """
    found = []
    for node in nodes_of(main):
        if isinstance(node, Call):
            rule = FQInputColumns.get(node.op)
        else:
            rule = None
        if rule is not None and isinstance(node, Call) and weight_of(node) is not None:
            found.append((node, rule(node)))
    return found


def weight_of(call: Call) -> Constant | None:
    """The constant weight, also behind a quantize point."""
    weight = behind(call.args[1], (SQ,))[1]
    if isinstance(weight, Constant):
        return weight
    return None
