"""Reference against exact integer ONNX on random configurations, and what a proof costs.

    python -m tests.benchmarks.bench_proof [--data ../shared/data] [--models NAME …] [--configs 50]

For every model: that many random QConfigs, in which every field takes part, calibrated on random
inputs; each module is proved (dtypes, ranges, random, extreme and real inputs on both executors).
The goal: not one differing element and not one refuted module; the command exits 1 where it is
missed. Modules that are not fully integral, because an operator has no integer form yet, are
counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from compiler import quantize
from compiler.errors import NotFullyIntegralError
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.proof.derive import derive, derive_static
from compiler.qtypes.errors import IntegerOverflowError
from tests.compiler.emitted import random_qconfig

MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "fashion_vit",
    "efficientnet_lite0",
)
SAMPLES = 2


def random_batch(mod: IRModule, rng: np.random.Generator) -> dict[str, Any]:
    """Standard normal inputs."""
    types = {p.name_hint: p.tensor_type for p in mod["main"].params}
    return {n: rng.normal(0, 1, t.concrete_shape).astype(t.dtype) for n, t in types.items()}


def measure(path: Path, configs: int) -> dict[str, Any]:
    """One row of the table."""
    mod, params = load(path)
    mod = quantize.prerequisite_optimize(mod, params, 3)
    rng = np.random.default_rng(0)
    row: dict[str, Any] = {"model": path.stem, "configs": 0, "not_integral": 0, "overflow": 0}
    row |= {"refuted": 0, "elements": 0, "differing": 0}
    ranges_s: list[float] = []
    proof_s: list[float] = []
    layers = quantize.layer_names(mod)
    for _ in range(configs):
        config = random_qconfig(rng, layers)
        batches = [random_batch(mod, rng) for _ in range(SAMPLES)]
        channels = quantize.channel_stats(mod, batches, sample=config.sequential)
        annotated, _ = quantize.mark(mod, config, channels)
        stats = quantize.calibration_stats(annotated, batches, (config.percentile,))
        scales = quantize.activation_scales(stats, config)
        row["configs"] += 1
        try:
            module = quantize.build_candidate(mod, config, scales, channels).partitioned
        except NotFullyIntegralError:
            row["not_integral"] += 1
            continue
        except IntegerOverflowError:
            row["overflow"] += 1
            continue
        assert module is not None
        samples = [(batch, evaluate(module, batch)) for batch in batches]
        begin = time.process_time()
        derive_static(module)
        middle = time.process_time()
        proof = derive(module, samples)
        ranges_s.append(middle - begin)
        proof_s.append(time.process_time() - middle)
        row["refuted"] += not proof.holds
        row["elements"] += sum(test.elements for test in proof.comparisons)
        row["differing"] += sum(test.differing for test in proof.comparisons)
        for finding in proof.findings[:3]:
            print(f"  {path.stem} {config.to_dict()}: {finding}", file=sys.stderr)
    row["static_cpu_s"] = round(float(np.median(ranges_s)), 3) if ranges_s else None
    row["proof_cpu_s"] = round(float(np.median(proof_s)), 3) if proof_s else None
    return row


def main() -> int:
    """Print the table; 1 when an element differs or a module is refuted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--configs", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.models:
        rows.append(measure(args.data / f"{name}.onnx", args.configs))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    machine = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }
    print(json.dumps(machine))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    missed = [row["model"] for row in rows if row["differing"] or row["refuted"]]
    if missed:
        print(f"goal missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
