"""What the README says is tried."""

from __future__ import annotations

import re
import shlex
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import qsearch.dashboard
from qsearch.cli.main import parse

TEXT = (Path(qsearch.dashboard.__file__).parent / "README.md").read_text()
COMMANDS = re.findall(r"^qsearch .*$", TEXT, re.MULTILINE)


def test_the_plot_of_the_readme_is_a_plot() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, object] = {}
    exec(textwrap.dedent(code), names)
    svg = names["seconds_plot"]([1.0, 3.0, 2.0], 400)  # type: ignore[operator]
    assert ElementTree.fromstring(svg).get("width") == "400"


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    assert parse(words).info_name == words[0]


def test_routes_of_the_table_are_routes() -> None:
    from qsearch.dashboard.app import DashboardOptions, create_app

    known = set(create_app(DashboardOptions()).openapi()["paths"])
    for path in ("", "/{key}", "/{key}/trials", "/{key}/trials/{number}/histograms"):
        assert f"/api/v1/studies{path}" in known
    for part in ("graph", "text", "proof"):
        assert f"/api/v1/studies/{{key}}/module/{part}" in known
