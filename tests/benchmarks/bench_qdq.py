"""A search for QDQ against its score and against the best file of quantize_static.

    python -m tests.benchmarks.bench_qdq [--networks NAME …] [--trials N] [--json FILE]

Twelve small networks of six kinds: the files of tests/e2e/zoo, and those of the data folder. Both
sides calibrate on the same samples and are scored on the same others: ours is the winner of
``launch --for qdq``, the peer the best in dB of twelve configurations of quantize_static. Columns:
dB of the score, of our file and of the best peer; bytes and CPU time of our file over those of
that peer, one thread, in turns. Exit code 1: a file is more than 0.3 dB below its score, or below
the peer; bytes over 1.1 in the median or 1.5, CPU time over 1.0 in the median or 1.3.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

import qsearch
from tests.benchmarks import onnxruntime_peers as peers
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.real_models import DATA, read_split
from workers.metrics.sqnr import Sqnr

Arrays = dict[str, NDArray[Any]]

ZOO = Path(__file__).parents[1] / "e2e" / "zoo"
KINDS = {
    "image classifiers": ("digits_cnn", "fashion_resnet", "fashion_mobilenet"),
    "sound": ("tcn", "matchbox_net", "bc_resnet"),
    "image to image": ("unet_groupnorm",),
    "detection, segmentation": ("ssd_heads", "segformer_head"),
    "transformers": ("fashion_vit", "bert_like"),
    "tables": ("dueling_dqn",),
}
TELLING = 0.3
"""dB."""
ROUNDS, TURN_MS = 15, 10.0


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Batches of named arrays."""

    def __init__(self, data: Iterable[Arrays]) -> None:
        self._batches = list(data)
        self.rewind()

    def get_next(self) -> Arrays | None:
        return next(self._waiting, None)

    def rewind(self) -> None:
        """Start over."""
        self._waiting = iter(self._batches)


def batches(data: Arrays, size: int) -> Iterator[Arrays]:
    """The data, so many samples at a time."""
    for start in range(0, len(next(iter(data.values()))), size):
        yield {name: array[start : start + size] for name, array in data.items()}


def network(name: str, data: Path) -> tuple[Path, Arrays, Arrays]:
    """The file of a network, calibration data and others."""
    if (ZOO / f"{name}.onnx").exists():
        stored = dict(np.load(ZOO / f"{name}.npz"))
        calib, fresh = (
            {
                key.removeprefix(part): array.astype("float32")
                if array.dtype.kind == "f"
                else array
                for key, array in stored.items()
                if key.startswith(part)
            }
            for part in ("calib.", "fresh.")
        )
        return ZOO / f"{name}.onnx", calib, fresh
    path = data / f"{name}.onnx"
    port = onnx.load(path).graph.input[0].name
    splits = (
        read_split(data, name, split, count) for split, count in (("calib", 64), ("dev", 256))
    )
    calib, fresh = ({port: split.images} for split in splits)
    return path, calib, fresh


def outputs(session: Any, data: Arrays, batch: int) -> list[list[NDArray[Any]]]:
    """Outputs of all runs; a prepared file may have lost inputs."""
    names = {port.name for port in session.get_inputs()}
    return [
        session.run(None, {name: array for name, array in given.items() if name in names})
        for given in batches(data, batch)
    ]


def decibels(found: list[list[NDArray[Any]]], wanted: list[list[NDArray[Any]]]) -> float:
    """SQNR as a search scores it."""
    metric = Sqnr()
    state = metric.init()
    for ours, theirs in zip(found, wanted, strict=True):
        metric.update(state, ours, theirs, None)
    value = metric.result(state)
    return 200.0 if value is None else value


def statics(path: Path, calib: Sequence[Arrays], folder: Path) -> Iterator[Path]:
    """What quantize_static makes of a network and batches, of the configurations that it can."""
    prepared = path
    with suppress(Exception):  # its shape inference refuses some
        prepared = peers.prepare(path, folder)
    for method in ("MinMax", "Entropy", "Percentile"):
        for channels in (False, True):
            for kind in (QuantType.QUInt8, QuantType.QInt8):
                file = folder / f"{method}.{channels}.{kind}.onnx"
                with suppress(Exception), redirect_stdout(io.StringIO()):
                    quantize_static(
                        str(prepared),
                        str(file),
                        Reader(calib),
                        quant_format=QuantFormat.QDQ,
                        per_channel=channels,
                        activation_type=kind,
                        weight_type=QuantType.QInt8,
                        calibrate_method=getattr(CalibrationMethod, method),
                    )
                    yield file


def figures(name: str, data: Path, trials: int, folder: Path) -> dict[str, Any]:
    """Everything about one network."""
    path, calib, fresh = network(name, data)
    batch = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1
    wanted = outputs(peers.session(path), fresh, batch)
    theirs: dict[Path, float] = {}
    for file in statics(path, list(batches(calib, batch)), folder):
        with suppress(Exception):  # onnxruntime refuses some of its own
            theirs[file] = decibels(outputs(peers.session(file), fresh, batch), wanted)
    best = max(theirs, key=lambda file: theirs[file])
    result = qsearch.launch(
        path,
        calib=calib,
        eval=fresh,
        for_="qdq",
        metric="sqnr",
        trials=trials,
        pool="inline",
        out=folder / "run",
    )
    exported = qsearch.export(folder / "run", "qdq", folder / "ours.onnx")
    file = exported.files[0]
    ours, peer = peers.session(file), peers.session(best)
    one = next(batches(fresh, batch))
    once = alternated_ms({"": partial(outputs, ours, one, batch)}, ROUNDS)[""]
    times = max(1, round(TURN_MS / max(once, 1e-3)))

    def turn(session: Any) -> None:
        for _ in range(times):
            outputs(session, one, batch)

    ms = alternated_ms({"ours": partial(turn, ours), "peer": partial(turn, peer)}, ROUNDS)
    return {
        "score_db": result.summary["best"]["sqnr_db"],
        "file_db": decibels(outputs(ours, fresh, batch), wanted),
        "static_db": theirs[best],
        "static": best.stem,
        "bytes": file.stat().st_size / best.stat().st_size,
        "cpu": ms["ours"] / ms["peer"],
        "in_8_bits": exported.facts["in_8_bits"],
    }


def complaints(rows: dict[str, dict[str, Any]]) -> list[str]:
    """What misses its bar."""
    said = []
    for name, row in rows.items():
        if row["file_db"] < row["score_db"] - TELLING:
            said.append(
                f"{name}: the file has {row['file_db']:.2f} dB, {row['score_db']:.2f} scored"
            )
        if row["file_db"] < row["static_db"]:
            said.append(f"{name}: quantize_static has {row['static_db']:.2f} dB")
    for key, middle, most in (("bytes", 1.1, 1.5), ("cpu", 1.0, 1.3)):
        values = [row[key] for row in rows.values()]
        if statistics.median(values) > middle or max(values) > most:
            said.append(f"{key}: median {statistics.median(values):.2f}, worst {max(values):.2f}")
    return said


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [name for names in KINDS.values() for name in names]
    parser.add_argument("--networks", nargs="+", default=every)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = {}
    print(
        "| network | score | file | static | bytes | CPU |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name in asked.networks:
        with tempfile.TemporaryDirectory() as folder:
            row = rows[name] = figures(name, asked.data, asked.trials, Path(folder))
        values = [f"{row[key]:.2f}" for key in ("score_db", "file_db", "static_db", "bytes", "cpu")]
        print(f"| {name} | {' | '.join(values)} |", flush=True)
    said = complaints(rows)
    print("\n".join(said))
    if asked.json is not None:
        asked.json.write_text(json.dumps({"machine": machine(), "rows": rows, "said": said}))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
