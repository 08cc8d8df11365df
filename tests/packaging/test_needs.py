"""What the tests need is told in one place, where they are skipped and where CI installs it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.needs import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
SKIPS = {"skip", "skipif", "importorskip"}
ELSEWHERE = {"needs.py", "conftest.py"}
"""Where reasons are made: of what is missing, and of ../shared/data."""


def reasons() -> list[tuple[str, str]]:
    """Files of the tests, and what they give as the reason of each skip."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.relative_to(ROOT / "tests").as_posix() in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in SKIPS and ast.unparse(node.func).startswith("pytest."):
                given = [word.value for word in node.keywords if word.arg == "reason"]
                found.append((str(path), ast.unparse(given[0]) if given else ""))
    return found


def test_every_skip_names_what_ends_it() -> None:
    told = reasons()
    assert told
    other = [(path, reason) for path, reason in told if not reason.startswith("missing(")]
    assert other == []


def test_contributing_lists_what_the_tests_need_and_ci_installs_it() -> None:
    listed = (ROOT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", listed, re.MULTILINE))
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    for need, command in PACKAGES.items():
        system = command.partition(",")[0]
        told = [told.replace("`", "") for row, told in rows.items() if need in row]
        assert any(line.startswith(system) for line in told), need
        if system.startswith("apt-get") and "from pkgs" not in command:
            packages = system.removeprefix("apt-get install ")
            assert f"--no-install-recommends {packages}" in ci, need


def test_ci_runs_the_tests_where_only_the_readme_was_followed() -> None:
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    before, _, rest = ci.partition("\ntools() (\n")
    tools, _, rest = rest.partition("\n)\n")
    _, _, rest = rest.partition("check() (\n")
    check, _, tests = rest.partition("\n)\n")
    assert re.search(r"(?m)^commands=.* README\.md\)$", before)
    assert ci.count("pip install") == 1, "of lint; the README's own lines do for the tests"
    assert "['project']['optional-dependencies']['dev'])" in tools, (
        "a build would hide what is lacking"
    )
    assert '\n    pip install -q $(python -c "$tools")\n' in tools
    for subshell in (tools, check):  # the tests never see its environment
        assert '. "$work/lint/bin/activate"' in subshell
    assert 'python3 -m venv "$work/tests"' in tests
    assert '. "$work/tests/bin/activate"\nbash -ec' in tests
    assert tests.count("activate") == 1, "that of the tests"
