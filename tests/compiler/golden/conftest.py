"""Collects ``*.relay``: the RUN line is run by compiler.opt, CHECK lines are matched by filecheck.

``// RUN: opt -p A,B [--types]`` checks the printed module, ``// RUN: not opt …`` the error message.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

from compiler.errors import CompilerError
from compiler.opt import argument_parser, run_passes

RUN = "// RUN:"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".relay":
        return RelayFile.from_parent(parent, path=file_path)
    return None


class RelayFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        lines = self.path.read_text("utf-8").splitlines()
        runs = [line[len(RUN) :].strip() for line in lines if line.startswith(RUN)]
        if not runs:
            raise self.CollectError(f"{self.path} has no '{RUN} opt …' line")
        for number, command in enumerate(runs):
            yield RelayItem.from_parent(self, name=f"run{number}", command=command)


class RelayItem(pytest.Item):
    def __init__(self, *, command: str, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]
        self.command = command

    def runtest(self) -> None:
        words = shlex.split(self.command)
        must_fail = words[0] == "not"
        assert words[must_fail] == "opt", f"a RUN line starts with opt or not opt: {self.command}"
        options = argument_parser().parse_args([*words[must_fail + 1 :], str(self.path)])
        try:
            output = run_passes(
                self.path.read_text("utf-8"),
                options.passes,
                opt_level=options.opt_level,
                show_types=options.types,
                show_meta=not options.no_meta,
                source_name=self.path.name,
            )
            assert not must_fail, f"accepted, should be refused:\n{output}"
        except CompilerError as error:
            if not must_fail:
                raise
            output = str(error)
        self.check(output)

    def check(self, output: str) -> None:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            options = Options(match_filename=str(self.path))
            parser = Parser.from_opts(options)
            code = Matcher(options, FInput(self.path.name, output), parser).run()
        assert code == 0, f"{said.getvalue()}\n--- output ---\n{output}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}: {self.command}"
