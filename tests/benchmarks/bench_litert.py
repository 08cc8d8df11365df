"""LiteRT files for TFLM beside what other tools make of the same model and images.

    python -m tests.benchmarks.bench_litert [--models NAME …] [--tools FOLDER] [--data DIR]

Ours is the module of ``requantization`` "tflite", whose integers TFLM gives (``verify --tflite``);
the other tools' files run in LiteRT's reference kernels. SQNR and top-1 on all images that no
calibration saw. Goal, which sets the exit code: never below the best file of 8 bits, and 1 dB above
it in the median.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import numpy as np

import qsearch
from tests.benchmarks.bench_accuracy import (
    TOOLS_FOLDER,
    measure_tool,
    on_onnxruntime,
    outputs_of,
    show,
)
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, batch_of, read_split
from tests.benchmarks.scores import score

MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "fashion_vit",
)
GOAL_DB = 1.0


def main() -> int:
    """Print a table for each model; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--calib", type=int, default=128)
    parser.add_argument("--tools", type=Path, default=TOOLS_FOLDER)
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()
    print(machine())
    margins = []
    for name in args.models:
        model = args.data / f"{name}.onnx"
        batch = batch_of(name)
        calib = read_split(args.data, name, "calib", args.calib, batch)
        dev = read_split(args.data, name, "dev", None, batch)
        print(f"{name}: {len(calib)} calibration images, {len(dev)} judged", flush=True)
        reference = outputs_of(on_onnxruntime(model), dev, 1)
        config = "auto,requantization=tflite"
        module = qsearch.quantize(model, {"input": calib.images}, config, dim={"N": 1})
        found = np.concatenate([module.run({"input": image[None]})[0] for image in dev.images])
        best = score(found, reference, dev.labels)
        show({"name": "ours, int8", **best.to_dict()})
        theirs = measure_tool("litert", model, calib, dev, reference, len(dev), args.tools)
        eight = [one.sqnr_db for title, one, _ in theirs if "int8" in title]
        if eight:
            margins.append(best.sqnr_db - max(eight))
            print(f"  {margins[-1]:+.1f} dB above the best of 8 bits", flush=True)
    if not margins:
        return 1
    print(f"{median(margins):+.1f} dB in the median, {min(margins):+.1f} at the least")
    return int(min(margins) < 0 or median(margins) < GOAL_DB)


if __name__ == "__main__":
    sys.exit(main())
