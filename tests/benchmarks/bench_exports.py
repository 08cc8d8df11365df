"""Every way out of qsearch: how fast, how exact, beside onnxruntime float and quantize_static.

    python -m tests.benchmarks.bench_exports [--data DIR] [--models NAME …] [--samples N]
                                             [--json FILE]

A model is quantized once, with the fields that a QDQ file asks for, and leaves in every form.
Columns of the table: CPU time of one thread per image at batch 1, in turns in one process, over
that of onnxruntime float; outputs that differ in any bit from the reference executor, at batch 1
and 32; top-1; answers that agree with the float model. ONNX files are opened with default session
options (but one thread). The instruction set is named, as figures of 8 bit kernels mean little
without it. Exit code 1: an exact form has another bit; QDQ is more than a point (0.3 where there
are 2,000 samples) from the module's top-1, agrees with it on less than 98 %, or costs more than
1.05 times quantize_static's file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

import qsearch
from compiler.runtime.artifact import QModule
from compiler.runtime.exact_executor import EXECUTOR_FACTORIES
from compiler.targets.c.toolchain import find_compiler
from tests.benchmarks import onnxruntime_peers as peers
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.real_models import DATA, MODELS, Split, read_split
from workers.metrics.size import fields_of

Array = NDArray[Any]
Run = Callable[[Array], Array]
EXACT_SAMPLES = 64
LARGE_SAMPLES = 8
"""Of a large model, on which the reference takes long; the batch of 32 is run whole."""
ROUNDS = 15
TURN_MS = 10.0
"""CPU time of a turn where two files are compared."""
PEER = peers.Peer("MinMax", per_channel=True, unsigned=True)
LEAST_AGREEMENT = 0.98
MOST_LATENCY = 1.05


def session(path: Path) -> Run:
    """A file in onnxruntime: default options, one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    made = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda x: np.asarray(made.run(None, {name: x})[0])


def ways_out(module: QModule, path: Path, folder: Path) -> dict[str, Run]:
    """How a module is run from Python, and from the files that it leaves as."""
    made: dict[str, Run] = {"Python, run()": lambda x: module.run([x])[0]}
    for name in EXECUTOR_FACTORIES:
        if name not in ("reference", "integer") and (name != "c" or find_compiler()):
            label = "C, -O3" if name == "c" else f"Python, run(…, {name!r})"
            made[label] = partial(_run, module, name)
    for form, label in (("onnx", "ONNX, integers"), ("qdq", "ONNX, QDQ")):
        found = qsearch.export(path, form, folder / f"{form}.onnx")
        made[label] = session(found.files[0])
    return made


def _run(module: QModule, executor: str, x: Array) -> Array:
    return module.run([x], executor)[0]


def _repeated(run: Run, x: Array, times: int) -> None:
    """A turn: the first call finds the caches full of what another side left."""
    for _ in range(times):
        run(x)


def batched(run: Run, x: Array, batch: int) -> Array:
    """Outputs of all samples, ``batch`` at a time."""
    return np.concatenate([run(x[i : i + batch]) for i in range(0, len(x), batch)])


def figures(model: str, data: Path, folder: Path, samples: int | None) -> dict[str, Any]:
    """Everything about one model."""
    calib, dev = (read_split(data, model, split, None) for split in ("calib", "dev"))
    dev = Split(dev.images[:samples], dev.labels[:samples])
    source = data / f"{model}.onnx"
    module = qsearch.quantize(source, {"input": calib.images}, qconfig=dict(fields_of("qdq")))
    path = folder / f"{model}.qmod"
    module.save(path)
    ways = ways_out(module, path, folder)
    prepared = peers.prepare(source, folder)
    static, _ = peers.quantize(prepared, PEER, calib.images[:100], folder)
    others = {"onnxruntime float": session(source), "quantize_static": session(static)}
    count = LARGE_SAMPLES if model.startswith("efficientnet") else EXACT_SAMPLES
    truth = batched(partial(_run, module, "reference"), dev.images[:count], 1)
    known = {name: batched(run, dev.images, 32) for name, run in others.items()}
    known["module"] = batched(ways["Python, run()"], dev.images, 32)
    repeats = 2 if model.startswith("efficientnet") else 20
    sides = {n: partial(_repeated, r, dev.images[:1], repeats) for n, r in (others | ways).items()}
    ms = {n: taken / repeats for n, taken in alternated_ms(sides, ROUNDS).items()}
    found: dict[str, Any] = {
        "samples": len(dev),
        "static_over_float": ms["quantize_static"] / ms["onnxruntime float"],
        "ways": {},
    }
    for name, run in (others | ways).items():
        exact = {
            "1": int((batched(run, dev.images[:count], 1) != truth).sum()),
            "32": int((batched(run, dev.images[: max(count, 32)], 32)[:count] != truth).sum()),
        }
        nearly = name in others or name == "ONNX, QDQ"
        outputs = known.get(name)
        if outputs is None:
            outputs = batched(run, dev.images, 32) if nearly else known["module"]
        found["ways"][name] = {
            "ms": ms[name],
            "over_float": ms[name] / ms["onnxruntime float"],
            "differing_outputs": exact,
            "of_outputs": int(truth.size),
            "top1": float((outputs.argmax(1) == dev.labels).mean()),
            "agrees_with_float": agreement(outputs, known["onnxruntime float"]),
            "agrees_with_module": agreement(outputs, known["module"]),
            "sqnr_db": sqnr_db(outputs, known["onnxruntime float"]),
        }
    found["qdq_over_static"] = over(ways["ONNX, QDQ"], others["quantize_static"], dev.images[:1])
    return found


def over(run: Run, peer: Run, x: Array) -> float:
    """CPU time of a run over a peer's, the two alone taking turns.

    Among many ways out a turn of a small network is over before the caches hold it again, and the
    ratio says which neighbour came before.
    """
    times = max(1, round(TURN_MS / max(alternated_ms({"": partial(run, x)}, ROUNDS)[""], 1e-3)))
    sides = {"run": partial(_repeated, run, x, times), "peer": partial(_repeated, peer, x, times)}
    ms = alternated_ms(sides, ROUNDS)
    return ms["run"] / ms["peer"]


def sqnr_db(found: Array, wanted: Array) -> float:
    """Signal to noise of outputs."""
    noise = max(float(np.square(found - wanted).sum()), 1e-12)
    return float(10 * np.log10(float(np.square(wanted).sum()) / noise))


def agreement(a: Array, b: Array) -> float:
    """Fraction of equal answers."""
    return float((a.argmax(1) == b.argmax(1)).mean())


def complaints(model: str, found: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    said = []
    for name, way in found["ways"].items():
        exact = name.startswith(("Python", "C", "ONNX, int"))
        if exact and any(way["differing_outputs"].values()):
            said.append(f"{model}: {name} has other bits")
    qdq, module = found["ways"]["ONNX, QDQ"], found["ways"]["Python, run()"]
    bound = 0.003 if found["samples"] >= 2000 else 0.01
    if abs(qdq["top1"] - module["top1"]) > bound + 1e-9:
        said.append(f"{model}: QDQ has top-1 {qdq['top1']:.4f}, the module {module['top1']:.4f}")
    if qdq["agrees_with_module"] < LEAST_AGREEMENT:
        said.append(f"{model}: QDQ agrees with the module on {qdq['agrees_with_module']:.1%}")
    if found["qdq_over_static"] > MOST_LATENCY:
        said.append(f"{model}: QDQ costs {found['qdq_over_static']:.3f} x quantize_static")
    return said


def table(model: str, found: dict[str, Any]) -> str:
    """Markdown."""
    rows = [
        f"| {model}, {found['samples']} samples | / float | other bits | top-1 | = float | dB |"
    ]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for name, way in found["ways"].items():
        bits = " / ".join(f"{n}" for n in way["differing_outputs"].values())
        rows.append(
            f"| {name} | {way['over_float']:.2f} | {bits} of {way['of_outputs']} "
            f"| {way['top1']:.2%} | {way['agrees_with_float']:.1%} | {way['sqnr_db']:.2f} |"
        )
    return "\n".join(rows)


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--samples", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "models": {}}
    said: list[str] = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as scratch:
            found = figures(model, options.data, Path(scratch), options.samples)
        report["models"][model] = found
        said += complaints(model, found)
        print(table(model, found), file=sys.stderr, flush=True)
        print(f"QDQ / quantize_static {found['qdq_over_static']:.3f}", file=sys.stderr, flush=True)
    report["complaints"] = said
    text = json.dumps(report, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
