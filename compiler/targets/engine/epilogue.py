"""The epilogue of a product: bias, requantization and clip, and its fields in a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compiler.ops.number_format import Array
from compiler.targets.engine.packing import (
    as_real,
    depthwise_order,
    make_factor,
    padded_channels,
    shuffled,
)
from compiler.targets.engine.plan import Planning
from compiler.targets.engine.steps import number
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Epilogue,
    Item,
    Product,
    rescaled,
    to_even,
)

BY_CHANNEL = ("RESCALE", "TO_EVEN")
"""Operators whose last parameter is the axis of their constants."""


def scaled_epilogue(item: Item) -> tuple[Product, Epilogue] | None:
    """The product at the start of a chain, and the chain as its epilogue; None if it is none."""
    under = _product_under(item)
    if under is None:
        return None
    product, chain = under
    epilogue = Epilogue(np.zeros(item.shape[product.channel_axis], np.int64))
    if all(_take(epilogue, link, product.channel_axis, len(item.shape)) for link in chain):
        if _fits(epilogue, product, *item.storage):
            return (product, epilogue)
        return None
    return None


def _product_under(item: Item) -> tuple[Product, list[Chain]] | None:
    """The product that a chain of elementwise operators begins with, and the chain from it on."""
    if item.storage[0] == "S64":
        return None
    chain: list[Chain] = []
    at = item
    while at.chain is not None:
        chain.append(at.chain)
        inner = [a for a in at.chain.args if a.data is None]
        if len(inner) != 1 or inner[0].shape != item.shape:
            return None
        at = inner[0]
        if at.view is not None or at.uses > 1:
            return None
    if at.product is None:
        return None
    return (at.product, chain[::-1])


def _take(epilogue: Epilogue, link: Chain, axis: int, rank: int) -> bool:
    """Make the next operator of the chain a part of the epilogue; whether it can be one.

    Args:
        axis: of the channels, in a tensor of this rank.
    """
    if link.op in ("CLIP", "MAX", "MIN", "ADD"):
        return _take_constant(epilogue, link, axis, rank)
    if epilogue.scale is not None or link.op not in (*BY_CHANNEL, "SHIFT"):
        return False
    if link.op in BY_CHANNEL and link.params[-1] not in (None, axis):
        return False
    bounds = _scaled_bounds(epilogue, link)
    if bounds is None:
        return False
    epilogue.low, epilogue.high = bounds
    epilogue.scale = link
    return True


def _scaled_bounds(epilogue: Epilogue, link: Chain) -> tuple[Array, Array] | None:
    """Bounds of a clip behind a factor that do what those in front of it do; None if none do.

    A factor >= 0 keeps the order, so they are those in front, scaled.
    """
    ends = epilogue.low, epilogue.high
    clips = any((end != none).any() for end, none in zip(ends, INT32))
    if clips and link.op == "RESCALE" and (link.params[0] < 0).any():
        return None
    low, high = (_scaled_end(end, none, link) for end, none in zip(ends, INT32))
    return low, high


def _scaled_end(ends: Array, none: int, link: Chain) -> Array:
    """One end of a clip, scaled.

    Args:
        ends: for all channels, or for each of them.
        none: the end of a clip that does nothing.
    """
    factors = [] if link.op == "SHIFT" else list(link.params[:-1])
    found: list[int] = []
    for end, *factor in zip(*(v.tolist() for v in np.broadcast_arrays(ends.reshape(-1), *factors))):
        if end == none:
            found.append(none)
        elif link.op == "RESCALE":
            found.append(min(max(rescaled(end, *factor), INT32[0]), INT32[1]))
        else:
            found.append(to_even(end, *factor) if factor else end >> link.params[0])
    return np.array(found)


def _take_constant(epilogue: Epilogue, link: Chain, axis: int, rank: int) -> bool:
    """A bias, or the bounds of a clip; see ``_take``."""
    if link.op == "CLIP":
        return _take_clip(epilogue, *link.params)
    (constant,) = (a.data for a in link.args if a.data is not None)
    along = _along_channel(constant, axis, rank, len(epilogue.bias))
    if along is None:
        return False
    if link.op == "ADD":
        # In front of a clip, whose ends move along.
        epilogue.low = _moved_end(epilogue.low, INT32[0], along)
        epilogue.high = _moved_end(epilogue.high, INT32[1], along)
        if epilogue.scale is None:
            epilogue.bias = epilogue.bias + along
        elif (along == along[0]).all():
            epilogue.added += int(along[0])
        else:
            return False
        return True
    return _take_clip(epilogue, *((along, INT32[1]) if link.op == "MAX" else (INT32[0], along)))


def _take_clip(epilogue: Epilogue, low: Array | int, high: Array | int) -> bool:
    low = np.maximum(low, INT32[0])
    high = np.minimum(high, INT32[1])
    # In the order max(min(x, high), low).
    epilogue.low = np.maximum(np.minimum(epilogue.low, high), low)
    epilogue.high = np.maximum(np.minimum(epilogue.high, high), low)
    return True


def _moved_end(ends: Array, none: int, by: Array) -> Array:
    """One end of a clip behind a sum; ``none`` of one that does nothing."""
    if (ends == none).all():
        return ends
    return np.clip(np.where(ends == none, none, ends + by), *INT32)


def _fits(epilogue: Epilogue, product: Product, kind: str, zero: int) -> bool:
    """Return whether 32 bits hold every sum of the epilogue, and the product can take its bias.

    Args:
        kind: of the storage; bytes are clipped at the same ends in all channels.
        zero: of the storage; it is added in front of a shift.
    """
    scale = epilogue.scale
    op = "" if scale is None else scale.op
    if epilogue.added and op in ("SHIFT", "TO_EVEN"):
        return False
    if kind == "U8" and (np.ptp(epilogue.low) or np.ptp(epilogue.high)):
        return False
    if epilogue.bias.any() and not product.takes_bias:
        return False
    if np.abs(epilogue.bias).max(initial=0) > INT32[1]:
        return False
    low = product.low + epilogue.bias
    high = product.high + epilogue.bias
    amounts = _amounts(scale, len(epilogue.bias))
    if op == "RESCALE":
        return make_factor(amounts[0], amounts[1], low, high, epilogue.added + zero) is not None
    if op == "TO_EVEN":
        zero <<= int(amounts[0].max())
        most = max(int(high.max()), -int(low.min())) + 2 * zero
        return most <= INT32[1] and (not zero or product.takes_bias)
    most = max(int(high.max()), 0) + (zero << int(amounts[0].max(initial=0)))
    return INT32[0] <= int(low.min()) and most <= INT32[1]


def _amounts(scale: Chain | None, channels: int) -> list[Array]:
    """Multiplier and shift of a RESCALE, bits of others, one a channel; 0 bits where there is
    none."""
    if scale is None:
        return [np.zeros(channels, np.int64)]
    if scale.op in BY_CHANNEL:
        values = scale.params[:-1]
    else:
        values = scale.params
    return [np.broadcast_to(value, (channels,)) for value in values]


def repeated(epilogue: Epilogue, product: Product, times: int) -> tuple[Epilogue, Product]:
    """The same for channels that stand several times behind each other."""
    if times == 1:
        return epilogue, product

    shape = product.low.shape
    scale = epilogue.scale
    every: dict[str, Any] = {
        name: np.tile(np.broadcast_to(getattr(epilogue, name), shape), times)
        for name in ("bias", "low", "high")
    }
    if scale is not None and scale.op in BY_CHANNEL:
        amounts = [np.tile(values, times) for values in _amounts(scale, len(product.low))]
        every["scale"] = replace(scale, params=(*amounts, None))
    low = np.tile(product.low, times)
    high = np.tile(product.high, times)
    return replace(epilogue, **every), replace(product, low=low, high=high)


def _along_channel(constant: Array, axis: int, rank: int, channels: int) -> Array | None:
    """A constant that differs along one axis only, as a vector over it."""
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for place, size in enumerate(shape) if place != axis):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,)).astype(np.int64)


def put_epilogue(
    planner: Planning,
    epilogue: Epilogue,
    product: Product,
    item: Item,
    groups: int,
    bias: Array,
    fills: bool = False,
) -> dict[str, Any]:
    """Fields rq_* of a step, and the bias.

    Args:
        bias: int64 a channel, to which that of the epilogue is added.
        fills: there is a depthwise kernel that fills registers, for bytes and int16 by factors;
            ``block`` is among the fields where it is taken.
    """
    emitter = planner.emitter
    library = planner.library
    channels = len(product.low)
    kind, zero = item.storage
    total = np.broadcast_to(epilogue.bias, (channels,)) + bias
    order: Array | None = None

    def put(values: Array, dtype: str = "int32") -> int:
        return emitter.put(padded_channels(values, groups, dtype, order))

    low, high = (
        np.broadcast_to(ends, (channels,)) + zero
        for ends in (np.maximum(epilogue.low, item.low), np.minimum(epilogue.high, item.high))
    )
    fields: dict[str, Any] = {
        "rq_type": number(kind),
        "rq_low": int(low[0]),
        "rq_high": int(high[0]),
    }
    op = "" if epilogue.scale is None else epilogue.scale.op
    amounts = _amounts(epilogue.scale, channels)
    if op == "RESCALE":
        sums = product.low + epilogue.bias, product.high + epilogue.bias
        factor = make_factor(amounts[0], amounts[1], *sums, epilogue.added + zero)
        assert factor is not None
        real = as_real(factor, *sums) if library.has_reals else None
        if fills and kind in ("U8", "S16") and not (real is None and factor.left):
            fields["block"] = library.depthwise_block
            order = depthwise_order(channels, library.depthwise_block)
        if real is not None:
            fields |= {
                "rq_kind": number("REAL"),
                "rq_mult": put(real, "float32"),
                "rq_add": epilogue.added + zero,
            }
        else:
            add = padded_channels(factor.add, groups, "int64", order)
            fields |= {
                "rq_kind": number("FACTOR"),
                "rq_left": factor.left,
                "rq_mult": put(factor.mult),
                "rq_add": emitter.put(shuffled(add, library)),
                "rq_shift": put(factor.shift),
            }
    elif op == "TO_EVEN":
        # The zero of the storage is even, so it changes no rounding in front of the shift.
        (shifts,) = amounts
        total = total + (zero << shifts)
        below, odd = to_even_parts(shifts)
        fields |= {
            "rq_kind": number("EVEN"),
            "rq_mult": put(below),
            "rq_add": put(odd),
            "rq_shift": put(shifts),
        }
    elif amounts[0].any() or zero:
        # The zero of the storage is added in front of the shift.
        fields |= {
            "rq_kind": number("SHIFT"),
            "rq_mult": put(zero << amounts[0]),
            "rq_shift": put(amounts[0]),
        }
    if np.ptp(low) or np.ptp(high):
        fields |= {"rq_by_channel": 1, "rq_low": put(low), "rq_high": put(high)}
    fields["bias"] = put(total)
    return fields


def to_even_parts(shifts: Array) -> tuple[Array, Array]:
    """Half of the last place less one, and 1, of shifts to the right; 0 for those by 0."""
    below = np.maximum((np.left_shift(np.int64(1), shifts) >> 1) - 1, 0)
    return below, (shifts > 0).astype(np.int64)
