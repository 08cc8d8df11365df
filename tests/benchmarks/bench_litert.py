"""LiteRT files for TFLM beside what other tools make of the same model and images.

    python -m tests.benchmarks.bench_litert [--models NAME …] [--tools FOLDER] [--data DIR]

Ours are modules ``for=tflite``, whose integers TFLM gives: what differs in
its interpreter and in LiteRT's reference kernels is counted on the first images, and on noise where
there are fewer. The other tools' files run in LiteRT's reference kernels. SQNR and top-1 on all
images that no calibration saw. Goal, which sets the exit code: nothing differs, never below the
best file of 8 bits, and 1 dB above it in the median. ``--alone`` also knows kws_lstm and the shapes
of MLPerf Tiny, which have no images.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import onnx

import qsearch
from compiler.errors import CompilerError
from compiler.pipeline import tflite_file
from compiler.targets.tflite.interpreters import JUDGES, FileJudge
from tests.benchmarks import mlperf_tiny
from tests.benchmarks.bench_accuracy import (
    TOOLS_FOLDER,
    measure_tool,
    on_onnxruntime,
    outputs_of,
    show,
)
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, Split, batch_of, read_split
from tests.benchmarks.scores import score

MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "fashion_vit",
)
GOAL_DB = 1.0
FORMS = {"ours, int8": "tflite"}
ZOO = Path(__file__).parents[1] / "e2e" / "zoo"


def network(name: str, args: argparse.Namespace, folder: Path) -> tuple[Path, Split, Split]:
    """A model, what it is calibrated with, and what it is judged with; no labels of noise."""
    if (args.data / f"{name}.onnx").exists():
        batch = batch_of(name)
        calib = read_split(args.data, name, "calib", args.calib, batch)
        return args.data / f"{name}.onnx", calib, read_split(args.data, name, "dev", None, batch)
    path = folder / f"{name}.onnx"
    if name in mlperf_tiny.MODELS:
        model = mlperf_tiny.MODELS[name]()
        onnx.save(model, path)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        drawn = np.random.default_rng(0).normal(size=(args.calib + 32, *shape[1:]))
        parts = np.split(drawn.astype(np.float32), [args.calib])
    else:
        path = ZOO / f"{name}.onnx"
        stored = dict(np.load(ZOO / f"{name}.npz"))
        parts = [next(v for k, v in stored.items() if k.startswith(p)) for p in ("calib", "fresh")]
    calib, dev = (Split(part.astype(np.float32), np.zeros(len(part), np.int64)) for part in parts)
    return path, calib, dev


def main() -> int:
    """Print a table for each model; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--calib", type=int, default=128)
    parser.add_argument("--judged", type=int, default=2000, help="images for the interpreters")
    parser.add_argument("--alone", action="store_true", help="without other tools")
    parser.add_argument("--tools", type=Path, default=TOOLS_FOLDER)
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="bench-litert-") as folder:
        return compared(args, Path(folder))


def compared(args: argparse.Namespace, folder: Path) -> int:
    """All models; the exit code."""
    margins, wrong = [], 0
    for name in args.models:
        model, calib, dev = network(name, args, folder)
        port = onnx.load(model).graph.input[0].name
        print(f"{name}: {len(calib)} calibration images, {len(dev)} judged", flush=True)
        reference = outputs_of(on_onnxruntime(model), dev, 1)
        ours = {}
        for title, form in FORMS.items():
            try:
                module = qsearch.quantize(
                    model, {port: calib.images}, f"auto,for={form}", dim={f"{port}:0": 1}
                )
                judge = FileJudge(module.module, tflite_file(module.module).data, JUDGES)
            except CompilerError as error:
                print(f"  {title}: {error.what}", flush=True)
                continue
            found = np.concatenate([module.run({port: image[None]})[0] for image in dev.images])
            ours[title] = score(found, reference, dev.labels)
            show({"name": title, **ours[title].to_dict()})
            for image in dev.images[: args.judged]:
                judge.compare({port: image[None]})
            judge.compare_noise(max(args.judged - judge.runs, 0))
            runs = f"on {judge.runs} inputs, {min(len(dev), judge.runs)} of them images"
            print(f"    differing of {judge.elements} {runs}: {judge.differing}", flush=True)
            wrong += sum(judge.differing.values())
        if args.alone:
            continue
        best = ours["ours, int8"]
        theirs = measure_tool("litert", model, calib, dev, reference, len(dev), args.tools)
        eight = [one.sqnr_db for title, one, _ in theirs if "int8" in title]
        if eight:
            margins.append(best.sqnr_db - max(eight))
            print(f"  {margins[-1]:+.1f} dB above the best of 8 bits", flush=True)
    if not margins:
        return int(wrong > 0 or not args.alone)
    print(f"{median(margins):+.1f} dB in the median, {min(margins):+.1f} at the least")
    return int(wrong > 0 or min(margins) < 0 or median(margins) < GOAL_DB)


if __name__ == "__main__":
    sys.exit(main())
