"""Every pass has a golden file in which it changes the module and one in which it does not.

A file belongs to the last pass of its RUN line.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from compiler.ir.pass_infra import create_pass, registered_passes, run_named
from compiler.ir.pass_text import split_options, split_passes
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.opt import HIGHEST_LEVEL, argument_parser
from compiler.transform import PassContext

FOLDER = Path(__file__).parent

CALIBRATION = {"QuantizeCalibrate"}
"""Passes that change a module by the data of a run, which text does not hold."""

REBUILDS = {"LowerTE", "PlanDevices"}
"""Passes that rebuild every function, also to an equal one."""

PASSES = sorted(
    name for name, cls in registered_passes().items() if cls.__module__.startswith("compiler.")
)


@dataclass(frozen=True)
class Run:
    """One RUN line: the pass under test, whether it changed the text of its module, and whether it
    returned the very module it got."""

    file: str
    pass_name: str
    fires: bool
    is_same_object: bool


@cache
def runs() -> tuple[Run, ...]:
    found = []
    for path in sorted(FOLDER.rglob("*.relay")):
        source = path.read_text("utf-8")
        for line in source.splitlines():
            words = shlex.split(line.removeprefix("// RUN:")) if line.startswith("// RUN:") else []
            if words[:1] == ["opt"]:
                options = argument_parser().parse_args([*words[1:], str(path)])
                specs = split_passes(options.passes)
                if specs:
                    found.append(_run(path.name, source, specs))
    return tuple(found)


def _run(file: str, source: str, specs: list[str]) -> Run:
    *before, last = specs
    name = split_options(last)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = parse(source)
    with PassContext(opt_level=HIGHEST_LEVEL):
        if name != "InferType":
            before = ["InferType", *before]
        given = run_named(module, before)
        types = name == "InferType"
        shown = text(given, show_types=types, show_spans=False)
        made = create_pass(last)(given)
    fires = text(made, show_types=types, show_spans=False) != shown
    return Run(file, name, fires, made is given)


def _missing(fires: bool) -> Iterator[str]:
    having = {run.pass_name for run in runs() if run.fires is fires}
    return (name for name in PASSES if name not in having)


def test_every_pass_has_a_file_in_which_it_fires() -> None:
    assert set(_missing(fires=True)) <= CALIBRATION


def test_every_pass_has_a_file_in_which_it_changes_nothing() -> None:
    assert set(_missing(fires=False)) <= {"QuantizeCalibrate"}


@pytest.mark.parametrize("run", runs(), ids=lambda run: run.file)
def test_files_that_keep_the_module_say_so_by_their_names(run: Run) -> None:
    assert run.fires == ("_kept" not in run.file), f"{run.file} is a file of {run.pass_name}"


@pytest.mark.parametrize("run", [r for r in runs() if not r.fires], ids=lambda run: run.file)
def test_a_pass_with_nothing_to_do_returns_the_very_module_it_got(run: Run) -> None:
    assert run.is_same_object or run.pass_name in REBUILDS
