"""Models, modules, data and settings as users have them, to be changed by ``bench_forgeries``."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.runtime.archive import read_archive
from compiler.targets.engine.library import available_isas, load_library
from qsearch.cli.main import run
from tests.benchmarks.changed_members import CONFIGS
from tests.compiler.targets.engine.test_harness import SANITIZERS, build_harness
from tests.e2e.operator_cases import CASES


def _graph(
    nodes: Sequence[Any], shape: Sequence[int], constants: dict[str, Any]
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])]
    held = [numpy_helper.from_array(a.astype("float32"), n) for n, a in constants.items()]
    graph = helper.make_graph(list(nodes), "base", given, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def perceptron() -> onnx.ModelProto:
    """(1, 3) → 4 → 2: its input has few enough elements for all of their ends."""
    rng, node = np.random.default_rng(3), helper.make_node
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["a"], transB=1),
        node("Relu", ["a"], ["r"]),
        node("Gemm", ["r", "w2", "b2"], ["y"], transB=1),
    ]
    shapes = {"w1": (4, 3), "b1": 4, "w2": (2, 4), "b2": 2}
    return _graph(nodes, (1, 3), {n: rng.normal(0, 0.6, s) for n, s in shapes.items()})


def convolutions() -> onnx.ModelProto:
    """(1, 1, 4, 4): two convolutions, a residual, both poolings, a classifier."""
    rng, node = np.random.default_rng(3), helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["m", "w2"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "m"], ["s"]),
        node("GlobalAveragePool", ["s"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]
    shapes = {"w1": (2, 1, 3, 3), "b1": 2, "w2": (2, 2, 3, 3), "w3": (2, 2), "b3": 2}
    return _graph(nodes, (1, 1, 4, 4), {n: rng.normal(0, 0.6, s) for n, s in shapes.items()})


PREPROCESS = "resize: 6\ncrop: 4\nchannel_order: GRAY\nmean: [120.5]\nstd: [60]\n"
SETTINGS = {
    ".yaml": "trials: 8\nseed: 3\nworkers: 2\nsampler: tpe\nmax_drop: 0.01\ncosts: [bytes, macs]\n",
    ".toml": 'trials = 8\nseed = 3\nmax_drop = "1%"\ncosts = ["bytes"]\ndim = { N = 1 }\n',
    ".json": '{"trials": 8, "seed": 3, "limits": {"bytes": 1000}, "timeout": 60}',
}


class Bases:
    """The honest files, written below a folder, and what each costs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.qmods: list[dict[str, bytes]] = []
        self.archives: list[bytes] = []
        self.models = {"perceptron": perceptron(), "convolutions": convolutions()}
        for name, model in self.models.items():
            onnx.save(model, folder / f"{name}.onnx")
            shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
            batch = np.random.default_rng(4).normal(size=(8, *shape[1:])).astype("float32")
            np.savez(folder / f"{name}.npz", x=batch, y=np.arange(8) % 2)
            np.save(folder / f"{name}.npy", batch)
            for number, config in enumerate(CONFIGS):
                path = folder / f"{name}{number}.qmod"
                data = folder / f"{name}.npz"
                made = qsearch.quantize(folder / f"{name}.onnx", data, config)
                made.save(path)
                self.qmods.append(read_archive(path))
                self.archives.append(path.read_bytes())
        self.operators = {name: case.model() for name, case in CASES.items()}
        self.words = tuple(
            sorted({node.op_type for m in self.operators.values() for node in m.graph.node})
        )
        pictures = np.random.default_rng(5).integers(0, 256, (4, 8, 8, 1), "uint8")
        np.savez(folder / "pictures.npz", x=pictures, y=np.arange(4) % 2)
        self.config = json.loads(self.qmods[0]["qconfig.json"])
        self.hardware = Path("compiler/fusion/hardware/descriptions/npu.toml").read_text()
        space = folder / "space.yaml"
        silent(["doctor", str(folder / "perceptron.onnx"), "--space-out", str(space)])
        self.space = space.read_text()
        self.harness = folder / "harness"
        build_harness(self.harness, "generic", ["gcc"], ["-O1", *SANITIZERS])
        for isa in available_isas():  # once a machine; no mutant pays for it
            load_library(isa)


def silent(words: Sequence[str]) -> tuple[int, str]:
    """Exit code and what a command says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run(list(words))
    return code, said.getvalue()
