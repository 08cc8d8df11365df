"""Groups of an output: channels of one unit, each of which gets a figure of its own.

A detector joins boxes in pixels and scores in [0, 1] in one output: one figure for both is that of
the boxes. ``joined_fields`` reads the fields from the graph:

    y = Concat(boxes, Sigmoid(scores), axis=1)    →  boxes (channels 0–3), scores (channels 4–11)

Outputs without such a structure are split where the power of neighbouring channels jumps
(``groups_of``). Channels of one Softmax, Gemm or convolution have one unit: a rare class is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

MOST_GROUPS: Final = 4
"""Outputs with more groups are one group."""
JUMP_DB: Final = 20.0
"""Channels whose power differs by less share a group."""
_SAME_UNIT_DB: Final = 10.0
"""Fields whose power differs by less are one group: neither hides the loss of the other."""
_MOST_CHANNELS: Final = 256
_LOST_SHARE: Final = 0.1
_LOST_SAMPLES: Final = 16
_ONE_UNIT: Final = frozenset(("Softmax", "Gemm", "MatMul", "Conv", "ConvTranspose"))
_ELEMENTWISE: Final = frozenset(
    (
        "Cast",
        "Clip",
        "DequantizeLinear",
        "Elu",
        "Exp",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Log",
        "Neg",
        "Pow",
        "QuantizeLinear",
        "Relu",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Tanh",
        "Add",
        "Div",
        "Mul",
        "Sub",
    )
)
"""Operators whose result has the channels of their first input, or of the one that is computed."""
_RESHAPES: Final = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))


@dataclass(frozen=True, slots=True)
class Group:
    """A range of channels of an output.

    Attributes:
        name: of the node that computes them; "" for channels of no node of their own.
        axis, start, stop: the range, along an axis of the output.
    """

    name: str
    axis: int
    start: int
    stop: int

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the channels of an output."""
        return array[(slice(None),) * self.axis + (slice(self.start, self.stop),)]

    def __str__(self) -> str:
        channels = f"channels {self.start}–{self.stop - 1}"
        if self.start == self.stop - 1:
            channels = f"channel {self.start}"
        if self.name:
            return f"{self.name} ({channels})"
        return channels


Fields = tuple[Group, ...] | None
"""Groups that the structure gives; () for one unit, None where the structure says nothing."""


def joined_fields(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, Fields]:
    """Return for each value the fields of the last Concat on the way to it.

    The way leads through operators of single elements, transposes and reshapes that keep the axis.

    Args:
        model: its structure is enough, as ``read_structure`` reads it.
        names: of values of the graph, such as its outputs.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:  # an operator of a domain that the file omits
        graph = model.graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    shapes: dict[str, list[int | str]] = {
        tensor.name: list(tensor.dims) for tensor in graph.initializer
    }
    for info in infos:
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = [d.dim_value or d.dim_param for d in dims]
    writers = {name: node for node in graph.node for name in node.output}
    return {name: _fields(name, writers, shapes) for name in names}


def _fields(
    name: str,
    writers: Mapping[str, onnx.NodeProto],
    shapes: Mapping[str, list[int | str]],
) -> Fields:
    if name not in shapes:
        return None
    axis_of: list[int | None] = list(range(len(shapes[name])))
    while (node := writers.get(name)) is not None:
        if node.op_type in _ONE_UNIT:
            return ()
        if node.op_type == "Concat":
            return _concatenated(node, axis_of, writers, shapes)
        computed = [i for i in node.input if i in writers]
        source = (computed or [*node.input, ""])[0]
        if source not in shapes or (node.op_type in _ELEMENTWISE and len(computed) > 1):
            return None
        if node.op_type == "Transpose":
            order = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
            order = order or list(range(len(axis_of)))[::-1]
            axis_of = [axis_of[order.index(axis)] for axis in range(len(order))]
        elif node.op_type in _RESHAPES:
            axis_of = _kept_axes(shapes[source], shapes.get(name, []), axis_of)
        elif node.op_type not in _ELEMENTWISE or len(shapes[source]) != len(axis_of):
            return None
        name = source
    return None


def _kept_axes(
    before: Sequence[int | str], after: Sequence[int | str], axis_of: Sequence[int | None]
) -> list[int | None]:
    """Return the axes of the output for the axes in front of a reshape: equal leading and trailing
    sizes are the same axes."""
    kept: list[int | None] = [None] * len(before)
    for axis, (size, other) in enumerate(zip(before, after, strict=False)):
        if size != other:
            break
        kept[axis] = axis_of[axis]
    for back, (size, other) in enumerate(zip(before[::-1], after[::-1], strict=False), 1):
        if size != other:
            break
        kept[-back] = axis_of[-back]
    return kept


def _concatenated(
    node: onnx.NodeProto,
    axis_of: Sequence[int | None],
    writers: Mapping[str, onnx.NodeProto],
    shapes: Mapping[str, list[int | str]],
) -> Fields:
    axis = next(a.i for a in node.attribute if a.name == "axis")
    target = axis_of[axis]
    parts = [shapes.get(name, [])[axis:][:1] for name in node.input]
    if not target or not all(part and isinstance(part[0], int) for part in parts):
        return None
    groups: list[Group] = []
    start = 0
    for name, (size,) in zip(node.input, parts, strict=True):
        assert isinstance(size, int)
        writer = writers.get(name)
        label = name if writer is None else writer.name or name
        groups.append(Group(label, target, start, start + size))
        start += size
    return tuple(groups)


def groups_of(fields: Fields, values: NDArray[Any]) -> tuple[Group, ...]:
    """Return the groups of an output; () for an output of one group.

    Args:
        fields: of ``joined_fields``.
        values: the float output, samples on axis 0.
    """
    if fields is None:
        found = _jumps(values)
    elif (
        fields and values.ndim > fields[0].axis and values.shape[fields[0].axis] == fields[-1].stop
    ):
        found = _merged(fields, values)
    else:
        return ()
    if 1 < len(found) <= MOST_GROUPS:
        return tuple(found)
    return ()


def _power_db(values: NDArray[Any]) -> float:
    power = float(np.mean(np.square(values, dtype=np.float64)))
    return 10 * float(np.log10(power + 1e-300))


def _merged(fields: Sequence[Group], values: NDArray[Any]) -> list[Group]:
    """Join neighbours of similar power."""
    groups: list[Group] = []
    for group in fields:
        last = groups[-1] if groups else None
        if last is None or abs(_power_db(last.of(values)) - _power_db(group.of(values))) > (
            _SAME_UNIT_DB
        ):
            groups.append(group)
        else:
            groups[-1] = Group(last.name, last.axis, last.start, group.stop)
    return groups


def _jumps(values: NDArray[Any]) -> list[Group]:
    """Cut the channels where their power jumps and the two sides do not overlap."""
    axes = [axis for axis in (1, values.ndim - 1) if 1 <= axis < values.ndim]
    axis = next((a for a in axes if 1 < values.shape[a] <= _MOST_CHANNELS), None)
    if axis is None:
        return []
    channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    levels = np.array([_power_db(channel) for channel in channels])
    bounds = [0]
    for cut in range(1, len(levels)):
        left = levels[bounds[-1] : cut]
        right = levels[cut : cut + 1]
        apart = max(left.min() - right.max(), right.min() - left.max())
        if apart > JUMP_DB:
            bounds.append(cut)
    bounds.append(len(levels))
    return [Group("", axis, start, stop) for start, stop in pairwise(bounds)]


def lost_channels(wanted: NDArray[Any], found: NDArray[Any]) -> bool:
    """Return whether a group keeps less than a tenth of its variance over the samples.

    Args:
        wanted, found: the float group and its integers, samples on axis 0. Fewer than 16 samples,
            and a group that is constant in float, are never lost.
    """
    if len(wanted) < _LOST_SAMPLES:
        return False
    with np.errstate(invalid="ignore"):  # of values that are not finite nothing is said
        before = float(np.var(wanted.astype(np.float64), axis=0).sum())
        after = float(np.var(found.astype(np.float64), axis=0).sum())
    return before > 0 and after < _LOST_SHARE * before
