"""Accuracy of fully integral modules beside onnxruntime's quantization, model by model.

    python -m tests.benchmarks.bench_accuracy [--models NAME …] [--images N] [--calib N]
        [--methods MinMax …] [--no-search] [--data ../shared/data] [--json FILE]

For every model: float; onnxruntime quantize_static per tensor and per channel, MinMax, Entropy and
Percentile, u8 and s8; and ours, written to a file, read again, and run on the exact grid, whose
outputs are compared with the integer reference on the first images. Top-1, agreement with float,
SQNR, each with a 95 % interval; CPU milliseconds an image with all sides taking turns.

Ours is the configuration with the best top-1 of those within 0.5 dB of our best SQNR. Goals, which
set the exit code: within 0.3 points of the best peer's top-1 and 0.5 dB of the best peer's SQNR,
which may be two peers, and no output that differs from the reference. With ``--no-search`` ours is
what ``qsearch compile`` chooses alone; it has to be within a point of float and at least the best
peer's SQNR.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qsearch
from compiler.errors import CompilerError
from compiler.runtime.artifact import QModule
from compiler.targets.ort.grid_executor import GridExecutor
from tests.benchmarks import onnxruntime_peers as peers
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.real_models import DATA, MODELS, Split, batch_of, read_split
from tests.benchmarks.scores import Score, margin, score

TOP1_GOAL = -0.3
SQNR_GOAL = -0.5
ROUNDS = 20
REFERENCE_BATCHES = 2

_FINE = {"weight_scale": "mse", "calibrate_mode": "mse"}
_ASYMMETRIC = {**_FINE, "activation_scheme": "asymmetric"}
OURS: tuple[dict[str, Any], ...] = (
    {},
    {"activation_scheme": "symmetric"},
    {"activation_scheme": "asymmetric"},
    {"calibrate_mode": "kl_divergence"},
    _FINE,
    {**_FINE, "bias_correction": True},
    _ASYMMETRIC,
    {**_ASYMMETRIC, "bias_correction": True},
    {**_ASYMMETRIC, "bias_correction": True, "equalize": True},
    {**_ASYMMETRIC, "bias_correction": True, "smooth_alpha": 0.5},
    {**_ASYMMETRIC, "bias_correction": True, "smooth_alpha": 0.75},
)
"""Changes to the recommended configuration; the first is the recommendation itself."""

ALONE: tuple[None, ...] = (None,)
"""What ``qsearch compile`` chooses by itself."""
TOP1_OF_FLOAT_ALONE = -1.0

Run = Callable[[NDArray[np.float32]], NDArray[Any]]


def outputs_of(run: Run, split: Split, batch: int) -> NDArray[Any]:
    """The first output for all images."""
    starts = range(0, len(split), batch)
    return np.concatenate([run(split.images[i : i + batch]) for i in starts])


def on_onnxruntime(model: Path) -> Run:
    """A model file as a function of images."""
    session = peers.session(model)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def measure_peers(
    prepared: Path, methods: tuple[str, ...], calib: Split, dev: Split, reference: Any, work: Path
) -> list[tuple[str, Score, dict[str, Any], Run]]:
    """Name, score, row and function of every peer configuration."""
    found = []
    for peer in peers.all_peers(methods):
        quantized, cpu_s = peers.quantize(prepared, peer, calib.images, work)
        run = on_onnxruntime(quantized)
        scored = score(outputs_of(run, dev, 1), reference, dev.labels)
        row = {"name": peer.name, "quantize_cpu_s": round(cpu_s, 2), **scored.to_dict()}
        found.append((peer.name, scored, row, run))
        show(row)
    return found


def measure_ours(
    model: Path,
    calib: Split,
    dev: Split,
    reference: Any,
    work: Path,
    configurations: Sequence[dict[str, Any] | None] = OURS,
) -> list[tuple[str, Score, dict[str, Any], Run]]:
    """The same for our configurations; one that cannot be built is a row with its error."""
    batch = batch_of(model.stem)
    found = []
    for changes in configurations:
        told = ",".join(f"{k}={v}" for k, v in (changes or {}).items())
        name = "ours, " + ("chosen alone" if changes is None else told or "recommended")
        begin = time.process_time()
        try:
            made = qsearch.quantize(model, {"input": calib.images}, changes, dim={"N": batch})
        except CompilerError as error:
            print(f"  {name}: {error.what[:160]}", flush=True)
            continue
        cpu_s = time.process_time() - begin
        path = work / "ours.qmod"
        made.save(path)
        module = qsearch.load(path)
        for decision in module.provenance.get("decisions", ()):
            print(f"  {decision}")
        run = on_grid(module)
        outputs = outputs_of(run, dev, batch)
        scored = score(outputs, reference, dev.labels)
        row = {
            "name": name,
            "quantize_cpu_s": round(cpu_s, 2),
            **scored.to_dict(),
            "differs_from_reference": differing(module, dev, outputs, batch),
        }
        found.append((name, scored, row, run))
        show(row)
    return found


def on_grid(module: QModule) -> Run:
    """A quantized module as a function of images."""
    executor = GridExecutor(module.module)
    (name,) = executor.input_names
    return lambda images: executor.run({name: images})[0]


def differing(module: QModule, dev: Split, outputs: NDArray[Any], batch: int) -> int:
    """Outputs of the first images that are not, bit for bit, those of the integer reference."""
    count = 0
    for start in range(0, min(REFERENCE_BATCHES * batch, len(dev)), batch):
        (exact,) = module.run({"input": dev.images[start : start + batch]})
        count += int(np.count_nonzero(exact != outputs[start : start + batch]))
    return count


def measure(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    batch = batch_of(model.stem)
    calib = read_split(args.data, model.stem, "calib", args.calib, batch)
    dev = read_split(args.data, model.stem, "dev", args.images, batch)
    print(f"{model.stem}: {len(calib)} calibration images, {len(dev)} judged", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-accuracy-") as folder:
        work = Path(folder)
        prepared = peers.prepare(model, work)
        plain = on_onnxruntime(prepared)
        reference = outputs_of(plain, dev, 1)
        base = score(reference, reference, dev.labels)
        show({"name": "float", **base.to_dict()})
        configurations = ALONE if args.no_search else OURS
        ours = measure_ours(model, calib, dev, reference, work, configurations)
        theirs = measure_peers(prepared, args.methods, calib, dev, reference, work)
        result: dict[str, Any] = {
            "model": model.stem,
            "images": len(dev),
            "float": base.to_dict(),
            "peers": [row for _, _, row, _ in theirs],
            "ours": [row for _, _, row, _ in ours],
        }
        if ours and theirs:
            result["verdict"] = compared(ours, theirs, plain, dev, batch)
            verdict = result["verdict"]
            verdict["points_from_float"] = round(chosen(ours)[1].top1 - base.top1, 2)
            if args.no_search:
                near = verdict["points_from_float"] >= TOP1_OF_FLOAT_ALONE
                verdict["met"] = near and verdict["sqnr_margin"] >= 0
            print(f"  {json.dumps(result['verdict'])}", flush=True)
    return result


def compared(ours: Any, theirs: Any, plain: Run, dev: Split, batch: int) -> dict[str, Any]:
    """Our best against the best peer, in points, decibels and CPU time."""
    name, mine, row, run = chosen(ours)
    by_sqnr = max(theirs, key=_sqnr)
    by_top1 = max(theirs, key=lambda entry: entry[1].top1)
    images = dev.images[:batch]
    taken = alternated_ms(
        {
            "float": lambda: plain(images),
            "peer": lambda: by_sqnr[3](images),
            "ours_grid": lambda: run(images),
        },
        ROUNDS,
    )
    top1 = round(mine.top1 - by_top1[1].top1, 2)
    sqnr = round(mine.sqnr_db - by_sqnr[1].sqnr_db, 2)
    return {
        "ours": name,
        "peer_by_sqnr": by_sqnr[0],
        "peer_by_top1": by_top1[0],
        "top1_margin": top1,
        "sqnr_margin": sqnr,
        "against_peer_by_sqnr": margin(mine, by_sqnr[1]),
        "cpu_ms_per_image": {side: round(ms / len(images), 3) for side, ms in taken.items()},
        "met": top1 >= TOP1_GOAL and sqnr >= SQNR_GOAL and not row["differs_from_reference"],
    }


def chosen(ours: Any) -> Any:
    """The configuration a search for top-1 would take of those with nearly the best SQNR."""
    enough = max(map(_sqnr, ours)) + SQNR_GOAL
    near = [entry for entry in ours if _sqnr(entry) >= enough]
    return max(near, key=lambda entry: (entry[1].top1, _sqnr(entry)))


def _sqnr(entry: Any) -> float:
    return float(entry[1].sqnr_db)


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    low, high = row["top1_interval"]
    sqnr = "exact" if row["sqnr_db"] is None else f"{row['sqnr_db']:6.2f} {row['sqnr_interval']}"
    print(
        f"  {row['name']:48} top-1 {row['top1']:6.2f} ({low:.1f} to {high:.1f})  "
        f"agreement {row['agreement']:6.2f}  SQNR {sqnr}",
        flush=True,
    )


def main() -> int:
    """Print the tables; 1 when a goal is missed or nothing of ours could be built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--images", type=int, help="dev images per model (all)")
    parser.add_argument("--calib", type=int, help="calibration images per model (all)")
    parser.add_argument("--methods", nargs="*", default=peers.METHODS, choices=peers.METHODS)
    parser.add_argument("--no-search", action="store_true", help="only what compile chooses")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.methods = tuple(args.methods)
    rows = [measure(args.data / f"{name}.onnx", args) for name in args.models]
    result = {"machine": machine(), "goals": [TOP1_GOAL, SQNR_GOAL], "models": rows}
    print(json.dumps(result["machine"]))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    missed = [row["model"] for row in rows if not row.get("verdict", {}).get("met")]
    if missed:
        print(f"goal missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
