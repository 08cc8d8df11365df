"""Bytes against accuracy: bits chosen layer by layer beside the same bits everywhere.

    python -m tests.benchmarks.bench_mixed_precision [--model fashion_resnet] [--images N]
        [--calib N] [--weight-rounding nearest|sequential] [--data DIR] [--json FILE]

1. Every layer alone is given 2 to 7 bits, all others keep 8: the squared error this adds to the
   outputs of calibration images is its damage (HAWQ-V3's sensitivity, measured).
2. An integer programme finds the least damage under a budget of bytes (qsearch/search/allocation).
3. Each answer is built and judged on the dev images on its integers, beside uniform bits.

The goal, which sets the exit code: for 3, 4, 5 and 6 bits everywhere there is a mixed module of no
more bytes whose top-1 is not lower, and one whose SQNR is higher. From 7 bits on the activations
decide, and all modules are alike. And at half the bytes of 8 bits everywhere a mixed module loses
at most half a point of top-1 to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.load import load
from compiler.quantize import (
    Candidate,
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    layer_names,
    mark,
    prerequisite_optimize,
)
from compiler.runtime.exact_executor import exact_executor
from compiler.runtime.executor import Executor
from qsearch.search.layer_space import allocate_bits
from tests.benchmarks.bench_accuracy import on_onnxruntime, outputs_of
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, Split, batch_of, read_split
from tests.benchmarks.scores import Score, score

FULL = 8
CHOICES = (2, 3, 4, 5, 6, 7, FULL)
ROUNDINGS = ("nearest", "sequential")
UNIFORM = (3, 4, 5, 6, 7, FULL)
HALF_LOSES = 0.5
EVALUATED = 4
"""So many of them are to be dominated."""

BUDGETS = (2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 4.25, 4.5, 4.75, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5)
"""Bytes of the mixed modules, in bits a weight."""


class Study:
    """One model, prepared, with what calibration measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        batch = batch_of(args.model)
        self.path = args.data / f"{args.model}.onnx"
        module, params = load(self.path, dims={"N": batch})
        self.module = prerequisite_optimize(module, params, 3, simplify=True)
        self.calib = read_split(args.data, args.model, "calib", args.calib, batch)
        self.dev = read_split(args.data, args.model, "dev", args.images, batch)
        self.batch = batch
        self.config = QConfig.recommended(
            calibrate_mode="mse", weight_rounding=args.weight_rounding
        )
        images = self.calib.images
        batches = [{"input": images[i : i + batch]} for i in range(0, len(images), batch)]
        needs = {"sample": self.config.sequential}
        self.channels = channel_stats(self.module, batches, **needs)
        annotated, _ = mark(self.module, self.config, self.channels)
        self.scales = activation_scales(calibration_stats(annotated, batches), self.config)

    def candidate(self, bits: Mapping[str, int]) -> Candidate:
        """Fully integral, with these bits of the weights; ``FULL`` where nothing is said."""
        layers = {name: {"nbit_weight": nbit} for name, nbit in bits.items() if nbit != FULL}
        config = self.config.with_overrides(layers=layers)
        return build_candidate(self.module, config, self.scales, self.channels)

    def outputs(self, candidate: Candidate, split: Split) -> NDArray[Any]:
        """What it answers on its integers."""
        assert candidate.partitioned is not None
        executor: Executor = exact_executor(candidate.partitioned).executor
        return outputs_of(lambda x: executor.run({"input": x})[0], split, self.batch)


def damages(study: Study, reference: NDArray[Any]) -> dict[str, dict[int, float]]:
    """Squared error that each layer's bits add to the outputs of the calibration images."""
    exact = reference.astype(np.float64)

    def noise(bits: Mapping[str, int]) -> float:
        found = study.outputs(study.candidate(bits), study.calib)
        return float(np.square(found - exact).sum())

    base = noise({})
    names = [layer.name for layer in study.candidate({}).cost.layers if layer.weight_elements]
    return {
        name: {
            nbit: 0.0 if nbit == FULL else max(noise({name: nbit}) - base, 0.0) for nbit in CHOICES
        }
        for name in names
    }


def sizes(study: Study) -> dict[str, dict[int, float]]:
    """Bytes of each layer's packed weight at every choice of bits."""
    layers = [layer for layer in study.candidate({}).cost.layers if layer.weight_elements]
    return {
        layer.name: {nbit: float(-(-layer.weight_elements * nbit // 8)) for nbit in CHOICES}
        for layer in layers
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole table."""
    begin = time.process_time()
    study = Study(args)
    plain = on_onnxruntime(study.path)
    reference = outputs_of(plain, study.dev, study.batch)
    base = score(reference, reference, study.dev.labels)
    print(
        f"{args.model}: {len(layer_names(study.module))} layers, {len(study.calib)} calibration "
        f"images, {len(study.dev)} judged, weights rounded {args.weight_rounding}; "
        f"float top-1 {base.top1:.2f}",
        flush=True,
    )
    size = sizes(study)
    measured = time.process_time()
    damage = damages(study, outputs_of(plain, study.calib, study.batch))
    sensitivity_cpu_s = time.process_time() - measured
    elements = sum(row[FULL] for row in size.values())

    def row(name: str, bits: Mapping[str, int]) -> dict[str, Any]:
        candidate = study.candidate(bits)
        judged: Score = score(study.outputs(candidate, study.dev), reference, study.dev.labels)
        found = {
            "name": name,
            "bytes": candidate.cost.weight_bytes,
            "bit_operations": candidate.cost.bit_operations,
            **judged.to_dict(),
            "bits": dict(bits),
        }
        show(found)
        return found

    uniform = [row(f"uniform {nbit}", dict.fromkeys(size, nbit)) for nbit in UNIFORM]
    mixed = []
    for mean in BUDGETS:
        solved = time.process_time()
        bits = allocate_bits(damage, size, elements * mean / FULL)
        solve_cpu_s = time.process_time() - solved
        mixed.append({**row(f"mixed {mean:g}", bits), "solve_cpu_s": round(solve_cpu_s, 3)})
    return {
        "model": args.model,
        "weight_rounding": args.weight_rounding,
        "float": base.to_dict(),
        "uniform": uniform,
        "mixed": mixed,
        "dominated": [dominated(one, mixed) for one in uniform[:EVALUATED]],
        "half": halved(uniform[-1], mixed),
        "damages": damage,
        "sensitivity_cpu_s": round(sensitivity_cpu_s, 1),
        "cpu_s": round(time.process_time() - begin, 1),
    }


def dominated(one: Mapping[str, Any], mixed: list[dict[str, Any]]) -> dict[str, Any]:
    """The best mixed modules of no more bytes beside a uniform one, by top-1 and by SQNR."""
    smaller = [other for other in mixed if other["bytes"] <= one["bytes"]]
    found: dict[str, Any] = {"uniform": one["name"], "bytes": one["bytes"]}
    for metric in ("top1", "sqnr_db"):
        best = max(smaller, key=lambda other: (other[metric], -other["bytes"]))
        enough = [other["bytes"] for other in mixed if other[metric] >= one[metric]]
        found[metric] = {
            "uniform": one[metric],
            "mixed": best[metric],
            "by": best["name"],
            "bytes": best["bytes"],
            "fewest_bytes_as_good": min(enough, default=None),
        }
    found["met"] = bool(
        found["top1"]["mixed"] >= one["top1"] and found["sqnr_db"]["mixed"] > one["sqnr_db"]
    )
    return found


def halved(full: Mapping[str, Any], mixed: list[dict[str, Any]]) -> dict[str, Any]:
    """The best mixed module of at most half the bytes of 8 bits everywhere, by top-1."""
    small = [row for row in mixed if 2 * row["bytes"] <= full["bytes"]]
    best = max(small, key=lambda row: (row["top1"], row["sqnr_db"]))
    lost = round(full["top1"] - best["top1"], 2)
    return {"name": best["name"], "bytes": best["bytes"], "points": lost, "met": lost <= HALF_LOSES}


def show(row: Mapping[str, Any]) -> None:
    """One line of the table."""
    low, high = row["top1_interval"]
    bits = "".join(map(str, row["bits"].values()))
    print(
        f"  {row['name']:11} {row['bytes']:8} bytes  top-1 {row['top1']:6.2f} "
        f"({low:.1f} to {high:.1f})  agreement {row['agreement']:6.2f}  "
        f"SQNR {row['sqnr_db']:6.2f}  {bits}",
        flush=True,
    )


def main() -> int:
    """Print the table; 1 when some uniform module is not dominated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--model", default="fashion_resnet")
    parser.add_argument("--images", type=int, help="dev images (all)")
    parser.add_argument("--calib", type=int, default=256, help="calibration images (256)")
    parser.add_argument("--weight-rounding", default="sequential", choices=ROUNDINGS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {"machine": machine(), **measure(args)}
    for verdict in result["dominated"]:
        print(f"  {json.dumps(verdict)}")
    print(f"  half the bytes: {json.dumps(result['half'])}")
    print(f"  {result['cpu_s']} CPU s, {result['sensitivity_cpu_s']} of them sensitivities")
    print(json.dumps(result["machine"]))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    verdicts = [*result["dominated"], result["half"]]
    return 0 if all(verdict["met"] for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
