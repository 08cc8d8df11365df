"""A zip that is the same bytes for the same members, and is read without trusting it.

Members are stored, not compressed (deflate differs between zlib versions), sorted by name and dated
1980-01-01; ``manifest.json`` holds the format version and the SHA-256 of every other member.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.errors import ArtifactError, ArtifactHashError

FORMAT = "qmod"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_TOTAL_BYTES = 4 << 30
MAX_MEMBERS = 100_000

# Flat names or one folder deep, lower case: nothing that a file system could read as a way out.
_MEMBER = re.compile(r"(?:[a-z0-9_]+/)?[a-z0-9_]+\.[a-z]+")
_DATE = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16
_UNIX = 3
_ENCRYPTED = 0x1


def write_archive(path: str | os.PathLike[str], members: Mapping[str, bytes]) -> None:
    """Write members and their manifest.

    Args:
        path: the file; replaced if it is there. Its folder is made if it is not.
        members: content by member name, without the manifest.
    Raises:
        ArtifactError: the file cannot be written.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())}
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": digests}
    everything = {**members, MANIFEST: json_bytes(manifest)}
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(everything):
                info = zipfile.ZipInfo(name, _DATE)
                info.create_system = _UNIX
                info.external_attr = _REGULAR_FILE
                archive.writestr(info, everything[name])
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be written: {error.strerror}", fix="choose a folder you may write to"
        ) from error


def json_bytes(value: Any) -> bytes:
    """JSON with sorted keys, so that equal values are equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_archive(
    path: str | os.PathLike[str] | bytes, max_bytes: int = MAX_TOTAL_BYTES
) -> dict[str, bytes]:
    """Members of an archive whose hashes all hold, without the manifest.

    Args:
        path: the file, or its content.
        max_bytes: bound on the unpacked size, checked before anything is unpacked and while.
    Raises:
        ArtifactError: missing, damaged, of another kind or version, or too large.
        ArtifactHashError: a member was changed, added or taken away.
    """
    file = Path("module.qmod") if isinstance(path, bytes) else Path(path)
    if not isinstance(path, bytes) and not file.is_file():
        raise ArtifactError(f"there is no file {file}", fix="check the path")
    try:
        with zipfile.ZipFile(io.BytesIO(path) if isinstance(path, bytes) else file) as archive:
            members = _read_members(archive, file, max_bytes)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
        fix = "copy it again, or write it anew"
        if file.suffix == ".onnx":
            fix = "an ONNX model is no module: quantize it (launch or compile), and give the .qmod"
        raise ArtifactError(f"{file} is damaged or not a .qmod: {error}", fix=fix) from error
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}") from error
    _check_manifest(members, file)
    return members


def _read_members(archive: zipfile.ZipFile, file: Path, max_bytes: int) -> dict[str, bytes]:
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS or sum(info.file_size for info in infos) > max_bytes:
        raise ArtifactError(
            f"{file} would unpack to more than {max_bytes} bytes or {MAX_MEMBERS} members"
        )
    members: dict[str, bytes] = {}
    for info in infos:
        if not _MEMBER.fullmatch(info.filename) or info.filename in members:
            raise ArtifactError(
                f"{file} has a member {info.filename!r}, which no .qmod has",
                fix="only open files written by qsearch",
            )
        if info.flag_bits & _ENCRYPTED or info.compress_type != zipfile.ZIP_STORED:
            raise ArtifactError(f"{file}: member {info.filename!r} is packed or encrypted")
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
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"member {name!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"member {name!r} is not a JSON object")
    return value
