"""Arrays in one member, each integer in as many bits as the largest of its array needs.

An array is a header (dtype, bits, axis, shape), the signs, and the numbers: number i stands in the
bits from i * bits on, the lowest first. Rows of weights hold -2^(b-1) … 2^(b-1)-1 *or all of them
negated* (``quantize/_sequential_rounding.py``), and take b bits: a bit per place of ``axis`` says
which rows are negated. Floats and bools take the bits of their dtype.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ArtifactError

Array = NDArray[Any]

MAX_BYTES: Final = 1 << 32
"""Of all arrays of one member, unpacked."""
_HEADER: Final = struct.Struct("<2sBBB")
_CHUNK: Final = 1 << 18
"""Numbers packed at a time; a multiple of 8, so that each chunk ends with a byte."""
_NO_AXIS: Final = 255


class Form(NamedTuple):
    """How the numbers of an array are stored.

    Attributes:
        bits: of each number, at least 1.
        axis: along which rows may be negated; None where none is.
        negated: a bool per place of the axis.
    """

    bits: int
    axis: int | None = None
    negated: tuple[bool, ...] = ()


def form_of(array: Array) -> Form:
    """The fewest bits that hold all numbers of an array."""
    if array.dtype.kind not in "iu" or not array.size:
        return Form(1 if array.dtype.kind == "b" else 8 * array.itemsize)
    low, high = int(array.min()), int(array.max())
    if array.dtype.kind == "u":
        return Form(max(1, high.bit_length()))
    bits = 1 + max((one if one >= 0 else ~one).bit_length() for one in (low, high))
    limit = 1 << (bits - 2) if bits > 2 else 0
    if limit and high == limit and low >= -limit:
        for axis in range(array.ndim):
            others = tuple(one for one in range(array.ndim) if one != axis)
            negated = array.max(axis=others) == limit
            if not np.any(negated & (array.min(axis=others) == -limit)):
                return Form(bits - 1, axis, tuple(negated.tolist()))
    return Form(bits)


def packed_bytes(array: Array) -> int:
    """Bytes of the numbers and signs of an array, without its header."""
    form = form_of(array)
    return -(-array.size * form.bits // 8) + -(-len(form.negated) // 8)


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The member of arrays whose names are k0, k1, …, in this order.

    Args:
        arrays: of integers, floats or bools, up to 255 axes of less than 2^32 elements.
    """
    pieces = []
    for number in range(len(arrays)):
        array = np.asarray(arrays[f"k{number}"])
        form = form_of(array)
        kind = f"{array.dtype.kind}{array.itemsize}".encode()
        axis = _NO_AXIS if form.axis is None else form.axis
        pieces.append(_HEADER.pack(kind, form.bits, axis, array.ndim))
        pieces.append(struct.pack(f"<{array.ndim}I", *array.shape))
        signs = np.asarray(form.negated, bool)
        pieces.append(np.packbits(signs, bitorder="little").tobytes())
        pieces.append(_packed(_negated(array, form), form.bits))
    return b"".join(pieces)


def unpack(data: bytes, name: str) -> dict[str, Array]:
    """The arrays of a member, k0, k1, …

    Raises:
        ArtifactError: it is no such member, or its arrays would have more than ``MAX_BYTES``.
    """
    arrays: dict[str, Array] = {}
    offset = total = 0
    try:
        while offset < len(data):
            kind, bits, axis, ndim = _HEADER.unpack_from(data, offset)
            dtype = np.dtype(kind.decode())
            width = 1 if dtype.kind == "b" else 8 * dtype.itemsize
            if dtype.kind not in "biuf" or not 1 <= bits <= width or ndim > 32:
                raise ValueError(f"dtype {dtype}, {bits} bits, {ndim} axes")
            if dtype.kind not in "iu" and bits != width:
                raise ValueError(f"{bits} bits of {dtype}")
            offset += _HEADER.size
            shape = struct.unpack_from(f"<{ndim}I", data, offset)
            offset += 4 * ndim
            size = math.prod(shape)
            total += size * dtype.itemsize
            rows = 0 if axis == _NO_AXIS else shape[axis]
            ends = offset + -(-rows // 8), offset + -(-rows // 8) + -(-size * bits // 8)
            if total > MAX_BYTES or ends[1] > len(data):
                raise ValueError(f"{size} numbers of {bits} bits")
            signs = np.frombuffer(data[offset : ends[0]], np.uint8)
            negated = np.unpackbits(signs, count=rows, bitorder="little").astype(bool)
            form = Form(bits, None if axis == _NO_AXIS else axis, tuple(negated.tolist()))
            array = _unpacked(data[ends[0] : ends[1]], dtype, size, bits).reshape(shape)
            arrays[f"k{len(arrays)}"] = _negated(array, form)
            offset = ends[1]
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise ArtifactError(f"member {name!r} holds no arrays: {error}") from error
    return arrays


def _negated(array: Array, form: Form) -> Array:
    """The array with the rows negated that the form names; its own inverse."""
    if form.axis is None:
        return array
    shape = [-1 if axis == form.axis else 1 for axis in range(array.ndim)]
    negated = np.asarray(form.negated).reshape(shape)
    return np.where(negated, -array, array)


def _packed(array: Array, bits: int) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1)
    flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
    if bits == 8 * flat.itemsize:
        return flat.tobytes()
    chunks = []
    for start in range(0, flat.size, _CHUNK):
        places = flat[start : start + _CHUNK].view(np.uint8).reshape(-1, flat.itemsize)
        used = np.unpackbits(places, axis=1, bitorder="little")[:, :bits]
        chunks.append(np.packbits(used, bitorder="little").tobytes())
    return b"".join(chunks)


def _unpacked(data: bytes, dtype: np.dtype[Any], size: int, bits: int) -> Array:
    stored = dtype.newbyteorder("<")
    if bits == 8 * dtype.itemsize:
        return np.frombuffer(data, stored).astype(dtype, copy=False)
    found = np.empty(size, dtype)
    spare = 8 * dtype.itemsize - bits
    for start in range(0, size, _CHUNK):
        count = min(_CHUNK, size - start)
        chunk = np.frombuffer(data[start * bits // 8 : -(-(start + count) * bits // 8)], np.uint8)
        used = np.unpackbits(chunk, count=count * bits, bitorder="little").reshape(count, bits)
        places = np.zeros((count, 8 * dtype.itemsize), np.uint8)
        # The highest bits: a shift back to the lowest ones spreads the sign.
        places[:, spare if dtype.kind == "i" else 0 :][:, :bits] = used
        numbers = np.packbits(places, axis=1, bitorder="little").reshape(-1).view(stored)
        found[start : start + count] = numbers >> spare if dtype.kind == "i" else numbers
    return found
