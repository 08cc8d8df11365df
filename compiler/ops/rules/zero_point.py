"""FQZeroPoint: what an operator does with integers whose zero point is not 0.

    real value = (data - zero_point) * dom_scale

A tensor is stored with a zero point only where everything that reads it, further movements looked
through, has an answer here; any other reader makes it symmetric. What an operator without an answer
meets nevertheless is centred in front of it, in the accumulator dtype.
Source: Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference", 2018, section 2.3 (sums of weights fold into the bias).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Op, Tuple, TupleGetItem
from compiler.ir.op import OpRule
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr
from compiler.qtypes.qconfig import QConfig


class ZeroPoint(Enum):
    """KEEPS: the result has the operand's zero point. TAKES: the realize rule accounts for it.
    FOLDS: and for an accumulator's addend as well. CENTRES: the operator works in the accumulator
    dtype anyway, where 0 stands for 0, so it is centred in front of it."""

    KEEPS = "keeps"
    TAKES = "takes"
    FOLDS = "folds"
    CENTRES = "centres"


ZeroPointRule = Callable[[Call, int], ZeroPoint | None]
"""``rule(call, place)`` for the operand at this place; None where it must have none."""

FQZeroPoint: OpRule[ZeroPointRule] = OpRule(
    "FQZeroPoint", asked_by="QuantizeCalibrate and QuantizeRealize"
)


def centred(call: Call, place: int) -> ZeroPoint:
    """Every operand is centred in front of the operator."""
    return ZeroPoint.CENTRES


def taken(call: Call, place: int) -> ZeroPoint:
    """The realize rule accounts for the zero point of every operand."""
    return ZeroPoint.TAKES


def folded(call: Call, place: int) -> ZeroPoint:
    """The realize rule accounts for the zero points of operands and accumulators."""
    return ZeroPoint.FOLDS


def kept(call: Call, place: int) -> ZeroPoint:
    """The result has the zero point of the operand."""
    return ZeroPoint.KEEPS


def zero_point_answer(call: Call, place: int) -> ZeroPoint | None:
    """Return the answer of the call about the operand at ``place``.

    An answer of a lower level than the realize rule was given for another rule and does not count.
    """
    rule = FQZeroPoint.get(call.op)
    if rule is None or not isinstance(call.op, Op):
        return None
    mine = FQZeroPoint.level(call.op)
    realized = FQRealizeRewrite.level(call.op)
    if mine is None or realized is None or mine < realized:
        return None
    return rule(call, place)


def plainly(value: Expr, answer: ZeroPoint | None, qconfig: QConfig) -> Expr:
    """An operand as a realize rule with this answer takes it.

    Args:
        value: anything; integers are centred or settled where the rule needs it.
    """

    def leaf(one: Expr) -> Expr:
        if not isinstance(one, QRealizeIntExpr) or answer is ZeroPoint.FOLDS:
            return one
        if answer in (ZeroPoint.KEEPS, ZeroPoint.TAKES):
            return one.settled()
        return one.centred(qconfig.dtype_activation)

    if not isinstance(value, Tuple):
        return leaf(value)
    made: dict[Expr, Expr] = {}
    for node in post_order(value, _tuples_in):
        assert isinstance(node, Tuple)
        made[node] = node.with_fields(fields=tuple(made.get(f) or leaf(f) for f in node.fields))
    return made[value]


def _tuples_in(value: Expr) -> tuple[Tuple, ...]:
    assert isinstance(value, Tuple)
    return tuple(field for field in value.fields if isinstance(field, Tuple))


def may_have_zero_point(nodes: Sequence[Expr]) -> frozenset[Expr]:
    """Values of a function that all their readers take with a zero point.

    Args:
        nodes: of an annotated function body, operands before users; the last is the result.
    """
    refused: set[Expr] = set()
    for node in reversed(nodes):
        if isinstance(node, (Tuple, TupleGetItem)):
            if node in refused:
                refused.update(node.operands())
        elif isinstance(node, Call):
            _refuse_operands(node, refused)
    return frozenset(node for node in nodes if node not in refused)


def _refuse_operands(call: Call, refused: set[Expr]) -> None:
    if FQRealizeRewrite.get(call.op) is None:
        return  # runs in float, over real values
    for place, arg in enumerate(call.args):
        answer = zero_point_answer(call, place)
        if answer is None or (answer is ZeroPoint.KEEPS and call in refused):
            refused.add(arg)
