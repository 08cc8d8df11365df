"""Arrays in one member, each integer in as many bits as the range of its array needs.

An array is a header (dtype, bits, shift, axis, shape, low), the signs, and the numbers: number i
stands in the bits from i * bits on, the lowest first, and is ``(number << shift) + low``. Rows of
weights hold -2^(b-1) … 2^(b-1)-1 *or all of them negated* (``sequential_rounding.py``), and take b
bits: a bit per place of ``axis`` says which rows are negated. Floats and bools take the bits of
their dtype.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from compiler.errors import ArtifactError, raised_as
from compiler.ir.expr import Array

MAX_BYTES: Final = 1 << 32
"""Upper limit of the bytes of all arrays of one member, unpacked."""
_HEADER: Final = struct.Struct("<2sBBBB")
_KINDS: Final = frozenset(b"b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split())
_CHUNK: Final = 1 << 18
"""Numbers packed at a time; a multiple of 8, so that each chunk ends with a byte."""
_NO_AXIS: Final = 255
_ENDS: Final = 254
"""In place of the axis: two numbers behind ``low`` are ``begin`` and ``inner``."""
_SAME: Final = 253
"""In place of the axis: the number of an array of this content follows the shape."""
_WORTH: Final = 1 << 12
"""Repeated entries that are left out."""


class Form(NamedTuple):
    """Storage of the numbers of an array.

    Attributes:
        bits: of each number, at least 1.
        low, shift: an element is ``(number << shift) + low``, negated in negated rows.
        axis: along which rows may be negated; None where none is.
        negated: a bool per place of the axis.
        begin, inner: place of the first number stored, and how many; elements in front of them
            repeat the first, those behind the last. None are all.
    """

    bits: int
    low: int = 0
    shift: int = 0
    axis: int | None = None
    negated: tuple[bool, ...] = ()
    begin: int = 0
    inner: int | None = None

    def nbytes(self, size: int) -> int:
        """Bytes of the signs and of ``size`` numbers."""
        stored = size if self.inner is None else self.inner
        return -(-stored * self.bits // 8) + -(-len(self.negated) // 8)


def form_of(array: Array, ends: bool = False) -> Form:
    """The fewest bits that hold all numbers of an array.

    Args:
        ends: leave out entries that a table repeats at its ends.
    """
    if array.dtype.kind not in "iu" or not array.size:
        return Form(1 if array.dtype.kind == "b" else 8 * array.itemsize)
    low, high = int(array.min()), int(array.max())
    if high == -low and high & (high - 1) == 0 < high:
        for axis in range(array.ndim):
            others = tuple(one for one in range(array.ndim) if one != axis)
            negated = array.max(axis=others) == high
            if not np.any(negated & (array.min(axis=others) == low)):
                return Form(high.bit_length(), low, 0, axis, tuple(negated.tolist()))
    used = int(np.bitwise_or.reduce(_steps(array, low), axis=None))
    shift = (used & -used).bit_length() - 1 if used else 0
    form = Form(max(used.bit_length() - shift, 1), low, shift)
    if not ends or array.ndim != 1 or array.size <= _WORTH:
        return form
    ahead = np.flatnonzero(array != array[0])
    begin = int(ahead[0]) - 1 if ahead.size else array.size - 1
    behind = np.flatnonzero(array != array[-1])
    count = int(behind[-1]) + 2 - begin if behind.size else 1
    if array.size - count < _WORTH:
        return form
    return form._replace(begin=begin, inner=count)


def _steps(array: Array, low: int) -> Array:
    """Return the distances of the integers of an array from ``low``, unsigned."""
    unsigned = np.dtype(f"u{array.itemsize}")
    steps: Array = array.astype(unsigned) - np.asarray(low, array.dtype).astype(unsigned)
    return steps


def member_bytes(arrays: Iterable[Array]) -> int:
    """Length of what ``pack`` makes of arrays."""
    return sum(len(header) + length for header, length, _, _ in _forms(arrays))


def _forms(arrays: Iterable[Array]) -> Iterator[tuple[bytes, int, Array, Form | None]]:
    """Header, length of the numbers, array and form; no form of a table that is stored already."""
    tables: dict[tuple[str, bytes], int] = {}
    for number, array in enumerate(map(np.asarray, arrays)):
        if array.ndim == 1 and array.dtype.kind in "iu":
            first = tables.setdefault((str(array.dtype), array.tobytes()), number)
            if first != number:
                head = _HEADER.pack(_kind(array), 1, 0, _SAME, 1)
                yield head + struct.pack("<2I", array.size, first), 0, array, None
                continue
        form = form_of(array, ends=True)
        yield _header(array, form), form.nbytes(array.size), array, form


def _kind(array: Array) -> bytes:
    return f"{array.dtype.kind}{array.itemsize}".encode()


def _header(array: Array, form: Form) -> bytes:
    """Return the bytes in front of the signs of an array."""
    axis = _NO_AXIS if form.axis is None else form.axis
    axis = axis if form.inner is None else _ENDS
    head = _HEADER.pack(_kind(array), form.bits, form.shift, axis, array.ndim)
    if array.dtype.kind in "iu":
        low = np.asarray(form.low, array.dtype)
    else:
        low = np.zeros(0, np.int8)
    if form.inner is None:
        ends = b""
    else:
        ends = struct.pack("<2I", form.begin, form.inner)
    return head + struct.pack(f"<{array.ndim}I", *array.shape) + _little(low).tobytes() + ends


def numbers(array: Array, form: Form) -> bytes:
    """The signs and numbers of an array."""
    signs = np.packbits(np.asarray(form.negated, bool), bitorder="little").tobytes()
    if array.dtype.kind not in "iu":
        return signs + _packed(array, form.bits)
    if form.inner is not None:
        array = array[form.begin : form.begin + form.inner]
    return signs + _packed(_steps(_negated(array, form), form.low) >> form.shift, form.bits)


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The member of arrays whose names are k0, k1, …, in this order.

    Args:
        arrays: of integers, floats or bools, up to 252 axes of less than 2^32 elements.
    """
    pieces = []
    for header, _, array, form in _forms(arrays[f"k{i}"] for i in range(len(arrays))):
        pieces += [header, b"" if form is None else numbers(array, form)]
    return b"".join(pieces)


def unpack(data: bytes, name: str) -> dict[str, Array]:
    """The arrays of a member, k0, k1, …

    Raises:
        ArtifactError: it is no such member, or its arrays would have more than ``MAX_BYTES``.
    """
    arrays: dict[str, Array] = {}
    offset = total = 0
    kinds = (ValueError, TypeError, LookupError, struct.error)
    with raised_as(ArtifactError, f"member {name!r} holds no arrays", *kinds):
        while offset < len(data):
            kind, bits, shift, axis, ndim = _HEADER.unpack_from(data, offset)
            if kind not in _KINDS:  # other text numpy would read as more than a name
                raise ValueError(f"dtype {kind!r}")
            dtype = np.dtype(kind.decode())
            width = 1 if dtype.kind == "b" else 8 * dtype.itemsize
            if not 1 <= bits <= width - shift or ndim > 32:
                raise ValueError(f"dtype {dtype}, {bits} bits, {ndim} axes")
            whole = dtype.kind in "iu"
            if not whole and bits != width:
                raise ValueError(f"{bits} bits of {dtype}")
            offset += _HEADER.size
            shape = struct.unpack_from(f"<{ndim}I", data, offset)
            offset += 4 * ndim
            if axis == _SAME:
                (first,) = struct.unpack_from("<I", data, offset)
                offset += 4
                same = arrays[f"k{first}"]
                if same.shape != shape or same.dtype != dtype:
                    raise ValueError(f"a table of another dtype or size than k{first}")
                arrays[f"k{len(arrays)}"] = same
                continue
            stored = dtype.newbyteorder("<")
            if whole:
                low = int(np.frombuffer(data, stored, 1, offset)[0])
            else:
                low = 0
            offset += dtype.itemsize if whole else 0
            size = whole_size = math.prod(shape)
            total += size * dtype.itemsize
            begin = 0
            if axis == _ENDS:
                begin, size = struct.unpack_from("<2I", data, offset)
                offset += 8
                if not whole or ndim != 1 or not size or begin + size > whole_size:
                    raise ValueError(f"{size} of {whole_size} numbers")
            rows = 0 if axis in (_NO_AXIS, _ENDS) else shape[axis]
            ends = offset + -(-rows // 8), offset + -(-rows // 8) + -(-size * bits // 8)
            if total > MAX_BYTES or ends[1] > len(data):
                raise ValueError(f"{size} numbers of {bits} bits")
            signs = np.frombuffer(data[offset : ends[0]], np.uint8)
            negated = np.unpackbits(signs, count=rows, bitorder="little").astype(bool)
            along = None if axis in (_NO_AXIS, _ENDS) else axis
            form = Form(bits, low, shift, along, tuple(negated.tolist()))
            held = np.dtype(f"u{dtype.itemsize}") if whole else dtype
            array = _unpacked(data[ends[0] : ends[1]], held, size, bits)
            if size < whole_size:
                array = array[np.clip(np.arange(whole_size) - begin, 0, size - 1)]
            array = array.reshape(shape)
            if whole:
                array = (array << shift) + np.asarray(low, dtype).astype(held)
            arrays[f"k{len(arrays)}"] = _negated(array.astype(dtype, copy=False), form)
            offset = ends[1]
    return arrays


def _negated(array: Array, form: Form) -> Array:
    """The array with the rows negated that the form names; its own inverse."""
    if form.axis is None:
        return array
    shape = [-1 if axis == form.axis else 1 for axis in range(array.ndim)]
    negated = np.asarray(form.negated).reshape(shape)
    return np.where(negated, -array, array)


def _little(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _packed(array: Array, bits: int) -> bytes:
    flat = _little(np.ascontiguousarray(array).reshape(-1))
    if bits == 8 * flat.itemsize:
        return flat.tobytes()
    chunks = []
    for start in range(0, flat.size, _CHUNK):
        places = flat[start : start + _CHUNK].view(np.uint8).reshape(-1, flat.itemsize)
        used = np.unpackbits(places, axis=1, bitorder="little")[:, :bits]
        chunks.append(np.packbits(used, bitorder="little").tobytes())
    return b"".join(chunks)


def _unpacked(data: bytes, dtype: np.dtype[Any], size: int, bits: int) -> Array:
    """Numbers of unsigned integers, floats or bools."""
    stored = dtype.newbyteorder("<")
    if bits == 8 * dtype.itemsize:
        return np.frombuffer(data, stored).astype(dtype, copy=False)
    found = np.empty(size, dtype)
    for start in range(0, size, _CHUNK):
        count = min(_CHUNK, size - start)
        chunk = np.frombuffer(data[start * bits // 8 : -(-(start + count) * bits // 8)], np.uint8)
        places = np.zeros((count, 8 * dtype.itemsize), np.uint8)
        used = np.unpackbits(chunk, count=count * bits, bitorder="little")
        places[:, :bits] = used.reshape(count, bits)
        found[start : start + count] = np.packbits(places, bitorder="little").view(stored)
    return found
