"""KernelCache: lowered functions in a folder, so that processes on one machine share the work.

An entry is a packed module of one PrimFunc under the hash of its source, its target and the version
of the lowering. It is written beside its place and renamed; one that cannot be read is made anew.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from compiler.errors import CompilerError
from compiler.ir.blob import ModuleBlob
from compiler.ir.module import IRModule
from compiler.ir.structural_digest import LOCAL
from compiler.lir.nodes import PrimFunc

LOWERING_VERSION = "1"
"""Part of every key: raise it when lowering makes other blocks of the same function."""


class KernelCache:
    """A folder of lowered functions.

    Args:
        folder: made when the first entry is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def get(self, digest: str, target: str, name: str) -> PrimFunc | None:
        """The function lowered from a source of this structural hash, called ``name``; or None."""
        try:
            data = self._path(digest, target).read_bytes()
            (found,) = ModuleBlob(data).unpack().functions.values()
        except (OSError, CompilerError, ValueError, KeyError):
            return None
        return replace(found, name=name) if isinstance(found, PrimFunc) else None

    def put(self, digest: str, target: str, prim: PrimFunc) -> None:
        """Keep a function; a folder that cannot be written to keeps nothing."""
        if digest.startswith(LOCAL):
            return
        path = self._path(digest, target)
        data = ModuleBlob.pack(IRModule({"kernel": prim})).data
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, beside = tempfile.mkstemp(dir=self._folder, prefix=".writing-")
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.replace(beside, path)
        except OSError:
            return

    def _path(self, digest: str, target: str) -> Path:
        key = f"{LOWERING_VERSION}\n{digest}\n{target}".encode()
        return self._folder / f"{blake2b(key, digest_size=16).hexdigest()}.kernel"
