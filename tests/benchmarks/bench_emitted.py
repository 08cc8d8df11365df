"""Emitted = scored on trained models, over random fully integral configurations.

    python -m tests.benchmarks.bench_emitted [--configs 200] [--models NAME …] [--images N]
        [--seed 0] [--data ../shared/data] [--rows FILE.jsonl] [--json FILE]

The configurations are spread over the models. For each, on all dev images: outputs of the integer
reference against the module read from its file, the integer ONNX, and the classic simulation. Exit
code 1 where the file or the ONNX differ at all, or the simulation by more than 0.5 points of top-1
on average. A configuration whose simulation is farther away than that says why: how far the
simulation itself is from float, how far the integers are from it, how many of the images that
flipped had their two best classes closer together than that, and the layers that cost most.

With ``--rows`` every finished configuration is kept in a file, and the same command goes on behind
the last one.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import QuantizeError
from compiler.frontend.from_onnx.load import load
from compiler.insight import examine
from compiler.quantize import (
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    layer_names,
    mark,
    prerequisite_optimize,
)
from compiler.quantize.calibration.collect_stats import float_executor
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, batch_of, read_split
from tests.benchmarks.scores import decibels
from tests.compiler.emitted import compare_emitted, random_qconfig

SMALL = ("digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_outlier", "fashion_vit")
SIMULATION_GOAL = 0.5
DRAWS = 20
EXAMINED = 4
"""Batches on which an outlier is examined layer by layer."""


class Model:
    """One trained model with its images; statistics are kept per calibration fields."""

    def __init__(self, data: Path, name: str, images: int | None, calib_images: int = 64) -> None:
        batch = batch_of(name)
        self.name = name
        self.mod = prerequisite_optimize(*load(data / f"{name}.onnx", dims={"N": batch}), 3)
        calib = read_split(data, name, "calib", calib_images, batch)
        self.dev = read_split(data, name, "dev", images, batch)
        self.calib = self._batches(calib.images, batch)
        self.batches = self._batches(self.dev.images, batch)
        self.channels = channel_stats(self.mod, self.calib, sample=True)
        self._stats: dict[str, Any] = {}
        self.float = self.outputs(self.mod)

    def outputs(self, mod: Any) -> np.ndarray[Any, Any]:
        """Of a float or simulated module, for all dev images."""
        run = float_executor(mod)
        return np.concatenate([run.run(batch)[0] for batch in self.batches])

    @staticmethod
    def _batches(images: Any, size: int) -> list[dict[str, Any]]:
        return [{"input": images[i : i + size]} for i in range(0, len(images), size)]

    def statistics(self, config: QConfig) -> Any:
        """Of the points of one configuration."""
        key = repr(sorted(config.calibration_fields().items()))
        if key not in self._stats:
            annotated, _ = mark(self.mod, config, self.channels)
            self._stats[key] = calibration_stats(annotated, self.calib)
        return self._stats[key]

    def candidate(self, config: QConfig) -> Any:
        """Build one configuration.

        Raises:
            QuantizeError: it cannot be built; random configurations may overflow.
        """
        scales = activation_scales(self.statistics(config), config)
        return build_candidate(self.mod, config, scales, self.channels)


def measure(model: Model, rng: np.random.Generator, refused: Counter[str]) -> dict[str, Any]:
    """One configuration that can be built, in all its forms."""
    for _ in range(DRAWS):
        config = random_qconfig(rng, layer_names(model.mod))
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
    simulated = model.outputs(candidate.simulated)
    ours, theirs = (
        100 * float((outputs.argmax(1) == model.dev.labels).mean())
        for outputs in (found.outputs, simulated)
    )
    points = round(abs(ours - theirs), 2)
    recommended = QConfig.recommended().to_dict()
    return {
        "model": model.name,
        "changes": {k: v for k, v in config.to_dict().items() if v != recommended[k]},
        "elements": found.elements,
        "loaded": found.loaded,
        "integer": found.integer,
        "top1": round(ours, 2),
        "simulation_points": points,
        **(_why(model, config, found.outputs, simulated) if points > SIMULATION_GOAL else {}),
    }


def _why(
    model: Model,
    config: QConfig,
    integers: np.ndarray[Any, Any],
    simulated: np.ndarray[Any, Any],
) -> dict[str, Any]:
    """What an outlier's report says."""
    flipped = integers.argmax(1) != simulated.argmax(1)
    best = np.sort(simulated, axis=1)
    margin = best[:, -1] - best[:, -2]
    # Two classes change places when their errors add up to the distance between them.
    reach = 2 * np.abs(integers - simulated).max(axis=1)
    insight = examine(
        model.mod,
        config,
        model.statistics(config),
        model.batches[:EXAMINED],
        channels=model.channels,
    )
    costly = [(layer.output_db, layer) for layer in insight.layers if layer.output_db is not None]
    worst = sorted(costly, key=lambda pair: pair[0])[:3]
    return {
        "flipped_images": int(flipped.sum()),
        "flipped_within_error": int((flipped & (margin <= reach)).sum()),
        "simulation_sqnr_db": round(_sqnr(model.float, simulated), 2),
        "integers_to_simulation_db": round(_sqnr(simulated, integers), 2),
        "worst_layers": [
            f"{layer.op} {' '.join(layer.onnx_nodes)}: {db:.1f} dB" for db, layer in worst
        ],
    }


def _sqnr(signal: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    noise = np.square(signal.astype(np.float64) - found).sum()
    return decibels(float(np.square(signal.astype(np.float64)).sum()), float(noise))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over all configurations."""
    elements = sum(row["elements"] for row in rows)
    points = [row["simulation_points"] for row in rows]
    return {
        "configs": len(rows),
        "elements": elements,
        **{form: sum(row[form] for row in rows) for form in ("loaded", "integer")},
        "simulation_points_mean": round(float(np.mean(points)), 3),
        "simulation_points_largest": max(points),
    }


def _kept(path: Path | None) -> list[dict[str, Any]]:
    """Rows of an earlier run that was stopped."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> int:
    """Print a line per configuration and the sums; 1 when a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=SMALL)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--images", type=int, help="dev images per model (all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, help="keep finished configurations here")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models = functools.cache(lambda name: Model(args.data, name, args.images))
    refused: Counter[str] = Counter()
    rows = _kept(args.rows)[: args.configs]
    for index in range(len(rows), args.configs):
        rng = np.random.default_rng([args.seed, index])
        name = args.models[index % len(args.models)]
        rows.append(measure(models(name), rng, refused))
        line = json.dumps(rows[-1])
        print(line, flush=True)
        if args.rows:
            with args.rows.open("a") as file:
                file.write(line + "\n")
    result = {"machine": machine(), "summary": summary(rows), "refused": refused, "rows": rows}
    print(json.dumps({k: v for k, v in result.items() if k != "rows"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    found = summary(rows)
    kept = (
        found["loaded"] == found["integer"] == 0
        and found["simulation_points_mean"] <= SIMULATION_GOAL
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
