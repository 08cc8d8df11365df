"""FNeverNegative: which operators give values >= 0 for every input, if their operands are so.

Such a value needs no sign where it is stored (``activation_scheme`` "unsigned").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from compiler.ir.op import OpRule

SignRule = Callable[[Call, tuple[bool, ...]], bool]
"""``rule(call, operands)``: True when no element of the result is below 0; the operands say the
same of theirs."""

FNeverNegative: OpRule[SignRule] = OpRule("FNeverNegative", asked_by="QuantizeCalibrate")


def always_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """No element is below 0, whatever the operands are."""
    return True


def any_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """One operand >= 0 is enough."""
    return any(operands)


def all_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """Sums, products, means and maxima of values >= 0."""
    return all(operands)


def first_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """Return the answer of the first operand, whose elements the call moves or picks."""
    return operands[0]


def never_negative(nodes: Sequence[Expr]) -> frozenset[Expr]:
    """Values of a function that are never below 0.

    Args:
        nodes: of a function body, operands before users.
    """
    found: set[Expr] = set()
    for node in nodes:
        if isinstance(node, Constant):
            positive = node.data.size > 0 and bool(np.all(node.data >= 0))
        elif isinstance(node, Call):
            rule = FNeverNegative.get(node.op)
            operands = tuple(arg in found for arg in node.args)
            positive = rule is not None and rule(node, operands)
        elif isinstance(node, (Tuple, TupleGetItem)):
            operands = tuple(field in found for field in node.operands())
            positive = bool(operands) and all(operands)
        else:
            positive = False
        if positive:
            found.add(node)
    return frozenset(found)
