"""A command is a function: options from annotations, help from ``Args:``, one screen of help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import click
import pytest

import qsearch
from compiler.lazy_names import home_of
from qsearch.cli.command import declared, option_of
from qsearch.cli.main import COMMANDS, parse, run
from qsearch.cli.main import qsearch as group
from tests.each import each

LINES = 50
COLUMNS = 100


def options_of(name: str) -> set[str]:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return {flag for param in command.params if param.name for flag in param.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_and_help_all_names_every_option(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert run([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert run([name, "--help-all"]) == 0
    told = capsys.readouterr().out
    for flag in each(flag for flag in options_of(name) if flag.startswith("--")):
        assert flag in told


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("compile", "quantize"),
        ("run", "run_module"),
        ("try", "try_qconfig"),
        ("report", "write_report"),
    ]
    + [(n, n) for n in ("doctor", "insight", "show", "diff", "verify", "profile", "status")]
    + [(n, n) for n in ("trials", "best", "compare", "stop", "delete")],
)
def test_a_command_has_the_options_of_its_function(name: str, function: str) -> None:
    parameters, _ = declared(home_of("qsearch", function), function)
    known = inspect.signature(getattr(qsearch, function)).parameters
    assert [p.name for p in parameters if p.name in known] == [
        n for n, p in known.items() if p.kind is not p.VAR_KEYWORD
    ]
    options = options_of(name)
    for parameter in each(p for p in parameters if option_of(p)):
        for param in each(option_of(parameter) or []):
            assert set(param.opts) <= options


def test_defaults_are_those_of_the_function() -> None:
    parameters, about = declared("qsearch.commands.analysis", "insight")
    samples = next(p for p in parameters if p.name == "samples")
    assert (samples.annotation, samples.default, samples.help) == ("Count", 16, "number of samples")
    assert about.startswith("Measure the loss at every layer")
    assert parse(["insight", "digits"]).params["samples"] == 16


def test_configurations_add_up_and_auto_comes_first() -> None:
    given = parse(["compile", "digits", "--qconfig", "nbit_weight=4", "--qconfig", "auto"]).params
    assert given["qconfig"] == "auto,nbit_weight=4"


@pytest.mark.parametrize("words", [["digits"], ["--model", "digits"], ["--model=digits"]])
def test_the_model_is_a_word_or_an_option(words: list[str]) -> None:
    assert parse(["compile", *words]).params["model"] == "digits"


def test_the_api_is_functions_and_the_classes_that_they_take_and_return() -> None:
    assert dir(qsearch) == qsearch.__all__
    for name in each(qsearch.__all__):
        public = getattr(qsearch, name)
        assert inspect.isclass(public) or isinstance(public, Callable)
        assert re.match("(qsearch|compiler)[.]", public.__module__)
