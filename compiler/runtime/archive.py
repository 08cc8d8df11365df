"""A zip that is the same bytes for the same members, and is read without trusting it.

Members are stored, not compressed (deflate differs between zlib versions), sorted by name and dated
1980-01-01; ``manifest.json`` holds the format version and the SHA-256 of every other member.
``_pieces`` is the one description of these bytes: ``write_archive`` writes them, ``read_archive``
refuses a file that has others.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from compiler.errors import ArtifactError, ArtifactHashError, raised_as
from compiler.runtime.files import replaced

FORMAT = "qmod"
FORMAT_VERSION = 6
MANIFEST = "manifest.json"
MAX_TOTAL_BYTES = (1 << 32) - (64 << 20)
"""Upper limit of the bytes of all members; with the headers, 32 bits count every byte, so there is
one form of them."""
MAX_MEMBERS = (1 << 16) - 2

# Flat names or one folder deep, lower case: nothing that a file system could read as a way out.
_MEMBER = re.compile(r"(?:[a-z0-9_]+/)?[a-z0-9_]+\.[a-z]+")
_ENCRYPTED = 0x1
# What zipfile raises for offsets, names and methods that no archive has.
_NO_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_VERSION = 20
_DATE = (1 << 5) | 1
"""Version of the zip format; 1980-01-01, as zips write it."""
_UNIX = 3 << 8
_REGULAR_FILE = 0o100644 << 16


def write_archive(path: str | os.PathLike[str], members: Mapping[str, bytes]) -> None:
    """Write members and their manifest.

    Args:
        path: the file, written as ``files.replaced`` does; its folder is made.
        members: content by member name, without the manifest.
    Raises:
        ArtifactError: the file cannot be written.
    """
    if len(members) >= MAX_MEMBERS or sum(map(len, members.values())) > MAX_TOTAL_BYTES:
        raise ArtifactError(f"{path} would have more than {MAX_TOTAL_BYTES} bytes")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            file.writelines(piece for _, piece in _pieces(members))
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be written: {error.strerror}", fix="choose a folder you may write to"
        ) from error


def _pieces(members: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of the pieces, from the first to the last."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())}
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": digests}
    everything = {**members, MANIFEST: json_bytes(manifest)}
    entries = []
    offset = 0
    for name, data in sorted(everything.items()):
        sizes = (zlib.crc32(data), len(data), len(data), len(name), 0)
        header = _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, _DATE, *sizes) + name.encode()
        made = (_UNIX | _VERSION, _VERSION, 0, 0, 0, _DATE, *sizes)
        entry = _CENTRAL.pack(b"PK\1\2", *made, 0, 0, 0, _REGULAR_FILE, offset)
        entries.append(entry + name.encode())
        offset += len(header) + len(data)
        yield f"the header of {name!r}", header
        yield f"{name!r}", data
    directory = b"".join(entries)
    counts = (0, 0, len(entries), len(entries), len(directory), offset)
    yield "the list of members", directory
    yield "the end of the list of members", _END.pack(b"PK\5\6", *counts, 0)


def json_bytes(value: Any) -> bytes:
    """JSON with sorted keys, so that equal values are equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_archive(path: str | os.PathLike[str] | bytes) -> dict[str, bytes]:
    """Members of an archive whose hashes all hold, without the manifest.

    Args:
        path: the file, or its content.
    Raises:
        ArtifactError: missing, damaged, of another kind or version, too large, or not byte for byte
            what ``write_archive`` writes.
        ArtifactHashError: a member was changed, added or taken away.
    """
    if isinstance(path, bytes):
        file = Path("module.qmod")
    else:
        file = Path(path)
    if not isinstance(path, bytes) and not file.is_file():
        raise ArtifactError(f"there is no file {file}", fix="check the path")
    try:
        with (
            io.BytesIO(path) if isinstance(path, bytes) else file.open("rb") as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            members = _read_members(archive, file)
            _check_manifest(members, file)
            other = _difference(stream, members)
    except _NO_ARCHIVE as error:
        fix = "copy it again, or write it anew"
        if file.suffix == ".onnx":
            fix = "an ONNX model is no module: quantize it (launch or compile), and give the .qmod"
        raise ArtifactError(f"{file} is damaged or not a .qmod: {error}", fix=fix) from error
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}") from error
    if other:
        raise ArtifactError(f"{file} is not byte for byte what qsearch writes: {other}", fix=_ANEW)
    return members


_ANEW = "another program packed it: copy the file that qsearch wrote, or compile the model again"


def _difference(stream: BinaryIO, members: Mapping[str, bytes]) -> str:
    """Locate the first difference between a file and the output of ``write_archive`` for these
    members; "" where there is none."""
    stream.seek(0)
    offset = 0
    for what, piece in _pieces(members):
        found = stream.read(len(piece))
        if found != piece:
            pairs = enumerate(zip(found, piece))
            same = next((place for place, (one, other) in pairs if one != other), len(found))
            return f"byte {offset + same}, in {what}"
        offset += len(piece)
    if stream.read(1):
        return f"bytes behind byte {offset}, its end"
    return ""


def _read_members(archive: zipfile.ZipFile, file: Path) -> dict[str, bytes]:
    """All members; the bound on their size is checked before anything is unpacked and while."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS or sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
        raise ArtifactError(
            f"{file} would unpack to more than {MAX_TOTAL_BYTES} bytes or {MAX_MEMBERS} members"
        )
    members: dict[str, bytes] = {}
    for info in infos:
        if not _MEMBER.fullmatch(info.filename) or info.filename in members:
            raise ArtifactError(
                f"{file} has a member {info.filename!r}, which no .qmod has",
                fix="only open files written by qsearch",
            )
        if info.flag_bits & _ENCRYPTED or info.compress_type != zipfile.ZIP_STORED:
            raise ArtifactError(
                f"{file}: member {info.filename!r} is packed or encrypted",
                fix=_ANEW,
            )
        with archive.open(info) as stream:
            data = stream.read(info.file_size + 1)
        if len(data) != info.file_size:
            raise ArtifactError(f"{file}: member {info.filename!r} has not the size it declares")
        members[info.filename] = data
    return members


def _check_manifest(members: dict[str, bytes], file: Path) -> None:
    """Take the manifest out and compare every hash."""
    raw = members.pop(MANIFEST, None)
    if raw is None:
        raise ArtifactError(f"{file} is a zip but not a .qmod: it has no {MANIFEST}")
    manifest = read_json(raw, MANIFEST)
    digests = manifest.get("sha256")
    if manifest.get("format") != FORMAT or not isinstance(digests, dict):
        raise ArtifactError(f"{file} is a zip but not a .qmod")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{file} has format version {version}; this qsearch reads {FORMAT_VERSION}",
            fix="use the qsearch that wrote it, or a newer one",
        )
    if set(digests) != set(members):
        odd = sorted(set(digests) ^ set(members))
        raise ArtifactHashError(
            f"{file} lacks members or has others than its manifest says", where=", ".join(odd[:5])
        )
    for name, data in members.items():
        if hashlib.sha256(data).hexdigest() != digests[name]:
            raise ArtifactHashError(
                f"{file} is damaged: {name!r} is not what its manifest says",
                fix="copy it again, or write it anew",
            )


def read_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ArtifactError: it is not one.
    """
    with raised_as(ArtifactError, f"member {name!r} is not JSON", ValueError, RecursionError):
        value = json.loads(data)
    if not isinstance(value, dict):
        raise ArtifactError(f"member {name!r} is not a JSON object")
    return value
