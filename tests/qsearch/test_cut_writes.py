"""Commands that are killed, or meet a full disk, while they write over good files.

    python -m tests.qsearch.test_cut_writes --count 50

A forked child runs a command over the files of an earlier run, and ends at one of its calls of the
system about files in the folder, or where a file grows beyond a limit. Every file that was there is
then the old one or the new one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsearch.cli.main import run

COMMANDS: Mapping[str, Sequence[str]] = {
    "compile": ("compile", "--model", "digits", "-o", "{}/m.qmod", "-q"),
    "launch": ("launch", "--model", "digits", "--trials", "1", "-o", "{}", "--fresh", "-q"),
    "export c": ("export", "{}/m.qmod", "--format", "c", "-o", "{}/c"),
    "export onnx": ("export", "{}/m.qmod", "--format", "onnx", "-o", "{}/m.onnx"),
    "verify": ("verify", "{}/m.qmod", "--record", "-o", "{}/proof.json"),
}
OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR


def child(words: Sequence[str], folder: Path, at: int | None = None, limit: int = 0) -> int:
    """Run a command in a forked child; the number of its file calls in the folder.

    Args:
        at: the call at which it is killed; None lets it end.
        limit: bytes beyond which no file may grow; 0 is any.
    """
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        calls = 0

        def heard(event: str, args: tuple[Any, ...]) -> None:
            nonlocal calls
            writes = event == "os.rename" or (event == "open" and args[2] & OPENED_TO_WRITE)
            if writes and str(args[0]).startswith(str(folder)):
                if calls == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls += 1

        sys.addaudithook(heard)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        if limit:
            signal.signal(signal.SIGXFSZ, (signal.SIG_IGN, signal.SIG_DFL)[limit % 2])
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        run([word.format(folder) for word in words])
        os.write(write, str(calls).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        told = stream.read()
    os.waitpid(process, 0)
    return int(told or 0)


def digests(folder: Path) -> dict[str, str]:
    """Hashes of what commands write, but for databases, logs and what is half written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kept = path.suffix in (".qmod", ".onnx", ".json", ".c", ".h", ".yaml", ".html")
        if path.is_file() and kept and not path.name.startswith(".part-"):
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def broken(name: str, count: int, seed: int, scratch: Path) -> list[str]:
    """Files that a cut command left neither old nor new, in ``count`` tries."""
    rng = np.random.default_rng(seed)
    first = scratch / "first"
    first.mkdir()
    child(COMMANDS["compile"], first)
    whole = {"compile": ("--qconfig", "nbit_weight=4"), "launch": ("--seed", "7")}
    again = (*COMMANDS[name], *whole.get(name, ()))
    child(COMMANDS[name], first)
    if name.startswith(("verify", "export")):
        child((*COMMANDS["compile"], *whole["compile"]), first)
    old = digests(first)
    place = scratch / "place"
    shutil.copytree(first, place)
    calls = child(again, place)
    new = digests(place)
    assert calls > 0
    assert old != new
    wrong = []
    sizes = [path.stat().st_size for path in first.rglob("*") if path.is_file()]
    for number in range(count):
        shutil.rmtree(place)
        shutil.copytree(first, place)
        if number % 2:
            child(again, place, limit=int(rng.integers(1, max(sizes))))
        else:
            child(again, place, at=int(rng.integers(calls)))
        now = digests(place)
        for path, digest in now.items():
            # A study that --fresh replaces is put aside whole.
            first_path = path.removeprefix(".earlier/").removeprefix(".moving/")
            if digest not in (old.get(first_path), new.get(first_path)):
                wrong.append(path)
        wrong += [f"no {f}" for f in old if f not in now and name != "launch"]
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_cut_leaves_old_or_new_files(name: str, tmp_path: Path) -> None:
    assert broken(name, 4, 3, tmp_path) == []


def main() -> None:
    """Try every command and print what was broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for name in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            print(name, asked.count, broken(name, asked.count, asked.seed, Path(folder)))


if __name__ == "__main__":
    main()
