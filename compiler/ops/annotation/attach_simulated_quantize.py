"""attach_simulated_quantize: make or find the quantize point of a value.

Source: spec/quantize.md section 5.4 and ruling R-30.
"""

from __future__ import annotations

from compiler.ir.expr import Call, Constant, Expr, Op, Var
from compiler.ir.ty import TensorType
from compiler.ops.rules.annotate import QAnnotateExpr, kind_of, unannotated
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind

SQ = "relay.op.annotation.simulated_quantize"
PARAMETERS = ("dom_scale", "clip_min", "clip_max")
_SCALAR = TensorType((), "float32")


def attach_simulated_quantize(
    data: Expr,
    kind: QAnnotateKind,
    sign: bool = True,
    rounding: str = "round",
    context: QuantizeContext | None = None,
    shared: bool = True,
    bits: int | None = None,
) -> Expr:
    """The quantize point of ``data``, with three fresh variables for its scale and clip bounds.

    Args:
        data: an expression without annotation.
        kind: of the point; a constant is always WEIGHT.
        sign, rounding: attributes of simulated_quantize.
        context: the run that remembers points, so that all consumers of a value share one.
        bits: precision; None for that of the kind.
        shared: False makes a point of its own: two biases with the same values may need two scales.
    """
    if isinstance(data, Constant):
        kind = QAnnotateKind.WEIGHT
    as_asked = quantize_kind(data) == kind and (
        is_given(data) or _choices(data) == (sign, rounding, bits)
    )
    if as_asked:
        return data
    key = (data, int(kind), sign, rounding, bits)
    if context is not None and shared and key in context.qnode_map:
        return context.qnode_map[key]
    op = Op.get(SQ)
    assert op.attrs_type is not None
    attrs = op.attrs_type(kind=int(kind), sign=sign, rounding=rounding, bits=bits)  # type: ignore[call-arg]
    point = Call(op, (data, *(Var(name, _SCALAR) for name in PARAMETERS)), attrs, span=data.span)
    if context is not None and shared:
        context.qnode_map[key] = point
    return point


def _choices(point: Expr) -> tuple[bool, str, int | None]:
    attrs = point.attrs  # type: ignore[attr-defined]
    return attrs.sign, attrs.rounding, attrs.bits


def quantize_kind(expr: Expr) -> QAnnotateKind | None:
    """Kind of a simulated_quantize call; None for any other expression."""
    if isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == SQ:
        return QAnnotateKind(expr.attrs.kind)  # type: ignore[union-attr]
    return None


def is_given(expr: Expr) -> bool:
    """True for a quantize point that came with the model and keeps its scale and bounds."""
    return quantize_kind(expr) is not None and bool(expr.attrs.given)  # type: ignore[attr-defined]


def as_input(arg: Expr, context: QuantizeContext) -> Expr:
    """The operand as narrow integers: an accumulator or a plain value gets an INPUT point."""
    if kind_of(arg) in (None, QAnnotateKind.ACTIVATION):
        return attach_simulated_quantize(unannotated(arg), QAnnotateKind.INPUT, context=context)
    return unannotated(arg)


def annotated(expr: Expr, kind: QAnnotateKind) -> QAnnotateExpr:
    """The result of a rule."""
    return QAnnotateExpr(expr, kind)
