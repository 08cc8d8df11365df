"""Statistics of rescaled networks, counted while the network that is not rescaled runs.

    network                     %1 = nn.conv2d(%x, w0);    nn.conv2d(nn.relu(%1), w1)
    smoothed                    %1 = nn.conv2d(%x, w0*s);  nn.conv2d(nn.relu(%1), w1/s)
    its tensors                 those of the network, %1 and nn.relu(%1) times s channel by channel

Both compute the same function, so one pass over the data counts for all: a tensor that no factor
reaches has one entry, a tensor that factors reach is multiplied before it is counted. Its largest
magnitude is then that of each channel times the factor; with powers of two every value is the one
that the rescaled network computes, and with other factors it differs from it by the rounding of the
changed constants. That the networks differ in nothing else is compared, not assumed: where an
operator that was recognized as a whole hides how factors pass it, the network is measured alone.

Wide sums change which values are measured, not what is computed. The network that runs has narrow
ones; where it measures all values that the wide points read, they are counted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import SCAN
from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from compiler.ir.module import IRModule
from compiler.ir.structural import constant_digest, structural_equal, structural_hash
from compiler.ir.walk import mentions, nodes_of, ordered
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.quantize.calibration.stats import PointMap
from compiler.quantize.smoothing.channel_groups import find_groups
from compiler.quantize.smoothing.smoothing import smoothing_factors
from compiler.quantize.weighted_calls import weighted_calls


@dataclass(frozen=True, slots=True, eq=False)
class CountedTensor:
    """A measured tensor as it is, or as a rescaled network has it.

    Attributes:
        number: among the outputs of the profile function.
        factors: float32, of each channel; None counts the tensor as it is.
        trailing: axes behind that of the channels.
    """

    number: int
    factors: NDArray[np.float32] | None = None
    trailing: int = 0

    def of(self, outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The values to count, of the shape of the output."""
        values = outputs[self.number]
        if self.factors is None:
            return values
        return values * self.factors.reshape(-1, *(1,) * self.trailing)


@dataclass(slots=True)
class CommonReading:
    """Counts of one reading of the data for several networks, each tensor once.

    Attributes:
        network: that runs; a whole profile function.
        counted: what is counted.
    """

    network: IRModule
    counted: list[CountedTensor] = field(default_factory=list)
    _places: dict[tuple[int, bytes], int] = field(default_factory=dict)

    def places_of(self, plain: IRModule, tensors: Sequence[CountedTensor]) -> list[int] | None:
        """Return the places of the tensors of one network in ``counted``.

        Args:
            plain: the network that is not rescaled.
            tensors: of it, as the network has them.
        Returns:
            None where ``network`` does not measure all of them, or gives another result.
        """
        numbers = self._numbers(plain)
        if numbers is None:
            return None
        places = []
        for tensor in tensors:
            each = replace(tensor, number=numbers[tensor.number])
            key = each.number, b"" if each.factors is None else each.factors.tobytes()
            place = self._places.setdefault(key, len(self.counted))
            if place == len(self.counted):
                self.counted.append(each)
            places.append(place)
        return places

    def _numbers(self, plain: IRModule) -> Sequence[int] | None:
        """Return the numbers of the measured tensors of ``network`` in another one."""
        if plain is self.network:
            return range(len(_fields(plain)) - 1)
        known: dict[Any, int] = {}
        result, *tensors = _values(self.network, known)
        number = {value: place for place, value in enumerate(tensors)}
        other, *wanted = _values(plain, known)
        if other != result or not number.keys() >= set(wanted):
            return None
        return [number[value] for value in wanted]


def _values(mod: IRModule, known: dict[Any, int]) -> list[int]:
    """A number for each field of the result: equal where equal things are done to equal values.

    Args:
        known: the numbers so far, of this network and of others with the same inputs.
    """
    values: dict[Expr, int] = {}
    for node in nodes_of(mod["main"]):
        operands = tuple(values[operand] for operand in node.operands())
        key: Any = node
        if isinstance(node, Constant):
            key = constant_digest(node)
        elif isinstance(node, Var):
            key = node.name_hint
        elif isinstance(node, Function):
            key = structural_hash(node)
        elif isinstance(node, (Call, Tuple, TupleGetItem)):
            key = getattr(node, "attrs", None), getattr(node, "index", None), operands
        values[node] = known.setdefault((type(node), key), len(known))
    return [values[tensor] for tensor in _fields(mod)]


def counted_points(points: PointMap, counted: Sequence[CountedTensor] | None) -> PointMap:
    """``points`` with the labels of what is counted; None counts every tensor as it is."""
    if counted is None:
        return points
    return replace(points, labels=tuple(points.labels[each.number] for each in counted))


def rescaled_tensors(
    plain: IRModule,
    rescaled: IRModule,
    alpha: float | None,
    ranges: Sequence[ChannelRanges],
) -> list[CountedTensor] | None:
    """The measured tensors of a rescaled network; None where it differs in more than that.

    Args:
        plain, rescaled: whole profile functions of the network and of the rescaled network.
        alpha: of the smoothing; None smooths nothing.
        ranges: of the data of each weighted operator of ``plain``; empty where nothing is rescaled.
    """
    mod = plain
    if mentions(mod["main"], (SCAN,)):
        return None  # in the closed form layers have other places
    found = [CountedTensor(number) for number in range(len(_fields(plain)) - 1)]
    if alpha is not None:
        result, *tensors = _fields(mod)
        order = nodes_of(mod["main"])  # what the first field reads comes first
        inside = dict.fromkeys(order[: order.index(result) + 1])
        alone = IRModule.from_expr(ordered(Function(mod["main"].params, result), inside))
        if len(weighted_calls(alone["main"])) != len(ranges):
            return None
        groups = find_groups(alone["main"])
        factors = smoothing_factors(groups, alone, ranges, alpha)
        for number, tensor in enumerate(tensors):
            group = groups.group_of.get(tensor)
            if tensor not in inside and isinstance(tensor, Call):
                held = (groups.group_of.get(arg) for arg in tensor.args)
                if any(each is not None and np.any(factors[each] != 1) for each in held):
                    return None  # only what lies near the largest value is measured
            elif group is not None and np.any(factors[group] != 1):
                trailing = len(tensor.tensor_type.shape) - groups.axis_of[tensor] - 1
                along = factors[group].astype(np.float32)
                found[number] = CountedTensor(number, along, trailing)
        mod = groups.rescaled(mod, factors)
    if structural_equal(mod, rescaled):
        return found
    return None


def _fields(mod: IRModule) -> Sequence[Call]:
    body = mod["main"].body
    assert isinstance(body, Tuple)
    return body.fields  # type: ignore[return-value]
