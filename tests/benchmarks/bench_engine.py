"""CPU time of the integer engine relative to onnxruntime, float and int8, by instruction set.

    python -m tests.benchmarks.bench_engine [--data DIR] [--models NAME …] [--isa vnni …]
        [--rounds N] [--threads N] [--json FILE]

For every model: the recommended configuration, calibrated on random inputs; the engine, the float
model and what quantize_static makes of it (QDQ; u8s8 and s8s8 per channel, u8u8 per tensor), each
in turns with the engine in one process, on one thread, one sample, ``time.thread_time``, the median
of the ratios, the Python call included. ``--models unseen`` takes the networks of
unseen_networks.py, ``products`` those of products.py, ``true-size`` ResNet-50, ViT-base and
BERT-base, all with seeded weights. Also a dense layer of 128 x 768 x 3072, the share of what a core
adds up at most (peak.py), the CPU seconds from the module to its first output, and how many outputs
differ from the reference. With ``--threads N`` also the wall time of one sample in N threads over
that of the float model in as many. Exits 1 where an output differs.

onnxruntime uses what the processor has, whatever ``--isa`` says: on a processor with AVX512-VNNI
the ratios of "avx2" compare AVX2 with AVX512-VNNI, unless avx2_only.py runs this. Without VNNI its
u8s8 saturates (the table says so): it is fast there and wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiler import quantize, relay
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas, load_library
from compiler.targets.engine.peak import peak_macs
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.benchmarks import onnxruntime_peers
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.products import PRODUCTS, TRUE_SIZE, model_of
from tests.benchmarks.unseen_networks import NETWORKS

MODELS = ("efficientnet_lite0", "fashion_mobilenet", "fashion_resnet", "fashion_vit")
GEMM = (128, 768, 3072)
CALIBRATION_INPUTS = 4
INT8 = {"u8s8": (True, False), "u8u8": (True, True), "s8s8": (False, False)}
"""Activations and weights without a sign. With a zero point a channel, u8u8 has no fast kernel."""

Array = np.ndarray[Any, Any]


def ratios(
    engine: Callable[[], object], peers: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Medians over rounds of CPU time engine / peer; the engine takes turns with one at a time.

    With other peers in between, the weights of small models leave the caches: 8 % for
    fashion_mobilenet.
    """
    found: dict[str, float] = {}
    for name, peer in peers.items():
        of_rounds = []
        for _ in range(rounds + 3):
            begin = time.thread_time()
            engine()
            middle = time.thread_time()
            peer()
            of_rounds.append((middle - begin) / (time.thread_time() - middle))
        found[name] = float(np.median(of_rounds[3:]))
    return found


def as_given(x: Array) -> Array:
    """An input as the float model takes it: bytes are floats there."""
    return x.astype(np.float32) if x.dtype == np.uint8 else x


def wall_ratio(
    engine: EngineExecutor, model: bytes, given: Array, threads: int, rounds: int
) -> float:
    """Wall time of one sample over that of the float model, the median of rounds, both in threads.

    One after the other: threads of onnxruntime wait for work as long as a run takes.
    """
    peer = OrtExecutor(model, threads=threads)
    runs: tuple[Callable[[], object], ...] = (
        partial(engine.run_arrays, [given], threads),
        partial(peer.run, [as_given(given)]),
    )
    seconds = []
    for run in runs:
        time.sleep(0.1)
        of_rounds = []
        for _ in range(rounds + 3):
            begin = time.perf_counter()
            run()
            of_rounds.append(time.perf_counter() - begin)
        seconds.append(float(np.median(of_rounds[3:])))
    return seconds[0] / seconds[1]


def peers_of(float_model: bytes, real: list[Array]) -> dict[str, Callable[[], object]]:
    """The float model and its int8 forms as onnxruntime runs them by default, on one thread."""
    plain = OrtExecutor(float_model)
    found: dict[str, Callable[[], object]] = {"float": partial(plain.run, [real[0]])}
    with tempfile.TemporaryDirectory(prefix="qsearch-bench-") as folder:
        source = Path(folder) / "float.onnx"
        source.write_bytes(float_model)
        prepared = onnxruntime_peers.prepare(source, Path(folder))
        for name, (unsigned, unsigned_weights) in INT8.items():
            peer = onnxruntime_peers.Peer(
                "MinMax", not unsigned_weights, unsigned, unsigned_weights=unsigned_weights
            )
            images, batch = np.concatenate(real), len(real[0])
            path, _ = onnxruntime_peers.quantize(prepared, peer, images, Path(folder), batch)
            found[name] = partial(OrtExecutor(path.read_bytes()).run, [real[0]])
    return found


def float_and_integers(path: Path | bytes) -> tuple[bytes, IRModule, list[Array]]:
    """The float model, its module of integers, and inputs."""
    model = path if isinstance(path, bytes) else path.read_bytes()
    mod, params = load(model)
    rng = np.random.default_rng(0)
    (param,) = [p for p in mod["main"].params if p.name_hint not in params]
    shape, dtype = param.tensor_type.concrete_shape, param.tensor_type.dtype
    inputs: list[Array] = [
        rng.normal(size=shape).astype(dtype)
        if dtype == "float32"
        else rng.integers(0, 1000, shape).astype(dtype)
        for _ in range(CALIBRATION_INPUTS)
    ]
    with quantize.QConfig.recommended():
        integers = quantize.quantize(mod, params, [{param.name_hint: x} for x in inputs])
    return model, integers, inputs


def dense() -> tuple[bytes, IRModule, list[Array]]:
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
    return to_onnx(plain).SerializeToString(), mod, [x]


def measured(
    peers: Mapping[str, Callable[[], object]],
    model: bytes,
    mod: IRModule,
    given: Array,
    isas: list[str],
    rounds: int,
    threads: int,
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
            **ratios(partial(engine.run, [given]), peers, rounds),
            "of_peak": share_of_peak(engine, given, isa, rounds),
            "ready_cpu_s": ready,
            "differing": sum(int((a != b).sum()) for a, b in zip(wanted, outputs)),
        }
        if threads > 1:
            found[isa][f"wall_{threads}_threads"] = wall_ratio(
                engine, model, given, threads, rounds
            )
    return found


def share_of_peak(engine: EngineExecutor, given: Array, isa: str, rounds: int) -> float:
    """Products a second of a run, over those that a core adds up at most."""
    taken = alternated_ms({"": partial(engine.run, [given])}, rounds)[""]
    peak = peak_macs(isa)
    return sum(step.macs for step in engine.steps) / (1e-3 * taken) / peak if peak else np.nan


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 where an output differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--models", nargs="*", default=[*MODELS, "x".join(map(str, GEMM))])
    parser.add_argument("--isa", nargs="*", default=list(available_isas()))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"machine": machine(), "models": {}}
    isa = results["machine"]["isa"]
    print(isa, "(u8s8 of onnxruntime saturates here)" if isa.startswith("AVX2") else "")
    sets = {"unseen": NETWORKS, "products": PRODUCTS, "true-size": TRUE_SIZE}
    for name in [each for model in options.models for each in sets.get(model, [model])]:
        if name in PRODUCTS or name in TRUE_SIZE:
            model, mod, inputs = float_and_integers(model_of(name))
        elif name in NETWORKS:
            model, mod, inputs = float_and_integers(NETWORKS[name]().SerializeToString())
        elif name in MODELS:
            model, mod, inputs = float_and_integers(options.data / f"{name}.onnx")
        else:
            model, mod, inputs = dense()
        peers = peers_of(model, [as_given(x) for x in inputs])
        found = measured(peers, model, mod, inputs[0], options.isa, options.rounds, options.threads)
        results["models"][name] = found
        for isa, figures in found.items():
            print(f"{name:20} {isa:8}", *(f"{k} {v:.3g}" for k, v in figures.items()), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
    every = [figures for found in results["models"].values() for figures in found.values()]
    return int(any(figures["differing"] for figures in every))


if __name__ == "__main__":
    sys.exit(main())
