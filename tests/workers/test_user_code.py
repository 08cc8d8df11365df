"""Modules of the user: what is imported, sent and refused."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from workers.errors import BrokenRunError, UserCodeError
from workers.user_code import code_behind, hashes, import_user_code


@pytest.fixture
def name() -> str:
    """Of a module that no other test imports."""
    return f"mine_{uuid.uuid4().hex}"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def test_the_hash_is_of_what_the_files_hold(tmp_path: Path) -> None:
    """In processes of their own: a process imports a name once."""

    def hashed(folder: str, text: str, beside: str) -> str:
        write(tmp_path / folder, mine=text, beside=beside)
        program = (
            "import sys; from workers.user_code import hashes, import_user_code;"
            "print(hashes(import_user_code([sys.argv[1]])))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / folder / "mine.py")],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = hashed("a", "import beside", "X = 1")
    assert hashed("b", "import beside", "X = 1") == first
    assert hashed("c", "import beside", "X = 2") != first
    assert hashed("d", "import beside # so", "X = 1") != first


def test_a_file_that_is_edited_after_its_import_ends_the_run(tmp_path: Path, name: str) -> None:
    write(tmp_path, **{name: "VALUE = 1"})
    word = str(tmp_path / f"{name}.py")
    (module,) = import_user_code([word])
    module.check_unchanged()
    assert import_user_code([word]) == (module,)
    assert hashes((module,)) == {name: module.sha256}
    write(tmp_path, **{name: "VALUE = 2"})
    with pytest.raises(BrokenRunError, match="was changed after it was imported"):
        module.check_unchanged()
    with pytest.raises(BrokenRunError, match="was changed after it was imported"):
        import_user_code([word])


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("x = 1\ny = undefined_name\n", "NameError: name 'undefined_name'", "line 2: y = undef"),
        ("def f(:\n", "SyntaxError: invalid syntax", "line 1"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", "line 2: sys.exit(3)"),
        ("import no_such_module\n", "ModuleNotFoundError", "line 1: import no_such"),
        ("import numpy\nnumpy.zeros(-1)\n", "ValueError: negative", "line 2: numpy.zeros"),
        (
            "from compiler.quantize.scales.modes import calibrate_modes\n"
            "calibrate_modes.register('max')(lambda *_: 1)\n",
            "'max' is registered twice",
            "line 2: calibrate_modes.register",
        ),
    ],
)
def test_a_module_that_fails_is_one_error_with_file_and_line(
    tmp_path: Path, name: str, text: str, what: str, line: str
) -> None:
    write(tmp_path, **{name: text})
    with pytest.raises(UserCodeError) as caught:
        import_user_code([str(tmp_path / f"{name}.py")])
    assert what in caught.value.what
    assert str(tmp_path / f"{name}.py") in str(caught.value.where)
    assert line in str(caught.value.where)


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("nowhere.py", "there is no Python file nowhere.py"),
        ("no_such_module", "there is no module 'no_such_module'"),
        ("a..b", "there is no module 'a..b'"),
        ("", "there is no module ''"),
        ("my-ops.py", "'my-ops' is no Python name"),
        ("numpy.py", "there is another module 'numpy'"),
        ("json.py", "there is another module 'json'"),
    ],
)
def test_a_word_that_names_no_module_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if what.startswith(("'my", "there is another")):
        (tmp_path / word).write_text("")
    with pytest.raises(UserCodeError) as caught:
        import_user_code([word])
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("path", ["workers.metrics.builtin:top1", "no_such_module:metric"])
def test_no_file_of_ours_or_of_what_was_not_imported_is_code_of_the_user(path: str) -> None:
    assert code_behind(path).sources == ()
