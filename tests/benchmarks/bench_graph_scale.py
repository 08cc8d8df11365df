"""CPU time per node on residual chains of 1k and 100k operators.

    python -m tests.benchmarks.bench_graph_scale [--sizes 1000 100000] [--json FILE]

A block is Conv 1x1, BatchNormalization, Relu, Add; one operator is one ONNX node. The goal: at 100k
at most 1.2 times the time per node of 1k, and ``prerequisite_optimize`` of 100k below 20 s; the
command exits 1 where one is missed.

Every size has a process of its own, and so memory and a collector of its own. The processes take
turns, one at a time: half of the chains of 1k go through a stage right before the chain of 100k,
half of them right after it, so that a machine that is slow for a minute is slow for both.

Stages follow each other as in a compilation: each takes what the one before it has made, and passes
of ``prerequisite_optimize`` are timed where they run in it. A run never meets a graph that the same
stage has walked before: users compile a model once, and what the compiler and the processor still
hold of the graph would answer. So twelve chains of 1,000 operators, with weights of their own, take
turns, four of them in the long stages, and the mean time counts, as it does for the operators of
one long chain. Together they are larger than the caches of a core, and the long chain evicts them
from those that cores share. The collector is on; what is alive before a run is frozen, so that it
meets the objects of the run only. A short chain goes first, so that no run pays for imports.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4
BLOCK = 4
GOAL_RATIO = 1.2
GOAL_PREREQUISITE_SECONDS = 20.0
CHAINS, LONG_CHAINS, ALL_OPERATORS = 12, 4, 24_000
"""How many chains take turns, in long stages as well, and how many operators they may have."""
PASSES = ("SimplifyInference", "FoldConstant", "FoldScaleAxis", "CanonicalizeOps")
"""Those of ``prerequisite_optimize``."""
WARM_UP = 64
"""Operators of the chain that goes first."""


def residual_chain(operators: int, seed: int = 0) -> bytes:
    """An ONNX model of ``operators`` nodes: x = x + relu(bn(conv(x))), again and again.

    Weights are small enough that values stay finite however long the chain.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, value: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    value = "x"
    for i in range(operators // BLOCK):
        w = weight(f"w{i}", rng.normal(0, 1e-4, (CHANNELS, CHANNELS, 1, 1)))
        bn = [
            weight(f"gamma{i}", rng.uniform(0.9, 1.1, CHANNELS)),
            weight(f"beta{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"mean{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"var{i}", rng.uniform(0.9, 1.1, CHANNELS)),
        ]
        nodes += [
            helper.make_node("Conv", [value, w], [f"c{i}"], name=f"conv{i}"),
            helper.make_node("BatchNormalization", [f"c{i}", *bn], [f"b{i}"], name=f"bn{i}"),
            helper.make_node("Relu", [f"b{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("Add", [f"r{i}", value], [f"a{i}"], name=f"add{i}"),
        ]
        value = f"a{i}"
    shape = [1, CHANNELS, 2, 2]
    graph = helper.make_graph(
        nodes,
        "residual_chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


class Stopwatch:
    """CPU seconds of each run of each stage, and of ``PASSES`` where they run in one.

    Args:
        turn: entered with the name of a stage around half of its runs.
    """

    def __init__(self, turn: Callable[[str], AbstractContextManager[None]]) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._turn = turn
        self._started: list[float] = []
        self._ran: Counter[str] = Counter()

    def time(self, stage: str, run: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """What ``run`` makes of each chain, given what earlier stages made of it."""
        results: list[Any] = []
        chains = list(zip(*given, strict=True))
        half = (len(chains) + 1) // 2
        for share in (chains[:half], chains[half:]):
            with self._turn(stage):
                for values in share:
                    gc.collect()
                    gc.freeze()
                    self._ran.clear()
                    start = time.process_time()
                    results.append(run(*values))
                    self._add(stage, time.process_time() - start)
        return results

    def before(self, _mod: Any, _info: Any) -> None:
        """As an instrument of passes: start the clock of one."""
        self._started.append(time.process_time())

    def after(self, _mod: Any, info: Any) -> None:
        """Stop it."""
        seconds = time.process_time() - self._started.pop()
        if info.name in PASSES:
            self._ran[info.name] += 1
            again = ", again" if self._ran[info.name] > 1 else ""
            self._add(info.name + again, seconds)

    def _add(self, stage: str, seconds: float) -> None:
        self.seconds.setdefault(stage, []).append(seconds)

    def mean(self) -> dict[str, float]:
        """The mean run of every stage."""
        return {stage: statistics.fmean(runs) for stage, runs in self.seconds.items()}


def run_stages(models: Sequence[bytes], watch: Stopwatch) -> None:
    """Take chains through all stages, timed by ``watch``."""
    import compiler
    from compiler import transform
    from compiler.frontend.from_onnx.load import load
    from compiler.ir.blob import ModuleBlob
    from compiler.ir.infer_type import infer_module
    from compiler.ir.pass_context import PassContext
    from compiler.proof.derive import derive_static
    from compiler.qtypes.qconfig import QConfig
    from compiler.quantize import Calibration, build_candidate, mark, prerequisite_optimize

    loaded = watch.time("import", load, models)
    mods = [mod for mod, _ in loaded]
    texts = watch.time("print", compiler.text, mods)
    # Parsing leaves types open, so all of them are to be inferred.
    parsed = watch.time("parse", compiler.parse, texts)
    again = watch.time("InferType", infer_module, parsed)
    watch.time("structural_equal", compiler.structural_equal, mods, again)
    watch.time("structural_hash", compiler.structural_hash, mods)
    del texts, parsed, again
    blobs = watch.time("transport, pack", ModuleBlob.pack, mods)
    watch.time("transport, unpack", ModuleBlob.unpack, blobs)
    with PassContext(opt_level=3, instruments=(watch,)):
        optimized = watch.time(
            "prerequisite_optimize", lambda loaded: prerequisite_optimize(*loaded), loaded
        )
    del models, loaded, mods, blobs
    for name in (
        "CancelTransposes",
        "SimplifyExpr",
        "EliminateCommonSubexpr",
        "CanonicalizeCast",
        "DeadCodeElimination",
    ):
        watch.time(name, getattr(transform, name)(), optimized)
    for matcher in ("greedy", "optimal"):
        watch.time(f"FuseOpHW, {matcher}", transform.FuseOpHW("opu", matcher), optimized)
    qconfig = QConfig.recommended()
    watch.time("mark", lambda m: mark(m, qconfig), optimized)
    optimized = optimized[:LONG_CHAINS]
    rng = np.random.default_rng(1)
    data = [{"x": rng.normal(size=(1, CHANNELS, 2, 2)).astype("float32")} for _ in range(2)]
    scales = watch.time("calibrate", lambda m: Calibration(m, data).scales_for(qconfig), optimized)
    candidates = watch.time(
        "build_candidate", lambda m, s: build_candidate(m, qconfig, s), optimized, scales
    )
    del optimized, scales
    watch.time("proof", lambda candidate: derive_static(candidate.module), candidates)


def measure(operators: int, turns: Connection) -> None:
    """Time all stages on chains of one size, as often as ``turns`` gives a turn, and send it."""

    @contextmanager
    def turn(stage: str) -> Iterator[None]:
        turns.recv()
        yield
        turns.send(stage)

    run_stages([residual_chain(WARM_UP)], Stopwatch(lambda _: nullcontext()))
    count = max(min(CHAINS, ALL_OPERATORS // operators), 1)
    watch = Stopwatch(turn)
    run_stages([residual_chain(operators, seed) for seed in range(count)], watch)
    turns.recv()
    turns.send(watch.mean())


def measure_in_turns(sizes: Sequence[int]) -> dict[int, dict[str, float]]:
    """CPU seconds of every stage on a chain of each size, by stage name."""
    began = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    turns: dict[int, Connection] = {}
    processes = []
    for size in sorted(sizes):
        turns[size], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=measure, args=(size, theirs), daemon=True))
        processes[-1].start()
        theirs.close()

    def give(size: int) -> Any:
        turns[size].send(None)
        return turns[size].recv()

    while True:
        answers = {size: give(size) for size in turns}
        if not all(isinstance(answer, str) for answer in answers.values()):
            break
        for size in reversed(turns):
            stage = give(size)
        print(f"{time.monotonic() - began:5.0f} s  {stage}", file=sys.stderr, flush=True)
    for process in processes:
        process.join()
    return answers


def machine() -> dict[str, Any]:
    """Facts the figures depend on."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": onnx.__version__,
        "system": platform.platform(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--json", type=Path, help="file for the figures and the machine's facts")
    options = parser.parse_args()
    began = time.monotonic()
    runs = measure_in_turns(options.sizes)
    first, last = min(runs), max(runs)
    header = "  ".join(f"{f'{size:,}':>10}" for size in runs)
    print(f"{'CPU us per operator':<24} {header}   ratio")
    missed: list[str] = []
    for stage in runs[first]:
        per_node = {size: run[stage] / size * 1e6 for size, run in runs.items()}
        ratio = per_node[last] / per_node[first]
        print(f"{stage:<24} {'  '.join(f'{v:>10.2f}' for v in per_node.values())}   {ratio:5.2f}")
        if ratio > GOAL_RATIO:
            missed.append(f"{stage}: {ratio:.2f} times the time per operator of {first:,}")
    seconds = runs[last]["prerequisite_optimize"]
    print(f"prerequisite_optimize of {last:,}: {seconds:.1f} s CPU")
    if seconds > GOAL_PREREQUISITE_SECONDS:
        missed.append(f"prerequisite_optimize takes {seconds:.1f} s")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"in all: {spent.ru_utime + spent.ru_stime:.0f} s CPU, {time.monotonic() - began:.0f} s")
    if options.json:
        record = {"machine": machine(), "cpu_seconds": {str(k): v for k, v in runs.items()}}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
