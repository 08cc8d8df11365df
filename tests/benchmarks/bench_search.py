"""What the search finds in how many evaluations, beside random search, NSGA-II and onnxruntime.

    python -m tests.benchmarks.bench_search --out DIR [--models NAME …] [--seeds 5] [--images N]
        [--calib N] [--front-models NAME …] [--front-seeds 5] [--front-trials 64]
        [--one-objective | --two-objectives] [--json FILE]

For every model, starting from QConfig.recommended(), SQNR in dB on the dev split among the
configurations that lose at most one point of top-1:

    ours 32        the best of 32 trials of the default sampler
    random 64      the best of 64 random trials
    onnxruntime    the best of its whole grid: calibration method x granularity x u8 or s8

and with two objectives, SQNR against bytes of weights with 2 to 8 bits per layer, the
hypervolume after 64 trials of ours and twice as many of NSGA-II on the raw choices of every layer,
over 0 dB and the bytes of 8 bits; with it the best SQNR within half these bytes. Medians over
seeds. All studies of a model share one store, so equal work is done once, and the JSON is written
after every pair of studies: a run that was killed loses nothing, the same command goes on. Small
models come first. Goals, which set the exit code: ours is above random, at least onnxruntime's
best, and its hypervolume at least NSGA-II's.

    … --best-known [--random 500]

compares policies by looking scores up in tables that OUT keeps: how far 16 trials end below the
best of so many random points, for the policy of new studies, the same without predicted errors,
with random trials instead of refinement, and with a warm start from the other models. Beside them
stands the median of 1,000 draws of 64 of the random points, and the share of them that end above
the policy. Goals: at most 0.3 dB, median over seeds, and not below random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import qsearch
from qsearch.search.objectives import sqnr_value
from qsearch.search.result import SearchResult
from qsearch.store.records import Trial
from tests.benchmarks import onnxruntime_peers as peers
from tests.benchmarks.bench_accuracy import on_onnxruntime, outputs_of
from tests.benchmarks.hypervolume import hypervolume
from tests.benchmarks.known_scores import ARMS, KnownScores, replayed
from tests.benchmarks.known_scores import best_db as best_known_db
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, Split, batch_of, read_split
from tests.benchmarks.scores import score

DEFAULT_MODELS = ("fashion_outlier", "fashion_resnet", "fashion_vit", "efficientnet_lite0")
MAX_DROP = 0.01
OURS_TRIALS, RANDOM_TRIALS = 32, 64
FRONT_TRIALS = 64
FEW_TRIALS, NEAR_DB = 16, 0.3
DRAWS = 1000
NSGA2 = "optuna.samplers:NSGAIISampler"
SAME = 0.005
"""Decibels below which two results count as a tie."""


def spooled(split: Split, path: Path) -> Path:
    """The split as a file that every study reads."""
    if not path.exists():
        np.savez(path, input=split.images, labels=split.labels)
    return path


class Model:
    """The studies of one model.

    Args:
        args: of the command line.
        name: of the model.
    """

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.args = args
        self.name = name
        self.path = args.data / f"{name}.onnx"
        self.batch = batch_of(name)
        self.folder = args.out / name
        self.folder.mkdir(exist_ok=True)
        self.calib = read_split(args.data, name, "calib", args.calib, self.batch)
        self.dev = read_split(args.data, name, "dev", args.images, self.batch)
        self._calib = spooled(self.calib, self.folder / f"calib{len(self.calib)}.npz")
        self._eval = spooled(self.dev, self.folder / f"dev{len(self.dev)}.npz")

    def study(self, arm: str, seed: int, trials: int, **settings: Any) -> SearchResult:
        """One study, run or resumed."""
        study = f"{arm}-{seed}-{len(self.dev)}"
        return qsearch.launch(
            self.path,
            calib=str(self._calib),
            eval=str(self._eval),
            dim={"N": self.batch},
            metric="sqnr",
            max_drop=MAX_DROP,
            trials=trials,
            seed=seed,
            pool="inline",
            storage=f"sqlite:///{self.folder / 'studies.db'}",
            study=study,
            out=str(self.folder / study),
            **settings,
        )

    def peers(self) -> list[dict[str, Any]]:
        """onnxruntime's grid: name, SQNR and whether it keeps its accuracy; kept in a file."""
        kept = self.folder / f"peers{len(self.dev)}.json"
        if kept.exists():
            found: list[dict[str, Any]] = json.loads(kept.read_text())
            return found
        rows = []
        with tempfile.TemporaryDirectory(prefix="bench-search-") as folder:
            work = Path(folder)
            prepared = peers.prepare(self.path, work)
            reference = outputs_of(on_onnxruntime(prepared), self.dev, 1)
            base = score(reference, reference, self.dev.labels)
            for peer in peers.all_peers():
                made, _ = peers.quantize(prepared, peer, self.calib.images, work)
                judged = score(
                    outputs_of(on_onnxruntime(made), self.dev, 1), reference, self.dev.labels
                )
                kept_accuracy = judged.top1 >= base.top1 - 100 * MAX_DROP - 1e-9
                rows.append({"name": peer.name, "sqnr_db": judged.sqnr_db, "keeps": kept_accuracy})
        kept.write_text(json.dumps(rows))
        return rows


def best_db(result: SearchResult) -> float | None:
    """SQNR of the winner; None where nothing keeps its accuracy."""
    objective = result.objective
    best = objective.best(result.trials)
    if best is None or not objective.feasible(best.outcome.score or {}):
        return None
    return sqnr_value(best.outcome.score or {})


def effort(trials: Sequence[Trial], samples: int) -> dict[str, float]:
    """Evaluations of a study, and what pruning and the store saved of them."""
    asked = len(trials) * samples
    judged = sum(t.outcome.samples or 0 for t in trials)
    again = [t for t in trials if t.outcome.from_store]
    return {
        "trials": len(trials),
        "pruned": sum(t.state == "pruned" for t in trials),
        "from_store": len(again),
        "saved_by_pruning": round(1 - judged / asked, 3) if asked else 0.0,
        "saved_by_store": round(sum(t.outcome.samples or 0 for t in again) / asked, 3),
        "cpu_s": round(sum(_cpu_s(trial) for trial in trials if not trial.outcome.from_store), 1),
    }


def _cpu_s(trial: Trial) -> float:
    return (trial.outcome.run_cpu_s or 0.0) + (trial.outcome.compile_cpu_s or 0.0)


def volume(result: SearchResult, largest: float) -> float:
    """Hypervolume in dB times the share of ``largest`` bytes that is saved."""
    points = []
    for trial in result.trials:
        found = trial.outcome.score or {}
        if trial.state == "complete" and result.objective.feasible(found):
            size = found.get("model_bytes") or largest
            points.append((sqnr_value(found), 1.0 - size / largest))
    # The module of 8 bits everywhere spans an area too.
    return hypervolume(points, (0.0, -1e-3))


def within_half(result: SearchResult, largest: float) -> float | None:
    """The best SQNR within half of ``largest`` bytes, at any loss of top-1."""
    scores = [t.outcome.score or {} for t in result.trials if t.state == "complete"]
    found = [sqnr_value(s) for s in scores if (s.get("model_bytes") or largest) <= largest / 2]
    return round(max(found), 2) if found else None


def measure(model: Model, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All arms of one model.

    Args:
        note: told the result so far after every pair of studies.
    """
    args, samples = model.args, len(model.dev)
    arms = ("ours", "random", "ours_front", "nsga2_front", "ours_half", "nsga2_half")
    rows: dict[str, list[Any]] = {arm: [] for arm in arms}
    efforts: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    grid: list[dict[str, Any]] = []

    def add(arm: str, value: float | None, result: SearchResult) -> None:
        rows[arm].append(value)
        efforts[arm].append(effort(result.trials, samples))

    def now() -> dict[str, Any]:
        return judged(model.name, samples, rows, efforts, grid)

    for seed in () if args.two_objectives else range(args.seeds):
        ours = model.study("ours", seed, OURS_TRIALS)
        drawn = model.study("random", seed, RANDOM_TRIALS, sampler="random")
        add("ours", best_db(ours), ours)
        add("random", best_db(drawn), drawn)
        print(f"{model.name} seed {seed}: ours {rows['ours'][-1]}, random {rows['random'][-1]}")
        note(now())
    if not args.no_peers and not args.two_objectives:
        grid += model.peers()
        note(now())
    fronts = range(args.front_seeds if model.name in (args.front_models or args.models) else 0)
    for seed in () if args.one_objective else fronts:
        trials = args.front_trials
        front = model.study("front", seed, trials, minimize=["size"])
        nsga2 = model.study(
            "nsga2",
            seed,
            2 * trials,
            minimize=["size"],
            sampler="optuna.samplers:NSGAIISampler",
            prune=0.0,
        )
        sizes = ((t.outcome.score or {}).get("model_bytes") or 0.0 for t in front.trials)
        largest = max(sizes)
        for arm, found in (("ours", front), ("nsga2", nsga2)):
            add(f"{arm}_front", round(volume(found, largest), 3), found)
            add(f"{arm}_half", within_half(found, largest), found)
        print(f"{model.name} seed {seed}: { ({arm: rows[arm][-1] for arm in arms[2:]}) }")
        note(now())
    return now()


def judged(
    name: str,
    samples: int,
    rows: Mapping[str, list[Any]],
    efforts: Mapping[str, list[dict[str, float]]],
    grid: list[dict[str, Any]],
) -> dict[str, Any]:
    """Medians, and who wins."""
    medians = {arm: _median(values) for arm, values in rows.items() if values}
    kept = [row for row in grid if row["keeps"]]
    peer = max(kept, key=lambda row: row["sqnr_db"], default=None)
    pairs = list(zip(rows["ours"], rows["random"], strict=True))
    found: dict[str, Any] = {
        "model": name,
        "images": samples,
        "medians": medians,
        "per_seed": {arm: list(values) for arm, values in rows.items()},
        "against_random": {
            "wins": sum(_db(a) > _db(b) + SAME for a, b in pairs),
            "ties": sum(abs(_db(a) - _db(b)) <= SAME for a, b in pairs),
            "losses": sum(_db(a) < _db(b) - SAME for a, b in pairs),
        },
        "onnxruntime": peer,
        "effort": {arm: _mean(values) for arm, values in efforts.items() if values},
    }
    met = "ours" not in medians or _db(medians["ours"]) > _db(medians["random"])
    met = met and (peer is None or _db(medians["ours"]) >= peer["sqnr_db"])
    if "ours_front" in medians:
        met = met and medians["ours_front"] >= medians["nsga2_front"]
    found["met"] = met
    return found


def _db(value: float | None) -> float:
    return -1e9 if value is None else value


def _median(values: Sequence[float | None]) -> float:
    return statistics.median(map(_db, values))


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.mean(row[key] for row in rows), 3) for key in rows[0]}


def permuted(seed: int, count: int) -> list[int]:
    """Places in an order of their own for each seed."""
    return [int(place) for place in np.random.default_rng(seed).permutation(count)]


def best_known(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for every model: decibels below the best known, by arm and seed."""
    tables = {
        name: KnownScores(
            args.out / f"{name}.jsonl", args.data, name, args.calib or 128, args.images or 256
        )
        for name in args.models
    }
    drawn: dict[str, list[Trial]] = {}
    for name, known in tables.items():
        points = list(known.space.points())
        order = np.random.default_rng(12345).permutation(len(points))[: args.random]
        drawn[name] = [known.trial_of(points[place], n) for n, place in enumerate(order)]
    rows = []
    for name, known in tables.items():
        reached = {
            arm: [
                best_known_db(replayed(known, arm, seed, FEW_TRIALS)) for seed in range(args.seeds)
            ]
            for arm in ARMS
        }
        each = np.array([best_known_db([trial]) for trial in drawn[name]])
        rng = np.random.default_rng(0)
        draws = [float(rng.permutation(each)[:RANDOM_TRIALS].max()) for _ in range(DRAWS)]
        best = float(each.max())
        below = {arm: [round(best - one, 2) for one in found] for arm, found in reached.items()}
        medians = {arm: round(statistics.median(found), 2) for arm, found in below.items()}
        medians["random 64"] = round(best - statistics.median(draws), 2)
        middle = statistics.median(reached[ARMS[0]])
        row = {
            "model": name,
            "random points": len(each),
            "best of them": round(best, 2),
            "best of all known": round(known.best_known, 2),
            "draws above the policy": sum(one > middle + SAME for one in draws) / DRAWS,
        }
        met = medians[ARMS[0]] <= NEAR_DB and medians[ARMS[0]] <= medians["random 64"]
        rows.append({**row, "medians": medians, "per_seed": below, "met": met})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def show(result: Mapping[str, Any]) -> None:
    """The lines of one model."""
    medians = result["medians"]
    peer = result["onnxruntime"]
    found = "met" if result["met"] else "MISSED"
    print(f"{result['model']}, {result['images']} images: {found}")
    for arm, title in (("ours", "ours 32"), ("random", "random 64")):
        if arm in medians:
            print(f"  {title:11}  {medians[arm]:8.2f} dB   {result['effort'][arm]}")
    print(f"  by seed      {result['against_random']}")
    if peer is not None:
        print(f"  onnxruntime  {peer['sqnr_db']:8.2f} dB   {peer['name']}")
    for arm, title in (("ours_front", "hypervolume"), ("nsga2_front", "NSGA-II")):
        if arm in medians:
            print(f"  {title:11} {medians[arm]:9.3f}      {result['effort'][arm]}")
    sys.stdout.flush()


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, required=True, help="folder of stores and studies")
    parser.add_argument("--models", nargs="+", default=DEFAULT_MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, help="dev images per model (all)")
    parser.add_argument("--calib", type=int, help="calibration images per model (all)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--one-objective", action="store_true", help="leave the fronts out")
    only.add_argument("--two-objectives", action="store_true", help="the fronts alone")
    parser.add_argument("--front-trials", type=int, default=FRONT_TRIALS)
    parser.add_argument("--front-models", nargs="+", help="models with two objectives (all)")
    parser.add_argument("--front-seeds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true", help="leave onnxruntime out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--best-known", action="store_true", help="compare policies by tables")
    parser.add_argument("--random", type=int, default=500, help="random points of a table")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.best_known:
        rows = best_known(args)
        if args.json is not None:
            args.json.write_text(json.dumps({"machine": machine(), "models": rows}, indent=1))
        return 0 if sum(not row["met"] for row in rows) <= len(rows) // 6 else 1
    results: dict[str, dict[str, Any]] = {}

    def note(result: dict[str, Any]) -> None:
        results[result["model"]] = result
        sys.stdout.flush()
        if args.json is not None:
            found = {"machine": machine(), "models": list(results.values())}
            args.json.write_text(json.dumps(found, indent=1))

    for name in args.models:
        note(measure(Model(args, name), note))
        show(results[name])
    return 0 if all(result["met"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
