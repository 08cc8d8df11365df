"""What each field of the configuration that ``compile`` chooses is worth: one left out at a time.

    python -m tests.benchmarks.bench_ablation [--networks NAME …] [--fields TITLE …] [--json FILE]

For every network (trained ones of ../shared/data, and untrained ones of common kinds), two numbers
of calibration samples and two draws of them: the module as ``compile`` alone chooses it, and with
one field changed. Decibels are signal to noise of the output against the float model on samples
that no calibration saw. The figures of a change are taken over the networks where it applies:

    gain    median of (as chosen - changed): what the field is worth, in dB
    worst   smallest and largest gain of a network, the mean of its draws
    CPU s   what the field costs, in the median

Rows are kept in the JSON file, and a second run goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import qsearch
from compiler.errors import CompilerError
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, MODELS, batch_of, read_split
from tests.benchmarks.scores import decibels
from tests.benchmarks.unseen_networks import NETWORKS

SAMPLES: Final = (32, 128)
SEEDS: Final = (0, 1)
JUDGED: Final = 128
"""Samples that judge; a quarter for networks of large images."""

CHANGES: Final[dict[str, dict[str, Any]]] = {
    "without mse ranges": {"calibrate_mode": "percentile"},
    "without zero points": {"activation_scheme": "unsigned"},
    "without mse weight scales": {"weight_scale": "max"},
    "without smooth_alpha": {"smooth_alpha": None},
    "without corrected biases": {"weight_rounding": "nearest"},
    "without sequential rounding": {"weight_rounding": "corrected"},
    "without wide inputs": {"layers": {}},
    "with smooth_alpha": {"smooth_alpha": 0.75},
    "with wide sums": {"layers": {"<sums>": {"nbit_input": 16}}},
    "with fixed_point": {"requantization": "fixed_point"},
}
"""What is changed, by title. A change that changes nothing does not apply."""


def inputs_of(name: str, count: int, seed: int, split: str) -> NDArray[Any]:
    """Samples of a network; other ones for each seed."""
    rng = np.random.default_rng([seed, split == "dev"])
    if name in MODELS:
        found = read_split(DATA, name, split, None).images
        return found[np.sort(rng.permutation(len(found))[:count])]
    x = onnx.load_model_from_string(_untrained(name)).graph.input[0]
    shape = [max(dim.dim_value, 1) for dim in x.type.tensor_type.shape.dim]
    if x.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
        return rng.normal(0, 1, (count, *shape[1:])).astype(np.float32)
    return rng.integers(0, 100, (count, *shape[1:]))


def _untrained(name: str) -> bytes:
    return NETWORKS[name]().SerializeToString()


def path_of(name: str, folder: Path) -> Path:
    """The file of a network."""
    if name in MODELS:
        return DATA / f"{name}.onnx"
    path = folder / f"{name}.onnx"
    path.write_bytes(_untrained(name))
    return path


def sqnr_db(module: Any, path: Path, data: NDArray[Any], batch: int) -> float:
    """Signal to noise of the first output."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options)
    name = session.get_inputs()[0].name
    signal = noise = 0.0
    for start in range(0, len(data) // batch * batch, batch):
        part = data[start : start + batch]
        wanted = session.run(None, {name: part})[0].astype(np.float64)
        found = np.asarray(module.run({name: part})[0], np.float64)
        signal += float(np.square(wanted).sum())
        noise += float(np.square(found - wanted).sum())
    return decibels(signal, noise)


def measure(name: str, samples: int, seed: int, rows: dict[str, Any], args: Any) -> None:
    """Add the rows of one network and one draw."""
    with tempfile.TemporaryDirectory() as folder:
        path = path_of(name, Path(folder))
        batch = batch_of(name) if name in MODELS else 1
        large = name.startswith("efficientnet_lite")
        calib = inputs_of(name, samples, seed, "calib")
        judged = inputs_of(name, JUDGED // 4 if large else JUDGED, 9, "dev")
        feed = onnxruntime.InferenceSession(str(path)).get_inputs()[0].name
        dim = {"N": batch} if name in MODELS else {}
        base: Mapping[str, Any] | None = None
        for title, change in {"as chosen": {}, **CHANGES}.items():
            key = "/".join((name, str(samples), str(seed), title))
            if key in rows:
                base = rows[key]["config"] if title == "as chosen" else base
                continue
            if title != "as chosen" and args.fields and title not in args.fields:
                continue
            config: Any = None if base is None else {**base, **change}
            if base is not None and config == base:
                continue
            begin = time.process_time()
            try:
                made = qsearch.quantize(path, {feed: calib}, config, dim=dim)
            except CompilerError as error:
                rows[key] = {"error": str(error).splitlines()[0]}
                continue
            taken = time.process_time() - begin
            base = made.qconfig.to_dict() if base is None else base
            found = {"dB": sqnr_db(made, path, judged, batch), "cpu_s": taken}
            rows[key] = {**found, **({"config": base} if title == "as chosen" else {})}
            if args.json:
                args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


def table(rows: Mapping[str, Any]) -> list[str]:
    """One line for each change."""
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    costs: dict[str, list[float]] = defaultdict(list)
    for key, row in rows.items():
        name, samples, seed, title = key.split("/")
        chosen = rows.get("/".join((name, samples, seed, "as chosen")), {})
        if title != "as chosen" and "dB" in row and "dB" in chosen:
            gains[title][name].append(chosen["dB"] - row["dB"])
            costs[title].append(chosen["cpu_s"] - row["cpu_s"])
    lines = [f"{'change':32} networks  gain, dB  worst … best                        CPU s"]
    for title in (t for t in CHANGES if t in gains):
        by_name = {name: float(np.mean(each)) for name, each in gains[title].items()}
        low, high = min(by_name, key=by_name.__getitem__), max(by_name, key=by_name.__getitem__)
        ends = f"{by_name[low]:6.2f} {low:17} … {by_name[high]:6.2f} {high:17}"
        median, cost = np.median(list(by_name.values())), np.median(costs[title])
        lines.append(f"{title:32} {len(by_name):8}  {median:8.2f}  {ends} {cost:6.2f}")
    return lines


def main() -> int:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser()
    known = [*MODELS, *NETWORKS]
    parser.add_argument("--networks", nargs="*", default=known, choices=known)
    parser.add_argument("--fields", nargs="*", choices=list(CHANGES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    if args.json and args.json.exists():
        rows = json.loads(args.json.read_text())["rows"]
    for seed in SEEDS:
        for samples in SAMPLES:
            for name in args.networks:
                measure(name, samples, seed, rows, args)
                print(f"{name}, {samples} samples, draw {seed}", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
