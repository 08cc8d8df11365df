"""Mutants of the code against the tests that reach them: a mutant that survives lacks a test.

    pip install coverage
    python -m tests.benchmarks.bench_mutants --area proof [--count 40] [--seed 0] [--work DIR]
        [--only FILE:LINE …] [--json FILE]

The repository is copied; the tests of the area run once under coverage.py, which tells the lines
that every test function reaches (kept in --work). A mutant is one change of one syntax node, drawn
first by kind and then by place. For each the test functions that reach its line run, quick ones
first, until one fails. Printed is a line per mutant: killed and by what, or survived, or unreached.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
AREAS = {
    "proof": ("compiler/proof", "proof"),
    "rules": ("compiler/ops/rules", "integers"),
    "quantize": ("compiler/quantize", "integers"),
    "search": ("qsearch/search", "search"),
    "workers": ("workers", "workers"),
    "engine": ("compiler/targets/engine", "engine"),
}
"""Folder that is mutated, and the map that knows its tests."""

MAPS = {
    "proof": [
        "tests/compiler/proof",
        "tests/qsearch/commands/test_overflow.py",
        "tests/qsearch/commands/test_verification.py",
    ],
    "integers": ["tests/compiler/ops/rules", "tests/compiler/quantize"],
    "engine": ["tests/compiler/targets/engine"],
    "search": [
        "tests/qsearch/search",
        "tests/qsearch/test_launch.py",
        "tests/qsearch/report",
        "tests/qsearch/run",
        "tests/qsearch/commands/test_studies.py",
        "tests/qsearch/commands/test_trial_module.py",
        "tests/qsearch/cli/test_study_commands.py",
    ],
    "workers": ["tests/workers"],
}
"""The tests beside the code, and those of what shows its results."""

NEEDS_RAY = ("ray_pool.py", "ray_cluster.py")
"""Files whose tests start Ray; too slow for a test a mutant."""

TEST_BUDGET_S = 60.0
"""Seconds of tests, as measured for the map, that a mutant is worth."""
_PYTEST = ["-q", "-n0", "-p", "no:cacheprovider", "-m", "not ray and not postgres and not slow"]
_OTHER_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change, as people read it.

    Attributes:
        number: of the change among those of its file.
    """

    path: str
    line: int
    kind: str
    before: str
    after: str
    number: int


def mutants_of(path: Path, name: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    number = 0
    for _, _, _, node in _code_nodes(ast.parse(path.read_text("utf-8"))):
        for kind, other in _changes(node):
            yield Mutant(name, node.lineno, kind, _short(node), _short(other), number)
            number += 1


def mutated(source: str, number: int) -> str:
    """The text of a file with one of its changes."""
    tree = ast.parse(source)
    changes = ((*at, c) for *at, node in _code_nodes(tree) for _, c in _changes(node))
    owner, field, place, other = next(islice(changes, number, None))
    _put(owner, field, place, other)
    return ast.unparse(tree) + "\n"


def _code_nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None, ast.expr | ast.stmt]]:
    """(parent, field, index, node) of all that runs: neither annotations nor decorators."""
    stack: list[ast.AST] = [tree]
    while stack:
        owner = stack.pop()
        for field, value in ast.iter_fields(owner):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(node, ast.AST):
                    continue
                if isinstance(node, ast.expr | ast.stmt):
                    yield owner, field, place, node
                stack.append(node)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield "compare", ast.Compare(left, [_OTHER_COMPARE[type(op)]()], [right])
        case ast.Constant(value=bool() as value):
            yield "bool", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition", operand
        case ast.If(test=test, body=body, orelse=orelse):
            yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "condition", ast.IfExp(test, orelse, body)
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=args, keywords=keywords):
            other = ast.Name("min" if name == "max" else "max")
            yield "min/max", ast.Call(other, args, keywords)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield (
                "plus",
                ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right),
            )
        case ast.Raise():
            yield "raise", ast.Pass()
        case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "statement", ast.Pass()


def _put(owner: ast.AST, field: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(owner, field, node)
    else:
        getattr(owner, field)[place] = node


def _short(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:90]


def lines_of(numbits: bytes) -> Iterator[int]:
    """The lines of a set as coverage.py stores it: one bit each."""
    for place, byte in enumerate(numbits):
        yield from (8 * place + bit for bit in range(8) if byte >> bit & 1)


@dataclass(frozen=True, slots=True)
class TestMap:
    """Which test functions reach a line, and what they cost in seconds."""

    reached: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, mutant: Mutant) -> list[str]:
        """Node ids for a mutant, quick ones first, within the budget."""
        left, chosen = TEST_BUDGET_S, []
        lines = self.reached.get(mutant.path, {})
        # What runs on import belongs to no test, and in other processes nothing is recorded.
        beside = f"tests/{Path(mutant.path).parent}/"
        names = (
            lines.get(mutant.line)
            or [name for line in lines.values() for name in line]
            or [name for name in self.seconds if name.startswith(beside)]
        )
        for name in sorted(set(names), key=lambda n: self.seconds.get(n, 0)):
            left -= self.seconds.get(name, 0)
            if left > 0 or not chosen:
                chosen.append(name)
        return chosen


def record(tree: Path, folders: list[str], tests: list[str], work: Path) -> TestMap:
    """Run tests under coverage.py; those that fail on the code as it is are left out."""
    config, data, report = work / "rc", work / "data", work / "report.xml"
    config.write_text(
        f"[run]\ndynamic_context = test_function\ndata_file = {data}\n"
        f"source = {','.join(folders)}\n"
    )
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest"]
    _run([*command, *_PYTEST, f"--junitxml={report}", *tests], tree, None)
    seconds: dict[str, float] = defaultdict(float)
    broken: set[str] = set()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name', '').split('[')[0]}"
        seconds[_node_id(name, tree)] += float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            broken.add(_node_id(name, tree))
    reached: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    tests_of = _TestsOf(set(seconds) - broken, tree)
    rows = sqlite3.connect(data).execute(
        "select path, context, numbits from line_bits"
        " join file on file.id = file_id join context on context.id = context_id"
    )
    for path, context, numbits in rows:
        name = str(Path(path).relative_to(tree))
        for line in lines_of(numbits):
            if context:
                reached[name][line] += tests_of[context]
    return TestMap(reached, {name: s for name, s in seconds.items() if name not in broken})


class _TestsOf(dict[str, list[str]]):
    """Node ids by coverage.py's context; an inherited test is known by its function's name."""

    def __init__(self, known: Iterable[str], tree: Path) -> None:
        super().__init__()
        self._known = frozenset(known)
        self._tree = tree

    def __missing__(self, context: str) -> list[str]:
        name = _node_id(context, self._tree)
        end = f"::{context.rpartition('.')[2]}"
        found = [name] if name in self._known else [n for n in self._known if n.endswith(end)]
        self[context] = found
        return found


def _node_id(dotted: str, tree: Path) -> str:
    """tests.a.test_b.TestC.test_d as tests/a/test_b.py::TestC::test_d."""
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        path = "/".join(words[:end]) + ".py"
        if (tree / path).is_file():
            return "::".join([path, *words[end:]])
    return dotted


def _run(command: list[str], tree: Path, timeout_s: float | None) -> tuple[int, str]:
    """Exit code and output; -1 after the time limit."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout


def judge(mutant: Mutant, tests: list[str], seconds: float, tree: Path) -> str:
    """Run the tests on the mutant; the verdict in words."""
    if not tests:
        return "unreached"
    path = tree / mutant.path
    original = path.read_text("utf-8")
    path.write_text(mutated(original, mutant.number), "utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-x", "--tb=no", *_PYTEST, *tests]
        code, output = _run(command, tree, 120 + 6 * seconds)
    finally:
        path.write_text(original, "utf-8")
    if code == 0:
        return "survived"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return f"killed by {failed.group(1) if failed else 'the time limit' if code < 0 else code}"


def draw(tree: Path, folder: str, rng: random.Random, only: list[str]) -> Iterator[Mutant]:
    """Mutants in random order, every kind as likely; or all of the named lines."""
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((tree / folder).rglob("*.py")):
        if path.name in NEEDS_RAY:
            continue
        for mutant in mutants_of(path, str(path.relative_to(tree))):
            if not only or f"{mutant.path}:{mutant.line}" in only:
                kinds[mutant.kind].append(mutant)
    while kinds:
        kind = rng.choice(sorted(kinds))
        yield kinds[kind].pop(rng.randrange(len(kinds[kind])))
        if not kinds[kind]:
            del kinds[kind]


def main() -> int:
    """Judge the mutants of one area."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--area", choices=AREAS, required=True)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "mutants")
    parser.add_argument("--only", nargs="*", default=[], metavar="FILE:LINE")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    folder, name = AREAS[args.area]
    work = args.work.absolute() / name
    work.mkdir(parents=True, exist_ok=True)
    tree, kept = work / "tree", work / "map.json"
    if kept.is_file():
        found = json.loads(kept.read_text())
        lines = {p: {int(n): t for n, t in by.items()} for p, by in found["reached"].items()}
        reach = TestMap(lines, found["seconds"])
    else:
        shutil.copytree(
            REPOSITORY, tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", ".*cache")
        )
        folders = [folder for folder, other in AREAS.values() if other == name]
        reach = record(tree, folders, MAPS[name], work)
        kept.write_text(json.dumps({"reached": reach.reached, "seconds": reach.seconds}))
    rows = []
    for _, mutant in zip(
        range(args.count), draw(tree, folder, random.Random(args.seed), args.only)
    ):
        chosen = reach.tests(mutant)
        verdict = judge(mutant, chosen, sum(reach.seconds.get(n, 0) for n in chosen), tree)
        place = f"{mutant.path}:{mutant.line}"
        print(f"{place} {mutant.kind}: {mutant.before} -> {mutant.after}: {verdict}", flush=True)
        rows.append({**asdict(mutant), "verdict": verdict})
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    survivors = sum(not row["verdict"].startswith("killed") for row in rows)
    print(f"{len(rows)} mutants, {survivors} not killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
