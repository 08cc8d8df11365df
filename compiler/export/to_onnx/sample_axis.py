"""Follow the axis of the samples through a graph, and find an operator that works along it.

    x: (batch, 4, 9)  Transpose [1, 0, 2]  -> samples on axis 1
                      ReduceMax axes [2]   -> still on axis 1
                      Softmax axis 1       -> joins samples

An axis of size 1 does not show in shapes that an operator works along it: a maximum, a sum or a
reversal over axis 0 of one sample is that of a batch, too. So the axis is followed node by node;
what no rule knows joins samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import get_attribute_value

from compiler.export.to_onnx.graph_writer import with_inner

Array = np.ndarray[Any, np.dtype[Any]]

# fmt: off
_ELEMENTWISE: Final = frozenset((
    "Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Cast", "Ceil", "Clip", "Cos", "DequantizeLinear", "Div", "Dropout", "Elu", "Equal", "Erf",
    "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mish", "Mod",
    "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuantizeLinear", "Reciprocal", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tan",
    "Tanh", "Where", "Xor",
))
_IMAGES: Final = frozenset((
    "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GlobalMaxPool", "InstanceNormalization", "LRN", "MaxPool", "QLinearConv", "Resize",
    "SpaceToDepth",
))
# fmt: on
_REDUCTIONS: Final = tuple(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")
)
_ALONG_AXIS: Final = {
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), 0),
    **dict.fromkeys(("Concat", "LogSoftmax", "Softmax", "TopK"), -1),
}
"""Operators along one axis, and its default."""


class JoinedSamplesError(Exception):
    """An operator works along the axis of the samples, or no rule excludes it."""


class _Node:
    """A node, with what is known of its operands."""

    def __init__(
        self,
        proto: onnx.NodeProto,
        axes: Mapping[str, int],
        shapes: Mapping[str, Sequence[int]],
        constants: Mapping[str, Array],
    ) -> None:
        self.type = proto.op_type
        self.attributes = {a.name: get_attribute_value(a) for a in proto.attribute}
        self.inputs = list(proto.input)
        self._axes = axes
        self._shapes = shapes
        self._constants = constants

    def at(self, place: int) -> int | None:
        """The axis of the samples of an operand; None where it has none."""
        if place < len(self.inputs):
            return self._axes.get(self.inputs[place])
        return None

    def shape(self, place: int) -> Sequence[int]:
        """Return the shape of an operand."""
        shape = self._shapes.get(self.inputs[place])
        if shape is None:
            raise JoinedSamplesError
        return shape

    def rank(self, place: int) -> int:
        """Return the rank of an operand."""
        return len(self.shape(place))

    def ints(self, place: int, name: str) -> list[int] | None:
        """A list that is an attribute, or a constant operand in later opsets; None without one."""
        if name in self.attributes:
            return [int(n) for n in self.attributes[name]]
        if place >= len(self.inputs) or not self.inputs[place]:
            return None
        if self.inputs[place] not in self._constants:
            raise JoinedSamplesError
        return [int(n) for n in self._constants[self.inputs[place]].reshape(-1)]

    def only(self) -> int:
        """The axis of the first operand, where no other one has samples."""
        at = self.at(0)
        if at is None or any(self.at(k) is not None for k in range(1, len(self.inputs))):
            raise JoinedSamplesError
        return at


_Rule = Callable[[_Node], int]


def _elementwise(node: _Node) -> int:
    """Axes are counted from the last one. An operand without samples has size 1 on their axis: it
    would give each sample, and a batch of its size, other numbers."""
    places = [k for k, name in enumerate(node.inputs) if name]
    behind = {node.rank(k) - at for k in places if (at := node.at(k)) is not None}
    axis = behind.pop()
    others = [node.shape(k) for k in places if node.at(k) is None]
    if behind or any(len(shape) >= axis and shape[-axis] != 1 for shape in others):
        raise JoinedSamplesError
    return max(map(node.rank, places)) - axis


def _apart(at: int, axes: list[int] | None, rank: int) -> int:
    """``at``, which is none of these axes; None stands for all of them."""
    if axes is None or at in [axis % rank for axis in axes]:
        raise JoinedSamplesError
    return at


def _along_axis(node: _Node) -> int:
    axis = int(node.attributes.get("axis", _ALONG_AXIS[node.type]))
    places = range(len(node.inputs)) if node.type == "Concat" else (0,)
    found = {at for k in places if (at := node.at(k)) is not None}
    if len(found) != 1:
        raise JoinedSamplesError
    at = _apart(found.pop(), [axis], node.rank(0))
    dropped = node.type.startswith("Arg") and not node.attributes.get("keepdims", 1)
    return at - (dropped and at > axis % node.rank(0))


def _reduced(node: _Node) -> int:
    at = node.only()
    rank = node.rank(0)
    axes = node.ints(1, "axes")
    _apart(at, axes or None, rank)
    if node.attributes.get("keepdims", node.type != "Squeeze"):
        return at
    return at - sum(axis % rank < at for axis in axes or ())


def _cumsum(node: _Node) -> int:
    return _apart(node.only(), node.ints(1, "axis"), node.rank(0))


def _normalized(node: _Node) -> int:
    axis = node.attributes.get("axis", -1)
    rank = node.rank(0)
    return _apart(node.only(), list(range(axis % rank, rank)), rank)


def _transposed(node: _Node) -> int:
    rank = node.rank(0)
    return list(node.attributes.get("perm", range(rank - 1, -1, -1))).index(node.only())


def _leading(node: _Node) -> int:
    """Images, and what else has samples on its first axis and nowhere else."""
    at = node.only()
    if at != 0:
        raise JoinedSamplesError
    return 0


def _sliced(node: _Node) -> int:
    axes = node.ints(3, "axes")
    return _apart(node.only(), axes or list(range(len(node.ints(1, "starts") or ()))), node.rank(0))


def _padded(node: _Node) -> int:
    at = node.only()
    pads = node.ints(1, "pads") or []
    axes = node.ints(3, "axes") or list(range(node.rank(0)))
    padded = [a for n, a in enumerate(axes) if pads[n] or pads[n + len(axes)]]
    return _apart(at, padded, node.rank(0))


def _matrix_product(node: _Node) -> int:
    rank = max(node.rank(0), node.rank(1))
    behind = [None if (at := node.at(k)) is None else node.rank(k) - at for k in (0, 1)]
    if behind[0] == 2 and behind[1] is None:  # rows
        return rank - 2
    if behind[1] == 1 and behind[0] is None:  # columns
        return rank - 1
    if min(one for one in behind if one is not None) < 3:
        raise JoinedSamplesError
    return _elementwise(node)


def _general_product(node: _Node) -> int:
    if node.attributes.get("transA", 0) or node.at(1) is not None:
        raise JoinedSamplesError
    return _leading(node)


def _gathered(node: _Node) -> int:
    axis = int(node.attributes.get("axis", 0)) % node.rank(0)
    at = node.at(0)
    place = node.at(1)
    if at is None and place is not None:
        return axis + place
    at = _apart(node.only(), [axis], node.rank(0))
    if at < axis:
        return at
    return at - 1 + node.rank(1)


def _elements(node: _Node) -> int:
    """All operands have the samples on an axis that is not the operator's; or each sample indexes
    a table along the operator's axis."""
    found = {node.at(k) for k in range(len(node.inputs))}
    axis = int(node.attributes.get("axis", 0)) % node.rank(0)
    if node.type == "GatherElements" and found == {None, axis} and node.at(0) is None:
        return axis
    if len(found) != 1 or (at := found.pop()) is None:
        raise JoinedSamplesError
    return _apart(at, [axis], node.rank(0))


def _reshaped(node: _Node) -> int:
    """Row-major, from samples in front to samples in front: ``interface`` writes the sizes anew."""
    at = node.only()
    if any(size != 1 for size in node.shape(0)[:at]):
        raise JoinedSamplesError
    return 0


def _of_batch(node: _Node) -> int:
    if node.at(0) != 0 or node.at(1) != 0 or not node.attributes.get("batch_dims", 0):
        raise JoinedSamplesError
    return 0


def _unsqueezed(node: _Node) -> int:
    at = node.only()
    axes = node.ints(1, "axes") or []
    rank = node.rank(0) + len(axes)
    added = {axis % rank for axis in axes}
    return [k for k in range(rank) if k not in added][at]


def _expanded(node: _Node) -> int:
    sizes = node.ints(1, "shape") or []
    behind = node.rank(0) - node.only()
    if len(sizes) >= behind and sizes[-behind] != 1:
        raise JoinedSamplesError
    return max(len(sizes), node.rank(0)) - behind


_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_IMAGES, _leading),
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _matrix_product),
    **dict.fromkeys(("GatherElements", "ScatterElements"), _elements),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    **dict.fromkeys((*_REDUCTIONS, "Squeeze"), _reduced),
    "CumSum": _cumsum,
    "Expand": _expanded,
    "Gather": _gathered,
    "GatherND": _of_batch,
    "Gemm": _general_product,
    "Pad": _padded,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}


def first_that_joins(
    graph: onnx.GraphProto, samples: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> str | None:
    """Return the first node that may join samples, by operator and name; None if none does.

    Args:
        samples: inputs of the graph -> the axis of their samples.
        shapes: of the tensors, for one sample.
    """
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    known = {name: array.shape for name, array in constants.items()} | dict(shapes)
    axes = dict(samples)
    for proto in graph.node:
        reads = {name for inner in with_inner(proto) for name in inner.input}
        if not axes.keys() & reads:
            continue
        try:
            rule = _RULES.get(proto.op_type)
            if rule is None:
                raise JoinedSamplesError
            at = rule(_Node(proto, axes, known, constants))
        except JoinedSamplesError:
            return f"{proto.op_type} ({proto.name})"
        axes.update(dict.fromkeys(proto.output, at))
    if any(axes.get(info.name, 0) for info in graph.output):
        return "an output has its samples on another axis than the first"
    return None
