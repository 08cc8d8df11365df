"""Workers import what their driver imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import workers
from workers.process import python_path


def test_our_packages_come_first_and_the_folder_of_an_interpreter_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "elsewhere", str(tmp_path)])
    home = str(Path(workers.__file__).parents[1])
    assert python_path().split(os.pathsep) == [home, str(tmp_path), "elsewhere"]
