"""An archive has one form: whatever else a zip may say about the same members is not read."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.errors import ArtifactError
from compiler.runtime.archive import MANIFEST, read_archive, write_archive
from tests.each import each

MEMBERS = {"module.relay": b"def @main() { 1 }", "samples/k0.npy": b"\x93NUMPY", "a.json": b"{}\n"}
Zip = zipfile.ZipFile
Entries = list[tuple[str, bytes]]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    write_archive(tmp_path / "m.qmod", MEMBERS)
    return (tmp_path / "m.qmod").read_bytes()


def entries(data: bytes) -> Entries:
    with Zip(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def zipped(
    found: Entries,
    change: Callable[[zipfile.ZipInfo], None] = lambda info: None,
    finish: Callable[[Zip], None] = lambda archive: None,
) -> bytes:
    """The entries as the standard library writes them, in the form of ``write_archive``."""
    stream = io.BytesIO()
    with Zip(stream, "w") as archive:
        for name, content in found:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            change(info)
            archive.writestr(info, content)
        finish(archive)
    return stream.getvalue()


def with_manifest(data: bytes, spell: Callable[[str], str]) -> bytes:
    return zipped(
        [(n, spell(c.decode()).encode() if n == MANIFEST else c) for n, c in entries(data)]
    )


def with_comment(archive: Zip) -> None:
    archive.comment = b"signed by nobody"


def described(data: bytes) -> bytes:
    """Sizes behind the data instead of in front of it, as a zip is written to a pipe."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.held = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, piece) -> int:  # type: ignore[no-untyped-def]
            self.held += piece
            return len(piece)

    pipe = Pipe()
    with Zip(pipe, "w") as archive:  # type: ignore[arg-type]
        for name, content in entries(data):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return bytes(pipe.held)


def with_large_sizes(data: bytes) -> bytes:
    """Every size again in a field of 64 bits."""
    stream = io.BytesIO()
    with Zip(stream, "w") as archive:
        for name, content in entries(data):
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(content)
    return stream.getvalue()


def with_hidden_module(data: bytes) -> bytes:
    """A second module.relay between two members, of which the list at the end says nothing."""
    hidden = zipped([("module.relay", b"def @main() { 2 }")])
    hidden = hidden[: hidden.index(b"PK\1\2")]
    place = data.index(b"PK\3\4", 4)
    moved = bytearray(data[:place] + hidden + data[place:])
    start = moved.index(b"PK\1\2")
    at = start
    while moved[at : at + 4] == b"PK\1\2":
        (offset,) = struct.unpack_from("<L", moved, at + 42)
        struct.pack_into("<L", moved, at + 42, offset + (len(hidden) if offset else 0))
        at += 46 + sum(struct.unpack_from("<3H", moved, at + 28))
    struct.pack_into("<L", moved, at + 16, start)
    return bytes(moved)


def dated(info: zipfile.ZipInfo) -> None:
    info.date_time = (2026, 1, 2, 3, 4, 6)


def executable(info: zipfile.ZipInfo) -> None:
    info.external_attr = 0o100755 << 16


def on_windows(info: zipfile.ZipInfo) -> None:
    info.create_system = 0


def with_extra(info: zipfile.ZipInfo) -> None:
    info.extra = b"\xfe\xca\x04\x00seen"


def remarked(info: zipfile.ZipInfo) -> None:
    info.comment = b"seen"


def deflated(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_DEFLATED


def more_keys(text: str) -> str:
    return json.dumps({**json.loads(text), "reviewed": True}, indent=1, sort_keys=True) + "\n"


ALTERED: dict[str, Callable[[bytes], bytes]] = {
    "a prefix": lambda data: b"#!/bin/sh\n" + data,
    "a comment": lambda data: zipped(entries(data), finish=with_comment),
    "trailing bytes": lambda data: data + b"\0",
    "a second archive behind it": lambda data: data + data,
    "a hidden second module": with_hidden_module,
    "another order": lambda data: zipped(entries(data)[::-1]),
    "an extra key in the manifest": lambda data: with_manifest(data, more_keys),
    "other spaces in the manifest": lambda data: with_manifest(data, lambda t: t.replace(" ", "")),
    "a key twice in the manifest": lambda data: with_manifest(
        data, lambda t: t.replace("{", '{"format": "other", ', 1)
    ),
    "other attributes": lambda data: zipped(entries(data), executable),
    "another system": lambda data: zipped(entries(data), on_windows),
    "a date": lambda data: zipped(entries(data), dated),
    "extra fields": lambda data: zipped(entries(data), with_extra),
    "comments of members": lambda data: zipped(entries(data), remarked),
    "sizes behind the data": described,
    "sizes of 64 bits": with_large_sizes,
    "packed members": lambda data: zipped(entries(data), deflated),
}


def test_the_form_is_that_of_the_standard_library(data: bytes) -> None:
    assert zipped(entries(data)) == data
    assert read_archive(data) == MEMBERS


def test_no_byte_can_be_changed_or_cut_off(data: bytes) -> None:
    for place in each(range(len(data))):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        for other in (bytes(changed), data[:place]):
            with pytest.raises(ArtifactError):
                read_archive(other)


@pytest.mark.parametrize("how", ALTERED)
def test_another_archive_of_the_same_members_is_refused(how: str, data: bytes) -> None:
    altered = ALTERED[how](data)
    assert altered != data
    with pytest.raises(ArtifactError, match=r"not byte for byte|packed") as caught:
        read_archive(altered)
    assert "copy the file that qsearch wrote" in str(caught.value)


def test_what_differs_is_told(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"byte 0, in the header of 'a\.json'"):
        read_archive(b"x" + data)
    with pytest.raises(ArtifactError, match=f"bytes behind byte {len(data)}, its end"):
        read_archive(data + b"x")
    with pytest.raises(ArtifactError, match="in the list of members"):
        read_archive(zipped(entries(data), executable))
    with pytest.raises(ArtifactError, match=r"in 'manifest\.json'|header of 'manifest\.json'"):
        read_archive(with_manifest(data, lambda text: text.replace(" ", "")))


@pytest.mark.parametrize("name", ["../a.json", "A.json", "a/b/c.json", "/a.json"])
def test_members_that_no_module_has_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(ArtifactError):
        read_archive(zipped([*entries(data), (name, b"")]))
