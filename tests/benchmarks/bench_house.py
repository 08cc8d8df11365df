"""How much a newcomer must read: files, lines and imports of the packages. Nothing is asserted.

python -m tests.benchmarks.bench_house            # every figure; -v: what is counted
python -m tests.benchmarks.bench_house --lines .  # code lines of a checkout, package by package
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("compiler", "workers", "qsearch")
SERVICE: Final = ("qsearch", "workers")
LONGEST_FILE: Final = 450
SMALL_MODULE: Final = 60

_FACADE: Final = re.compile(r'"""See ``')
_CITATION: Final = re.compile(r"(spec|notes)/[a-z_]+\.md|\bD-\d+|\bR-\d+|the plan")
_HEAVY: Final = (
    *("scipy.linalg", "scipy.optimize", "sqlalchemy", "pandas", "onnxruntime"),
    *("compiler.export", "compiler.proof", "compiler.transform", "compiler.targets.c.package"),
)
"""What the first line of a launch does not need: it is loaded when it is used."""


Measure = Callable[[], tuple[str, ...]]
MEASURES: Final[dict[str, Measure]] = {}


def measure(function: Measure) -> Measure:
    """Add a figure under the first line of its docstring."""
    assert function.__doc__ is not None
    MEASURES[function.__doc__.splitlines()[0].rstrip(".")] = function
    return function


# Counts of files ----------------------------------------------------------------------------------


def python_files(*folders: str, deep: bool = True) -> list[Path]:
    """Python files below folders of the checkout, sorted."""
    pattern = "**/*.py" if deep else "*.py"
    return sorted(path for folder in folders for path in (ROOT / folder).glob(pattern))


def _names(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(path.relative_to(ROOT).as_posix() for path in paths)


@measure
def files_of_search() -> tuple[str, ...]:
    """files of qsearch/search."""
    return _names(python_files("qsearch/search"))


@measure
def files_of_root() -> tuple[str, ...]:
    """files of qsearch/ itself."""
    return _names(python_files("qsearch", deep=False))


@measure
def files_of_service() -> tuple[str, ...]:
    """files of qsearch and workers."""
    return _names(python_files(*SERVICE))


@measure
def long_files() -> tuple[str, ...]:
    """files of qsearch and workers above 450 lines."""
    counted = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(*SERVICE)
    }
    found = [f"{name}: {counted[ROOT / name]}" for name in _names(sorted(counted))]
    long = tuple(line for line in found if int(line.rpartition(" ")[2]) > LONGEST_FILE)
    return long


# Code lines ---------------------------------------------------------------------------------------


def code_lines(source: str) -> int:
    """Lines that hold code: no blank line, comment or docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        held = node.value if isinstance(node, ast.Expr) else None
        if isinstance(held, ast.Constant) and isinstance(held.value, str):
            docstrings.add(held.lineno)
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (*skipped, tokenize.ENDMARKER):
            continue
        if token.type == tokenize.STRING and token.start[0] in docstrings:
            continue
        lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def lines_of(checkout: Path) -> dict[str, int]:
    """Code lines of each package."""
    return {
        package: sum(
            code_lines(path.read_text(encoding="utf-8"))
            for path in sorted((checkout / package).rglob("*.py"))
        )
        for package in PACKAGES
    }


# Modules and what imports them --------------------------------------------------------------------


def module_name(path: Path) -> str:
    """Dotted name of a file of the checkout."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers() -> dict[str, set[str]]:
    """Module -> modules of the three packages that import it, anywhere in their file."""
    paths = python_files(*PACKAGES)
    known = {module_name(path) for path in paths}
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        name = module_name(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named: list[str] = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for target in named:
                if target in known and target != name:
                    found[target].add(name)
    return found


@measure
def fragments() -> tuple[str, ...]:
    """small modules with one reader."""
    readers, found = importers(), []
    for path in python_files(*SERVICE):
        name, lines = module_name(path), len(path.read_text(encoding="utf-8").splitlines())
        if path.name == "__init__.py" or lines >= SMALL_MODULE:
            continue
        if len(readers[name]) == 1:
            found.append(f"{name} ({lines} lines) <- {min(readers[name])}")
    return tuple(found)


# Text of files ----------------------------------------------------------------------------------


def _matches(paths: Sequence[Path], pattern: re.Pattern[str]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                yield f"{path.relative_to(ROOT).as_posix()}:{number}"


@measure
def facades() -> tuple[str, ...]:
    """functions whose docstring only names another."""
    return tuple(_matches(python_files(*PACKAGES), _FACADE))


@measure
def citations() -> tuple[str, ...]:
    """files that cite a document that is not here."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    found = []
    for name in filter(None, tracked):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if _CITATION.search(text):
            found.append(name)
    return tuple(found)


@measure
def readmes() -> tuple[str, ...]:
    """READMEs above 8 kB."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "*README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    sizes = {name: (ROOT / name).stat().st_size for name in filter(None, tracked)}
    return tuple(f"{name} {size:,} bytes" for name, size in sizes.items() if size > 8 * 1024)


# What a launch runs -------------------------------------------------------------------------------

LAUNCH: Final = ("launch", "--model", "digits", "--trials", "4", "--pool", "inline")

_TRACED: Final = """
import inspect, json, sys, tempfile, threading, time
seen, first = set(), None
def hook(frame, event, _):
    if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        seen.add(frame.f_code.co_filename)
class Watched:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        global first
        if first is None and text.strip():
            heavy = [name for name in HEAVY if name in sys.modules]
            first = {"cpu_s": time.process_time(), "modules": len(sys.modules), "heavy": heavy}
        return len(text)
    def __getattr__(self, name):
        return getattr(self.stream, name)
out, sys.stdout, sys.stderr = sys.stdout, Watched(sys.stdout), Watched(sys.stderr)
if TRACE:
    threading.setprofile(hook)
    sys.setprofile(hook)
from qsearch.__main__ import main
with tempfile.TemporaryDirectory() as folder:
    sys.argv = ["qsearch", *WORDS, "-o", folder + "/run"]
    try:
        main()
    except SystemExit as end:
        code = end.code
sys.setprofile(None)
threading.setprofile(None)
print(json.dumps({"code": code, "files": sorted(seen), "first": first}), file=out)
"""


def traced_launch(
    *, trace: bool, trials: int = 4, env: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Run the launch in a process of its own: files whose functions ran, and the first line.

    Only functions count (CO_OPTIMIZED): the body of a module or a class runs when it is imported.
    """
    words = [*LAUNCH[:4], str(trials), *LAUNCH[5:]]
    names = {"HEAVY": _HEAVY, "WORDS": tuple(words), "TRACE": trace}
    head = "\n".join(f"{name} = {value!r}" for name, value in names.items())
    done = subprocess.run(
        [sys.executable, "-c", head + _TRACED],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    if told["code"] != 0 or told["first"] is None:
        raise RuntimeError(f"the launch ended with {told['code']}\n{done.stderr}")
    return told


@measure
def files_that_run() -> tuple[str, ...]:
    """files of qsearch and workers that run in a launch."""
    ran = traced_launch(trace=True)["files"]
    assert isinstance(ran, list)
    ours = []
    for name in ran:
        path = Path(name)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in SERVICE:
            ours.append(path)
    return _names(sorted(ours))


@measure
def heavy_modules() -> tuple[str, ...]:
    """heavy modules before the first line."""
    first = traced_launch(trace=False, trials=1)["first"]
    assert isinstance(first, dict)
    return tuple(first["heavy"])


def cpu_seconds() -> Iterator[tuple[str, float]]:
    """(command, CPU seconds): help from the shell, and a launch up to its first line.

    The bytecode is there, as it is where pip has installed the package: each command runs twice,
    and the second run counts. Without it Python compiles 450 files, which takes 0.4 s more.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        for words in (["--help"], ["launch", "--help"]):
            script = f"import sys; sys.argv = ['qsearch', *{words!r}]\n"
            script += "import atexit, time, os\n"
            script += "atexit.register(lambda: print(time.process_time(), file=sys.stderr))\n"
            script += "from qsearch.__main__ import main; main()"
            command = [sys.executable, "-c", script]
            for _ in range(2):
                done = subprocess.run(
                    command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
                )
            yield f"qsearch {' '.join(words)}", float(done.stderr.split()[-1])
        for _ in range(2):
            first = traced_launch(trace=False, trials=1, env=env)["first"]
        assert isinstance(first, dict)
        yield "qsearch launch, to its first line", float(first["cpu_s"])


# Command line -------------------------------------------------------------------------------------


def main() -> None:
    """Print the table; with ``-v`` what each figure counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, help="only count the code lines of this checkout")
    parser.add_argument("-v", "--verbose", action="store_true", help="name what is counted")
    args = parser.parse_args()
    if args.lines is not None:
        print(json.dumps(lines_of(args.lines)))
        return
    print(f"{sum(lines_of(ROOT).values()):>6} code lines of the packages")
    for name, found_by in MEASURES.items():
        found = found_by()
        print(f"{len(found):>6} {name}")
        if args.verbose:
            print("".join(f"           {line}\n" for line in found), end="")
    for command, taken_s in cpu_seconds():
        print(f"{taken_s:>6.2f} CPU s of {command}")


if __name__ == "__main__":
    main()
