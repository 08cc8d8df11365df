"""What the README says is tried."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import qsearch.dashboard
from qsearch.cli.main import parse

TEXT = (Path(qsearch.dashboard.__file__).parent / "README.md").read_text()
COMMANDS = re.findall(r"^qsearch .*$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_readme_can_be_parsed(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    assert parse(words).info_name == words[0]


def test_routes_of_the_table_are_routes() -> None:
    from qsearch.dashboard.app import DashboardOptions, create_app

    known = set(create_app(DashboardOptions()).openapi()["paths"])
    for path in ("", "/{key}", "/{key}/trials", "/{key}/trials/{number}/histograms"):
        assert f"/api/v1/studies{path}" in known
    for part in ("graph", "text", "proof"):
        assert f"/api/v1/studies/{{key}}/module/{part}" in known
