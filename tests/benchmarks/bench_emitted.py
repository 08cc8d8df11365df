"""Emitted = scored on trained models, over random fully integral configurations.

    python -m tests.benchmarks.bench_emitted [--configs 200] [--models NAME …] [--images 256]
        [--seed 0] [--data ../shared/data] [--json FILE]

The configurations are spread over the models. For each: outputs of the integer reference against
the module read from its file, the exact grid, the fast grid, and the classic simulation. Exit code
1 where the file or the exact grid differ at all, the fast grid in more than 1 of 100,000 outputs,
or the simulation by more than 0.5 points of top-1 on average.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import QuantizeError
from compiler.frontend.from_onnx.load import load
from compiler.quantize import (
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    mark,
    prerequisite_optimize,
)
from compiler.quantize._calibrate.collect_stats import float_executor
from compiler.testing.emitted import compare_emitted, random_qconfig
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, batch_of, read_split

SMALL = ("digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_outlier", "fashion_vit")
FAST_GOAL = 1e-5
SIMULATION_GOAL = 0.5
DRAWS = 20


class Model:
    """One trained model with its images; statistics are kept per calibration fields."""

    def __init__(self, data: Path, name: str, images: int) -> None:
        batch = batch_of(name)
        self.name = name
        self.mod = prerequisite_optimize(*load(data / f"{name}.onnx", dims={"N": batch}), 3)
        calib = read_split(data, name, "calib", 64, batch)
        self.dev = read_split(data, name, "dev", images, batch)
        self.calib = self._batches(calib.images, batch)
        self.batches = self._batches(self.dev.images, batch)
        self.channels = channel_stats(self.mod, self.calib)
        self._stats: dict[str, Any] = {}

    @staticmethod
    def _batches(images: Any, size: int) -> list[dict[str, Any]]:
        return [{"input": images[i : i + size]} for i in range(0, len(images), size)]

    def candidate(self, config: QConfig) -> Any:
        """Build one configuration.

        Raises:
            QuantizeError: it cannot be built; random configurations may overflow.
        """
        key = repr(sorted(config.calibration_fields().items()))
        if key not in self._stats:
            annotated, _ = mark(self.mod, config, self.channels)
            self._stats[key] = calibration_stats(annotated, self.calib)
        scales = activation_scales(self._stats[key], config)
        return build_candidate(self.mod, config, scales, self.channels)


def measure(model: Model, rng: np.random.Generator, refused: Counter[str]) -> dict[str, Any]:
    """One configuration that can be built, in all its forms."""
    for _ in range(DRAWS):
        config = random_qconfig(rng)
        try:
            candidate = model.candidate(config)
        except QuantizeError as error:
            refused[f"{type(error).__name__}: {error.what[:60]}"] += 1
            continue
        break
    else:
        raise RuntimeError(f"{model.name}: none of {DRAWS} configurations could be built")
    with tempfile.TemporaryDirectory(prefix="bench-emitted-") as folder:
        found = compare_emitted(candidate.partitioned, model.batches, Path(folder) / "m.qmod")
    run = float_executor(candidate.simulated)
    simulated = np.concatenate([run.run(batch)[0] for batch in model.batches])
    ours, theirs = (
        100 * float((outputs.argmax(1) == model.dev.labels).mean())
        for outputs in (found.outputs, simulated)
    )
    recommended = QConfig.recommended().to_dict()
    return {
        "model": model.name,
        "changes": {k: v for k, v in config.to_dict().items() if v != recommended[k]},
        "elements": found.elements,
        "loaded": found.loaded,
        "exact_grid": found.exact_grid,
        "fast_grid": found.fast_grid,
        "top1": round(ours, 2),
        "simulation_points": round(abs(ours - theirs), 2),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over all configurations."""
    elements = sum(row["elements"] for row in rows)
    points = [row["simulation_points"] for row in rows]
    return {
        "configs": len(rows),
        "elements": elements,
        **{form: sum(row[form] for row in rows) for form in ("loaded", "exact_grid", "fast_grid")},
        "fast_fraction": sum(row["fast_grid"] for row in rows) / elements,
        "simulation_points_mean": round(float(np.mean(points)), 3),
        "simulation_points_largest": max(points),
    }


def main() -> int:
    """Print a line per configuration and the sums; 1 when a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=SMALL)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--images", type=int, default=256, help="dev images per model (256)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models = [Model(args.data, name, args.images) for name in args.models]
    refused: Counter[str] = Counter()
    rows = []
    for index in range(args.configs):
        rng = np.random.default_rng([args.seed, index])
        rows.append(measure(models[index % len(models)], rng, refused))
        print(json.dumps(rows[-1]), flush=True)
    result = {"machine": machine(), "summary": summary(rows), "refused": refused, "rows": rows}
    print(json.dumps({k: v for k, v in result.items() if k != "rows"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    found = result["summary"]
    kept = (
        found["loaded"] == found["exact_grid"] == 0
        and found["fast_fraction"] <= FAST_GOAL
        and found["simulation_points_mean"] <= SIMULATION_GOAL
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
