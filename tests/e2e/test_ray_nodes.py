"""A search on a Ray cluster of two nodes: the rows of a search without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ray

HERE = Path(__file__).parent
MODE = """
import numpy as np
from compiler.quantize.calibration.modes import calibrate_modes
from beside import SHARE

calibrate_modes.register("nearly_all")(lambda stats, qconfig, nbit: SHARE * stats.largest)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two nodes of one CPU each, which know our packages and nothing of the user's."""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "ray_nodes.py"), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(HERE.parents[1])},
    )
    yield process
    process.communicate(timeout=120)


def test_two_nodes_give_the_rows_of_a_search_without_ray(
    cluster: subprocess.Popen[str], launch: Callable[..., Any], tmp_path: Path
) -> None:
    mine = tmp_path / "users" / "nearly.py"
    mine.parent.mkdir()
    mine.write_text(MODE)
    (mine.parent / "beside.py").write_text("import numpy\nSHARE = numpy.float32(0.9)\n")
    space = tmp_path / "space.yaml"
    space.write_text(
        "fields: {calibrate_mode: [nearly_all, mse, max], weight_granularity: [channel, tensor]}\n"
    )
    words = ("--trials", "6", "--import", str(mine), "--space", str(space), "--max-drop", "1")
    alone = launch("alone", *words, "--pool", "inline", "--batch", "4")
    alone.finish()
    assert cluster.stdout is not None
    address = next(line.strip() for line in cluster.stdout if ":" in line)
    nodes = launch(
        "nodes", *words, "--address", address, "--pool", "ray", "--workers", "2", "--batch", "4"
    )
    nodes.finish()
    assert {trial.params["calibrate_mode"] for trial in nodes.trials()} >= {"nearly_all"}
    assert nodes.story() == alone.story()
    ours, theirs = (run.folder / "best.qmod" for run in (nodes, alone))
    assert ours.read_bytes() == theirs.read_bytes()
