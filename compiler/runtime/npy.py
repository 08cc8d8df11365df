"""Arrays as .npy members: no pickle, little-endian, read without trusting the header."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ArtifactError

Array = NDArray[Any]


def npy_bytes(array: Array) -> bytes:
    """An array in numpy's format 1.0, little-endian and C-ordered."""
    stream = io.BytesIO()
    value = np.asarray(array)
    value = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
    np.lib.format.write_array(stream, value, version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def array_of(data: bytes, name: str) -> Array:
    """The array of an .npy member.

    Raises:
        ArtifactError: not an array of numbers, or of another length than its header says.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        body = data[stream.tell() :]
        if fortran or dtype.hasobject or dtype.kind not in "biuf":
            raise ValueError(f"dtype {dtype}")
        if len(body) != dtype.itemsize * int(np.prod(shape, dtype=object)):
            raise ValueError(f"{len(body)} bytes for shape {shape}")
        array = np.frombuffer(body, dtype).reshape(shape)
    except (ValueError, EOFError) as error:
        raise ArtifactError(f"member {name!r} is not an array: {error}") from error
    return array.astype(dtype.newbyteorder("="), copy=False)
