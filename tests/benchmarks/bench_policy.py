"""What each part of the search's policy is worth: a search of 16 trials with one part left out.

    python -m tests.benchmarks.bench_policy [--networks NAME …] [--seeds 2] [--json FILE]

Networks are those of ../shared/data and of tests/e2e/zoo. Decibels are the best SQNR after all
trials, on samples that no calibration saw; the float model is the reference. Rows are kept in the
JSON file, and a second run goes on where the first one stopped.

    as it is       good guesses, then a Gaussian process, and TPE for one proposal of eight
    no guesses     what the statistics suggest and the start, then the Gaussian process
    no process     TPE makes all proposals behind the guesses
    single changes the process changes one value of a good trial, never two
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import qsearch
from qsearch.search import sampler
from qsearch.search.surrogate import Refinement
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, MODELS, batch_of, read_split

ZOO: Final = Path(__file__).parents[1] / "e2e" / "zoo"
NETWORKS: Final = ("digits_cnn", "fashion_mobilenet", "tcn", "segformer_head")
TRIALS: Final = 16

Arrays = dict[str, NDArray[Any]]


def _single(refinement: Refinement, params: Mapping[str, Any], rng: Any) -> Any:
    return refinement.space.changed(params, rng)


ARMS: Final[dict[str, Any]] = {
    "as it is": contextlib.nullcontext(),
    "no guesses": patch.object(sampler, "_GUESSES", 0),
    "no process": patch.object(Refinement, "propose", lambda *_: None),
    "single changes": patch.object(Refinement, "_changed", _single),
}


def data_of(name: str) -> tuple[Path, Arrays, Arrays]:
    """The model, its calibration inputs, and inputs that judge."""
    if name in MODELS:
        splits = [read_split(DATA, name, part, 384, batch_of(name)) for part in ("calib", "dev")]
        calib, dev = ({"input": split.images} for split in splits)
        return DATA / f"{name}.onnx", calib, dev
    with np.load(ZOO / f"{name}.npz") as stored:
        half = {k: a.astype("float32") if a.dtype == "float16" else a for k, a in stored.items()}
    calib, dev = (
        {k.removeprefix(part): a for k, a in half.items() if k.startswith(part)}
        for part in ("calib.", "fresh.")
    )
    return ZOO / f"{name}.onnx", calib, dev


def searched(name: str, seed: int) -> dict[str, float]:
    """The best SQNR of a search, and what it took."""
    model, calib, dev = data_of(name)
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = qsearch.launch(
            model,
            calib=calib,
            eval=dev,
            metric="sqnr",
            trials=TRIALS,
            seed=seed,
            batch=2,
            pool="inline",
            out=folder,
            progress=False,
        )
    done = [t.outcome.score or {} for t in result.trials if t.state == "complete"]
    return {
        "db": max(score["sqnr_db"] or 0.0 for score in done),
        "cpu_s": time.process_time() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, default=Path("policy.json"))
    args = parser.parse_args()
    rows = json.loads(args.json.read_text()) if args.json.exists() else {}
    print(machine())
    for name in args.networks:
        for arm in args.arms:
            for seed in range(args.seeds):
                key = f"{name}, {arm}, {seed}"
                if key not in rows:
                    with ARMS[arm]:
                        rows[key] = searched(name, seed)
                    args.json.write_text(json.dumps(rows, indent=1))
            found = [rows[f"{name}, {arm}, {seed}"] for seed in range(args.seeds)]
            told = " ".join(f"{row['db']:.2f}" for row in found)
            print(f"{name:20} {arm:16} {told} dB, {mean(r['cpu_s'] for r in found):.0f} CPU s")


if __name__ == "__main__":
    main()
