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
from compiler.ops.qnn.requantize import OP, RESCALING, TFLM, Factors, factors_in, limits_of
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.rules.realize import WIDE_INPUT
from compiler.ops.tensor.clip import integer_bound
from compiler.ranges.analysis import RangeContext
from compiler.span import onnx_nodes

_FEW_WEIGHTS = 1 << 16
_SOFTMAX = "nn.integer_softmax"
_MASKED = 1 << 12
_AVERAGES = ("nn.avg_pool2d", "nn.global_avg_pool2d", "mean")
_MAXIMA = ("nn.max_pool2d", "nn.global_max_pool2d")
_SHAPES = ("reshape", "nn.batch_flatten", "squeeze", "expand_dims", "transpose")
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
    for reader in _readers(value):
        factor = factor_of(reader)
        limits = limits_in(reader)
        if factor is None or limits is None or factor.size > 1:
            continue
        if limits[1] - limits[0] < LEVELS:
            span = (limits[1] - limits[0]) / float(factor.reshape(()))
            found.append((span, Levels(factor.reshape(()), *limits)))
    if found:
        return max(found, key=lambda one: one[0])[1]
    return None


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
    step: Step, ranges: RangeContext, maxima: ChannelMaxima, last: Set[Step] = frozenset()
) -> Levels | None:
    """Return the levels that stand for the 16 bits of a step.

    What layers read of them in 8 bits; of several, that with the widest range. Where a product that
    is not among ``last`` reads all 16 bits, their range, for a grouped convolution channel by
    channel where it is known. Where tables read them, the range in which they change. None for
    other steps, and where none of these reads.
    """
    seen = _seen(step)
    tabulated = _seen(step, tabulated=True)
    if seen is None or tabulated is None:
        return None
    found = _read_levels(step.result)
    if found is not None:
        own = [limit * float(found.factor) for limit in limits_in(step) or ()]
        return replace(found, low=max(found.low, own[0]), high=min(found.high, own[1]))
    origin = _Origin.of(step)
    unsigned = ranges.of(step.result).lowest >= 0 and _is_unsigned(origin.source)
    whole = _calibrated_levels(origin, max(-seen[0], seen[1]), unsigned)
    multiplied = _multiplied_levels(step, whole, origin, maxima, last)
    if multiplied is not None or _enters(origin.product):
        return multiplied
    return _tabulated_levels(step, tabulated)


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


def _tabulated_levels(step: Step, seen: tuple[float, float]) -> Levels | None:
    ends = [
        _changing_ends(table, step.result)
        for user in _readers(step.result)
        for table in ([user] if user.name in ("lookup", _SOFTMAX) else _readers(user.result))
    ]
    known = [found for found in ends if found is not None]
    if not known or len(known) < len(ends):
        return None
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
        limits = limits_in(value.producer) if value.producer else None
        masked = limits is not None and limits[1] - limits[0] > _MASKED
        if masked:
            return None
        return (-math.inf, math.inf)
    entries = table.args[1].data
    if entries is None or not entries.size:
        return None
    lowest = integer_range(table.args[0].type.dtype)[0] - places[value]
    changing = np.flatnonzero(entries[1:] != entries[:-1])
    ends = (changing[0], changing[-1] + 1) if changing.size else (0, 1)
    return lowest + float(ends[0]), lowest + float(ends[1])


def _enters(product: Step | None) -> bool:
    """Return whether a product reads an input of the network, as it is or quantized."""
    read = () if product is None else (value.producer for value, _ in moved_from(product.args[0]))
    return any(s is None or not all(is_integer(arg.type.dtype) for arg in s.args) for s in read)


def _seen(step: Step, tabulated: bool = False) -> tuple[float, float] | None:
    """The ends of the integers of a stored value of 9 to 16 bits that calibration has seen; None
    for others.

    Limits below those of its bits are ends of the values: there is no room beyond, and the value
    may be stored in more bits.
    """
    quant = step.results[0].quant
    limits = limits_in(step)
    if quant is None or limits is None or quant.zero_point or not quant.bits:
        return None
    low, high = limits
    if max(-low, high) + 1 in (1 << (quant.bits - 1), 1 << quant.bits):
        room = wide_headroom(quant.bits, tabulated=tabulated)
        return (low + np.sign(low)) / room, (high + np.sign(high)) / room
    if step.result.type.dtype == WIDE_INPUT:
        return limits
    return None


def _multiplied_levels(
    step: Step, whole: Levels, origin: _Origin, maxima: ChannelMaxima, last: Set[Step]
) -> Levels | None:
    products = dict(_product_readers(step.result))
    if last >= products.keys():
        return None
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


def needless_clips(step: Step) -> tuple[Step, ...]:
    """Clips of channels in front of a clip to 8 bits of the same limits, but for a level."""
    limits = limits_in(step)
    if limits is None or limits[1] - limits[0] >= LEVELS:
        return ()
    origin = _Origin.of(step)
    low, high = origin.ends
    same = low.max() <= limits[0] + 1 and limits[1] - 1 <= high.min()
    if same:
        return origin.clips
    return ()


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
        """Return the origin of the values of a clip or a requantization with limits."""
        limits = limits_in(step)
        factor = np.ones(())
        value = step.result
        assert limits is not None
        low, high = (np.asarray(float(end)) for end in limits)
        clips: list[Step] = []
        alone = True
        while (producer := value.producer) is not None:
            alone = alone and (len(value.users) == 1 or producer is step)
            held = _bounds(producer)
            known = _factors(producer)
            if known is not None and (producer is step or limits_in(producer) is None):
                factor = factor * known.scale
                low = np.maximum(low, 0) if getattr(producer.attrs, "relu", False) else low
            elif producer.name == "nn.relu":
                low = np.maximum(low, 0)
            elif producer.name == "maximum" and alone and held is not None:
                low = np.maximum(low, held * factor)
                clips.append(producer)
            elif producer.name == "minimum" and alone and held is not None:
                high = np.minimum(high, held * factor)
                clips.append(producer)
            elif producer is not step and not _adds(producer):
                break
            value = producer.args[0]
        found = producer if producer is not None and producer.name == "nn.conv2d" else None
        return _Origin((low, high), tuple(clips), value, found)


def _adds(step: Step) -> bool:
    """True for a cast, and the sum with a constant."""
    return step.name == "cast" or (step.name == "add" and _bounds(step) is not None)


def _bounds(step: Step) -> Floats | None:
    """The constant that a step reads, infinite where it is an end of its dtype."""
    held = step.args[1].data if len(step.args) > 1 else None
    if held is None or not is_integer(str(held.dtype)):
        return None
    least, most = integer_range(str(held.dtype))
    found = np.where(held >= most, np.inf, held.astype(np.float64))
    return np.where(held <= least, -np.inf, found)


def _is_unsigned(value: Value) -> bool:
    """Return whether a value is unsigned integers, or their averages, but for factors."""
    while (step := value.producer) is not None and not value.type.dtype.startswith("uint"):
        scaled = step.name == "multiply" and _bounds(step) is not None
        scaled |= step.name in (*_AVERAGES, *_MAXIMA) or factor_of(step) is not None
        if not scaled and not is_same(step):
            break
        value = step.args[0]
    return value.type.dtype.startswith("uint")


def _calibrated_levels(origin: _Origin, reach: float, unsigned: bool) -> Levels:
    least = 0.0 if unsigned else -reach
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
    readers = list(_readers(value))
    if len(readers) != 1:
        return None
    step = readers[0]
    factor = factor_of(step, rectified=True)
    limits = limits_in(step)
    if factor is None or limits is None or factor.min() <= 0:
        return None
    rectified = step.attrs.relu
    if _seen(step) is None:
        narrow = limits[1] - limits[0] < LEVELS
        if narrow:
            return Levels(factor, *limits, rectified)
        return None
    read = _read_levels(step.result)
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


def factor_of(step: Step, rectified: bool = False) -> Floats | None:
    """The factor of a requantization without a bias or a fixed-point multiplication, in a shape
    that broadcasts; None for others and what is not constant.

    Args:
        rectified: one with a relu counts too.
    """
    known = _factors(step)
    if known is None or known.bias.any() or (getattr(step.attrs, "relu", False) and not rectified):
        return None
    return known.scale


def _factors(step: Step) -> Factors | None:
    """The factors by which a step multiplies; the way ties go is lost in a QDQ graph."""
    if step.name not in RESCALING or getattr(step.attrs, "rounding", "") in (TFLM, "floor"):
        return None
    return factors_in(step)


def limits_in(step: Step) -> tuple[int, int] | None:
    """The integers that a clip or a requantization limits to, its zero point taken off; None for
    other steps."""
    if step.name == OP:
        return limits_of(step.attrs)
    if step.name != "clip":
        return None
    dtype = step.args[0].type.dtype
    low, high = (integer_bound(end, dtype) for end in (step.attrs.a_min, step.attrs.a_max))
    return low, high
