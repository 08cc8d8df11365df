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
    """Whatever the operands are."""
    return True


def all_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """Sums, products, means and maxima of values >= 0."""
    return all(operands)


def first_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """What moves or picks elements of its first operand."""
    return operands[0]


def any_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """The larger of two."""
    return any(operands)


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


FNeverNegative.register("abs", "exp", "nn.softmax", "sigmoid", "sqrt")(always_positive)
FNeverNegative.register("nn.relu")(always_positive)
FNeverNegative.register(
    "add",
    "concatenate",
    "divide",
    "minimum",
    "multiply",
    "power",
    "sum",
    "mean",
    "nn.avg_pool2d",
    "nn.global_avg_pool2d",
)(all_positive)
FNeverNegative.register("maximum")(any_positive)
FNeverNegative.register(
    "annotation.cast_hint",
    "annotation.stop_fusion",
    "broadcast_to",
    "expand_dims",
    "gather",
    "max",
    "min",
    "nn.batch_flatten",
    "nn.depth_to_space",
    "nn.global_max_pool2d",
    "nn.max_pool2d",
    "nn.mirror_pad",
    "nn.space_to_depth",
    "relay.op.annotation.simulated_quantize",
    "repeat",
    "reshape",
    "reverse",
    "split",
    "squeeze",
    "strided_slice",
    "take",
    "tile",
    "transpose",
)(first_positive)


@FNeverNegative.register("clip")
def clip_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """A lower bound of 0 or more, or a clip of values >= 0 that does not end below 0."""
    a_min, a_max = call.attrs.a_min, call.attrs.a_max  # type: ignore[union-attr]
    return bool(a_min >= 0 or (operands[0] and a_max >= 0))


@FNeverNegative.register("nn.pad")
def pad_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """Data and padding."""
    return all(operands)


@FNeverNegative.register("image.resize2d", "nn.upsampling")
def resize_positive(call: Call, operands: tuple[bool, ...]) -> bool:
    """Picked elements and linear mixtures; cubic ones overshoot."""
    method = call.attrs.method  # type: ignore[union-attr]
    return operands[0] and method in ("nearest_neighbor", "linear", "bilinear")
