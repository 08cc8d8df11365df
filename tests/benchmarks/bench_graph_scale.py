"""CPU time per node on residual chains of 1k and 100k operators.

    python -m tests.benchmarks.bench_graph_scale [--sizes 1000 100000] [--json FILE]

A block is Conv 1x1, BatchNormalization, Relu, Add; one operator is one ONNX node. Every size runs
in a process of its own. The goal: at 100k at most 1.2 times the time per node of 1k, and
``prerequisite_optimize`` of 100k below 20 s; the command exits 1 where one is missed. What a stage
makes is what later ones read, so that five minutes are enough.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4
BLOCK = 4
GOAL_RATIO = 1.2
GOAL_PREREQUISITE_SECONDS = 20.0
# Small graphs are over in milliseconds; a large one is measured once, so the middle counts.
TARGET_SECONDS = 0.3
MOST_RUNS = 9


def residual_chain(operators: int, seed: int = 0) -> bytes:
    """An ONNX model of ``operators`` nodes: x = x + relu(bn(conv(x))), again and again.

    Weights are small enough that values stay finite however long the chain.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, value: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    value = "x"
    for i in range(operators // BLOCK):
        w = weight(f"w{i}", rng.normal(0, 1e-4, (CHANNELS, CHANNELS, 1, 1)))
        bn = [
            weight(f"gamma{i}", rng.uniform(0.9, 1.1, CHANNELS)),
            weight(f"beta{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"mean{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"var{i}", rng.uniform(0.9, 1.1, CHANNELS)),
        ]
        nodes += [
            helper.make_node("Conv", [value, w], [f"c{i}"], name=f"conv{i}"),
            helper.make_node("BatchNormalization", [f"c{i}", *bn], [f"b{i}"], name=f"bn{i}"),
            helper.make_node("Relu", [f"b{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("Add", [f"r{i}", value], [f"a{i}"], name=f"add{i}"),
        ]
        value = f"a{i}"
    shape = [1, CHANNELS, 2, 2]
    graph = helper.make_graph(
        nodes,
        "residual_chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


class Stopwatch:
    """CPU seconds of each stage: the middle of several runs of a short one, garbage collected
    before each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, stage: str, run: Callable[..., Any], *given: Any) -> Any:
        """Result of ``run(*given)``; a callable given is called anew before each run, untimed."""
        took: list[float] = []
        while sum(took) < TARGET_SECONDS and len(took) < MOST_RUNS:
            values = [value() if callable(value) else value for value in given]
            gc.collect()
            gc.freeze()  # what is kept so far is not walked again and again
            start = time.process_time()
            result = run(*values)
            took.append(time.process_time() - start)
        self.seconds[stage] = statistics.median(took)
        print(f"{stage}: {self.seconds[stage]:.2f} s", file=sys.stderr, flush=True)
        return result


def measure(operators: int) -> dict[str, float]:
    """CPU seconds of every stage on one chain, by stage name."""
    from itertools import chain, repeat

    import compiler
    from compiler import transform
    from compiler.frontend.from_onnx.load import load
    from compiler.ir.blob import ModuleBlob
    from compiler.ir.infer_type import infer_module
    from compiler.proof.derive import derive_static
    from compiler.qtypes.qconfig import QConfig
    from compiler.quantize import Calibration, build_candidate, mark, prerequisite_optimize

    watch = Stopwatch()
    mod, params = watch.time("import", load, residual_chain(operators))
    text = watch.time("print", compiler.text, mod)
    parsed = watch.time("parse", compiler.parse, text)
    # Parsing leaves types open, so every run has all of them to infer.
    untyped = chain([parsed], map(compiler.parse, repeat(text)))
    again = watch.time("InferType", infer_module, lambda: next(untyped))
    watch.time("structural_equal", compiler.structural_equal, mod, again)
    watch.time("structural_hash", compiler.structural_hash, mod)
    blob = watch.time("transport, pack", ModuleBlob.pack, mod)
    watch.time("transport, unpack", ModuleBlob.unpack, blob)
    optimized = watch.time(
        "prerequisite_optimize", lambda m: prerequisite_optimize(m, params, opt_level=3), mod
    )
    bound = prerequisite_optimize(mod, params, opt_level=0)
    for name in (
        "SimplifyInference",
        "FoldConstant",
        "FoldScaleAxis",
        "CanonicalizeOps",
        "CancelTransposes",
        "SimplifyExpr",
        "EliminateCommonSubexpr",
        "CanonicalizeCast",
        "DeadCodeElimination",
    ):
        given = mod if name == "SimplifyInference" else bound
        watch.time(name, getattr(transform, name)(), given)
    for matcher in ("greedy", "optimal"):
        watch.time(f"FuseOpHW, {matcher}", transform.FuseOpHW("opu", matcher), optimized)
    qconfig = QConfig.recommended()
    watch.time("mark", lambda m: mark(m, qconfig), optimized)
    rng = np.random.default_rng(1)
    data = [{"x": rng.normal(size=(1, CHANNELS, 2, 2)).astype("float32")} for _ in range(2)]
    scales = watch.time("calibrate", lambda m: Calibration(m, data).scales_for(qconfig), optimized)
    candidate = watch.time("build_candidate", build_candidate, optimized, qconfig, scales)
    del optimized, scales
    watch.time("proof", derive_static, candidate.module)
    return watch.seconds


def machine() -> dict[str, Any]:
    """Facts the figures depend on."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": onnx.__version__,
        "system": platform.platform(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--json", type=Path, help="file for the figures and the machine's facts")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one)))
        return 0
    runs: dict[int, dict[str, float]] = {}
    for size in options.sizes:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.bench_graph_scale", "--one", str(size)],
            stdout=subprocess.PIPE,
            check=True,
        )
        runs[size] = json.loads(done.stdout)
    first, last = min(runs), max(runs)
    header = "  ".join(f"{f'{size:,}':>10}" for size in runs)
    print(f"{'CPU us per operator':<24} {header}   ratio")
    missed: list[str] = []
    for stage in runs[first]:
        per_node = {size: run[stage] / size * 1e6 for size, run in runs.items()}
        ratio = per_node[last] / per_node[first]
        print(f"{stage:<24} {'  '.join(f'{v:>10.2f}' for v in per_node.values())}   {ratio:5.2f}")
        if ratio > GOAL_RATIO:
            missed.append(f"{stage}: {ratio:.2f} times the time per operator of {first:,}")
    seconds = runs[last]["prerequisite_optimize"]
    print(f"prerequisite_optimize of {last:,}: {seconds:.1f} s CPU")
    if seconds > GOAL_PREREQUISITE_SECONDS:
        missed.append(f"prerequisite_optimize takes {seconds:.1f} s")
    if options.json:
        record = {"machine": machine(), "cpu_seconds": {str(k): v for k, v in runs.items()}}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
