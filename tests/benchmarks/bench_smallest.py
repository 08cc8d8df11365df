"""Searches for bytes: the files of the smallest module, and random points at equal bytes.

    python -m tests.benchmarks.bench_smallest --out DIR [--models NAME …] [--seeds 0 1 2]
        [--trials 32] [--random 128] [--images N] [--tools FOLDER] [--data DIR]

For every model and form: ``--minimize size --max-drop 0.5% --for FORM``, and the bytes of the file
of its smallest module by those of what ``compile`` writes. Then one set of random points of the
same space, and a search of every seed: of all modules that no other random one beats in bytes and
SQNR, by how many dB the best module of the search that is no larger differs from it. The same
command with the same ``--out`` goes on where it was stopped. With ``--tools``, the folder of their
environments (made where there are none), other tools with weights of 4 bits and activations of 8,
beside the winner of ``--metric sqnr --max-size BYTES``, their bytes, on images that no search has
seen: half of the dev split and those that the network was trained with, 11,000 of Fashion-MNIST. A
tool's bytes are those of its weights, and of an int32 bias and a float32 scale for each channel.

Goals, which set the exit code: at most 0.6 of the bytes of 8 bits; in the median of each seed at
most 0.3 dB below the random points; no tool above ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import onnx

import qsearch
from tests.benchmarks.bench_accuracy import (
    measure_tool,
    on_grid,
    on_onnxruntime,
    outputs_of,
    show,
)
from tests.benchmarks.bench_bytes import code_bytes
from tests.benchmarks.quantization_tools import FOUR
from tests.benchmarks.real_models import DATA, Split, read_split, unseen_split
from tests.benchmarks.scores import score

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
        self.calib = read_split(asked.data, name, "calib", CALIBRATION_IMAGES)
        dev = read_split(asked.data, name, "dev", 2 * asked.images)
        chosen, held_back = (
            Split(dev.images[part], dev.labels[part])
            for part in (slice(asked.images), slice(asked.images, None))
        )
        self.unseen = unseen_split(asked.data, name, held_back, 1)
        self.files = {}
        for split, data in (("calib", self.calib), ("dev", chosen)):
            self.files[split] = self._folder / f"{split}.npz"
            np.savez(self.files[split], input=data.images, labels=data.labels)

    def search(self, name: str, **settings: Any) -> qsearch.SearchResult:
        """A search for bytes, or for what is asked."""
        return qsearch.launch(
            self.model,
            calib=self.files["calib"],
            eval=self.files["dev"],
            pool="inline",
            out=self._folder / name,
            **{"minimize": ["size"], "max_drop": 0.005, **settings},
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


WEIGHTED: Final = ("Conv", "Gemm", "MatMul")


def four_bit_bytes(path: Path) -> int:
    """Bytes of a model whose weights have 4 bits, with a bias and a scale for each channel."""
    graph = onnx.load(path).graph
    constants = {init.name: init.dims for init in graph.initializer}
    total = 0
    for node in graph.node:
        if node.op_type in WEIGHTED and node.input[1] in constants:
            dims = constants[node.input[1]]
            by_row = node.op_type == "Conv" or any(
                a.name == "transB" and a.i for a in node.attribute
            )
            total += int(np.prod(dims)) // 2 + 8 * dims[0 if by_row else -1]
    return total


def beside_tools(searches: Searches, trials: int, tools: Path) -> bool:
    """Print scores of the tools and of the best module that is no larger, on images that nothing
    chose with; whether none is above ours."""
    name, most = searches.model.stem, four_bit_bytes(searches.model)
    asked = {"metric": "sqnr", "minimize": None, "max_drop": None, "max_size": most}
    path = searches.search("equal_bytes", trials=trials, **asked).folder / "best.qmod"
    run, calib, unseen = on_grid(qsearch.load(path)), searches.calib, searches.unseen
    reference = outputs_of(on_onnxruntime(searches.model), unseen, 1)
    best = score(outputs_of(run, unseen, 1), reference, unseen.labels)
    show({"name": f"{name}, {most:,} bytes", **best.to_dict()})
    above = []
    for tool in FOUR:
        found = measure_tool(
            tool, searches.model, calib, unseen, reference, len(unseen), tools, "four"
        )
        for _, theirs, _ in found:
            above.append(theirs.sqnr_db > best.sqnr_db or theirs.top1 > best.top1)
    return not any(above)


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
    parser.add_argument("--images", type=int, default=1000, help="that choose; as many judge")
    parser.add_argument("--tools", type=Path)
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
        drawn: list[Point] = []
        if asked.seeds:
            theirs = searches.search("random", trials=asked.random, seed=7, sampler="random")
            drawn = front(points_of(theirs))
        for seed in asked.seeds:
            ours = searches.search(f"ours_{seed}", trials=asked.trials, seed=seed)
            points = points_of(ours)
            differences = [
                max((db for size, db in points if size <= most), default=0.0) - wanted
                for most, wanted in drawn
            ]
            missed |= median(differences) < -MOST_DB
            print(
                f"{name} seed {seed}: {median(differences):+.1f} dB in the median of "
                f"{len(differences)} sizes, {min(differences):+.1f} at the worst",
                flush=True,
            )
        if asked.tools:
            missed |= not beside_tools(searches, asked.trials, asked.tools)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
