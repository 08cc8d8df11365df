"""Arrays as .npy members: no pickle, little-endian, read without trusting the header."""

from __future__ import annotations

import io
import tokenize
import warnings
from typing import Any, BinaryIO

import numpy as np

from compiler.errors import ArtifactError, raised_as
from compiler.ir.expr import Array


def npy_bytes(array: Array) -> bytes:
    """An array in numpy's format 1.0, little-endian and C-ordered."""
    stream = io.BytesIO()
    value = np.asarray(array)
    value = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
    np.lib.format.write_array(stream, value, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of the .npy that begins here; the stream ends up at its data.

    Raises:
        ValueError: not the header of an array; numpy's own reader raises a dozen other errors.
    """
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    else:
        read = np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings(action="ignore"):  # of a header that is strange Python
            shape, fortran, dtype = read(stream)
    except (  # of Python's parser and of dtypes
        tokenize.TokenError,
        SyntaxError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ValueError(f"its header cannot be read: {str(error)[:100]}") from error
    if any(isinstance(size, bool) or not 0 <= size < 2**62 for size in shape):
        raise ValueError(f"its header states the shape {str(shape)[:100]}")
    return shape, bool(fortran), dtype


def array_of(data: bytes, name: str) -> Array:
    """The array of an .npy member.

    Raises:
        ArtifactError: not an array of numbers, or of another length than its header says.
    """
    stream = io.BytesIO(data)
    with raised_as(ArtifactError, f"member {name!r} is not an array", ValueError, EOFError):
        if data[6:8] != b"\x01\x00":
            raise ValueError(f"version {tuple(data[6:8])}")
        shape, fortran, dtype = read_header(stream)
        body = data[stream.tell() :]
        if fortran or dtype.hasobject or dtype.kind not in "biuf":
            raise ValueError(f"dtype {dtype}")
        if len(body) != dtype.itemsize * int(np.prod(shape, dtype=object)):
            raise ValueError(f"{len(body)} bytes for shape {shape}")
        array = np.frombuffer(body, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)
