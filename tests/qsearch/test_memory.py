"""The memory that a network takes, in units of its file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.benchmarks.unseen_networks import Network

_COMPILE = """
import sys
from qsearch.cli.main import run
model, calib, module = sys.argv[1:]
assert run(["compile", "--model", model, "--calib", calib, "-o", module]) == 0
with open("/proc/self/status") as status:
    print("peak", next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""


def peak_and_size(width: int, folder: Path) -> tuple[float, float]:
    """MB that compile takes, and MB of the file: dense layers of a few tokens, with residuals."""
    graph = Network(1)
    x = graph.input(1, 4, width)
    for _ in range(4):
        hidden = graph.dense(graph.layer_norm(x, width), width, 2 * width, "Relu")
        x = graph("Add", x, graph.dense(hidden, 2 * width, width))
    folder.mkdir()
    onnx.save(graph.model(x), folder / "model.onnx")
    data = np.random.default_rng(2).normal(size=(4, 4, width)).astype("float32")
    np.savez(folder / "calib.npz", x=data)
    paths = [str(folder / name) for name in ("model.onnx", "calib.npz", "m.qmod")]
    command = [sys.executable, "-c", _COMPILE, *paths]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak = int(said.split("peak")[-1]) / 1024
    return peak, (folder / "model.onnx").stat().st_size / 2**20


@pytest.mark.slow
def test_compile_takes_less_than_five_times_the_file_beyond_what_a_small_network_takes(
    tmp_path: Path,
) -> None:
    least, _ = peak_and_size(16, tmp_path / "small")
    peak, size = peak_and_size(1024, tmp_path / "large")
    assert size > 60
    assert peak - least <= 4.6 * size
