"""Channels in an order in which heavy ones have light neighbours, so that products add pairs.

    %1 = clip(nn.conv2d(%0, a) + b)      rows of a and b
    %2 = clip(nn.conv2d(%1, c))          depthwise: rows of c
    %3 = nn.conv2d(%2, d)                columns of d, all in one order of the channels of %2

Kernels that add two products of bytes in 16 bits need pairs of weights whose sum is small. Between
two products the order of channels is free, where nothing else reads them: no output changes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from compiler.ir.dataflow import Dataflow, Step, Value
from compiler.ir.op import OpPattern
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import OP as REQUANTIZE
from compiler.targets.engine.library import Library
from compiler.targets.engine.packing import MOST_PAIR

_Change = tuple[Step, int, int]
"""A step, the place of a constant among its operands, and the axis of its channels."""


class _Axes(NamedTuple):
    """Axes of channels: of the data, of the result, and those of the weights that go with them."""

    data: int
    result: int
    rows: int
    columns: int
    depthwise: bool


_AT_ONCE: Final = 64
"""Channels that one is tried with at a time."""
_FEW: Final = 16
"""Channels for each that stays without a partner."""
_LEAST_FITTING: Final = 0.02
"""Share of any pairs that fit, below which no order is looked for."""


def pair_channels(flow: Dataflow, library: Library) -> None:
    """Give the channels in front of each product the order that its kernel is fast with."""
    for step in flow.steps if library.has_narrow else ():
        changes = _between(step)
        order = _order(_by_channel(*changes[0])) if changes else None
        for changed, place, axis in changes if order is not None else ():
            args = list(changed.args)
            rows = _by_channel(changed, place, axis)[order]
            args[place] = Value(args[place].type, data=np.moveaxis(rows, 0, axis))
            changed.args = tuple(args)


def _by_channel(step: Step, place: int, axis: int) -> Array:
    """A constant with the axis of its channels in front."""
    data = step.args[place].data
    assert data is not None
    return np.moveaxis(data, axis, 0)


def _between(step: Step) -> list[_Change]:
    """Return the changes with the order of channels that a product reads, it first and the product
    that computes them last; nothing where others see the order."""
    axes = _axes(step)
    if axes is None or axes.depthwise:
        return []
    found = [(step, 1, axes.columns)]
    channels = axes.data
    data = step.args[0]
    while data.producer is not None and data.only_user is not None:
        step = data.producer
        passed = _passed(step, channels)
        if passed is not None:
            found += passed
        else:
            axes = _axes(step)
            if axes is None or axes.result != channels:
                return []
            found.append((step, 1, axes.rows))
            if not axes.depthwise:
                return found
            channels = axes.data
        data = next(arg for arg in step.args if arg.data is None)
    return []


def _axes(step: Step) -> _Axes | None:
    """The axes of a product with constant weights of one group, or of a depthwise convolution."""
    attrs: Any = step.attrs
    if step.name not in ("nn.conv2d", "nn.dense") or step.args[0].data is not None:
        return None
    weight = step.args[1].data
    shape = step.args[0].type.concrete_shape
    if weight is None or weight.dtype != np.int8:
        return None
    if step.name == "nn.dense":
        return _Axes(len(shape) - 1, len(shape) - 1, rows=0, columns=1, depthwise=False)
    layouts = attrs.data_layout, attrs.out_layout or attrs.data_layout, attrs.kernel_layout
    data, result = (layout.index("C") for layout in layouts[:2])
    rows, columns = (layouts[2].index(letter) for letter in "OI")
    depthwise = 1 < attrs.groups == shape[data] == weight.shape[rows]
    if depthwise or attrs.groups == 1:
        return _Axes(data, result, rows, columns, depthwise)
    return None


def _passed(step: Step, axis: int) -> list[_Change] | None:
    """The constants along the channels of an operator of single elements; None for others."""
    rank = len(step.results[0].type.shape)
    known = [place for place, arg in enumerate(step.args) if arg.data is not None]
    if step.op.pattern is OpPattern.ELEMWISE or step.name == "annotation.stop_fusion":
        if len(known) == len(step.args) - 1:
            return []
        return None
    if step.op.pattern is not OpPattern.BROADCAST or len(known) != len(step.args) - 1:
        return None
    (data,) = (arg for arg in step.args if arg.data is None)
    if data.type.concrete_shape != step.results[0].type.concrete_shape:
        return None
    found: list[_Change] = []
    for place in known:
        shape = step.args[place].type.concrete_shape
        at = axis - rank
        if step.name in ("fixed_point_multiply_per_axis", REQUANTIZE):
            if step.attrs.axis % rank != axis:
                return None
            at = -1
        elif step.attrs is not None:
            return None
        if len(shape) >= -at and shape[at] > 1:
            found.append((step, place, len(shape) + at))
    return found


def _order(weight: Array) -> Array | None:
    """Channels [k, ...] in an order in which the weights of each pair of neighbours fit, those
    without a partner last; None where it changes nothing, too many would have none, or sums of
    -128 leave a byte.

    The heaviest channel takes the heaviest partner that fits, so that light ones are left.
    """
    count = len(weight)
    half = len(weight) // 2
    flat = weight.astype(np.int16).reshape(count, -1)
    if flat.min() < -127:
        return None
    # Positive parts beside negative ones: what is added has one sign.
    rows = np.hstack([np.maximum(flat, 0), np.maximum(-flat, 0)]).astype(np.uint8)
    if _fitting(rows[: half * 2 : 2], rows[1 : half * 2 : 2]).all():
        return None
    if _fitting(rows[:half], rows[half : half * 2]).mean() < _LEAST_FITTING:
        return None
    left = np.argsort(-(flat.astype(np.int64) ** 2).sum(axis=1), kind="stable")
    pairs: list[int] = []
    alone: list[int] = []
    while len(left):
        one = left[0]
        left = left[1:]
        for start in range(0, len(left), _AT_ONCE):
            fits = _fitting(rows[one], rows[left[start : start + _AT_ONCE]])
            if fits.any():
                partner = start + int(fits.argmax())
                pairs += [one, left[partner]]
                left = np.delete(left, partner)
                break
        else:
            alone.append(one)
            if len(alone) > count // _FEW:
                return None
    return np.array(pairs + alone)


def _fitting(one: Array, other: Array) -> Array:
    """Return whether no two elements add up to more than 16 bits hold."""
    return np.asarray((one + other).max(axis=-1) <= MOST_PAIR)
