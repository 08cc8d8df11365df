"""Files as large as ``verify`` lets through: CPU seconds and memory for each kind of work.

    python -m tests.benchmarks.bench_limits [part of a name …] [--share 0.1]

Each module multiplies nothing, or little, and is made as large as a share of the limits of
``check_work`` allows by halving its number of elements. Printed are what it declares, and what
``qsearch verify`` took in a process of its own. More memory than declared beside 0.2 GB, or more
CPU seconds than all its runs declare beside the first line, which is a small module: then the
figures in compiler/proof/work.py are too low.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.proof.work import (
    MAX_CPU_S,
    MAX_EXTRA_BYTES,
    Work,
    declared_work,
    replay_inputs,
    run_seconds,
)
from compiler.runtime.artifact import QModule
from compiler.targets.reference.executor import ReferenceExecutor
from tests.benchmarks.bench_true_size import command

MOST_ELEMENTS = 1 << 27
MODULE = """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(SHAPE), float32]) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_min=-100f, a_max=100f);
  %3 = cast(%2, dtype="int8");
  (%3,)
}
def @quantized_main(%q: Tensor[(SHAPE), int8]) {
CORE
}
def @dequantize_outputs(%r: RESULT) {
  %0 = cast(%r, dtype="float32");
  multiply(%0, 0.5f)
}
def @main(%x: Tensor[(SHAPE), float32]) {
  %0 = @quantize_inputs(%x);
  %1 = @quantized_main(%0.0);
  %2 = @dequantize_outputs(%1);
  %2
}
"""
_rng = np.random.default_rng(0)
CONSTANTS = {
    "TABLE": _rng.integers(-100, 100, 256).astype("int8"),
    "ROWS": _rng.integers(0, 1024, 1024).astype("int32"),
    "WIDE": _rng.integers(-3, 3, (64, 1024)).astype("int32"),
    "TAPS": _rng.integers(-3, 3, (64, 1, 31, 31)).astype("int8"),
    "GROUPS": _rng.integers(-3, 3, (4096, 1, 1, 1)).astype("int8"),
    "ONES": np.ones((1024, 1), "int8"),
    "SEVEN": np.int8(7),
}
Shape = tuple[int, ...]
Case = tuple[Callable[[int], Shape], Sequence[str]]


def rows(elements: int) -> Shape:
    return 1, 512, max(1, elements // 512)


def image(elements: int) -> Shape:
    side = max(40, int(elements**0.5))
    return 1, 1, side, side


def chain(operator: str, times: int, *before: str) -> list[str]:
    """Operators one behind the other; ``@`` is what the one before gives."""
    return [*before, *[operator] * times]


INT32, INT64 = 'cast(@, dtype="int32")', 'cast(@, dtype="int64")'
PRODUCT = 'out_dtype="int32"'
CASES: dict[str, Case] = {
    "nothing": (lambda _: (1, 8, 8), chain("nn.relu(@)", 1)),
    "relu": (rows, chain("nn.relu(@)", 10)),
    "lookup": (rows, chain("lookup(@, TABLE)", 10)),
    "transpose": (rows, chain("transpose(@, axes=[0, 2, 1])", 10)),
    "reshape": (rows, chain("squeeze(expand_dims(@, axis=0), axis=[0])", 20)),
    "take": (lambda n: (1024, max(1, n // 1024)), chain("take(@, ROWS, axis=0)", 5)),
    "concatenate 64, axis 1": (rows, [f"concatenate(({', '.join(['@'] * 64)}), axis=1)"]),
    "concatenate 64, axis 2": (rows, [f"concatenate(({', '.join(['@'] * 64)}), axis=2)"]),
    "int64 multiply": (rows, chain("multiply(@, 2i64)", 10, INT64)),
    "int64 factor": (
        rows,
        chain("fixed_point_multiply(@, multiplier=2000000000, shift=0)", 10, INT64),
    ),
    "int32 right_shift": (rows, chain("right_shift(@, 1)", 10, INT32)),
    "int32 dense": (
        lambda n: (max(1, n // 1024), 1024),
        [INT32, f"nn.dense(@, WIDE, {PRODUCT})"],
    ),
    "standardize": (rows, ["nn.integer_standardize(@, epsilon=3, root_bits=4)"]),
    "sum": (rows, [INT32, "sum(@, axis=[1])"]),
    "argmax": (rows, ["argmax(@, axis=[2])"]),
    "max_pool2d 32x32": (image, ["nn.max_pool2d(@, pool_size=[32, 32])"]),
    "max_pool2d 9x9": (
        image,
        chain("nn.max_pool2d(@, pool_size=[9, 9], padding=[4, 4, 4, 4])", 4),
    ),
    "avg_pool2d 32x32": (image, [INT32, "nn.avg_pool2d(@, pool_size=[32, 32])"]),
    "upsampling": (image, ["nn.upsampling(@, scale_h=8f, scale_w=8f)"]),
    "batch_matmul 8x8": (
        lambda n: (max(1, n // 64), 8, 8),
        [f"nn.batch_matmul(@, @, {PRODUCT})"],
    ),
    "pad": (rows, chain("nn.pad(@, SEVEN, pad_width=[[0, 0], [64, 64], [2, 2]])", 4)),
    "pad to 4096 times": (
        lambda n: (1, 8, max(1, n // 4096), 1),
        ["nn.pad(@, SEVEN, pad_width=[[0, 0], [252, 252], [0, 0], [31, 32]])"],
    ),
    "split 64": (rows, chain("concatenate(split(@, indices_or_sections=64, axis=1), axis=1)", 4)),
    "where": (rows, chain("where(less(@, SEVEN), @, SEVEN)", 5)),
    "outer product": (lambda n: (n, 1), [f"nn.dense(@, ONES, {PRODUCT})"]),
    "depthwise 31x31": (
        lambda n: (1, 64, *[max(32, int((n / 64) ** 0.5))] * 2),
        [f"nn.conv2d(@, TAPS, groups=64, kernel_size=[31, 31], channels=64, {PRODUCT})"],
    ),
    "4096 groups": (
        lambda n: (1, 4096, max(1, n // 4096), 1),
        [f"nn.conv2d(@, GROUPS, groups=4096, kernel_size=[1, 1], channels=4096, {PRODUCT})"],
    ),
}


def module_of(shape: Shape, operators: Sequence[str]) -> IRModule:
    """The operators between a usual beginning and end."""
    lines, value = [], "%q"
    for number, operator in enumerate(operators):
        lines.append(f"  %{number} = {operator.replace('@', value)};")
        value = f"%{number}"
    core = "\n".join([*lines, f"  {value}"])
    used = [name for name in CONSTANTS if re.search(rf"\b{name}\b", core)]
    for place, name in enumerate(used):
        core = re.sub(rf"\b{name}\b", f"meta[relay.Constant][{place}]", core)
    held = [
        {
            "dtype": str(CONSTANTS[name].dtype),
            "shape": list(CONSTANTS[name].shape),
            "b64": base64.b64encode(CONSTANTS[name].tobytes()).decode(),
        }
        for name in used
    ]
    tail = f"\n#[metadata]\n{json.dumps({'relay.Constant': held})}\n" if held else ""
    text = MODULE.replace("SHAPE", ", ".join(map(str, shape))).replace("CORE", core)
    start = text.index("def @quantized_main")
    alone = text[start : text.index("def @dequantize_outputs")]
    core_function = infer_module(parse(f'#[version = "0.0.5"]\n{alone}{tail}'))["quantized_main"]
    result = core_function.checked_type.ret_type  # type: ignore[attr-defined]  # a function's
    return infer_module(parse(text.replace("RESULT", str(result)) + tail))


def largest(case: Case, share: float) -> tuple[IRModule, Shape, Work]:
    """The module with most elements within a share of the limits."""
    shape_of, operators = case
    low, high = 1 << 10, MOST_ELEMENTS
    best = None
    while best is None or high > 1.02 * low:
        size = low if best is None else int((low * high) ** 0.5)
        mod = module_of(shape_of(size), operators)
        work = declared_work(mod)
        if work.memory < share * MAX_EXTRA_BYTES and run_seconds(work) < share * MAX_CPU_S:
            low, best = size, (mod, shape_of(size), work)
            if shape_of(MOST_ELEMENTS) == shape_of(size):
                break
        else:
            high = size
            if best is None:
                break
    assert best is not None
    return best


def verified(mod: IRModule, shape: Shape) -> tuple[int, float, int]:
    """Exit code, CPU seconds and resident MB of ``qsearch verify``."""
    given = {"x": _rng.normal(size=shape).astype("float32")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.qmod"
        QModule(mod, samples=[(given, ReferenceExecutor(mod).run(given))]).save(path)
        return command("verify", str(path), "-o", str(Path(folder) / "proof.json"))[:3]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--share", type=float, default=0.99)
    args = parser.parse_args()
    for name, case in CASES.items():
        if args.names and not any(word in name for word in args.names):
            continue
        mod, shape, work = largest(case, args.share)
        code, used, resident = verified(mod, shape)
        runs, once = replay_inputs(work), run_seconds(work)
        declared = f"{runs:3} runs of {once:5.2f} s, {work.memory >> 20:5} MB"
        took = f"exit {code}, {used:5.1f} CPU s, {resident:5} MB"
        print(f"{name:24}{declared}; {took}; {list(shape)}", flush=True)


if __name__ == "__main__":
    main()
