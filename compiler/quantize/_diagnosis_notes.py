"""What a diagnosis says of activations before any data: their signs, and ranges that may clip."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.module import IRModule
from compiler.ops.annotation.attach_simulated_quantize import is_given, quantize_kind
from compiler.ops.rules.never_negative import never_negative
from compiler.ops.rules.zero_point import may_have_zero_point
from compiler.qtypes.kind import QAnnotateKind
from compiler.qtypes.qconfig import QConfig

_FULL_BITS = 8


def notes_of(annotated: IRModule, qconfig: QConfig) -> tuple[str, ...]:
    """Sentences for users, the signs first; points that the model brought along are decided.

    Args:
        annotated: result of ``mark``.
    """
    nodes = list(post_order(annotated["main"].body))
    notes = [_signs(nodes, qconfig.activation_scheme)]
    if qconfig.calibrate_mode == "kl_divergence":
        softmax = sum(is_op_call(node, "nn.softmax", "nn.log_softmax") for node in nodes)
        if softmax:
            notes.append(
                f"calibrate_mode=kl_divergence tends to cut off the large probabilities of "
                f"{softmax} softmax; calibrate_mode=mse keeps them"
            )
        if qconfig.nbit_input < _FULL_BITS:
            notes.append(
                f"calibrate_mode=kl_divergence with nbit_input={qconfig.nbit_input} may keep "
                "hardly anything of data of few distinct values, such as pixels; "
                "calibrate_mode=mse does not"
            )
    return tuple(note for note in notes if note)


def _signs(nodes: Sequence[Expr], scheme: str) -> str:
    points = [
        node
        for node in nodes
        if isinstance(node, Call)
        and quantize_kind(node) == QAnnotateKind.INPUT
        and not is_given(node)
    ]
    if not points:
        return ""
    known = never_negative(nodes)
    positive = sum(point.args[0] in known for point in points)
    told = (
        f"activation_scheme={scheme}: {positive} of {len(points)} narrow activations are never "
        "negative, as their operators tell"
    )
    if scheme == "symmetric":
        return f"{told}; they lose half of their levels, which activation_scheme=unsigned uses"
    told += ", and stored unsigned; so are those in which calibration sees nothing below 0"
    if scheme == "unsigned":
        return f"{told}, the others symmetric"
    allowed = may_have_zero_point(nodes)
    shifted = sum(point in allowed and point.args[0] not in known for point in points)
    return f"{told}; {shifted} others may get a zero point where their range is uneven"
