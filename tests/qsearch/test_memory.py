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
for folder in sys.argv[1:]:
    model, calib, module = (f"{folder}/{name}" for name in ("model.onnx", "calib.npz", "m.qmod"))
    assert run(["compile", "--model", model, "--calib", calib, "-o", module]) == 0
    with open("/proc/self/status") as status:
        print("peak", next(int(line.split()[1]) for line in status if line.startswith("VmHWM")))
"""


def write(width: int, folder: Path) -> float:
    """MB of the file of a model: dense layers of a few tokens, with residuals."""
    graph = Network(1)
    x = graph.input(1, 4, width)
    for _ in range(4):
        hidden = graph.dense(graph.layer_norm(x, width), width, 2 * width, "Relu")
        x = graph("Add", x, graph.dense(hidden, 2 * width, width))
    folder.mkdir()
    onnx.save(graph.model(x), folder / "model.onnx")
    data = np.random.default_rng(2).normal(size=(4, 4, width)).astype("float32")
    np.savez(folder / "calib.npz", x=data)
    return (folder / "model.onnx").stat().st_size / 2**20


@pytest.mark.slow
def test_compile_takes_less_than_five_times_the_file_beyond_what_a_small_network_takes(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / "small", tmp_path / "large"]
    _, size = (write(width, folder) for width, folder in zip((16, 1024), folders))
    command = [sys.executable, "-c", _COMPILE, *map(str, folders)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    least, peak = (int(line.split()[1]) / 1024 for line in said.splitlines() if "peak" in line)
    assert size > 60
    # Layers of 2048 taps are rounded sequentially: sums of products take the file once more.
    assert peak - least <= 5 * size
