"""One network through the whole path: doctor, compile, verify, values, forms, `run()` and float."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

import qsearch
from compiler.errors import CompilerError
from compiler.runtime.artifact import QModule
from compiler.runtime.exact_executor import exact_executor
from compiler.targets.ort.session import OrtExecutor
from qsearch.commands.profiling import _quantized, profile
from tests.benchmarks.machine import alternated_ms

Arrays = dict[str, np.ndarray[Any, Any]]
Step = Callable[[Path, dict[str, Any]], None]
RIGHT_DB: Final = 20.0
REPEATS, TURN_MS = 5, 4.0
COMPARED: Final = 2
"""Inputs that every form is compared on, bit for bit."""
C_BYTES: Final = 4 << 20
"""A larger module is not compiled as C: that takes minutes."""


def measured(place: Path, steps: Sequence[Step] | None = None) -> dict[str, Any]:
    """The figures of a folder with model.onnx, calib.npz and fresh.npz; kept up to where it ends.

    ``refused`` is what a command said, ``defect`` what was not foreseen.
    """
    row: dict[str, Any] = {}
    begin = time.process_time()
    try:
        for step in steps or STEPS:
            row["step"] = step.__name__
            step(place, row)
            if row.get("refused"):
                break
        else:
            del row["step"]
    except CompilerError as error:
        row["refused"] = f"{type(error).__name__}: {error.what}"[:300]
    except Exception as error:
        row["defect"] = f"{type(error).__name__}: {error}"[:300]
        row["traceback"] = traceback.format_exc()[-1500:]
    row["cpu_s"] = round(time.process_time() - begin, 1)
    return row


def accepted(place: Path, row: dict[str, Any]) -> None:
    """onnxruntime runs the file in float."""
    try:
        outputs = OrtExecutor((place / "model.onnx").read_bytes()).run(_one(place))
        row["accepted"] = all(bool(np.isfinite(array).all()) for array in outputs)
    except CompilerError as error:
        row["accepted"], row["refused"] = False, f"onnxruntime: {error.what}"[:300]


def diagnosed(place: Path, row: dict[str, Any]) -> None:
    """doctor: all integral, or a core of integers with the share of the multiplications it has."""
    found = qsearch.doctor(place / "model.onnx").to_dict()
    row["imported"], row["integral"] = True, bool(found["fully_integral"])
    if not row["integral"]:
        row["refused"] = f"float: {found['causes']}"[:300]
    elif "cut" in found:
        inside, whole = (found["cut"][f"multiplications{key}"] for key in ("_in_core", ""))
        row["integral"], row["cut"] = False, round(inside / max(whole, 1), 4)


def compiled(place: Path, row: dict[str, Any]) -> None:
    """compile."""
    calib = dict(np.load(place / "calib.npz"))
    begin = time.process_time()
    module = qsearch.quantize(place / "model.onnx", calib)
    module.save(place / "m.qmod")
    row["compile_cpu_s"] = round(time.process_time() - begin, 1)


def proved(place: Path, row: dict[str, Any]) -> None:
    """verify, as the command does without a flag."""
    begin = time.process_time()
    found = qsearch.verify(place / "m.qmod")
    row["proved"] = found.proved and found.acceptable()
    row["verify_cpu_s"] = round(time.process_time() - begin, 1)
    if not row["proved"]:
        row["refuted"] = "; ".join(f"{f.check} {f.node} {f.what}" for f in found.findings)[:300]


def valued(place: Path, row: dict[str, Any]) -> None:
    """Values of fresh inputs against float, and against quantize_static's where they are poor."""
    module, drawn = qsearch.load(place / "m.qmod"), samples(place / "fresh.npz")
    floats = OrtExecutor((place / "model.onnx").read_bytes())
    wanted = [floats.run(one) for one in drawn]
    row["sqnr_db"] = sqnr_db([module.run(one) for one in drawn], wanted)
    row["right"] = row["sqnr_db"] >= RIGHT_DB
    if not row["right"]:
        try:
            from onnxruntime.quantization import QuantType

            static = OrtExecutor(
                _quantized(place / "model.onnx", samples(place / "calib.npz"), QuantType.QInt8)
            )
            row["static_db"] = sqnr_db([static.run(one) for one in drawn], wanted)
            row["right"] = row["sqnr_db"] >= row["static_db"]
        except Exception as error:
            row["static_db"] = f"{type(error).__name__}"


def formed(place: Path, row: dict[str, Any]) -> None:
    """Every executor and the exported integer ONNX: the bits of the reference."""
    module, drawn = qsearch.load(place / "m.qmod"), samples(place / "fresh.npz")[:COMPARED]
    in_c = ("c",) if (place / "m.qmod").stat().st_size <= C_BYTES else ()
    names = ("auto", "engine", "integer", *in_c)
    wanted = [module.run(one, "reference") for one in drawn]
    file = qsearch.export(place / "m.qmod", "onnx", place / "exact.onnx").files[0]
    exact = OrtExecutor(file.read_bytes())
    forms: dict[str, Callable[[Arrays], list[Any]]] = {
        **{name: partial(_run, module, name) for name in names},
        "onnx": exact.run,
    }
    row["forms"] = {}
    for name, run in forms.items():
        try:
            pairs = [pair for one, want in zip(drawn, wanted) for pair in zip(run(one), want)]
            row["forms"][name] = sum(int((a != b).sum()) for a, b in pairs)
        except CompilerError as error:
            row["forms"][name] = f"{type(error).__name__}: {error.what}"[:200]
    calib = dict(np.load(place / "calib.npz"))
    made = qsearch.quantize(place / "model.onnx", calib, "auto,for=qdq")
    made.save(place / "q.qmod")
    qdq = qsearch.export(place / "q.qmod", "qdq", place / "qdq.onnx").files[0]
    near = OrtExecutor(qdq.read_bytes())
    row["qdq_db"] = sqnr_db(
        [near.run(one) for one in drawn], [made.run(one, "reference") for one in drawn]
    )
    row["equal"] = all(found == 0 for found in row["forms"].values())


def timed(place: Path, row: dict[str, Any]) -> None:
    """`run()` and onnxruntime float in turns, CPU time of one thread; the worst steps."""
    module, one = qsearch.load(place / "m.qmod"), _one(place)
    session = _session(place / "model.onnx")
    sides = {"run": partial(module.run, one), "float": partial(session.run, None, one)}
    first = alternated_ms(sides, 3)
    times = max(1, round(TURN_MS / max(first["float"], 1e-3)))
    many = {name: partial(_repeated, work, times) for name, work in sides.items()}
    rounds = [alternated_ms(many, 3, warm_up=1) for _ in range(REPEATS)]
    row["ratio"] = round(float(np.median([r["run"] / r["float"] for r in rounds])), 3)
    row["run_ms"] = round(float(np.median([r["run"] for r in rounds])) / times, 4)
    row["float_ms"] = round(float(np.median([r["float"] for r in rounds])) / times, 4)
    row["form"], _, _note = exact_executor(module.module)
    found = profile(place / "m.qmod", rounds=5)
    kinds: dict[str, float] = {}
    for layer in found.layers:
        kind = f"{layer.operator or layer.layer} [{'+'.join(layer.steps)}]"
        kinds[kind] = kinds.get(kind, 0.0) + layer.ms
    worst = sorted(found.layers, key=lambda layer: -layer.ms)[:3]
    row["profile_ms"], row["notes"] = round(found.ms, 4), list(found.notes)
    row["worst_steps"] = [
        [_short(x.layer), x.operator, "+".join(x.steps), list(x.shape), round(1e3 * x.ms, 1)]
        for x in worst
    ]
    row["kinds_us"] = {
        k: round(1e3 * ms, 1) for k, ms in sorted(kinds.items(), key=lambda item: -item[1])[:8]
    }


STEPS: Final = (accepted, diagnosed, compiled, proved, valued, formed, timed)


def samples(path: Path) -> list[Arrays]:
    """The inputs in a file, one by one."""
    data = dict(np.load(path))
    count = min(len(array) for array in data.values())
    sizes = {name: len(array) // count for name, array in data.items()}
    return [
        {n: a[i * sizes[n] : (i + 1) * sizes[n]] for n, a in data.items()} for i in range(count)
    ]


def _one(place: Path) -> Arrays:
    return samples(place / "fresh.npz")[0]


def sqnr_db(found: list[list[Any]], wanted: list[list[Any]]) -> float:
    """Signal to noise of all outputs: the lowest of them. Chosen rows may differ in number: they
    are left out."""
    worst = 120.0
    for ours, want in zip(zip(*found), zip(*wanted)):
        pairs = [(a.ravel(), b.ravel()) for a, b in zip(ours, want) if a.shape == b.shape]
        if not pairs:
            continue
        a, b = (np.concatenate(side).astype(np.float64) for side in zip(*pairs))
        noise = max(float(np.square(a - b).sum()), 1e-30)
        worst = min(worst, 10 * float(np.log10(max(float(np.square(b).sum()), 1e-30) / noise)))
    return round(worst, 1)


def _run(module: QModule, executor: str, one: Arrays) -> list[Any]:
    return module.run(one, executor)


def _repeated(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _short(layer: str) -> str:
    """The end of a long name of a node."""
    return re.sub(r"^.*/(?=[^/]+/[^/]+$)", "", layer)
