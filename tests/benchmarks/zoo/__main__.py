"""Networks of torch, timm, torchvision, transformers and diffusers through the whole path.

    pip install -e .[zoo]     (README: torch as the CPU build)
    python -m tests.benchmarks.zoo [WORD …] [--folder DIR] [--seconds N] [--megabytes N]

A WORD takes the networks whose key, family, library or kind it is. Each network is exported and
measured in a process of its own, with limits of time and memory; its figures are a JSON file in the
folder, and a network that has one is not measured again. Then one table: family by family what was
tried, imported, integral, proved and right, how `run()` compares with onnxruntime float (CPU time
of one thread, in turns), and what was refused. Exit code 1: something was refuted, differs, or
ended in an error that nobody foresaw.

    python -m tests.benchmarks.zoo --small DIR     writes the files that tests keep
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import shutil
import signal
import sys
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import machine
from tests.benchmarks.zoo import own
from tests.benchmarks.zoo.measure import measured
from tests.benchmarks.zoo.networks import Row, rows, written

SPEED_FROM_MS = 0.3
"""Float time from which a ratio is counted in the median of a family; the others stand beside."""
SLOW = 1.05
COUNTED = ("accepted", "imported", "integral", "cut", "proved")


def examined(row: Row, folder: Path, seconds: int, megabytes: int) -> None:
    """Runs in a process of its own: export, measure, write the figures."""
    signal.signal(signal.SIGXCPU, _time_is_over)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 20))
    resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {"family": row.family}
    try:
        place = written(row, folder)
    except Exception as error:
        found["not_exported"] = f"{type(error).__name__}: {error}"[:300]
        found["traceback"] = traceback.format_exc()[-1500:]
    else:
        found |= measured(place)
        found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    store(folder, row, found)


def _time_is_over(_signal: int, _frame: object) -> None:
    raise TimeoutError("time is over")


def store(folder: Path, row: Row, found: dict[str, Any]) -> None:
    """One file a network."""
    (folder / f"{row.key}.json").write_text(json.dumps(found, indent=1))


def outcome(found: dict[str, Any]) -> str:
    """Why a network is not done, or not as it must be; "" where it is."""
    for key in ("not_exported", "defect", "refused", "refuted"):
        if found.get(key):
            return f"{key}: {found[key]}".partition("\n")[0][:140]
    if not found.get("right", True):
        return f"values: {found['sqnr_db']} dB, quantize_static {found.get('static_db')}"
    unequal = {n: f for n, f in found.get("forms", {}).items() if f != 0}
    return f"forms: {unequal}"[:140] if unequal else ""


def report(found: dict[str, dict[str, Any]]) -> str:
    """The table of families, then a line for each network that is slow or not done."""
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found.values():
        families[row["family"]].append(row)
    families["all"] = list(found.values())
    lines = [
        "| family | tried | accepted by onnxruntime | imported | integral | cut | proved "
        f"| right, forms equal | ratio, median (n) | below {SPEED_FROM_MS} ms | above {SLOW} "
        "| not done |",
        "|---" * 12 + "|",
    ]
    for family, every in families.items():
        exported = [row for row in every if "not_exported" not in row]
        ratios = [(row["ratio"], row["float_ms"]) for row in exported if "ratio" in row]
        long = [ratio for ratio, ms in ratios if ms >= SPEED_FROM_MS]
        short = [ratio for ratio, ms in ratios if ms < SPEED_FROM_MS]
        good = sum(bool(row.get("right") and row.get("equal")) for row in exported)
        cells = [
            *(family, len(exported)),
            *(sum(bool(row.get(key)) for row in exported) for key in COUNTED),
            *(good, *(f"{np.median(r):.2f} ({len(r)})" if r else "" for r in (long, short))),
            *(sum(ratio > SLOW for ratio, _ in ratios), sum(bool(outcome(row)) for row in every)),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    valid = [row for row in found.values() if row.get("accepted")]
    inside = sum(bool(row.get("integral") or row.get("cut")) for row in valid)
    lines += ["", f"Integral or cut: {inside} of {len(valid)} that onnxruntime accepts."]
    lines += ["", "Not done, or not as it must be:"]
    lines += [f"- {key}: {outcome(row)}" for key, row in found.items() if outcome(row)]
    timed = sorted((row["ratio"], key) for key, row in found.items() if "ratio" in row)
    lines += ["", "run() / float, and the worst steps (CPU us):"]
    for ratio, key in reversed(timed):
        row = found[key]
        worst = ", ".join(f"{op} [{steps}] {us:g}" for _, op, steps, _, us in row["worst_steps"])
        times = f"{row['run_ms']:.3f} / {row['float_ms']:.3f} ms"
        lines.append(f"- {key}: {ratio:.2f} ({times}, {row['form']}): {worst}")
    return "\n".join(lines)


def small_files(folder: Path) -> None:
    """The models of ``own.SMALL`` with inputs, rounded to float16."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows():
        if row.library == "own" and row.name in own.SMALL and "dynamo" not in row.words:
            place = written(row, folder / "made")
            shutil.copy(place / "model.onnx", folder / f"{row.name}.onnx")
            kept: dict[str, Any] = {}
            for part, count in (("calib", 4), ("fresh", 2)):
                for name, array in np.load(place / f"{part}.npz").items():
                    short = array[:count]
                    halved = short.astype("float16") if short.dtype == "float32" else short
                    kept[f"{part}.{name}"] = halved
            np.savez_compressed(folder / f"{row.name}.npz", **kept)
    shutil.rmtree(folder / "made")


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("runs/zoo"))
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--megabytes", type=int, default=6000)
    parser.add_argument(
        "--exported", action="store_true", help="only what is in the folder, the smallest first"
    )
    parser.add_argument("--again", action="store_true", help="measure what was measured, too")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    parser.add_argument("--small", type=Path)
    options = parser.parse_args()
    if options.small:
        small_files(options.small)
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = [
        row
        for row in rows()
        if not options.words
        or any(w in (row.key, row.family, row.library, *row.words) for w in options.words)
    ]
    if options.exported:
        files = {row.key: options.folder / row.key / "model.onnx" for row in chosen}
        chosen = [row for row in chosen if (files[row.key].parent / "fresh.npz").exists()]
        chosen.sort(key=lambda row: files[row.key].stat().st_size)
    fork = multiprocessing.get_context("fork")
    found: dict[str, dict[str, Any]] = {}
    for row in chosen:
        file = options.folder / f"{row.key}.json"
        if (options.again or not file.exists()) and not options.table:
            file.unlink(missing_ok=True)
            limits = (options.seconds, options.megabytes)
            child = fork.Process(target=examined, args=(row, options.folder, *limits))
            child.start()
            child.join(10 * options.seconds)
            if child.is_alive():
                child.kill()
                child.join()
            if not file.exists():
                store(
                    options.folder, row, {"family": row.family, "defect": "time or memory is over"}
                )
        if file.exists():
            found[row.key] = json.loads(file.read_text())
            print(row.key, found[row.key].get("ratio", ""), outcome(found[row.key]), flush=True)
    print(json.dumps(machine()))
    print(report(found))
    bad = ("defect", "refuted")
    return int(any(row.get(k) for row in found.values() for k in bad))


if __name__ == "__main__":
    sys.exit(main())
