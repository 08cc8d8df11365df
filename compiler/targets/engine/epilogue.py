"""The epilogue of a product: bias, requantization and clip, and its fields in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.targets.engine.packing import make_factor, padded_channels, shuffled
from compiler.targets.engine.steps import number
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Epilogue,
    Item,
    Product,
)

if TYPE_CHECKING:
    from compiler.targets.engine.planner import Planner

Array = NDArray[Any]

BY_CHANNEL = ("RESCALE", "TO_EVEN")
"""Operators whose last parameter is the axis of their constants."""


def scaled_epilogue(item: Item) -> tuple[Product, Epilogue] | None:
    """The product at the start of a chain, and the chain as its epilogue; None if it is none."""
    chain: list[Chain] = []
    at = item
    if item.storage[0] == "S64":
        return None
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
    product = at.product
    axis, channels = product.channel_axis, item.shape[product.channel_axis]
    found = Epilogue(np.zeros(channels, np.int64))
    scaled = False
    for link in reversed(chain):
        constant = next((a.data for a in link.args if a.data is not None), None)
        if link.op == "ADD" and constant is not None:
            along = _along_channel(constant, axis, len(item.shape), channels)
            if along is None or found.low > INT32[0] or found.high < INT32[1]:
                return None
            if not scaled:
                found.bias = found.bias + along
            elif (along == along[0]).all():
                found.added += int(along[0])
            else:
                return None
        elif link.op in ("CLIP", "MAX", "MIN"):
            if link.op == "CLIP":
                low, high = link.params
            else:
                if constant is None or constant.size != 1:
                    return None
                bound = int(constant.reshape(()))
                low, high = (bound, INT32[1]) if link.op == "MAX" else (INT32[0], bound)
            found.low, found.high = _clipped(found, max(low, INT32[0]), min(high, INT32[1]))
        elif link.op in BY_CHANNEL and not scaled:
            *factors, along_axis = link.params
            # A factor >= 0 keeps 0 and the order, so a relu in front is one behind.
            if found.low not in (INT32[0], 0) or found.high != INT32[1]:
                return None
            if along_axis is not None and along_axis != axis:
                return None
            if link.op == "TO_EVEN":
                found.to_even = factors[0]
            else:
                found.multiplier, found.shift = factors
                if found.low == 0 and (factors[0] < 0).any():
                    return None
            scaled = True
        elif link.op == "SHIFT" and not scaled:
            if found.low not in (INT32[0], 0) or found.high != INT32[1]:
                return None
            found.bits, scaled = link.params[0], True
        else:
            return None
    if scaled and found.added and found.multiplier is None:
        return None
    if np.abs(found.bias).max(initial=0) > INT32[1] or (
        found.bias.any() and not product.takes_bias
    ):
        return None
    low, high = product.low + found.bias, product.high + found.bias
    if found.multiplier is not None:
        if make_factor(*factor_arguments(found, channels), low, high, found.added) is None:
            return None
    elif found.to_even is not None:
        zero = item.storage[1] << int(found.to_even.max())
        if max(int(high.max()), -int(low.min())) + 2 * zero > INT32[1] or (
            zero and not product.takes_bias
        ):
            return None  # as below
    elif max(int(high.max()), 0) + (item.storage[1] << found.bits) > INT32[1]:
        return None  # the zero of the storage is added before the shift
    return product, found


def factor_arguments(epilogue: Epilogue, channels: int) -> tuple[Array, Array]:
    """Multiplier and shift, one a channel."""
    assert epilogue.multiplier is not None
    assert epilogue.shift is not None
    return (
        np.broadcast_to(epilogue.multiplier, (channels,)),
        np.broadcast_to(epilogue.shift, (channels,)),
    )


def _clipped(found: Epilogue, low: int, high: int) -> tuple[int, int]:
    """Bounds after another clip, in the order max(min(x, high), low)."""
    return max(min(found.low, high), low), max(min(found.high, high), low)


def _along_channel(constant: Array, axis: int, rank: int, channels: int) -> Array | None:
    """A constant that differs along one axis only, as a vector over it."""
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for place, size in enumerate(shape) if place != axis):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,)).astype(np.int64)


def put_epilogue(
    planner: Planner, epilogue: Epilogue, product: Product, item: Item, groups: int, bias: Array
) -> dict[str, Any]:
    """Fields rq_* of a step, and the bias.

    Args:
        bias: int64 a channel, to which that of the epilogue is added.
    """
    emitter, library = planner.emitter, planner.library
    channels = len(product.low)
    kind, zero = item.storage
    total = np.broadcast_to(epilogue.bias, (channels,)) + bias
    fields: dict[str, Any] = {
        "rq_type": number(kind),
        "rq_low": max(epilogue.low, item.low) + zero,
        "rq_high": min(epilogue.high, item.high) + zero,
    }
    if epilogue.multiplier is not None:
        low, high = product.low + epilogue.bias, product.high + epilogue.bias
        factor = make_factor(
            *factor_arguments(epilogue, channels), low, high, epilogue.added + zero
        )
        assert factor is not None
        add = padded_channels(factor.add, groups, "int64")
        fields |= {
            "rq_kind": number("FACTOR"),
            "rq_left": factor.left,
            "rq_mult": emitter.put(padded_channels(factor.mult, groups, "int32")),
            "rq_add": emitter.put(shuffled(add, library)),
            "rq_shift": emitter.put(padded_channels(factor.shift, groups, "int32")),
        }
    elif epilogue.to_even is not None:
        # The zero of the storage is even, so it changes no rounding in front of the shift.
        shifts = np.broadcast_to(epilogue.to_even, (channels,))
        total = total + (zero << shifts)
        below, odd = to_even_parts(shifts)
        fields |= {
            "rq_kind": number("EVEN"),
            "rq_mult": emitter.put(padded_channels(below, groups, "int32")),
            "rq_add": emitter.put(padded_channels(odd, groups, "int32")),
            "rq_shift": emitter.put(padded_channels(shifts, groups, "int32")),
        }
    elif epilogue.bits or zero:
        # The zero of the storage is added in front of the shift.
        bits = np.full(channels, epilogue.bits, np.int32)
        half = np.full(channels, zero << epilogue.bits, np.int32)
        fields |= {
            "rq_kind": number("SHIFT"),
            "rq_mult": emitter.put(padded_channels(half, groups, "int32")),
            "rq_shift": emitter.put(padded_channels(bits, groups, "int32")),
        }
    fields["bias"] = emitter.put(padded_channels(total, groups, "int32"))
    return fields


def to_even_parts(shifts: Array) -> tuple[Array, Array]:
    """Half of the last place less one, and 1, of shifts to the right; 0 for those by 0."""
    below = np.maximum((np.left_shift(np.int64(1), shifts) >> 1) - 1, 0)
    return below, (shifts > 0).astype(np.int64)
