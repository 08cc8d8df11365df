"""The smallest weight range that leaves room for the bias in the accumulator.

A bias at the scale of its accumulator is the integer bias / (s_x * s_w). A channel with hardly any
weight (trained away, say) would make s_w so small that it leaves the accumulator. Its range is
raised until the bias takes at most half of it, and at most 2^22: sums stay below 2^24, which
float32 holds, so products of integer ONNX are float, and hardware sees a factor in each channel.
What rounding takes from the weights is below the 22nd bit of the bias. Data of more than 8 bits
make every sum as much longer, and the room grows with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import bits
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.rewriting import rewritten
from compiler.quantize.scales.weight_grid import channel_rows

_FLOAT_BITS = 22


def add_operands(node: Expr) -> tuple[tuple[Expr, Expr], ...]:
    """(operand, other operand) of a call of add, the right one first; nothing for other nodes."""
    if isinstance(node, Call) and getattr(node.op, "name", "") == "add":
        lhs, rhs = node.args
        return (rhs, lhs), (lhs, rhs)
    return ()


def with_own_biases(mod: IRModule) -> IRModule:
    """The module without a bias that two products share: each is stored at the scale of its own
    product. The very same where none is shared; O(nodes).

        add(nn.conv2d(%x, w), b); add(nn.conv2d(%y, w), b)      a head on two levels of a pyramid
    """
    taken: set[Expr] = set()

    def own(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        for bias, other in add_operands(node):
            if isinstance(bias, Constant) and isinstance(other, Call):
                if FQProductShape.get(other.op) is not None and bias in taken:
                    copies: dict[Expr, Expr] = {bias: Constant(bias.data, span=bias.span)}
                    return with_operands(node, [copies.get(c, new[c]) for c in node.operands()])
                taken.add(bias)
        return None

    return rewritten(mod, own)


def weights_with_bias(
    nodes: Iterable[Expr], biases: Set[Expr]
) -> dict[Expr, list[tuple[Call, Constant]]]:
    """Weight point → the products it belongs to, each with the constant bias added to it."""
    found: dict[Expr, list[tuple[Call, Constant]]] = {}
    for node in nodes:
        for bias, other in add_operands(node):
            if bias not in biases or not isinstance(other, Call):
                continue
            if FQProductShape.get(other.op) is None:
                continue
            weight = other.args[1]
            assert isinstance(bias, Call)
            if quantize_kind(weight) == QAnnotateKind.WEIGHT and isinstance(bias.args[0], Constant):
                found.setdefault(weight, []).append((other, bias.args[0]))
    return found


def range_for_bias(
    product: Call,
    bias: Constant,
    data: DomScale | None,
    per_channel: bool,
    nbits: tuple[int, int],
    qconfig: QConfig,
) -> NDArray[np.float32]:
    """Least weight range, rank 0 or one per output channel; 0 where the data's scale is unknown.

    Args:
        product: convolution or dense layer in front of the bias.
        data: scale of its data operand.
        nbits: bits of its weight and of its data.
    """
    if data is None or data.is_vector:
        return np.zeros((), np.float32)
    trailing = FQProductShape.require(product.op)(product).out_trailing
    magnitudes = np.abs(bias.data.astype(np.float64))
    if trailing is None:
        axis = None
    else:
        axis = magnitudes.ndim - trailing - 1
    if per_channel and axis is not None and axis >= 0 and magnitudes.shape[axis] > 1:
        largest = channel_rows(magnitudes, axis).max(axis=1)
    else:
        largest = magnitudes.max(initial=0.0)
    room = 2.0 ** min(bits(qconfig.dtype_activation) - 2, _FLOAT_BITS + max(nbits[1] - 8, 0))
    levels = 2.0 ** (nbits[0] - 1)
    return as_scale(largest * levels / (float(data.values) * room))
