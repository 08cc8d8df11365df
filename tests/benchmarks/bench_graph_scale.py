"""CPU time per node on residual chains of 1k and 100k operators.

    python -m tests.benchmarks.bench_graph_scale [--sizes 1000 100000] [--until STAGE]

A block is Conv 1x1, BatchNormalization, Relu, Add; one operator is one ONNX node. The goal: at 100k
at most 1.2 times the time per node of 1k, and ``prerequisite_optimize`` of 100k below 20 s; the
command exits 1 where one is missed.

Every size has a process of its own, and so memory and a collector of its own. One process runs at a
time. A timer of its own CPU time stops the long chain in the middle of a stage, again and again;
then some of the short chains go through the same stage, each from end to end. So the short runs are
spread evenly over the long run, and a machine that is slow for a second is slow for both. The first
short runs tell how long the turns of the long chain are. Short chains keep the turn for 20 ms: only
the first run of a turn finds code and data of the other process in the caches.

Behind each ratio stands its standard error, from the spread of the short runs. The long chain
is one run: what the places of its objects in memory change is not in this error.

Stages follow each other as in a compilation: each takes what the one before it has made, and passes
of ``prerequisite_optimize`` are timed where they run in it. A run never meets a graph that the same
stage has walked before: users compile a model once, and what the compiler and the processor still
hold of the graph would answer. So there are 24 chains of 1,000 operators, with weights of their
own, six of them in the long stages, and the mean time counts, as it does for the operators of the
one long chain. Together they are larger than the caches of a core, and the long chain evicts them
from those that cores share. The collector is on; what is alive before a run is frozen, so that it
meets the objects of the run only. A chain of 64 goes first, so that no run pays for imports.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import os
import platform
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4
BLOCK = 4
GOAL_RATIO = 1.2
GOAL_PREREQUISITE_SECONDS = 20.0
CHAINS, LONG_CHAINS, ALL_OPERATORS = 24, 6, 24_000
"""How many chains take turns, in long stages as well, and how many operators they may have."""
PASSES = ("SimplifyInference", "FoldConstant", "FoldScaleAxis", "CanonicalizeOps")
"""Those of ``prerequisite_optimize``."""
SHORT_TURN = 0.02
"""Seconds after which the short chains give the turn back."""
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


@dataclass(frozen=True, slots=True)
class Run:
    """CPU seconds of a stage on one chain, and of the ``PASSES`` in it; how many chains follow."""

    stage: str
    seconds: dict[str, float]
    left: int


def cpu_seconds() -> float:
    """Of all threads of this process.

    ``time.process_time`` counts in ticks of the kernel, of some milliseconds, while a timer of CPU
    time runs.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


PAUSE = None
"""What a process says whose turn ends in the middle of a run."""


class Stopwatch:
    """CPU seconds of each run of each stage, and of ``PASSES`` where they run in one.

    Args:
        turns: where runs wait for their turn and tell of its end; without it they do not wait.
    """

    def __init__(self, turns: Connection | None = None) -> None:
        self._turns = turns
        self._started: list[float] = []
        self._seconds: dict[str, float] = {}

    def time(self, stage: str, run: Callable[..., Any], *given: Sequence[Any]) -> list[Any]:
        """What ``run`` makes of each chain, given what earlier stages made of it."""
        results: list[Any] = []
        chains = list(zip(*given, strict=True))
        while chains:
            allowed = self._turns.recv() if self._turns else 0.0
            gc.collect()
            gc.freeze()
            self._seconds = {}
            values = chains.pop(0)
            signal.setitimer(signal.ITIMER_PROF, allowed)
            start = cpu_seconds()
            results.append(run(*values))
            self._seconds[stage] = cpu_seconds() - start
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            if self._turns:
                self._turns.send(Run(stage, self._seconds, len(chains)))
        return results

    def pause(self, _signal: int, _frame: Any) -> None:
        """Handler of the timer: end this turn and wait for the next."""
        assert self._turns is not None
        self._turns.send(PAUSE)
        signal.setitimer(signal.ITIMER_PROF, self._turns.recv())

    def before(self, _mod: Any, _info: Any) -> None:
        """As an instrument of passes: start the clock of one."""
        self._started.append(cpu_seconds())

    def after(self, _mod: Any, info: Any) -> None:
        """Stop it."""
        seconds = cpu_seconds() - self._started.pop()
        if info.name in PASSES:
            name = f"{info.name}, again" if info.name in self._seconds else info.name
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def run_stages(models: Sequence[bytes], watch: Stopwatch) -> None:
    """Take chains through all stages, timed by ``watch``."""
    import compiler
    from compiler import transform
    from compiler.frontend.from_onnx.load import load
    from compiler.ir.blob import ModuleBlob
    from compiler.ir.inference.infer_type import infer_module
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
        "HoistEpilogues",
        "SimplifyExpr",
        "EliminateCommonSubexpr",
        "CanonicalizeCast",
        "DeadCodeElimination",
    ):
        watch.time(name, getattr(transform, name)(), optimized)
    watch.time("FuseOpHW", transform.FuseOpHW("opu"), optimized)
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
    """Time all stages on chains of one size, each run at its turn."""
    run_stages([residual_chain(WARM_UP)], Stopwatch())
    watch = Stopwatch(turns)
    signal.signal(signal.SIGPROF, watch.pause)
    run_stages([residual_chain(operators, seed) for seed in range(chains_of(operators))], watch)


def chains_of(operators: int) -> int:
    """How many chains of a size take turns."""
    return max(min(CHAINS, ALL_OPERATORS // operators), 1)


class Turns:
    """Processes that time all stages on chains of one size each; one of them runs at a time.

    Attributes:
        seconds: of every run so far, by size and stage.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.seconds: dict[int, dict[str, list[float]]] = {size: {} for size in sorted(set(sizes))}
        self._left = dict.fromkeys(self.seconds, 0)
        self._pipes: dict[int, Connection] = {}
        self._processes: list[SpawnProcess] = []
        spawn = multiprocessing.get_context("spawn")
        for size in self.seconds:
            self._pipes[size], theirs = spawn.Pipe()
            process = spawn.Process(target=measure, args=(size, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            theirs.close()

    def end(self) -> None:
        """End all processes, whatever stage is next."""
        for process in self._processes:
            process.terminate()
            process.join()

    def give(self, size: int, allowed: float = 0.0) -> Run | None:
        """Let one process run: to the end of a run, or for ``allowed`` seconds if it is not 0.

        Raises:
            EOFError: there are no stages left.
        """
        self._pipes[size].send(allowed)
        run: Run | None = self._pipes[size].recv()
        if run is not PAUSE:
            for stage, seconds in run.seconds.items():
                self.seconds[size].setdefault(stage, []).append(seconds)
            self._left[size] = run.left
        return run

    def stage(self) -> str:
        """Let all processes run the next stage; its name.

        Raises:
            EOFError: there are no stages left.
        """
        first, last = min(self.seconds), max(self.seconds)
        self._left = dict.fromkeys(self.seconds, 1)
        begun = self._short_turn(first)
        # The first short chains tell how long the turns of the long chain are.
        spent = self.seconds[first][begun.stage]
        all_of_last = statistics.fmean(spent) / first * last * chains_of(last)
        allowed = all_of_last * len(spent) / (len(spent) + begun.left)
        while any(self._left.values()):
            for size in reversed(self.seconds):
                if self._left[size] and size == last:
                    self.give(size, allowed)
                elif self._left[size]:
                    self._short_turn(size)
        return begun.stage

    def _short_turn(self, size: int) -> Run:
        spent = 0.0
        while True:
            run = self.give(size)
            assert run is not PAUSE
            spent += run.seconds[run.stage]
            if not run.left or spent >= SHORT_TURN:
                return run


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


def standard_error(runs: Sequence[float]) -> float:
    """Of the mean of some runs, as a share of it."""
    if len(runs) < 2:
        return 0.0
    return statistics.stdev(runs) / math.sqrt(len(runs)) / statistics.fmean(runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--until", default="proof", metavar="STAGE", help="the last one to time")
    parser.add_argument("--json", type=Path, help="file for the figures and the machine's facts")
    options = parser.parse_args()
    began = time.monotonic()
    turns, stage = Turns(options.sizes), ""
    while stage != options.until:
        stage = turns.stage()
        print(f"{time.monotonic() - began:5.0f} s  {stage}", file=sys.stderr, flush=True)
    turns.end()
    runs = turns.seconds
    first, last = min(runs), max(runs)
    header = "  ".join(f"{f'{size:,}':>10}" for size in runs)
    print(f"{'CPU us per operator':<24} {header}   ratio")
    missed: list[str] = []
    for stage, short in runs[first].items():
        per_node = {size: statistics.fmean(run[stage]) / size * 1e6 for size, run in runs.items()}
        ratio = per_node[last] / per_node[first]
        error = ratio * standard_error(short)
        figures = "  ".join(f"{v:>10.2f}" for v in per_node.values())
        print(f"{stage:<24} {figures}   {ratio:5.2f} +- {error:.2f}")
        if ratio > GOAL_RATIO:
            missed.append(f"{stage}: {ratio:.2f} times the time per operator of {first:,}")
    for seconds in runs[last].get("prerequisite_optimize", [])[:1]:
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
