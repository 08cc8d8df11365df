"""CPU time of judging a candidate, relative to the float model on onnxruntime.

    python -m tests.benchmarks.bench_grid [--data ../shared/data] [--models NAME …] [--json FILE]

For every model: the recommended configuration, calibrated on random inputs; then the grid and
the simulated module, each alternated with the float model, on one thread,
``time.thread_time``, the median of the ratios. Also what building, export and session creation
cost, and how many output bits differ from the reference. ``grid_float32`` is the grid without 8 bit
kernels. The goal: grid of EfficientNet-Lite0 at most 0.65, without such kernels 1.7; the command
exits 1 where it is missed or a bit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from compiler import quantize
from compiler.export.to_onnx.float_model import to_onnx
from compiler.export.to_onnx.grid import to_grid_onnx
from compiler.frontend.from_onnx.load import load
from compiler.pipeline import evaluate
from compiler.targets.ort import narrow_kernels
from compiler.targets.ort.session import OrtExecutor

MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "efficientnet_lite0",
)
GOAL_MODEL = "efficientnet_lite0"
GOAL_RATIO = 0.65 if narrow_kernels.are_exact() else 1.7
ROUNDS = 40
WARM_UP = 4
CALIBRATION_INPUTS = 4

Inputs = Mapping[str, np.ndarray[Any, Any]]


def ratio(measured: OrtExecutor, plain: OrtExecutor, inputs: Inputs) -> float:
    """Median over rounds of CPU time measured / plain, the two taking turns."""
    ratios: list[float] = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        measured.run(inputs)
        middle = time.thread_time()
        plain.run(inputs)
        ratios.append((middle - begin) / (time.thread_time() - middle))
    return float(np.median(ratios[WARM_UP:]))


def measure(path: Path) -> dict[str, Any]:
    """One row of the table."""
    mod, params = load(path)
    mod = quantize.prerequisite_optimize(mod, params, 3)
    rng = np.random.default_rng(0)
    types = {p.name_hint: p.tensor_type for p in mod["main"].params}
    batches = [
        {n: rng.normal(0, 0.6, t.concrete_shape).astype(t.dtype) for n, t in types.items()}
        for _ in range(CALIBRATION_INPUTS)
    ]
    config = quantize.QConfig.recommended()
    annotated, _ = quantize.mark(mod, config)
    scales = quantize.activation_scales(quantize.calibration_stats(annotated, batches), config)
    start = time.process_time()
    candidate = quantize.build_candidate(mod, config, scales)
    assert candidate.partitioned is not None
    begin = time.process_time()
    model = to_grid_onnx(candidate.partitioned, narrow_kernels=narrow_kernels.are_exact())
    exported = time.process_time()
    grid = OrtExecutor(model)
    ready = time.process_time()
    wide = OrtExecutor(to_grid_onnx(candidate.partitioned))
    simulated = OrtExecutor(to_onnx(candidate.simulated))
    plain = OrtExecutor(onnx.load(path))
    differing = sum(
        a.tobytes() != b.tobytes()
        for batch in batches
        for executor in (grid, wide)
        for a, b in zip(evaluate(candidate.partitioned, batch), executor.run(batch), strict=True)
    )
    return {
        "model": path.stem,
        "build_cpu_s": round(begin - start, 3),
        "export_cpu_s": round(exported - begin, 3),
        "session_cpu_s": round(ready - exported, 3),
        "outputs_differing": differing,
        "grid": round(ratio(grid, plain, batches[0]), 2),
        "grid_float32": round(ratio(wide, plain, batches[0]), 2),
        "simulated": round(ratio(simulated, plain, batches[0]), 2),
    }


def machine() -> dict[str, Any]:
    """Facts without which the figures mean little."""
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.models:
        rows.append(measure(args.data / f"{name}.onnx"))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    result = {"machine": machine(), "rows": rows}
    print(json.dumps(result["machine"]))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    missed = [
        row["model"]
        for row in rows
        if row["outputs_differing"] or (row["model"] == GOAL_MODEL and row["grid"] > GOAL_RATIO)
    ]
    if missed:
        print(f"goal missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
