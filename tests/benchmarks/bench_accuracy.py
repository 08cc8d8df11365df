"""Accuracy of fully integral modules beside onnxruntime's quantization, model by model.

    python -m tests.benchmarks.bench_accuracy [--models NAME …] [--images N] [--calib N]
        [--methods MinMax …] [--no-search] [--data ../shared/data] [--json FILE]

For every model: float; onnxruntime quantize_static per tensor and per channel, MinMax, Entropy and
Percentile, u8 and s8; and ours, written to a file, read again, and run on its integers, whose
outputs are compared with the integer reference on the first images. Top-1, agreement with float,
SQNR, each with a 95 % interval; CPU milliseconds an image with all sides taking turns.

Ours is what ``qsearch compile`` chooses alone, and the winner of a search of 16 trials, which sees
the images that score both sides; ``--no-search`` leaves the search out. Goals, which set the exit
code, of the better one: within 0.3 points of the best peer's top-1 and 0.5 dB of the best peer's
SQNR, which may be two peers, and no output that differs from the reference. What ``compile``
chooses has to be within a point of float and at least the best peer's SQNR.

    … --peers quark,nncf,aimet,modelopt [--tools DIR] [--untrained]

compares both with other tools: each runs in a virtual environment of its own (made in DIR by pip
where there is none) and is judged by its float simulation, outputs as wide as ours. The search sees
the first half of the dev images, everything is judged on the second half, and on it together with
the images the network was trained with, which no calibration and no search has seen: a change of
one prediction in a thousand is luck, in eleven thousand less so. The winner is built again without
each of the means that look at the quantized prefix, and without all of them: what they add, and
their CPU seconds. Goals: 3 dB above the best configuration by SQNR of a tool that leaves no
operator in float, its top-1 not above ours by more than luck explains, on both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qsearch
from compiler.qtypes.qconfig import QConfig
from compiler.runtime.artifact import QModule
from compiler.runtime.exact_executor import exact_executor
from tests.benchmarks import onnxruntime_peers as peers
from tests.benchmarks import quantization_tools
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.real_models import (
    DATA,
    MODELS,
    Split,
    batch_of,
    read_split,
    unseen_split,
)
from tests.benchmarks.scores import Score, margin, score

TOP1_GOAL = -0.3
SQNR_GOAL = -0.5
ROUNDS = 20
REFERENCE_BATCHES = 2

TOP1_OF_FLOAT_ALONE = -1.0

TRIALS = 16
ALONE, WINNER = "ours, chosen alone", f"ours, {TRIALS} trials"
TOOLS = tuple(quantization_tools.PIP)
TOOLS_FOLDER = Path(tempfile.gettempdir()) / "qsearch-tools"
MEANS: dict[str, Any] = {"weight_rounding": "nearest", "layers": {}}
"""What looks at the quantized prefix or came with it, and the value that turns it off."""
TOOLS_GOAL = 3.0
"""Decibels above the best tool that quantizes as much."""

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


def measure_alone(
    model: Path, calib: Split, work: Path, fields: dict[str, Any] | None = None
) -> tuple[QModule, float]:
    """What ``qsearch compile`` chooses, or these fields, read from a file, and CPU seconds."""
    begin = time.process_time()
    made = qsearch.quantize(model, {"input": calib.images}, fields, dim={"N": batch_of(model.stem)})
    cpu_s = time.process_time() - begin
    for decision in made.provenance.get("decisions", ()):
        print(f"  {decision}")
    made.save(work / "ours.qmod")
    return qsearch.load(work / "ours.qmod"), cpu_s


def judged(
    name: str,
    made: tuple[QModule, float],
    model: Path,
    dev: Split,
    reference: Any,
    half: int | None = None,
) -> tuple[str, Score, dict[str, Any], Run]:
    """Name, score, row and function of a module of ours that was read from its file."""
    module, cpu_s = made
    run, batch = on_grid(module), batch_of(model.stem)
    outputs = outputs_of(run, dev, batch)
    scored = score(outputs, reference, dev.labels)
    row = {
        "name": name,
        "cpu_s": round(cpu_s, 1),
        "float_operators": {},
        **figures(scored, half),
        "differs_from_reference": differing(module, dev, outputs, batch),
        "qconfig": None if module.qconfig is None else module.qconfig.to_dict(),
    }
    show(row)
    return name, scored, row, run


def figures(scored: Score, half: int | None) -> dict[str, Any]:
    """Plain figures of the first images, and of all where there are more."""
    first = scored.first(half or len(scored)).to_dict()
    if half in (None, len(scored)):
        return first
    return {**first, "all": {"images": len(scored), **scored.to_dict()}}


def measure_tool(
    tool: str,
    model: Path,
    calib: Split,
    dev: Split,
    reference: Any,
    half: int,
    folder: Path,
    how: str = "",
) -> list[tuple[str, Score, dict[str, Any]]]:
    """Name, score and row of a tool's configurations; what its environment computes is kept.

    Args:
        folder: environments and results of the tools.
        how: as ``quantization_tools.measure`` takes it.
    """
    out = folder / "results" / f"{model.stem}-{len(calib)}-{len(dev)}{how and '-' + how}"
    kept = out / f"{tool}.json"
    if not kept.exists():
        out.mkdir(parents=True, exist_ok=True)
        np.save(out / "calib.npy", calib.images)
        np.save(out / "eval.npy", dev.images)
        # A copy: onnx2tf writes what it repairs into the file that it is given.
        copy = Path(shutil.copyfile(model, out / model.name))
        paths = [str(path.resolve()) for path in (copy, out / "calib.npy", out / "eval.npy", out)]
        script = str(Path(quantization_tools.__file__).resolve())
        python = environment(folder, tool)
        told = subprocess.run(
            [python, "-W", "ignore", script, tool, *paths, *([how] if how else [])],
            capture_output=True,
            cwd=out,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
        )
        if told.returncode:
            print(f"  {tool}: {told.stderr[-400:]}", flush=True)
            return []
    found = []
    for row in json.loads(kept.read_text()):
        if "error" in row:
            print(f"  {row['name']}: {row['error']}", flush=True)
            continue
        scored = score(np.load(out / row.pop("outputs")), reference, dev.labels)
        row.update(figures(scored, half))
        show(row)
        found.append((row["name"], scored, row))
    return found


def environment(folder: Path, tool: str) -> str:
    """The Python of a tool's virtual environment, made where there is none."""
    python = folder / tool / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / tool)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", *quantization_tools.PIP[tool]]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
    return str(python.absolute())


def measure_search(model: Path, calib: Split, tuned: Split) -> tuple[QModule, float]:
    """The module that a search of few trials ends with, and CPU seconds."""
    begin = time.process_time()
    with tempfile.TemporaryDirectory(prefix="bench-search-") as folder:
        qsearch.launch(
            model,
            calib={"input": calib.images},
            eval={"input": tuned.images, "labels": tuned.labels},
            dim={"N": batch_of(model.stem)},
            metric="sqnr",
            max_drop=0.01,
            trials=TRIALS,
            pool="inline",
            out=folder,
        )
        cpu_s = time.process_time() - begin
        return qsearch.load(Path(folder) / "best.qmod"), cpu_s


def fields_without(qconfig: QConfig) -> dict[str, dict[str, Any]]:
    """Fields of the configuration without each of its ``MEANS``, and without all, by title."""
    fields = qconfig.to_dict()
    used = [name for name, plain in MEANS.items() if fields[name] != plain]
    rows = {"as it is": fields}
    for name in used:
        rows[f"{name}={MEANS[name]}"] = {**fields, name: MEANS[name]}
    return {**rows, "without all": {**fields, **MEANS}}


def measure_tools(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Ours beside other tools."""
    batch = batch_of(model.stem)
    calib = read_split(args.data, model.stem, "calib", args.calib, batch)
    both = read_split(args.data, model.stem, "dev", args.images, 2 * batch)
    half = len(both) // 2
    tuned = Split(both.images[:half], both.labels[:half])
    held_back = Split(both.images[half:], both.labels[half:])
    dev = unseen_split(args.data, model.stem, held_back, batch)
    print(
        f"{model.stem}: {len(calib)} calibration images, {half} and {len(dev)} judged", flush=True
    )
    reference = outputs_of(on_onnxruntime(model), dev, 1)
    base = score(reference, reference, dev.labels)
    show({"name": "float", **figures(base, half)})
    winner = measure_search(model, calib, tuned)
    assert winner[0].qconfig is not None
    with tempfile.TemporaryDirectory(prefix="bench-accuracy-") as folder:
        made = {ALONE: measure_alone(model, calib, Path(folder)), WINNER: winner}
        for name, fields in fields_without(winner[0].qconfig).items():
            made[name] = measure_alone(model, calib, Path(folder), fields)
    ours = {name: judged(name, one, model, dev, reference, half) for name, one in made.items()}
    how = "untrained" if args.untrained else ""
    theirs = [
        row
        for tool in args.peers
        for row in measure_tool(tool, model, calib, dev, reference, half, args.tools, how)
    ]
    result: dict[str, Any] = {
        "model": model.stem,
        "images": half,
        "float": figures(base, half),
        "ours": [row for _, _, row, _ in ours.values()],
        "tools": [row for _, _, row in theirs],
    }
    same = [entry for entry in theirs if not entry[2]["float_operators"]]
    if same:
        best = max(same, key=lambda entry: entry[1].first(half).sqnr_db)
        above = {
            name: {
                f"{count} images": margin(ours[name][1].first(count), best[1].first(count))
                for count in sorted({half, len(dev)})
            }
            for name in (ALONE, WINNER)
        }
        enough = all(
            row["sqnr_db"] >= TOOLS_GOAL and row["top1_interval"][1] >= 0
            for row in above[WINNER].values()
        )
        exact = not any(row["differs_from_reference"] for row in result["ours"])
        result["verdict"] = {
            "tool": best[0],
            "above": above,
            "met": enough and exact,
        }
        print(f"  {json.dumps(result['verdict'])}", flush=True)
    return result


def on_grid(module: QModule) -> Run:
    """A quantized module as a function of images."""
    executor = exact_executor(module.module).executor
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
        alone = judged(ALONE, measure_alone(model, calib, work), model, dev, reference)
        ours = [alone]
        if not args.no_search:
            ours.append(judged(WINNER, measure_search(model, calib, dev), model, dev, reference))
        theirs = measure_peers(prepared, args.methods, calib, dev, reference, work)
        result: dict[str, Any] = {
            "model": model.stem,
            "images": len(dev),
            "float": base.to_dict(),
            "peers": [row for _, _, row, _ in theirs],
            "ours": [row for _, _, row, _ in ours],
        }
        if theirs:
            verdict = compared(ours, theirs, plain, dev, batch)
            result["verdict"] = verdict
            verdict["points_from_float"] = round(alone[1].top1 - base.top1, 2)
            verdict["alone_sqnr_margin"] = round(_sqnr(alone) - max(map(_sqnr, theirs)), 2)
            near = verdict["points_from_float"] >= TOP1_OF_FLOAT_ALONE
            verdict["met"] = verdict["met"] and near and verdict["alone_sqnr_margin"] >= 0
            print(f"  {json.dumps(verdict)}", flush=True)
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
    """One line of the table, two where there are more images."""
    print(f"  {row['name']:48} {_shown(row)}", flush=True)
    if "all" in row:
        print(f"  {'':14}{row['all']['images']:>28} images: {_shown(row['all'])}", flush=True)


def _shown(row: dict[str, Any]) -> str:
    low, high = row["top1_interval"]
    sqnr = "exact" if row["sqnr_db"] is None else f"{row['sqnr_db']:6.2f} {row['sqnr_interval']}"
    return (
        f"top-1 {row['top1']:6.2f} ({low:.1f} to {high:.1f})  "
        f"agreement {row['agreement']:6.2f}  SQNR {sqnr}"
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
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), help="tools: " + ",".join(TOOLS)
    )
    parser.add_argument("--tools", type=Path, help="their environments", default=TOOLS_FOLDER)
    parser.add_argument("--untrained", action="store_true", help="leave out AdaQuant, AdaRound")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.methods = tuple(args.methods)
    one = measure_tools if args.peers else measure
    rows: list[dict[str, Any]] = []
    result = {"machine": machine(), "goals": [TOP1_GOAL, SQNR_GOAL], "models": rows}
    for name in args.models:
        rows.append(one(args.data / f"{name}.onnx", args))
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["machine"]))
    missed = [row["model"] for row in rows if not row.get("verdict", {}).get("met")]
    if missed:
        print(f"goal missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
