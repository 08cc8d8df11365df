"""A file that is written is the old one or the new one, and keeps what it was to others."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.errors import ArtifactError
from compiler.runtime.archive import read_archive, write_archive
from compiler.runtime.files import replaced

OLD, NEW = b"old" * 1000, b"new" * 5000


def write(path: Path, data: bytes = NEW, mode: int | None = None) -> None:
    with replaced(path, mode) as stream:
        stream.writelines(data[n : n + 1000] for n in range(0, len(data), 1000))


def in_child(work: Callable[[], object]) -> int:
    """Exit status of a forked process that does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except OSError:
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("limit", [0, 1, 999, 4096, 14_999])
@pytest.mark.parametrize("ends", [signal.SIG_IGN, signal.SIG_DFL], ids=["full", "killed"])
def test_a_write_that_is_cut_leaves_the_old_file(
    tmp_path: Path, limit: int, ends: signal.Handlers
) -> None:
    target = tmp_path / "m.bin"
    target.write_bytes(OLD)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, ends)  # the system's answer to a file beyond the limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        write(target)

    status = in_child(work)
    assert status == (2 if ends == signal.SIG_IGN else -signal.SIGXFSZ)
    assert target.read_bytes() == OLD
    if ends == signal.SIG_IGN:
        assert [path.name for path in tmp_path.iterdir()] == ["m.bin"]


def test_a_module_that_cannot_be_written_is_the_module_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.qmod"
    write_archive(path, {"module.relay": b"good"})

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))
        with pytest.raises(ArtifactError, match="cannot be written"):
            write_archive(path, {"module.relay": b"x" * 100_000})

    assert in_child(work) == 0
    assert read_archive(path) == {"module.relay": b"good"}


def test_an_error_in_the_block_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "m.bin"
    target.write_bytes(OLD)
    pieces = (bytes(1000 // n) for n in (2, 1, 0))
    with pytest.raises(ZeroDivisionError), replaced(target) as stream:
        stream.writelines(pieces)
    assert target.read_bytes() == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["m.bin"]


def test_the_permissions_of_a_file_stay_and_a_new_one_has_those_of_the_umask(
    tmp_path: Path,
) -> None:
    old = tmp_path / "old"
    old.write_bytes(OLD)
    old.chmod(0o751)
    write(old)
    assert stat.S_IMODE(old.stat().st_mode) == 0o751
    before = os.umask(0o027)
    try:
        write(tmp_path / "new")
        write(tmp_path / "secret", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m.bin"
    link = tmp_path / "link"
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == NEW


def test_a_pipe_gets_the_bytes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join(10)
    assert found == [NEW]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_standard_output_is_written_in_place(tmp_path: Path) -> None:
    code = (
        "from compiler.runtime.files import replaced\n"
        "with replaced('/dev/stdout') as stream: stream.write(b'first')\n"
        "import os; os.write(1, b' second')"
    )
    out = tmp_path / "out"
    with out.open("ab") as stream:
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
    assert out.read_bytes() == b"first second"


def as_a_user(work: Callable[[], object]) -> int:
    """``in_child`` of a process for which permissions hold."""

    def unprivileged() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        work()

    return in_child(unprivileged)


def test_a_writable_file_in_a_folder_that_takes_none_is_written(tmp_path: Path) -> None:
    target = tmp_path / "m.bin"
    target.write_bytes(OLD)
    opened_to_all(tmp_path)
    target.chmod(0o666)
    tmp_path.chmod(0o555)
    assert as_a_user(lambda: write(target)) == 0
    assert target.read_bytes() == NEW
    assert as_a_user(lambda: write(tmp_path / "other")) == 2


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m.bin"
    target.write_bytes(OLD)
    opened_to_all(tmp_path)
    target.chmod(0o444)
    tmp_path.chmod(0o777)
    assert as_a_user(lambda: write(target)) == 2
    assert target.read_bytes() == OLD


def opened_to_all(path: Path) -> None:
    """Let every user reach a temporary folder."""
    for folder in path.parents:
        if folder.owner() == path.owner() and len(folder.parts) > 2:
            folder.chmod(folder.stat().st_mode | 0o011)
