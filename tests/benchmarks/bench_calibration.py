"""Cost of calibration, alternated with the float network so that a busy machine shows.

    python tests/benchmarks/bench_calibration.py MODEL.onnx DATA.npz [--samples 100] [--kernels c]

Prints one JSON object: CPU seconds of each step, the same in passes of the float network over the
samples, and peak memory. DATA.npz holds the model's inputs by name. ``every method`` is both rounds
and the scales of all modes; channel statistics are what smoothing and bias
correction need beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any, TypeVar

from compiler.frontend.from_onnx.load import load
from compiler.quantize import QConfig, activation_scales, mark, prerequisite_optimize
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.quantize.calibration.collectors import HistogramCollector, RangeCollector
from compiler.quantize.calibration.measurement import LocalData, merged_channels
from compiler.quantize.calibration.profile_function import profile_function
from compiler.quantize.kernels.choice import KERNELS_VARIABLE, choose_kernels
from workers.batching import model_batches
from workers.datasets.registry import input_specs, open_dataset
from workers.messages import DatasetRef
from workers.process import peak_rss_bytes

T = TypeVar("T")

MODES = ("max", "percentile", "mse", "kl_divergence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--kernels", choices=("auto", "c", "numpy"), default="auto")
    options = parser.parse_args()

    mod, params = load(options.model, dims={"N": 1})
    mod = prerequisite_optimize(mod, params, 3)
    annotated, _ = mark(mod, QConfig.recommended())
    profile, points = profile_function(annotated)
    inputs = input_specs(mod)
    dataset = open_dataset(DatasetRef("npz", {"path": options.data}), inputs)
    samples = range(min(options.samples, len(dataset)))
    os.environ[KERNELS_VARIABLE] = options.kernels
    network, measured = float_executor(mod), float_executor(profile)
    seconds: dict[str, float] = {}

    def timed(step: str, work: Callable[..., T], *arguments: Any) -> T:
        begin = time.process_time()
        result = work(*arguments)
        seconds[step] = seconds.get(step, 0.0) + time.process_time() - begin
        return result

    ranges = RangeCollector(points)
    batches = [batch.inputs for batch in model_batches(dataset, samples, inputs, 16)]
    data = LocalData(mod, batches)
    for batch in model_batches(dataset, samples, inputs, 16):
        timed("float pass", network.run, batch.inputs)
        outputs = timed("pass with all points", measured.run, batch.inputs)
        timed("ranges", ranges.update, outputs)
    histograms = HistogramCollector(ranges.result())
    for batch in model_batches(dataset, samples, inputs, 16):
        outputs = timed("histograms pass", measured.run, batch.inputs)
        timed("histograms", histograms.update, outputs)
    stats = histograms.result()
    for mode in MODES:
        config = QConfig.recommended().to_dict() | {"calibrate_mode": mode}
        timed(mode, activation_scales, stats, QConfig.from_dict(config))
    needed = ("histograms pass", "pass with all points", "ranges", "histograms", *MODES)
    seconds["every method"] = sum(seconds[step] for step in needed)
    timed("channel statistics", merged_channels, data, QConfig())
    unit = seconds["float pass"]
    report = {
        "machine": platform.processor() or platform.machine(),
        "kernels": choose_kernels().name,
        "samples": len(samples),
        "points": len(points.point_tensor),
        "cpu_s": {step: round(value, 3) for step, value in seconds.items()},
        "float_passes": {step: round(value / unit, 2) for step, value in seconds.items()},
        "peak_rss_mb": peak_rss_bytes() >> 20,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
