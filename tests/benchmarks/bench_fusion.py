"""CPU time per operator of FuseOps and FuseOpHW at 1k and 10k operators.

    python -m tests.benchmarks.bench_fusion [--sizes 1000 10000] [--json FILE]

Graphs: a chain of additions that read one shared constant; residual blocks (conv, add, relu, add);
dense blocks, where every layer reads all that came before it within twelve layers; long skips,
where every value is read again at the very end. A size is run in a process of its own, the least of
several runs counts. The goal: at the largest size at most 1.5 times the time per operator of the
smallest; the command exits 1 where it is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compiler import relay
from compiler.fusion.fuse_ops import FuseOps
from compiler.fusion.hardware.fuse_op_hw import FuseOpHW
from tests.benchmarks.machine import machine

GOAL_RATIO = 1.5
CHANNELS = 4
LEAST_RUNS = 5

op, nn = relay.op, relay.op.nn


def chain(operators: int) -> relay.IRModule:
    """z = z + 1, one constant for all."""
    x = relay.var("x", (4,))
    one = relay.const(1.0)
    z: relay.Expr = x
    for _ in range(operators):
        z = op.add(z, one)
    return relay.module(relay.Function((x,), z))


def _conv(x: relay.Expr) -> relay.Expr:
    weight = relay.const(np.zeros((CHANNELS, CHANNELS, 1, 1), "float32"))
    bias = relay.const(np.zeros((CHANNELS, 1, 1), "float32"))
    return op.add(nn.conv2d(x, weight), bias)


def residual(operators: int) -> relay.IRModule:
    """x = x + relu(conv(x) + b)."""
    image = relay.var("x", (1, CHANNELS, 4, 4))
    x: relay.Expr = image
    for _ in range(operators // 4):
        x = op.add(nn.relu(_conv(x)), x)
    return relay.module(relay.Function((image,), x))


def dense_blocks(operators: int) -> relay.IRModule:
    """Each layer adds up all layers of its block before it."""
    image = relay.var("x", (1, CHANNELS, 4, 4))
    x: relay.Expr = image
    made = 0
    while made < operators:
        layers: list[relay.Expr] = [x]
        for _ in range(12):
            total = layers[0]
            for layer in layers[1:]:
                total = op.add(total, layer)
            layers.append(nn.relu(_conv(total)))
            made += 3 + len(layers) - 2
        x = layers[-1]
    return relay.module(relay.Function((image,), x))


def long_skips(operators: int) -> relay.IRModule:
    """Every value of a chain is read again in a sum behind it."""
    x = relay.var("x", (4,))
    values: list[relay.Expr] = [x]
    for _ in range(operators // 2):
        values.append(op.tanh(values[-1]))
    total = values[-1]
    for value in reversed(values[:-1]):
        total = op.add(total, value)
    return relay.module(relay.Function((x,), total))


GRAPHS: dict[str, Callable[[int], relay.IRModule]] = {
    "chain": chain,
    "residual": residual,
    "dense_blocks": dense_blocks,
    "long_skips": long_skips,
}
PASSES: dict[str, Callable[[], Any]] = {"FuseOps": FuseOps, "FuseOpHW": FuseOpHW}


def measure(size: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU time per operator: pass → graph → figure."""
    found: dict[str, dict[str, float]] = {name: {} for name in PASSES}
    for graph, build in GRAPHS.items():
        mod = build(size)
        for name, make in PASSES.items():
            times: list[float] = []
            for _ in range(LEAST_RUNS):
                gc.collect()
                start = time.process_time()
                make()(mod)
                times.append(time.process_time() - start)
            found[name][graph] = 1e6 * min(times) / size
    return found


def main() -> int:
    """Measure every size in a process of its own; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        print(json.dumps(measure(options.only)))
        return 0
    command = [sys.executable, "-m", "tests.benchmarks.bench_fusion", "--only"]
    figures = {
        size: json.loads(
            subprocess.run([*command, str(size)], check=True, capture_output=True).stdout
        )
        for size in options.sizes
    }
    missed = False
    least, most = options.sizes[0], options.sizes[-1]
    print(f"{'pass':10} {'graph':14} " + " ".join(f"{s:>9}" for s in options.sizes) + "   ratio")
    for name in PASSES:
        for graph in GRAPHS:
            row = [figures[size][name][graph] for size in options.sizes]
            ratio = figures[most][name][graph] / figures[least][name][graph]
            missed |= ratio > GOAL_RATIO
            print(
                f"{name:10} {graph:14} " + " ".join(f"{v:6.1f} us" for v in row), f"  {ratio:.2f}"
            )
    if options.json is not None:
        record = {"machine": machine(), "us_per_operator": figures}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
