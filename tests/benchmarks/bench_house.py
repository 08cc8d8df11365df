"""How much a newcomer must read: files, lines, names and imports of the packages, with bounds.

    python -m tests.benchmarks.bench_house            # prints every figure beside its bound
    python -m tests.benchmarks.bench_house --lines .  # code lines of a checkout, package by package

``tests/packaging/test_house.py`` asserts the bounds in ``REACHED``. CPU seconds are printed only.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.house_bounds import (
    ALIASES,
    DIALECT,
    FEWER_LINES,
    LINES_ADDED,
    LINES_BEFORE,
    LONGEST_FILE,
    NAMED_ROOMS,
    SMALL_MODULE,
)

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("compiler", "workers", "qsearch")
SERVICE: Final = ("qsearch", "workers")

_FACADE: Final = re.compile(r'"""See ``')
_CITATION: Final = re.compile(r"(spec|notes)/[a-z_]+\.md|\bD-\d+|\bR-\d+|the plan")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_HEAVY: Final = (
    *("scipy.linalg", "scipy.optimize", "sqlalchemy", "alembic", "pandas", "onnxruntime"),
    *("compiler.export", "compiler.proof", "compiler.transform", "compiler.targets.c.package"),
)
"""What the first line of a launch does not need: it is loaded when it is used."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure of the house.

    Attributes:
        name: key in ``REACHED`` and in the printed table.
        limit: largest value that is allowed.
        found: what is counted, one entry each; names files and lines where it can.
        value: the figure; the number of ``found`` unless it says otherwise.
    """

    name: str
    limit: float
    found: tuple[str, ...] = ()
    value: float = -1.0

    @property
    def figure(self) -> float:
        """What is compared with the limit."""
        return len(self.found) if self.value < 0 else self.value


Measure = Callable[[], Bound]
MEASURES: Final[dict[str, Measure]] = {}
REACHED: Final = frozenset(
    {
        "READMEs above 8 kB",
        "code lines of the packages",
        "files that cite a document that is not here",
        "files of qsearch and workers",
        "files of qsearch/ itself",
        "files of qsearch and workers above 450 lines",
        "files of qsearch and workers that run in a launch",
        "files of qsearch/search",
        "functions whose docstring only names another",
        "heavy modules before the first line",
        "small modules with one reader",
        "words of the dialect in names",
    }
)
"""Bounds that hold, and that a test keeps."""


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
def files_of_search() -> Bound:
    """files of qsearch/search."""
    return Bound("files of qsearch/search", 23, _names(python_files("qsearch/search")))


@measure
def files_of_root() -> Bound:
    """files of qsearch/ itself."""
    return Bound("files of qsearch/ itself", 14, _names(python_files("qsearch", deep=False)))


@measure
def files_of_service() -> Bound:
    """files of qsearch and workers."""
    return Bound("files of qsearch and workers", 165, _names(python_files(*SERVICE)))


@measure
def long_files() -> Bound:
    """files of qsearch and workers above 450 lines."""
    counted = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(*SERVICE)
    }
    found = [f"{name}: {counted[ROOT / name]}" for name in _names(sorted(counted))]
    long = tuple(line for line in found if int(line.rpartition(" ")[2]) > LONGEST_FILE)
    return Bound("files of qsearch and workers above 450 lines", 0, long)


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


@measure
def lines_more_than_allowed() -> Bound:
    """code lines of the packages."""
    now, before = lines_of(ROOT), sum(LINES_BEFORE.values()) + sum(LINES_ADDED.values())
    told = tuple(f"{name} {LINES_BEFORE[name]} -> {count}" for name, count in now.items())
    left = f"{sum(now.values()) - before} beside the features that are named"
    limit = before - FEWER_LINES
    return Bound("code lines of the packages", limit, (*told, left), sum(now.values()))


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
def fragments() -> Bound:
    """small modules with one reader."""
    readers, found = importers(), []
    for path in python_files(*SERVICE):
        name, lines = module_name(path), len(path.read_text(encoding="utf-8").splitlines())
        if path.name == "__init__.py" or name in NAMED_ROOMS or lines >= SMALL_MODULE:
            continue
        if len(readers[name]) == 1:
            found.append(f"{name} ({lines} lines) <- {min(readers[name])}")
    return Bound("small modules with one reader", 0, tuple(found))


# Words --------------------------------------------------------------------------------------------


def _matches(paths: Sequence[Path], pattern: re.Pattern[str]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                yield f"{path.relative_to(ROOT).as_posix()}:{number}"


@measure
def facades() -> Bound:
    """functions whose docstring only names another."""
    return Bound(
        "functions whose docstring only names another",
        0,
        tuple(_matches(python_files(*PACKAGES), _FACADE)),
    )


def words_of(identifier: str) -> list[str]:
    """The words of snake_case, CamelCase and kebab-case, in lower case."""
    return [word.lower() for word in _WORD.findall(identifier)]


def _in_dialect(identifier: str) -> set[str]:
    words = words_of(identifier)
    pairs = {f"{a}_{b}" for a, b in itertools.pairwise(words)}
    return (set(words) | pairs) & set(DIALECT)


@measure
def dialect() -> Bound:
    """words of the dialect in names."""
    found = []
    for path in python_files(*SERVICE):
        name = path.relative_to(ROOT).as_posix()
        allowed = ALIASES.get(name, frozenset())
        words: dict[str, int] = {}
        for word in _in_dialect(path.stem) - allowed:
            words[word] = 0
        source = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.string
            # A string that is one word is a key, a flag or a name.
            key = token.type == tokenize.STRING and re.fullmatch(r"[\"'][\w-]+[\"']", text)
            if token.type == tokenize.NAME or key:
                for word in _in_dialect(text) - allowed:
                    words.setdefault(word, token.start[0])
        found += [f"{name}:{line} {word}" for word, line in sorted(words.items())]
    return Bound("words of the dialect in names", 0, tuple(found))


@measure
def citations() -> Bound:
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
    return Bound("files that cite a document that is not here", 0, tuple(found))


@measure
def readmes() -> Bound:
    """READMEs above 8 kB."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "*README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    sizes = {name: (ROOT / name).stat().st_size for name in filter(None, tracked)}
    return Bound(
        "READMEs above 8 kB",
        0,
        tuple(f"{name} {size:,} bytes" for name, size in sizes.items() if size > 8 * 1024),
    )


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
def files_that_run() -> Bound:
    """files of qsearch and workers that run in a launch."""
    ran = traced_launch(trace=True)["files"]
    assert isinstance(ran, list)
    ours = []
    for name in ran:
        path = Path(name)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in SERVICE:
            ours.append(path)
    return Bound("files of qsearch and workers that run in a launch", 65, _names(sorted(ours)))


@measure
def heavy_modules() -> Bound:
    """heavy modules before the first line."""
    first = traced_launch(trace=False, trials=1)["first"]
    assert isinstance(first, dict)
    return Bound("heavy modules before the first line", 0, tuple(first["heavy"]))


def cpu_seconds() -> Iterator[tuple[str, float, float]]:
    """(command, CPU seconds, bound): help from the shell, and a launch up to its first line.

    The bytecode is there, as it is where pip has installed the package: each command runs twice,
    and the second run counts. Without it Python compiles 450 files, which takes 0.4 s more.
    """
    with tempfile.TemporaryDirectory() as bytecode:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        for words, limit in ((["--help"], 0.2), (["launch", "--help"], 0.35)):
            script = f"import sys; sys.argv = ['qsearch', *{words!r}]\n"
            script += "import atexit, time, os\n"
            script += "atexit.register(lambda: print(time.process_time(), file=sys.stderr))\n"
            script += "from qsearch.__main__ import main; main()"
            command = [sys.executable, "-c", script]
            for _ in range(2):
                done = subprocess.run(
                    command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
                )
            yield f"qsearch {' '.join(words)}", float(done.stderr.split()[-1]), limit
        for _ in range(2):
            first = traced_launch(trace=False, trials=1, env=env)["first"]
        assert isinstance(first, dict)
        yield "qsearch launch, to its first line", float(first["cpu_s"]), 1.0


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
    for name, taken in MEASURES.items():
        bound = taken()
        verdict = "ok" if bound.figure <= bound.limit else "ABOVE"
        kept = ", kept by a test" if name in REACHED else ""
        print(f"{bound.figure:>6g} of {bound.limit:<6g} {verdict:<6} {name}{kept}")
        if args.verbose:
            print("".join(f"           {line}\n" for line in bound.found), end="")
    for command, taken_s, limit in cpu_seconds():
        verdict = "ok" if taken_s <= limit else "ABOVE"
        print(f"{taken_s:>6.2f} of {limit:<6g} {verdict:<6} CPU s of {command}")


if __name__ == "__main__":
    main()
