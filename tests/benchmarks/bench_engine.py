"""CPU time of the integer engine relative to the float model on onnxruntime, by instruction set.

    python -m tests.benchmarks.bench_engine [--data DIR] [--isa vnni …] [--rounds N] [--json FILE]

For every model: the recommended configuration, calibrated on random inputs; the engine and the
float model take turns in one process, on one thread, one sample, ``time.thread_time``, the median
of the ratios, the Python call included. Also a dense layer of 128 x 768 x 3072, the CPU seconds
from the module to its first output, and how many outputs differ from the reference. Exits 1 where
an output differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiler import quantize, relay
from compiler.export.to_onnx.float_model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas, load_library
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.benchmarks.machine import machine

MODELS = ("efficientnet_lite0", "fashion_mobilenet", "fashion_resnet", "fashion_vit")
GEMM = (128, 768, 3072)
CALIBRATION_INPUTS = 4

Array = np.ndarray[Any, Any]


def ratio(engine: Callable[[], object], plain: Callable[[], object], rounds: int) -> float:
    """Median over rounds of CPU time engine / plain, the two taking turns."""
    found: list[float] = []
    for _ in range(rounds + 3):
        begin = time.thread_time()
        engine()
        middle = time.thread_time()
        plain()
        found.append((middle - begin) / (time.thread_time() - middle))
    return float(np.median(found[3:]))


def float_and_integers(path: Path) -> tuple[OrtExecutor, IRModule, Array]:
    """The float model, its module of integers, and an input."""
    mod, params = load(path)
    rng = np.random.default_rng(0)
    (param,) = [p for p in mod["main"].params if p.name_hint not in params]
    shape = param.tensor_type.concrete_shape
    batches = [
        {param.name_hint: rng.normal(size=shape).astype(np.float32)}
        for _ in range(CALIBRATION_INPUTS)
    ]
    with quantize.QConfig.recommended():
        integers = quantize.quantize(mod, params, batches)
    return OrtExecutor(path.read_bytes()), integers, batches[0][param.name_hint]


def dense() -> tuple[OrtExecutor, IRModule, Array, Array]:
    """A product of one size, in float and in integers."""
    rows, length, columns = GEMM
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (columns, length)).astype(np.int8)
    x = rng.integers(0, 256, (rows, length)).astype(np.uint8)
    op, given = relay.op, relay.var("x", x.shape, "uint8")
    wide = op.cast(op.nn.dense(given, relay.const(weight), out_dtype="int32"), dtype="int64")
    scaled = op.fixed_point_multiply(wide, multiplier=1518500250, shift=-12)
    mod = relay.module(op.cast(op.clip(scaled, a_min=0, a_max=255), dtype="uint8"))
    data = relay.var("x", x.shape)
    plain = relay.module(op.nn.dense(data, relay.const(weight.astype(np.float32))))
    return OrtExecutor(to_onnx(plain)), mod, x, x.astype(np.float32)


def measured(
    plain: OrtExecutor, mod: IRModule, given: Array, real: Array, isas: list[str], rounds: int
) -> dict[str, Any]:
    """Figures of one model on every instruction set."""
    wanted = ReferenceExecutor(mod).run([given])
    found: dict[str, Any] = {}
    for isa in isas:
        load_library(isa)
        begin = time.process_time()
        engine = EngineExecutor(mod, isa=isa)
        outputs = engine.run([given])
        ready = time.process_time() - begin
        found[isa] = {
            "ratio": ratio(partial(engine.run, [given]), partial(plain.run, [real]), rounds),
            "ready_cpu_s": ready,
            "host_steps": engine.host_steps,
            "differing": sum(int((a != b).sum()) for a, b in zip(wanted, outputs)),
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 where an output differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--isa", nargs="*", default=list(available_isas()))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"machine": machine(), "models": {}}
    for name in (*MODELS, "x".join(map(str, GEMM))):
        if name in MODELS:
            plain, mod, given = float_and_integers(options.data / f"{name}.onnx")
            real = given
        else:
            plain, mod, given, real = dense()
        found = measured(plain, mod, given, real, options.isa, options.rounds)
        results["models"][name] = found
        for isa, figures in found.items():
            print(f"{name:20} {isa:8}", *(f"{k} {v:.3g}" for k, v in figures.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
    every = [figures for found in results["models"].values() for figures in found.values()]
    return int(any(figures["differing"] for figures in every))


if __name__ == "__main__":
    sys.exit(main())
