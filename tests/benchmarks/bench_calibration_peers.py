"""Calibration beside onnxruntime's: CPU seconds, peak memory, and equal bits for any sharding.

    python -m tests.benchmarks.bench_calibration_peers [--model efficientnet_lite0] [--images 100]
        [--repeat 10] [--peers MinMax Percentile Entropy] [--data ../shared/data] [--json FILE]

Every measurement runs in a process of its own, so that peak memory is its own. Ours finds the
thresholds of all modes for all points, with the C kernels and with numpy; then again with the
images repeated, for the memory; then in 1, 2 and 4 shards, whose statistics must be the same bits.
Exit code 1 where bits differ, also between kernels, or memory grows by more than 5 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, Split, batch_of, read_split

MODES = ("max", "percentile", "mse", "kl_divergence")
MEMORY_GROWTH = 1.05
SHARDS = (1, 2, 4)


def ours(model: Path, split: Split, shards: int, repeat: int) -> dict[str, Any]:
    """Thresholds of all modes; the digest is over every statistic."""
    from compiler.frontend.from_onnx.load import load
    from compiler.quantize import QConfig, activation_scales, mark, prerequisite_optimize
    from compiler.quantize.calibration.collect_stats import float_executor
    from compiler.quantize.calibration.collectors import HistogramCollector, RangeCollector
    from compiler.quantize.calibration.profile_function import profile_function
    from compiler.quantize.calibration.stats import CalibrationStats

    batch = batch_of(model.stem)
    mod = prerequisite_optimize(*load(model, dims={"N": batch}), 3)
    begin = time.process_time()
    annotated, _ = mark(mod, QConfig.recommended())
    profile, points = profile_function(annotated)
    run = float_executor(profile)
    starts = list(range(0, len(split), batch)) * repeat
    parts = [part for i in range(shards) if (part := starts[i::shards])]

    def feed(collector: Any, part: list[int]) -> Any:
        for start in part:
            collector.update(run.run({"input": split.images[start : start + batch]}))
        return collector.result()

    ranges = reduce(CalibrationStats.merge, [feed(RangeCollector(points), part) for part in parts])
    stats = reduce(
        CalibrationStats.merge, [feed(HistogramCollector(ranges), part) for part in parts]
    )
    measured = time.process_time()
    config = QConfig.recommended()
    found = {
        mode: activation_scales(stats, config.with_overrides(calibrate_mode=mode)) for mode in MODES
    }
    return {
        "points": len(points.point_tensor),
        "statistics_cpu_s": round(measured - begin, 2),
        "thresholds_cpu_s": round(time.process_time() - measured, 2),
        "cpu_s": round(time.process_time() - begin, 2),
        "statistics": digest(stats.to_arrays()),
        "thresholds": digest(found),
    }


def theirs(model: Path, split: Split, method: str, work: Path) -> dict[str, Any]:
    """onnxruntime's quantize_static with one method."""
    from tests.benchmarks import onnxruntime_peers as peers

    prepared = peers.prepare(model, work)
    _, cpu_s = peers.quantize(prepared, peers.Peer(method, True, True), split.images, work)
    return {"cpu_s": round(cpu_s, 2)}


def digest(arrays: dict[str, NDArray[Any]]) -> str:
    """sha256 over names, shapes and bytes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def child(words: list[str]) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_calibration_peers", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure_one(args: argparse.Namespace) -> dict[str, Any]:
    """What ``--side`` names, and this process's peak memory."""
    from workers.process import peak_rss_bytes

    model = args.data / f"{args.model}.onnx"
    split = read_split(args.data, args.model, "calib", args.images, batch_of(args.model))
    if args.side == "ours":
        # Collectors and searches over thresholds both read it.
        os.environ["QSEARCH_KERNELS"] = args.kernels
        row = ours(model, split, args.shards, args.repeat)
    else:
        with tempfile.TemporaryDirectory(prefix="bench-calibration-") as folder:
            row = theirs(model, split, args.side, Path(folder))
    return {**row, "peak_rss_mb": peak_rss_bytes() >> 20}


def compared(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """All measurements, and which promises do not hold."""
    base = ["--model", args.model, "--images", str(args.images), "--data", str(args.data)]
    rows: dict[str, Any] = {}

    def add(name: str, *words: str) -> dict[str, Any]:
        rows[name] = child([*base, *words])
        print(f"{name:28} {json.dumps(rows[name])}", flush=True)
        return dict(rows[name])

    plain = add("ours, C", "--side", "ours", "--kernels", "auto")
    numpy_ = add("ours, numpy", "--side", "ours", "--kernels", "numpy")
    broken = []
    if (plain["statistics"], plain["thresholds"]) != (numpy_["statistics"], numpy_["thresholds"]):
        broken.append("kernels in C and numpy differ")
    for shards in SHARDS[1:]:
        part = add(f"ours, {shards} shards", "--side", "ours", "--shards", str(shards))
        if part["statistics"] != plain["statistics"]:
            broken.append(f"{shards} shards give other bits")
    if args.repeat > 1:
        name = f"ours, images {args.repeat} times"
        many = add(name, "--side", "ours", "--repeat", str(args.repeat))
        if many["peak_rss_mb"] > MEMORY_GROWTH * plain["peak_rss_mb"]:
            broken.append("memory grows with the images")
    ratios: dict[str, Any] = {}
    for method in args.peers:
        cpu_s = add(f"onnxruntime, {method}", "--side", method)["cpu_s"]
        # Seconds depend on the machine and on who else uses it; these do so far less.
        ratios[method] = {
            "C": round(plain["cpu_s"] / cpu_s, 2),
            "numpy": round(numpy_["cpu_s"] / cpu_s, 2),
        }
    if ratios:
        print(f"ours / theirs, CPU time: {json.dumps(ratios)}", flush=True)
    return {"machine": machine(), "rows": rows, "ratios": ratios, "broken": broken}, broken


def main() -> int:
    """Print a line per measurement; 1 when a promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=DATA)
    add("--model", default="efficientnet_lite0")
    add("--images", type=int, default=100)
    add("--repeat", type=int, default=10, help="how often the images are seen for the memory (10)")
    add("--peers", nargs="*", default=("MinMax", "Percentile", "Entropy"))
    add("--json", type=Path)
    add("--side", help="measure only this: ours, or a method of onnxruntime")
    add("--kernels", choices=("auto", "c", "numpy"), default="auto")
    add("--shards", type=int, default=1)
    args = parser.parse_args()
    if args.side:
        if "--repeat" not in sys.argv:
            args.repeat = 1
        print(json.dumps(measure_one(args)))
        return 0
    result, broken = compared(args)
    print(json.dumps(result["machine"]))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    for promise in broken:
        print(f"broken: {promise}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
