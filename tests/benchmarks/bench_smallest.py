"""Searches for bytes: the files of the smallest module, and random points at equal bytes.

    python -m tests.benchmarks.bench_smallest --out DIR [--models NAME …] [--seeds 0 1 2]
        [--trials 32] [--random 128] [--images N] [--data DIR]

For every model and form: ``--minimize size --max-drop 0.5% --for FORM``, and the bytes of the file
of its smallest module by those of what ``compile`` writes. Then, for every seed, random points of
the same space: of all modules that no other random one beats in bytes and SQNR, by how many dB the
best module of the search that is no larger differs from it. The same command with the same
``--out`` goes on where it was stopped.

Goals, which set the exit code: at most 0.6 of the bytes of 8 bits; in the median of each seed at
most 0.3 dB below the random points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import qsearch
from tests.benchmarks.bench_bytes import code_bytes
from tests.benchmarks.real_models import DATA, read_split

CALIBRATION_IMAGES = 96
MOST_BYTES = 0.6
MOST_DB = 0.3
Point = tuple[float, float]
"""Bytes, SQNR in dB."""


class Searches:
    """Studies of one model in a folder; what was searched before is read again."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        self.model = asked.data / f"{name}.onnx"
        self._folder = asked.out / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self.files = {}
        for split, count in (("calib", CALIBRATION_IMAGES), ("dev", asked.images)):
            data = read_split(asked.data, name, split, count)
            self.files[split] = self._folder / f"{split}.npz"
            np.savez(self.files[split], input=data.images, labels=data.labels)

    def search(self, name: str, **settings: Any) -> qsearch.SearchResult:
        return qsearch.launch(
            self.model,
            calib=self.files["calib"],
            eval=self.files["dev"],
            minimize=["size"],
            max_drop=0.005,
            pool="inline",
            out=self._folder / name,
            **settings,
        )


def file_bytes(module: Path, form: str, folder: Path) -> int:
    """Bytes of what a module is exported to: an object file at -Os, or the QDQ file."""
    made = qsearch.export(module, form, folder / f"{module.stem}.{form}")
    return code_bytes(Path(made.files[0]).parent) if form == "c" else made.files[0].stat().st_size


def points_of(result: qsearch.SearchResult) -> list[Point]:
    scores = [t.outcome.score or {} for t in result.trials if t.state == "complete"]
    return [(float(s["model_bytes"] or 0), float(s["sqnr_db"] or 0)) for s in scores]


def front(points: Iterable[Point]) -> list[Point]:
    kept: list[Point] = []
    for size, sqnr_db in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or sqnr_db > kept[-1][1]:
            kept.append((size, sqnr_db))
    return kept


def main() -> int:
    """Print a line for every file and seed; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    models = ["fashion_mobilenet", "fashion_resnet", "fashion_vit"]
    parser.add_argument("--models", nargs="+", default=models)
    parser.add_argument("--forms", nargs="*", default=["c", "qdq"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--random", type=int, default=128)
    parser.add_argument("--images", type=int, default=2000)
    asked = parser.parse_args()
    missed = False
    for name in asked.models:
        searches = Searches(name, asked)
        folder = asked.out / name
        if asked.forms:
            qsearch.quantize(searches.model, searches.files["calib"]).save(folder / "eight.qmod")
        for form in asked.forms:
            found = searches.search(form, trials=asked.trials, for_=form)
            smallest = folder / f"smallest_{form}.qmod"
            number = found.summary["extremes"]["smallest"]["trial"]
            qsearch.write_trial(found.folder, number, smallest)
            sizes = [file_bytes(folder / f, form, folder) for f in (smallest.name, "eight.qmod")]
            share = sizes[0] / sizes[1]
            missed |= share > MOST_BYTES
            print(f"{name} {form}: {sizes[0]:,} of {sizes[1]:,} bytes, {share:.3f}", flush=True)
        for seed in asked.seeds:
            ours = points_of(searches.search(f"ours_{seed}", trials=asked.trials, seed=seed))
            theirs = searches.search(
                f"random_{seed}", trials=asked.random, seed=seed, sampler="random"
            )
            differences = [
                max((db for size, db in ours if size <= most), default=0.0) - wanted
                for most, wanted in front(points_of(theirs))
            ]
            missed |= median(differences) < -MOST_DB
            print(
                f"{name} seed {seed}: {median(differences):+.1f} dB in the median of "
                f"{len(differences)} sizes, {min(differences):+.1f} at the worst",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
