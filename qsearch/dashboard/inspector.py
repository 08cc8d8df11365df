"""``python -m qsearch.dashboard.inspector``: a question (JSON) a line, an exit code a line.

A child answers every question into the file that it names, and limits itself before it opens
anything. Exit code 2 with ``{what, where, fix}`` is a file that cannot be used.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.at_work import observe
from compiler.errors import CompilerError
from compiler.insight import layer_sqnr
from compiler.ir.blob import ModuleBlob
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize import ChannelStats
from compiler.quantize.calibration.stats import CalibrationStats
from qsearch.dashboard.inspection import EXIT_BAD_FILE
from qsearch.dashboard.module_view import drawing_of, exported, proof_of, text_of, times_of
from qsearch.dashboard.uploaded import about_npy, about_npz, about_onnx, about_zip, unpack_images
from qsearch.errors import DataError
from qsearch.limits import Limits, Watch, size_of
from qsearch.search.shipped import runs_of

NICE: Final = 5
_ELSEWHERE: Final = "use the qsearch command on it, with --allow-large"
BINS: Final = 96
MAX_POINTS: Final = 400
MAX_FILE_BYTES: Final = 1 << 30


def layers_of(
    module: Path, qconfig: dict[str, Any], inputs: str, scales: str | None, channels: str | None
) -> dict[str, Any]:
    """SQNR in dB of what every layer of a stored module reads, in visiting order; of the outputs.

    Args:
        module: the float module as workers get it.
        qconfig: fields of the configuration.
        inputs: file as ``sample_inputs`` made it.
        scales: file of the ranges of the configuration; None for global_scale.
        channels: statistics of single channels, where the configuration needs them.
    Raises:
        CompilerError: the files do not belong together.
    """
    network = ModuleBlob(module.read_bytes()).unpack()
    names = [param.name_hint for param in network["main"].params]
    runs = runs_of(arrays_of(Path(inputs)), names)
    found, outputs = layer_sqnr(
        network,
        QConfig.from_dict(qconfig),
        None if scales is None else arrays_of(Path(scales))["scales"],
        runs,
        channels=None if channels is None else ChannelStats.from_arrays(arrays_of(Path(channels))),
    )
    return {
        "samples": len(runs),
        "layers": list(map(asdict, found)),
        "output_db": outputs.output_db,
        "agreement": outputs.agreement,
    }


def histograms_of(statistics: Path, scales: str | None) -> dict[str, Any]:
    """Thin out what calibration saw for the eye: one entry per measured point, in binding order.

    The stored histograms have 8001 equal bins over [-largest, largest] of every quantize point.

    Args:
        statistics: stored ``CalibrationStats``.
        scales: file of the stored ranges that a configuration chose from them.
    Raises:
        DataError: a file is larger than any that a search writes.
    """
    stats = CalibrationStats.from_arrays(arrays_of(statistics))
    if scales is None:
        chosen = None
    else:
        chosen = arrays_of(Path(scales))["scales"]
    points: list[dict[str, Any]] = []
    for point, (tensor, kind) in enumerate(zip(stats.point_tensor, stats.point_kind)):
        if len(points) == MAX_POINTS:
            break
        one = stats.tensors[tensor]
        low, high = float(one.minimum), float(one.maximum)
        hist = one.hist
        counts = [] if hist is None else _thinned(hist, low, high)
        points.append(
            {
                "label": one.label,
                "kind": QAnnotateKind(int(kind)).name.lower(),
                "low": low,
                "high": high if high > low else low + 1.0,
                "values": int(one.count),
                "counts": counts,
                "readers": list(stats.readers[point]),
                **_thresholds(chosen, point, len(stats.point_tensor)),
            }
        )
    return {"points": points, "total": len(stats.point_tensor)}


def _thresholds(chosen: NDArray[Any] | None, point: int, count: int) -> dict[str, float | None]:
    """Both ends of the range that quantization keeps."""
    if chosen is None or chosen.size not in (count, 3 * count):
        return {"threshold_low": None, "threshold_high": None}
    low, high = (-chosen, chosen) if chosen.size == count else chosen.reshape(3, count)[1:]
    return {"threshold_low": float(low[point]), "threshold_high": float(high[point])}


def _thinned(hist: NDArray[np.int64], low: float, high: float) -> list[int]:
    """Counts of BINS bins over [low, high] out of those over [-largest, largest]."""
    largest = max(abs(low), abs(high)) or 0.5
    centres = (np.arange(hist.size) + 0.5) / hist.size * 2 * largest - largest
    width = (high - low) / BINS or 1.0
    place = np.clip(((centres - low) / width).astype(np.int64), 0, BINS - 1)
    return [int(n) for n in np.bincount(place, weights=hist, minlength=BINS)]


def arrays_of(file: Path) -> dict[str, NDArray[Any]]:
    """Named arrays of a stored file.

    Raises:
        DataError: it is larger than any that a search writes.
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        raise DataError("the statistics are larger than a page can show", where=file.name)
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


TASKS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "module": drawing_of,
    "text": text_of,
    "proof": proof_of,
    "times": times_of,
    "export": exported,
    "histograms": histograms_of,
    "layers": layers_of,
    "onnx": about_onnx,
    "npz": about_npz,
    "npy": about_npy,
    "zip": about_zip,
    "unpack": unpack_images,
}
"""Question -> function that answers it, from the file and the other words of the question."""


def serve() -> None:
    """Answer a question a line until the server goes away; each in a child of its own."""
    for line in sys.stdin:
        question = json.loads(line)
        limits = Limits.of_file(size_of(Path(question["file"])))
        watch = Watch()
        child = os.fork()
        if child == 0:
            observe(watch)
            limits.set()
            os._exit(respond(**question))
        _, found, used = os.wait4(child, 0)
        status = os.waitstatus_to_exitcode(found)
        if told := watch.ended(status, limits, used.ru_utime + used.ru_stime):
            told_of = {"what": told, "where": Path(question["file"]).name, "fix": _ELSEWHERE}
            Path(question["answer"]).write_text(json.dumps(told_of), encoding="utf-8")
            status = EXIT_BAD_FILE
        print(status, flush=True)


def respond(task: str, file: str, memory_bytes: int, answer: str, **options: Any) -> int:
    """Write the answer to one question into a file; the exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A search on this machine goes first.
    os.nice(NICE)
    code = 0
    try:
        told = TASKS[task](Path(file), **options)
    except CompilerError as error:
        told = {"what": error.what, "where": error.where, "fix": error.fix}
        code = EXIT_BAD_FILE
    except BaseException:  # memory that is not there, above all; the server says so
        return 1
    with open(answer, "w", encoding="utf-8") as out:
        json.dump(told, out, allow_nan=False)
    return code


if __name__ == "__main__":
    serve()
