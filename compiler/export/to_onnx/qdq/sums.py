"""Values of 16 bits in a QDQ graph: in 8 bits, with ranges that the module knows.

    module                                             exported
    s = clip(conv(x) * r + s0 * t, 16 bits)            b = Q(Conv(DQ(x), DQ(W, r)))
    next layer reads clip(s * f, 8 bits)               s = Q(Add(DQ(b), DQ(s0))), which it reads

Runtimes have no kernel that adds 16 bits, and the convolution in front of such a sum would be
computed in float as well. What the layers read of a sum is its range in 8 bits. The range of a side
follows from that of the sum and of the other side. A sum that no layer reads in 8 bits stays float.

What a layer reads in 16 bits has its calibrated range in 8 bits, without the room for outliers: the
layer would cost several times as much in float. Where the module says how large each channel of a
grouped convolution becomes, each has a range of its own: the weights on both sides take up the
factors. Last layers, which no other layer follows, stay in float: they read few values. Those with
many weights do not: a runtime would convert all of them in every run.

What a table of a function or a softmax reads in 12 bits has its calibrated range in 8 bits, as far
as the function changes there: the convolution in front would be in float as well. Not so what the
first convolution computes: of an even background each channel is one value, whose rounding adds up
in all that follows. It is a small part of the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from compiler.core.words import FBody, operand
from compiler.export.to_onnx.qdq.emitter import LEVELS, Floats, QdqEmitter, Real
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import integer_range, is_integer
from compiler.ops.annotation.wide_point import wide_headroom
from compiler.ops.qnn.requantize import RESCALING, TFLM, factors_in
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.rules.realize import WIDE_INPUT
from compiler.ops.tensor.clip import integer_bound
from compiler.span import onnx_nodes

_WIDEST = 1 << 16
_FEW_WEIGHTS = 1 << 16
_SOFTMAX = "nn.integer_softmax"
_MASKED = 1 << 12
_MAXIMA = ("nn.max_pool2d", "nn.global_max_pool2d")
_SHAPES = ("reshape", "nn.batch_flatten", "squeeze", "expand_dims", "transpose")
_AVERAGES = ("nn.avg_pool2d", "nn.global_avg_pool2d", "mean")
ChannelMaxima = Mapping[str, Sequence[int]]
"""Largest integer of each channel of the data, by ONNX node, as ``runtime.channel_maxima`` has
them."""


@dataclass(frozen=True, slots=True)
class Levels:
    """8 bit integers that stand for a value: value * factor, within [low, high].

    Attributes:
        factor: one number, or one per channel, which broadcasts against the value.
        rectified: a relu stands between the value and its limits.
        clips: steps in front of the value that change nothing within [low, high].
    """

    factor: Floats
    low: float
    high: float
    rectified: bool = False
    clips: tuple[Step, ...] = field(default=(), repr=False)


def _read_levels(value: Value) -> Levels | None:
    found: list[tuple[float, Levels]] = []
    for factor, result in _requantized(value):
        for clip in _readers(result):
            limits = clip_limits(clip)
            small = limits is not None and limits[1] - limits[0] < LEVELS
            if limits is not None and small and factor.size == 1 and factor.min() > 0:
                span = (limits[1] - limits[0]) / float(factor.reshape(()))
                found.append((span, Levels(factor.reshape(()), *limits)))
    return max(found, key=lambda one: one[0])[1] if found else None


def last_products(steps: Sequence[Step]) -> frozenset[Step]:
    """The products whose results reach no other product; O(edges).

    Without grouped convolutions, and those of many weights.
    """
    last: set[Step] = set()
    leading: set[Value] = set()
    for step in reversed(steps):
        leads = not leading.isdisjoint(step.results)
        product = FQProductShape.get(step.op) is not None
        if product and not leads and getattr(step.attrs, "groups", 1) == 1 and _is_small(step):
            last.add(step)
        if product or leads:
            leading.update(step.args)
    return frozenset(last)


def _is_small(product: Step) -> bool:
    return math.prod(product.args[1].type.concrete_shape) <= _FEW_WEIGHTS


def narrow_levels(
    step: Step, maxima: ChannelMaxima, last: Set[Step] = frozenset()
) -> Levels | None:
    """Return the levels that stand for the 16 bits of a step.

    What layers read of them in 8 bits; of several, that with the widest range. Where a product that
    is not among ``last`` reads all 16 bits, their range, for a grouped convolution channel by
    channel where it is known. Where tables read them, the range in which they change. None for
    other steps, and where none of these reads.
    """
    if not _is_wide(step):
        return None
    found = _read_levels(step.result)
    if found is not None:
        own = [limit * float(found.factor) for limit in clip_limits(step) or ()]
        return replace(found, low=max(found.low, own[0]), high=min(found.high, own[1]))
    return _multiplied_levels(step, maxima, last) or _tabulated_levels(step)


def moved_from(value: Value) -> Iterator[tuple[Value, int]]:
    """The value, and those that it is but for a constant, with what has been added to them."""
    offset = 0
    yield value, offset
    while (producer := value.producer) is not None:
        held = producer.args[1].data if producer.name == "subtract" else None
        if held is not None and held.size == 1 and is_integer(str(held.dtype)):
            offset -= int(held.reshape(()))
        elif not is_same(producer):
            return
        value = producer.args[0]
        yield value, offset


def _tabulated_levels(step: Step) -> Levels | None:
    product = _Origin.of(step).product
    if product is not None and any(_enters(value) for value, _ in moved_from(product.args[0])):
        return None
    ends = [
        _changing_ends(table, step.result)
        for user in _readers(step.result)
        for table in ([user] if user.name in ("lookup", _SOFTMAX) else _readers(user.result))
    ]
    known = [found for found in ends if found is not None]
    if not known or len(known) < len(ends):
        return None
    seen = _calibrated(step, tabulated=True)
    low = max(seen[0], min(0.0, *(least for least, _ in known)))
    high = min(seen[1], max(1.0, *(most for _, most in known)))
    factor = (LEVELS - 1) / (high - low)
    least = round(low * factor)
    return Levels(np.asarray(factor), least, least + LEVELS - 1)


def _changing_ends(table: Step, value: Value) -> tuple[float, float] | None:
    """The integers of a value between which a table changes; None if it does not read the value.

    A softmax changes everywhere; that of masked scores reads more than 8 bits can tell apart.
    """
    places = dict(moved_from(table.args[0])) if table.name in ("lookup", _SOFTMAX) else {}
    if value not in places:
        return None
    if table.name == _SOFTMAX:
        limits = clip_limits(value.producer) if value.producer else None
        masked = limits is not None and limits[1] - limits[0] > _MASKED
        return None if masked else (-math.inf, math.inf)
    entries = table.args[1].data
    if entries is None or not entries.size:
        return None
    lowest = integer_range(table.args[0].type.dtype)[0] - places[value]
    changing = np.flatnonzero(entries[1:] != entries[:-1])
    ends = (changing[0], changing[-1] + 1) if changing.size else (0, 1)
    return lowest + float(ends[0]), lowest + float(ends[1])


def _enters(value: Value) -> bool:
    """Return whether a value is an input of the network, as it is or quantized."""
    producer = value.producer
    return producer is None or not all(is_integer(arg.type.dtype) for arg in producer.args)


def _calibrated(step: Step, tabulated: bool = False) -> tuple[float, float]:
    """The ends of the integers of a wide point that calibration has seen.

    Limits that are not those of a number of bits are ends of the values: there is no room beyond.
    """
    limits = clip_limits(step)
    assert limits is not None
    whole = max(-limits[0], limits[1]) + 1
    if whole.bit_count() > 1:
        return limits
    room = wide_headroom(whole.bit_length(), tabulated=tabulated)
    low, high = ((end + np.sign(end)) / room for end in limits)
    return low, high


def _multiplied_levels(step: Step, maxima: ChannelMaxima, last: Set[Step]) -> Levels | None:
    products = dict(_product_readers(step.result))
    if last >= products.keys():
        return None
    origin = _Origin.of(step)
    low, high = _calibrated(step)
    whole = _calibrated_levels(origin, max(-low, high))
    (alone, *others) = products
    known = None if others or products[alone] else _of_groups(alone, maxima)
    if known is None or origin.product is None or whole.low == whole.high:
        return whole
    # A channel that stays below the range has finer levels, but none below the integers.
    reach = np.maximum(known, LEVELS)[:, None, None] * float(whole.factor)
    finer = [abs(end) / np.minimum(reach, abs(end)) for end in (whole.low, whole.high) if end]
    return replace(whole, factor=whole.factor * np.minimum.reduce(finer))


def _of_groups(product: Step, maxima: ChannelMaxima) -> Floats | None:
    """The largest integers of the channels that a grouped convolution reads, one of each group."""
    names = onnx_nodes(product.span)
    known = maxima.get(names[0]) if names else None
    groups = getattr(product.attrs, "groups", 1)
    if known is None or groups == 1 or len(known) != product.args[0].type.shape[1]:
        return None
    rows = np.asarray(known, np.float64).reshape(groups, -1)
    return np.repeat(rows.max(axis=1), rows.shape[1])


def needless_clips(step: Step, bits: int = 8) -> tuple[Step, ...]:
    """Clips of channels in front of a clip to ``bits`` of the same limits, but for a level."""
    limits = clip_limits(step)
    if limits is None or limits[1] - limits[0] >= 1 << bits:
        return ()
    origin = _Origin.of(step)
    low, high = origin.ends
    same = low.max() <= limits[0] + 1 and limits[1] - 1 <= high.min()
    return origin.clips if same else ()


@dataclass(frozen=True, slots=True, repr=False)
class _Origin:
    """Origin of the values that a clip limits.

    Attributes:
        ends: limits of it and of what stands in front of it, one number or one per channel.
        clips: minimum and maximum of channels, which only the clip reads.
        source: what all these limit, but for factors.
        product: the convolution that computes it, whose weights take factors of channels.
    """

    ends: tuple[Floats, Floats]
    clips: tuple[Step, ...]
    source: Value
    product: Step | None

    @staticmethod
    def of(step: Step) -> _Origin:
        """Return the origin of the values of the clip."""
        limits, value, factor = clip_limits(step), step.args[0], np.ones(())
        assert limits is not None
        low, high = (np.asarray(float(end)) for end in limits)
        clips: list[Step] = []
        alone = True
        while (producer := value.producer) is not None:
            alone = alone and len(value.users) == 1
            held = _bounds(producer)
            multiplied = fixed_point_factor(producer)
            if multiplied is not None:
                factor = factor * multiplied
            elif producer.name == "nn.relu":
                low = np.maximum(low, 0)
            elif producer.name == "maximum" and alone and held is not None:
                low = np.maximum(low, held * factor)
                clips.append(producer)
            elif producer.name == "minimum" and alone and held is not None:
                high = np.minimum(high, held * factor)
                clips.append(producer)
            elif producer.name != "cast" and (producer.name != "add" or held is None):
                break
            value = producer.args[0]
        found = producer if producer is not None and producer.name == "nn.conv2d" else None
        return _Origin((low, high), tuple(clips), value, found)


def _of_unsigned(value: Value) -> bool:
    """Return whether a value is unsigned integers, or their averages, but for positive factors."""
    while not value.type.dtype.startswith("uint"):
        producer = value.producer
        if producer is None:
            return False
        factor, held = fixed_point_factor(producer), _bounds(producer)
        scaled = factor is not None and factor.min() >= 0
        scaled |= producer.name == "multiply" and held is not None and held.min() >= 0
        if not scaled and producer.name not in (*_AVERAGES, *_MAXIMA) and not is_same(producer):
            return False
        value = producer.args[0]
    return True


def _bounds(step: Step) -> Floats | None:
    """The constant that a step reads, infinite where it is an end of its dtype."""
    held = step.args[1].data if len(step.args) > 1 else None
    if held is None or not is_integer(str(held.dtype)):
        return None
    least, most = integer_range(str(held.dtype))
    found = np.where(held >= most, np.inf, held.astype(np.float64))
    return np.where(held <= least, -np.inf, found)


def _calibrated_levels(origin: _Origin, reach: float) -> Levels:
    least = 0.0 if _of_unsigned(origin.source) else -reach
    ends = [np.clip(end, least, reach) for end in origin.ends]
    low, high = float(ends[0].min()), float(ends[1].max())
    if high < -low:
        factor = (LEVELS // 2) / -low
        levels = -LEVELS // 2, min(round(high * factor), LEVELS // 2 - 1)
    else:
        factor = (LEVELS - 1) / max(high - low, 1)
        levels = round(low * factor), round(high * factor)
    # Limits of channels that are one real number are those of 8 bits.
    alike = all(np.ptp(end) * factor <= 1 for end in ends)
    return Levels(np.asarray(factor), *levels, clips=origin.clips if alike else ())


def _is_wide(step: Step) -> bool:
    """Return whether a clip is to the bits of a stored value; an activation's limits are any
    numbers."""
    limits = clip_limits(step)
    if limits is None or not LEVELS <= limits[1] - limits[0] < _WIDEST:
        return False
    stored = [user.result for user in step.result.users if user.name == "cast"]
    for value in stored:
        stored += (user.result for user in value.users if user.name == "cast")
    wide = any(value.type.dtype == WIDE_INPUT for value in stored)
    return wide or (limits[1] + 1).bit_count() == 1


def narrowed_sides(step: Step, sides: tuple[Real, Real], graph: QdqEmitter) -> tuple[Real, Real]:
    """The sides of a sum, those in 8 bits that a residual sum of 16 bits has in more.

    Args:
        step: adds two computed values.
        sides: its operands, no limit waits in them.
    """
    levels = _sum_levels(step.result)
    if levels is None or all(side.tensor is not None for side in sides):
        return sides
    low = -levels.high if levels.rectified else levels.low
    reach = max(-low, levels.high)  # of a side, where that of neither is known
    ends = [(-reach, reach)] * 2
    for place, side in enumerate(sides):
        if side.tensor is not None:
            scale = float(np.mean(side.scale * levels.factor))
            least, most = (end * scale for end in side.tensor.range)
            ends[1 - place] = low - most, levels.high - least
    made = list(sides)
    for place, side in enumerate(sides):
        if side.tensor is None:
            tensor = graph.spread(side.times(levels.factor), *ends[place])
            made[place] = graph.of_tensor(tensor).times(1 / levels.factor)
    return made[0], made[1]


def _sum_levels(value: Value) -> Levels | None:
    """The 8 bit integers that a sum becomes; None where it becomes several, or others."""
    rectified = False
    factor: Floats | None = None
    while True:
        readers = list(_readers(value))
        if len(readers) != 1 or len(readers[0].results) != 1:
            return None
        reader, value = readers[0], readers[0].result
        if reader.name == "nn.relu" and factor is None:
            rectified = True
        elif factor is None:
            requantized = list(_requantized(reader.args[0]))
            if len(requantized) != 1 or requantized[0][0].min() <= 0:
                return None
            factor, value = requantized[0]
        else:
            limits = clip_limits(reader)
            break
    if limits is None or not _is_wide(reader):
        narrow = limits is not None and limits[1] - limits[0] < LEVELS
        return Levels(factor, *limits, rectified) if limits is not None and narrow else None
    read = _read_levels(value)
    if read is None:
        return None
    return Levels(factor * read.factor, read.low, read.high, rectified)


def _readers(value: Value) -> Iterator[Step]:
    """The steps that read a value, through what hands it on."""
    waiting = [value]
    while waiting:
        for user in waiting.pop().users:
            if is_same(user):
                waiting.append(user.result)
            else:
                yield user


def _product_readers(value: Value) -> Iterator[tuple[Step, bool]]:
    """The products that read a value, or largest values of it, and whether in another shape."""
    waiting = [(value, False)]
    while waiting:
        read, reshaped = waiting.pop()
        for reader in _readers(read):
            reshapes = reader.name in _SHAPES
            if reshapes or reader.name in _MAXIMA:
                waiting.append((reader.result, reshaped or reshapes))
            elif FQProductShape.get(reader.op) is not None:
                yield reader, reshaped


def is_same(step: Step) -> bool:
    """Return whether a step gives the integers of its operand."""
    return step.name == "cast" or FBody.get(step.op) is operand


def fixed_point_factor(step: Step) -> Floats | None:
    """The factor of a bare requantization or a fixed-point multiplication, in a shape that
    broadcasts; None for others and what is not constant. The way ties go is lost in a QDQ graph."""
    if step.name not in RESCALING or getattr(step.attrs, "rounding", "") in TFLM:
        return None
    known = factors_in(step)
    return None if known is None else known.scale


def _requantized(value: Value) -> Iterator[tuple[Floats, Value]]:
    """Yield the factor by which each reader multiplies the value, in a shape that broadcasts, and
    its result."""
    for user in _readers(value):
        factor = fixed_point_factor(user)
        if factor is not None:
            yield factor, user.result


def clip_limits(step: Step) -> tuple[int, int] | None:
    """The integers that a clip limits to; None for other steps."""
    if step.name != "clip":
        return None
    dtype = step.args[0].type.dtype
    low, high = (integer_bound(end, dtype) for end in (step.attrs.a_min, step.attrs.a_max))
    return low, high
