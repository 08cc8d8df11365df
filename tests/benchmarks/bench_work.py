"""CPU time and memory per element of each operator: the figures behind proof/work.py.

    python -m tests.benchmarks.bench_work [part of a name …]

One line per call: nanoseconds per element of the reference, the integer ONNX and the generated C;
all 43 runs of a verification in units of 18 ns; peak memory per byte of operands and results.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir.inference.infer_type import infer_module
from compiler.ir.text.parser import parse
from compiler.proof.replay import REPLAY_FLAGS
from compiler.runtime.executor import Executor
from compiler.targets.c.executor import CExecutor
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor

CPU_SECONDS = 40
EXECUTORS: dict[str, tuple[int, Callable[[Any], Executor]]] = {
    "reference": (17, ReferenceExecutor),
    "integer ONNX": (13, lambda mod: IntegerExecutor(mod, "main")),
    "C": (13, lambda mod: CExecutor(mod, "main", REPLAY_FLAGS)),
}
"""Name → runs in a verification, and how it is made."""

ROWS = (4096, 1024)
PRODUCT = 'out_dtype="int32"'
# Name → body, shapes of %a, %b, …, elements (or multiplications) that the figure is divided by.
CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], int]] = {
    "add": ("add(%a, %b)", (ROWS, ROWS), 1 << 22),
    "where": ("where(less(%a, %b), %a, %b)", (ROWS, ROWS), 1 << 22),
    "clip": ("clip(%a, a_min=-5f, a_max=6f)", (ROWS,), 1 << 22),
    "transpose": ("transpose(%a, axes=[1, 0])", (ROWS,), 1 << 22),
    "tile": ("tile(%a, reps=[1, 64])", ((4096, 16),), 1 << 22),
    "repeat": ("repeat(%a, repeats=64, axis=1)", ((4096, 16),), 1 << 22),
    "sum": ("sum(%a, axis=[0])", (ROWS,), 1 << 22),
    "max": ("max(%a, axis=[1])", (ROWS,), 1 << 22),
    "shift": ("fixed_point_multiply(%a, multiplier=1073741824, shift=-2)", (ROWS,), 1 << 22),
    "take": ('take(%a, cast(%b, dtype="int32"), axis=0, mode="clip")', ((256,), ROWS), 1 << 22),
    "upsampling": ("nn.upsampling(%a, scale_h=8f, scale_w=8f)", ((1, 16, 64, 64),), 1 << 22),
    "dense": (f"nn.dense(%a, %b, {PRODUCT})", ((256, 1024), (256, 1024)), 1 << 26),
    "outer product": (f"nn.dense(%a, %b, {PRODUCT})", ((4096, 1), (1024, 1)), 1 << 22),
    "conv 3x3": (
        f"nn.conv2d(%a, %b, kernel_size=[3, 3], channels=32, padding=[1, 1, 1, 1], {PRODUCT})",
        ((1, 32, 64, 64), (32, 32, 3, 3)),
        32 * 64 * 64 * 32 * 9,
    ),
    "conv 32x32": (
        f"nn.conv2d(%a, %b, kernel_size=[32, 32], channels=1, {PRODUCT})",
        ((1, 1, 128, 128), (1, 1, 32, 32)),
        97 * 97 * 1024,
    ),
    "max pool": ("nn.max_pool2d(%a, pool_size=[32, 32])", ((1, 1, 128, 128),), 97 * 97 * 1024),
    "avg pool": ("nn.avg_pool2d(%a, pool_size=[32, 32])", ((1, 1, 128, 128),), 97 * 97 * 1024),
    "taps of a pool": ("nn.max_pool2d(%a, pool_size=[60, 60])", ((1, 1, 62, 62),), 3600),
}


def measured(name: str, dtype: str, executor: str) -> dict[str, Any]:
    """Seconds of CPU of one run after a first one, and bytes it took beside what was there."""
    body, shapes, _ = CASES[name]
    types = [f"Tensor[({', '.join(map(str, shape))},), {dtype}]" for shape in shapes]
    params = ", ".join(f"%{letter}: {ty}" for letter, ty in zip("ab", types))
    mod = infer_module(parse(f'#[version = "0.0.5"]\ndef @main({params}) {{\n  {body}\n}}'))
    rng = np.random.default_rng(0)
    values = {x: rng.integers(-127, 128, shape).astype(dtype) for x, shape in zip("ab", shapes)}
    made = EXECUTORS[executor][1](mod)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _status("VmRSS")
    results = made.run(values)
    grown = _status("VmHWM") - before
    begun = _cpu_s()
    made.run(values)
    size = sum(array.nbytes for array in (*values.values(), *results))
    return {"s": _cpu_s() - begun, "memory": grown / size}


def _status(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def in_child(*what: str) -> dict[str, Any]:
    """``measured`` in a process of its own; {"error": …} where it fails."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        try:
            found = measured(*what)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:40]}
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    found = json.loads(said or b'{"error": "killed"}')
    assert isinstance(found, dict)
    return found


def main(wanted: list[str]) -> None:
    """Print the table."""
    print(f"{'call':22}{'ns per element':>30}{'units':>8}  memory per byte")
    for name, (_, _, elements) in CASES.items():
        for dtype in ("int8", "int32", "int64"):
            if wanted and not any(word in name for word in wanted):
                continue
            rows = {executor: in_child(name, dtype, executor) for executor in EXECUTORS}
            times = [1e9 * row["s"] / elements if "s" in row else 0.0 for row in rows.values()]
            total = sum(runs * ns for (runs, _), ns in zip(EXECUTORS.values(), times))
            memory = " ".join(
                row.get("error", f"{row.get('memory', 0):.1f}") for row in rows.values()
            )
            shown = "".join(f"{ns:10.2f}" for ns in times)
            print(f"{name + ' ' + dtype:22}{shown}{total / 18:8.1f}  {memory}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
