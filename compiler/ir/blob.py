"""ModuleBlob: a module as bytes, the only form in which a module goes to another process.

Layout: MAGIC, three little-endian uint64 (bytes of text, of index, of arrays), the Relay text with
its constants kept outside, a JSON index of them and of the spans of calls, and their bytes, each at
a multiple of ALIGNMENT. The same module gives the same bytes. Calls keep their spans, so that an
error on a worker names the ONNX node; types are inferred again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import CompilerError
from compiler.ir.call_spans import restore_spans, spans_of
from compiler.ir.expr import Array, dtype_name
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text

MAGIC = b"qsearch-module-3"
ALIGNMENT = 64

_LENGTHS = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class ModuleBlob:
    """A packed module; compares and hashes by its bytes, and pickles as them."""

    data: bytes

    @staticmethod
    @collector_rests
    def pack(mod: IRModule) -> ModuleBlob:
        """Flatten ``mod``.

        Raises:
            CompilerError: the module holds something that has no text.
        """
        return ModuleBlob(b"".join(_pieces(mod)))

    @collector_rests
    def unpack(self) -> IRModule:
        """The module with types; constants are read-only views of ``data``.

        Raises:
            CompilerError: the bytes are damaged or of another version.
        """
        source, index, start = self._sections()
        arrays: dict[str, Array] = {}
        for key, (dtype, shape, offset) in index["arrays"].items():
            little = np.dtype(dtype).newbyteorder("<")
            count = int(np.prod(shape, dtype=np.int64))
            flat = np.frombuffer(self.data, little, count, start + offset)
            arrays[key] = flat.reshape(shape).astype(dtype, copy=False)
        mod = parse(source, external_data=arrays)
        if not restore_spans(mod, index):
            raise CompilerError("the packed module lists other calls than it holds")
        return infer_module(mod)

    @property
    def sha256(self) -> str:
        """64 hex digits over the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    def _sections(self) -> tuple[str, dict[str, Any], int]:
        """Text, index of arrays, and the offset where arrays start."""
        at = len(MAGIC) + _LENGTHS.size
        if len(self.data) < at or not self.data.startswith(MAGIC):
            raise CompilerError(
                "these bytes are not a packed module of this version",
                fix="pack it again with the same version of qsearch",
            )
        text_bytes, index_bytes, array_bytes = _LENGTHS.unpack_from(self.data, len(MAGIC))
        if len(self.data) != at + text_bytes + index_bytes + array_bytes:
            raise CompilerError(f"the packed module is cut off: {len(self.data)} bytes")
        source = self.data[at : at + text_bytes].decode()
        at += text_bytes
        return source, json.loads(self.data[at : at + index_bytes]), at + index_bytes


@collector_rests
def module_sha256(mod: IRModule) -> str:
    """``ModuleBlob.pack(mod).sha256``, without a copy of the constants.

    Raises:
        CompilerError: the module holds something that has no text.
    """
    digest = hashlib.sha256()
    for piece in _pieces(mod):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(mod: IRModule) -> Iterator[bytes | memoryview]:
    """The bytes of a packed module, those of its constants where they are."""
    arrays: dict[str, Array] = {}
    source = text(mod, show_types=False, external_data=arrays).encode()
    index: dict[str, tuple[str, list[int], int]] = {}
    at = 0
    for key, array in arrays.items():
        index[key] = (dtype_name(array.dtype), list(array.shape), at)
        at += array.nbytes + -array.nbytes % ALIGNMENT
    listed = json.dumps({"arrays": index, **spans_of(mod)}, separators=(",", ":")).encode()
    yield MAGIC + _LENGTHS.pack(len(source), len(listed), at) + source + listed
    for array in arrays.values():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data
        yield bytes(-array.nbytes % ALIGNMENT)
