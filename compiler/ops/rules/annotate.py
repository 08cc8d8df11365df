"""FQAnnotateRewrite: which operands of an operator are quantized, and what its result is then."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Args, Call, Constant, Expr, TempExpr, Tuple
from compiler.ir.rebuild import typed_alike
from compiler.ops.rules.with_tables import QuantizeRule
from compiler.qtypes.qconfig import QAnnotateKind

FQAnnotateRewrite = QuantizeRule("FQAnnotateRewrite", asked_by="QuantizeAnnotate")
"""The annotated call; without one it stays in float."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QAnnotateExpr(TempExpr):
    """``expr`` will be an integer tensor: narrow (INPUT) or an accumulator (ACTIVATION).

    ``wide`` accumulators keep 16 bits where several operators read them; those that may hold minus
    infinity, or that only points of the model read (``masks``), stay accumulators.
    """

    expr: Expr
    kind: QAnnotateKind
    wide: bool = False
    masks: bool = False

    def realize(self) -> Expr:
        """The expression without its annotation."""
        return self.expr


def kind_of(expr: Expr) -> QAnnotateKind | None:
    """Kind of an annotated expression; None for a plain one."""
    if isinstance(expr, QAnnotateExpr):
        return expr.kind
    return None


def unannotated(expr: Expr) -> Expr:
    """The expression without its annotation."""
    if isinstance(expr, QAnnotateExpr):
        return expr.expr
    return expr


def with_args(ref_call: Call, args: Args) -> Call:
    """The same operator and attributes over other arguments."""
    made = Call(ref_call.op, args, ref_call.attrs, ref_call.type_args, span=ref_call.span)
    return typed_alike(ref_call, made)


def annotated(
    ref_call: Call, args: Args, kind: QAnnotateKind = QAnnotateKind.ACTIVATION, wide: bool = False
) -> QAnnotateExpr:
    """The call over other arguments, annotated; an accumulator unless another kind is given."""
    return QAnnotateExpr(with_args(ref_call, args), kind, wide)


def accumulating(ref_call: Call, arg: Expr) -> QAnnotateExpr:
    """A call of one operand as it is, which gives an accumulator."""
    return annotated(ref_call, (unannotated(arg),))


def is_literal(expr: Expr) -> bool:
    """True for a Constant, or a tuple of such: what FoldConstant takes as a constant."""
    stack = [expr]
    while stack:
        top = stack.pop()
        if isinstance(top, Tuple):
            stack.extend(top.fields)
        elif not isinstance(top, Constant):
            return False
    return True
