"""The accelerator that the README describes."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from compiler import evaluate
from compiler.fusion.hardware.conditions import conditions
from compiler.testing import hw_groups


def test_the_described_accelerator_works_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (files("compiler.fusion.hardware") / "README.md").read_text(encoding="utf-8")
    description = re.search(r"```toml\n(.*?)```", readme, re.DOTALL)
    program = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", readme, re.DOTALL)
    assert description is not None
    assert program is not None
    (tmp_path / "eng1.toml").write_text(description[1])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(program[1], "README.md", "exec"), names)
    assert capsys.readouterr().out == program[2]
    fused = names["fused"]
    assert len(hw_groups(fused, "eng1")) == 8  # type: ignore[arg-type]
    evaluate(fused, [[[[[0.5] * 8] * 8] * 3]])  # type: ignore[arg-type]


def test_every_condition_is_in_the_table() -> None:
    readme = (files("compiler.fusion.hardware") / "README.md").read_text(encoding="utf-8")
    missing = [name for name in conditions.names() if f"`{name}" not in readme]
    assert missing == []
