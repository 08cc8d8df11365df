from __future__ import annotations

import ctypes
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compiler.errors import CodegenError
from compiler.targets.c import toolchain
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(toolchain.CACHE_VARIABLE, str(tmp_path / "cache"))
    toolchain.cache_dir.cache_clear()
    yield
    toolchain.cache_dir.cache_clear()


def source(folder: Path, body: str) -> Path:
    path = folder / "answer.c"
    path.write_text(body)
    return path


def test_a_library_is_built_once_and_found_again(tmp_path: Path) -> None:
    path = source(tmp_path, "int answer(void) { return 42; }\n")
    library = toolchain.build_library("answer", [path])
    assert ctypes.CDLL(str(library)).answer() == 42
    stamp = library.stat().st_mtime_ns
    assert toolchain.build_library("answer", [path]) == library
    assert library.stat().st_mtime_ns == stamp
    assert [p.name for p in library.parent.iterdir()] == [library.name], "scratch files were left"


def test_who_needs_a_library_that_is_being_built_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shlex.join(toolchain.required_compiler())
    slow = tmp_path / "cc"
    slow.write_text(f'#!/bin/sh\necho >> {tmp_path}/built\nsleep 0.5\nexec {real} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_compiler", lambda: (str(slow),))
    monkeypatch.setattr(toolchain, "build_facts", lambda compiler: ("the same",))
    path = source(tmp_path, "int answer(void) { return 42; }\n")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(toolchain.build_library, ["answer"] * 4, [[path]] * 4))
    assert len(set(found)) == 1
    assert (tmp_path / "built").read_text() == "\n"
    assert list(toolchain.cache_dir().iterdir()) == found[:1], "the lock was left"


def test_changed_sources_or_flags_give_another_library(tmp_path: Path) -> None:
    path = source(tmp_path, "int answer(void) { return 1; }\n")
    first = toolchain.build_library("answer", [path])
    other_flags = toolchain.build_library("answer", [path], flags=("-O1",))
    source(tmp_path, "int answer(void) { return 2; }\n")
    second = toolchain.build_library("answer", [path])
    assert len({first, other_flags, second}) == 3
    assert ctypes.CDLL(str(second)).answer() == 2


def test_refused_source_shows_the_compilers_first_words(tmp_path: Path) -> None:
    path = source(tmp_path, "int answer(void) { return missing; }\n")
    with pytest.raises(CodegenError, match=r"cannot compile answer\.c") as caught:
        toolchain.build_library("answer", [path])
    assert "missing" in str(caught.value.where)
    assert list(toolchain.cache_dir().iterdir()) == []


def test_a_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv(toolchain.CACHE_VARIABLE, str(shared))
    toolchain.cache_dir.cache_clear()
    private = toolchain.cache_dir()
    assert private != shared
    assert private.stat().st_mode & 0o077 == 0


def test_a_missing_compiler_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_compiler", lambda: None)
    with pytest.raises(CodegenError, match="no C compiler found") as caught:
        toolchain.build_library("answer", [source(tmp_path, "")])
    assert "pip install 'qsearch[cc]'" in str(caught.value.fix)


def test_without_a_system_compiler_the_one_from_pypi_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    toolchain.find_compiler.cache_clear()
    try:
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: object())
        assert toolchain.find_compiler() == (sys.executable, "-m", "ziglang", "cc")
        toolchain.find_compiler.cache_clear()
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
        assert toolchain.find_compiler() is None
    finally:
        monkeypatch.undo()
        toolchain.find_compiler.cache_clear()
