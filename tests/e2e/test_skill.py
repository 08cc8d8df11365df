"""SKILL.md followed to the letter: its commands in their order, and what it says of their JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.cli.main import COMMANDS, run

SKILL = Path(qsearch.__file__).with_name("SKILL.md")
MODELS = Path(qsearch.__file__).with_name("models")


def test_the_skill_is_printed_and_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["skill"]) == 0
    text = capsys.readouterr().out
    assert text == SKILL.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert text.startswith("---\nname: qsearch\ndescription: ")
    assert set(re.findall(r"`?qsearch ([a-z]+)[ `\"]", text)) <= set(COMMANDS)


@pytest.mark.slow
def test_the_skill_works_to_the_letter(
    few_digits: Path, few_labelled: Path, tmp_path: Path
) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", SKILL.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 7
    program = tmp_path / "bin" / "qsearch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m qsearch "$@"\n')
    program.chmod(0o755)
    given = {
        "MODEL": MODELS / "digits_cnn.onnx",
        "CALIB": few_digits,
        "EVAL": few_labelled,
        "RUN": "run",
    }
    environment = {
        **os.environ,
        **{name: str(path) for name, path in given.items()},
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SKILL.parents[1]),
        "QSEARCH_POOL": "inline",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    def answer(name: str) -> Any:
        return json.loads((tmp_path / f"{name}.json").read_text().splitlines()[-1])

    assert answer("doctor")["fully_integral"] is True
    assert {"inputs", "hints", "warnings", "causes", "obstacles"} <= set(answer("doctor"))
    assert "top1" in answer("first")
    launched = answer("launch")
    assert {"best", "baseline", "target_missed", "trials", "module"} <= set(launched)
    assert {"stopped", "compile"} <= set(launched)
    reported = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {"kept", "fits"} <= set(reported["target"])
    assert reported["warnings"] is not None
    assert {"trial", "qconfig", "intervals"} <= set(launched["best"])
    assert answer("failed") == []
    assert answer("best")["number"] == launched["best"]["trial"]
    assert answer("verify")["verdict"] == "proved"
    assert answer("run")["top1"] == launched["best"]["top1"]
    assert (tmp_path / "integer.onnx").is_file()
    assert list((tmp_path / "c_code").glob("*.c"))
