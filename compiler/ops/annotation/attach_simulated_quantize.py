"""attach_simulated_quantize: make or find the quantize point of a value.

Source: Relay v0.10 quantize/_annotate.py. A quantize point of a constant always has kind WEIGHT: a
constant has no statistics.
"""

from __future__ import annotations

from compiler.errors import QuantizeError
from compiler.ir.expr import Call, Constant, Expr, Op, Var, describe
from compiler.ir.ty import TensorType
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.annotate import kind_of, unannotated
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind

SQ = "relay.op.annotation.simulated_quantize"
PARAMETERS = ("dom_scale", "clip_min", "clip_max")
SCALAR = TensorType((), "float32")


class SimulatedQuantizeAttrs(OpAttrs):
    """``kind`` is a QAnnotateKind; ``axis`` the channel axis of several scales, None for one;
    ``bits`` the precision where it is not the kind's own; a ``given`` point came with the model,
    scale and bounds included, and keeps them; ``name`` is what ``QConfig.layers`` calls it, where
    that chooses something for it."""

    kind: int
    sign: bool = True
    rounding: str = "round"
    axis: int | None = None
    bits: int | None = None
    given: bool = False
    name: str = ""


def attach_simulated_quantize(
    data: Expr,
    kind: QAnnotateKind,
    context: QuantizeContext | None = None,
    shared: bool = True,
    bits: int | None = None,
) -> Expr:
    """The quantize point of ``data``, with three fresh variables for its scale and clip bounds.

    Args:
        data: an expression without annotation.
        kind: of the point; a constant is always WEIGHT.
        context: the run that remembers points, so that all consumers of a value share one.
        bits: precision; None for that of the kind.
        shared: False makes a point of its own: two biases with the same values may need two scales.
    Raises:
        QuantizeError: the data is float16 or float64; scales and simulation are float32.
    """
    _require_float32(data)
    if isinstance(data, Constant):
        kind = QAnnotateKind.WEIGHT
    held = point_attrs(data)
    if held is not None and held.kind == kind and (held.given or held.bits == bits):
        return data
    key = (data, int(kind), bits)
    if context is not None and shared and key in context.qnode_map:
        return context.qnode_map[key]
    attrs = SimulatedQuantizeAttrs(kind=int(kind), bits=bits)
    point = Call(
        Op.get(SQ), (data, *[Var(name, SCALAR) for name in PARAMETERS]), attrs, span=data.span
    )
    point.set_checked_type(data.checked_type_or_none)
    if context is not None and shared:
        context.qnode_map[key] = point
    return point


def _require_float32(data: Expr) -> None:
    ty = data.checked_type_or_none
    if isinstance(ty, TensorType) and ty.dtype in ("float16", "float64"):
        raise QuantizeError(
            f"quantization computes in float32, not in {ty.dtype}",
            where=describe(data),
            fix="export or convert the model in float32",
            span=data.span,
        )


def point_attrs(expr: Expr) -> SimulatedQuantizeAttrs | None:
    """Attributes of a simulated_quantize call; None for any other expression."""
    attrs = expr.attrs if isinstance(expr, Call) else None
    if isinstance(attrs, SimulatedQuantizeAttrs):
        return attrs
    return None


def quantize_kind(expr: Expr) -> QAnnotateKind | None:
    """Kind of a simulated_quantize call; None for any other expression."""
    attrs = point_attrs(expr)
    if attrs is None:
        return None
    return QAnnotateKind(attrs.kind)


def is_given(expr: Expr) -> bool:
    """True for a quantize point that came with the model and keeps its scale and bounds."""
    attrs = point_attrs(expr)
    return attrs is not None and attrs.given


def as_input(arg: Expr, context: QuantizeContext) -> Expr:
    """The operand as narrow integers: an accumulator or a plain value gets an INPUT point."""
    if kind_of(arg) in (None, QAnnotateKind.ACTIVATION):
        return attach_simulated_quantize(unannotated(arg), QAnnotateKind.INPUT, context=context)
    return unannotated(arg)


def is_quantized_constant(expr: Expr) -> bool:
    """True for the quantize point of a constant: a weight or a bias."""
    return (
        isinstance(expr, Call)
        and quantize_kind(expr) == QAnnotateKind.WEIGHT
        and isinstance(expr.args[0], Constant)
    )
