"""Weights and factors in the order in which the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ops.number_format import Array
from compiler.targets.engine.library import Library

LARGEST_32 = (1 << 31) - 1
_BLOCK_BYTES = 147456
_BLOCK_ROWS = 240
_MOST_TOGETHER = 4
_MOST_SHARE = 20
FILLED_ROWS = {
    4: {(3, 1): 2, (3, 2): 1, (5, 1): 4, (5, 2): 2},
    2: {(3, 1): 2, (3, 2): 2, (5, 1): 2, (5, 2): 2},
}
"""Output rows together by k unit, kernel and stride: QK_WINDOWS of depthwise.h. Sixteen registers
of 32 bytes hold the sums of two rows at most."""
_NARROW_UNIT = 4
_PAIR_UNIT = 2
MOST_PAIR = ((1 << 15) - 1) // 255
_LEAST_NARROW = 8
"""Dot steps of a row for each that is not narrow."""
_MOST_NIBBLE = 15
_CROSSED = 4


def vectors_of(columns: int) -> int:
    """Vectors of sixteen columns."""
    return -(-columns // 16)


def panels(columns: int, most: int) -> list[tuple[int, int]]:
    """(first vector, vectors) of every panel of at most so many, as balanced as can be."""
    vectors = vectors_of(columns)
    count = -(-vectors // most)
    narrow, wide = divmod(vectors, count)
    sizes = [narrow + (panel < wide) for panel in range(count)]
    return [(sum(sizes[:panel]), size) for panel, size in enumerate(sizes)]


def least_columns(library: Library) -> int:
    """Columns of a product that cost as much as one."""
    if library.columns_outside:
        return 1
    if library.has_eights:
        return 8
    return 16


def dot_unit(kind: str, library: Library, narrow: bool = False) -> int:
    """Reduced elements of one dot step, for an input that is stored as ``kind``."""
    if kind == "S16":
        return _PAIR_UNIT
    if narrow:
        return _NARROW_UNIT
    return library.k_unit


def wide_steps(weight: Array, library: Library) -> int | None:
    """Dot steps of four bytes, the last ones of a row, that are taken by kernels of any weights; in
    those before them products of bytes and these weights, two added, always fit in 16 bits.

    255 times the positive weights of a pair, or its negative ones, is what a pair reaches at most.

    Args:
        weight: [columns, segments, elements of a segment], integers within int8.
        library: for which kernels.
    Returns:
        None where there are no such kernels, or so many steps that others are faster.
    """
    if not library.has_narrow:
        return None
    padded = np.pad(weight.astype(np.int16), ((0, 0), (0, 0), (0, -weight.shape[2] % _NARROW_UNIT)))
    pairs = padded.reshape(*weight.shape[:2], -1, 2, 2)
    most = np.maximum(np.maximum(pairs, 0).sum(-1), np.maximum(-pairs, 0).sum(-1))
    beyond = np.flatnonzero(most.max(axis=(0, 1, 3)) > MOST_PAIR)
    wide = pairs.shape[2] - int(beyond[0]) if beyond.size else 0
    few = weight.shape[1] == 1 and wide * _LEAST_NARROW <= pairs.shape[2]
    if few or not wide:
        return wide
    return None


def pack_product(
    weight: Array, unit: int, library: Library, eights: bool = True, tiled: bool = False
) -> Array:
    """Weights of one group of a product.

    Args:
        weight: [columns, segments, elements of a segment], integers within int8.
        unit: reduced elements of one dot step.
        library: for which kernels.
        eights: a last vector of eight columns may be half as wide.
        tiled: each vector is a panel.
    Returns:
        ``vectors x steps x 64`` bytes, 32 for pairs of bytes, see gemm.h; half of it for a last
        vector of eight columns.
    """
    columns, segments, length = weight.shape
    dtype = np.int8 if unit == _NARROW_UNIT or library.weight_bytes == 1 else np.int16
    padded = np.zeros((vectors_of(columns) * 16, segments, -(-length // unit) * unit), dtype)
    padded[:columns, :, :length] = weight
    rows = padded.reshape(len(padded), -1, unit)
    if library.columns_outside:
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    if eights and _beyond_vectors(columns, library):
        rows = rows[:-8]
    parts = [
        rows[first * 16 : (first + count) * 16].transpose(1, 0, 2).reshape(-1)
        for first, count in panels(columns, 1 if tiled else library.panel_vectors)
    ]
    return np.concatenate(parts).view(np.uint8)


def has_four_bits(weight: Array) -> bool:
    """Return whether the weights [columns, length] of each column are at most 15 apart."""
    return bool((weight.max(axis=1) - weight.min(axis=1).astype(np.int32)).max() <= _MOST_NIBBLE)


def pack_four_bits(weight: Array, library: Library) -> Array:
    """Weights of one group of a product of one row, two in a byte.

    Args:
        weight: [columns, length], for which ``has_four_bits``.
    Returns:
        of each panel the least weight of every column, int32, then ``vectors x 64`` bytes for two
        dot steps, see gemm.h.
    """
    columns, length = weight.shape
    least = np.zeros(vectors_of(columns) * 16, np.int32)
    least[:columns] = weight.min(axis=1)
    above = np.zeros((len(least), -(-length // 8) * 8), np.uint8)
    above[:columns, :length] = weight - least[:columns, None]
    low, high = above.reshape(len(above), -1, 2, _NARROW_UNIT).transpose(2, 1, 0, 3)
    packed = low | high << 4
    parts = []
    for first, count in panels(columns, library.panel_vectors):
        place = slice(first * 16, (first + count) * 16)
        parts += [least[place].view(np.uint8), packed[:, place].reshape(-1)]
    return np.concatenate(parts)


def rows_together(kernel: int, stride: int, dilation: int, height: int, unit: int) -> int:
    """Output rows that a depthwise kernel computes from the same interleaved input rows.

    Args:
        unit: vertical taps of a step.
    """
    spare = -(-kernel // unit) * unit - kernel
    if dilation > 1:
        return 1
    return min(spare // stride + 1, height, _MOST_TOGETHER)


def depthwise_order(channels: int, block: int) -> Array:
    """The channel at every place of the vectors of a depthwise step: see depthwise.h."""
    order = np.arange(vectors_of(channels) * 16)
    if block == 1:
        return order
    parts = []
    first = 0
    for lanes in (block, *(1 << n for n in reversed(range(block.bit_length() - 1)))):
        last = first + (len(order) - first) // (16 * lanes) * 16 * lanes
        split = order[first:last].reshape(-1, lanes, 4, 4).transpose(0, 2, 1, 3)
        parts.append(np.tile(split, (1, 1, block // lanes, 1)).reshape(-1))
        first = last
    return np.concatenate(parts)


def depthwise_columns(width: int, kernel: int, stride: int, dilation: int, block: int) -> int:
    """Input columns that are interleaved at once: qk_mixed_columns of depthwise.h."""
    if block > 1:
        return (min(width, _MOST_SHARE) + 2) * stride + kernel
    return (width - 1) * stride + (kernel - 1) * dilation + 1


def pack_depthwise(
    weight: Array, stride: int, together: int, block: int, unit: int, library: Library
) -> Array:
    """Weights [channels, kernel_y, kernel_x] in the order of depthwise.h, as bytes.

    Args:
        unit: vertical taps of a step.
    """
    channels, height, width = weight.shape
    groups = -(-((together - 1) * stride + height) // unit)
    dtype = np.int16 if unit == _PAIR_UNIT else np.int8
    padded = np.zeros((vectors_of(channels) * 16, together, groups * unit, width), dtype)
    for row in range(together):
        padded[:channels, row, row * stride : row * stride + height] = weight
    split = padded[depthwise_order(channels, block)]
    split = split.reshape(-1, 16, together, groups, unit, width)
    if library.columns_outside:
        order = (0, 5, 3, 2, 4, 1)
    else:
        order = (0, 5, 3, 2, 1, 4)
    return np.ascontiguousarray(split.transpose(order)).reshape(-1).view(np.uint8)


def padded_channels(values: Array, groups: int, dtype: str, order: Array | None = None) -> Array:
    """[groups * channels] with every group padded with zeros to full vectors.

    Args:
        order: the channel at every place, if it is another one.
    """
    split = np.asarray(values).reshape(groups, -1)
    made = np.zeros((groups, vectors_of(split.shape[1]) * 16), dtype)
    made[:, : split.shape[1]] = split
    if order is None:
        return made.reshape(-1)
    return made.reshape(-1)[order]


def crossed_term(weight: Array, library: Library) -> Array:
    """Return the term that the bias takes back of crossed weights [columns, elements]: see
    ``qk_dot_crossed``."""
    columns, length = weight.shape
    padded = np.pad(weight.astype(np.int32), ((0, 0), (0, -length % _CROSSED)))
    steps = padded.reshape(columns, -1, 2, _CROSSED // 2)
    term = np.einsum("nki,nki->n", steps[:, :, 0], steps[:, :, 1])
    term[columns - _beyond_vectors(columns, library) :] = 0
    return np.asarray(-term, np.int64)


def _beyond_vectors(columns: int, library: Library) -> int:
    """Columns that lie in a last vector of eight."""
    rest = columns % 16
    if library.has_eights and rest <= 8:
        return rest
    return 0


def product_scratch(rows: int, steps: int, library: Library) -> int:
    """Bytes for the widened rows of a block: qk_block_rows of gemm.h."""
    if not library.widens:
        return 0
    row = steps * library.k_unit * 2
    most = min(max(_BLOCK_BYTES // row, 24), _BLOCK_ROWS)
    blocks = -(-rows // most)
    return -(-rows // blocks) * row + 64


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """out = (x * 2^left * mult + add) >> (32 + shift), one value a channel, or one for all.

    Attributes:
        mult, shift: int32.
        add: int64; holds half of the last place, and what is added to the result.
        left: bits that x is shifted left by before.
    """

    mult: Array
    add: Array
    shift: Array
    left: int


def make_factor(
    multiplier: Array, shift: Array, low: Array, high: Array, added: int
) -> Factor | None:
    """``fixed_point_multiply`` as the kernels compute it, plus ``added``.

    Args:
        multiplier, shift: as the operator takes them, one dimension.
        low, high: bounds of x, per channel or for all.
        added: to every result.
    Returns:
        None where x could be too wide for these kernels; the exact result is then unknown to them.
    """
    mult = np.asarray(multiplier, np.int64)
    right = 31 - np.asarray(shift, np.int64)
    low_x, high_x = (np.broadcast_to(np.asarray(v, np.int64), mult.shape) for v in (low, high))
    most = np.maximum(np.abs(low_x), np.abs(high_x))
    if int(most.max(initial=0)) > LARGEST_32:
        return None
    # Where even the largest product is below half of the last place, the result is 0.
    half_place = np.left_shift(np.int64(1), np.clip(right - 1, 0, 62))
    gone = ((right > 0) & (most * np.abs(mult) < half_place)) | (right - 31 > 32)
    mult = np.where(gone, 0, mult)
    right = np.where(gone, 32, right)
    left = int(max(0, 32 - right.min(initial=32)))
    if left > 30 or int(most.max(initial=0)) << left > LARGEST_32:
        return None
    right = right + left
    if int(right.max(initial=32)) > 61:
        return None
    if abs(added) << int(right.max(initial=32)) >= 1 << 62:
        return None
    half = np.where(gone, 0, np.left_shift(np.int64(1), right - 1))
    add = half + np.left_shift(np.int64(added), right)
    for bound in (low_x, high_x):
        product = (bound << left) * mult
        wide = product + add
        overflows = (product ^ wide) & (add ^ wide) < 0
        result = wide >> right
        if np.any(overflows | (result < -LARGEST_32 - 1) | (result > LARGEST_32)):
            return None
    return Factor(mult.astype(np.int32), add.astype(np.int64), (right - 32).astype(np.int32), left)


def as_real(factor: Factor, low: Array, high: Array) -> Array | None:
    """The multipliers as float32, where one product that is rounded once gives the same integers.

    Products are rounded to the nearest integer, halves to even; ``add`` must be half of the last
    place and a whole number, which is left to the caller.

    Args:
        low, high: bounds of x, per channel.
    Returns:
        None where a multiplier has more than 24 bits, x or a result has more than float32 holds,
        or a product could end in exactly a half.
    """
    mult = np.abs(factor.mult.astype(np.int64))
    right = factor.shift.astype(np.int64) + 32
    last = mult & -mult
    most = np.maximum(np.abs(low), np.abs(high)) << factor.left
    wide = (mult >> 24 >= last) | (most > 1 << 24 + factor.left)
    wide |= (most * mult >> right >= 1 << 21) | (
        most >= np.left_shift(np.int64(1), right - 1) // np.maximum(last, 1)
    )
    if np.any(wide & (mult > 0)):
        return None
    return np.asarray(factor.mult * np.exp2(factor.left - right), np.float32)


def shuffled(add: Array, library: Library) -> Array:
    """64-bit addends in the order of ``qk_load_factor``; whole vectors only."""
    if library.lanes == 1:
        return add
    return add.reshape(-1, library.lanes // 2, 2).transpose(0, 2, 1).reshape(-1)
