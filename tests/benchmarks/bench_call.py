"""CPU time of a call of small networks: ``run()`` and a prepared call against onnxruntime float.

    python -m tests.benchmarks.bench_call [NAME …] [--rounds 9] [--json FILE]

The networks are those of tests/e2e/zoo. Microseconds of the calling thread, the sides in turns, the
least of all rounds; ``kernels`` is a sample of a batch, without Python between the samples.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

import qsearch
from compiler.targets.engine.executor import EngineExecutor
from tests.benchmarks.machine import machine

FILES: Final = Path(__file__).parents[1] / "e2e" / "zoo"
TURN_US: Final = 20_000.0
SAMPLES: Final = 50
"""Of one call of the kernels."""


def sides_of(name: str) -> dict[str, Callable[[], object]]:
    """What takes turns, of one network."""
    stored = np.load(FILES / f"{name}.npz")
    calib = {
        key.removeprefix("calib."): array.astype("f4") if array.dtype == "f2" else array
        for key, array in stored.items()
        if key.startswith("calib.")
    }
    module = qsearch.quantize(FILES / f"{name}.onnx", calib)
    one = {
        key: np.ascontiguousarray(calib[key][: ty.concrete_shape[0]])
        for key, ty in module.input_types.items()
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(FILES / f"{name}.onnx"), options)
    engine = EngineExecutor(module.module)
    many = [np.concatenate([one[key]] * SAMPLES) for key in engine.input_names]
    return {
        "run": partial(module.run, one),
        "prepared": partial(module.prepare(), one),
        "kernels": partial(engine.run_batch, many, SAMPLES),
        "float": partial(session.run, None, one),
    }


def least_us(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds of one call of each."""
    least = dict.fromkeys(sides, np.inf)
    times = 10
    for number in range(rounds + 2):
        for name, work in sides.items():
            samples = SAMPLES if name == "kernels" else 1
            runs = max(1, times // samples)
            begin = time.thread_time()
            for _ in range(runs):
                work()
            took = 1e6 * (time.thread_time() - begin) / (runs * samples)
            least[name] = took if number < 2 else min(least[name], took)
        times = max(10, round(TURN_US / least["float"]))
    return least


def main(arguments: list[str] | None = None) -> int:
    """A line for each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = sorted(path.stem for path in FILES.glob("*.onnx"))
    parser.add_argument("names", nargs="*", default=known, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: dict[str, Any] = {}
    print(f"{machine()['isa']}: microseconds of CPU time")
    for name in options.names:
        found = least_us(sides_of(name), options.rounds)
        above, ratio = found["run"] - found["kernels"], found["run"] / found["float"]
        rows[name] = {**found, "above": above, "ratio": ratio}
        print(name, {key: round(value, 2) for key, value in rows[name].items()}, flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "networks": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
