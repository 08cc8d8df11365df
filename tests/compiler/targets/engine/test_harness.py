"""Plans run by a C program: under sanitizers, and for instruction sets this machine may lack."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler.targets.engine.executor  # noqa: F401  # registers rules of operators
from compiler import relay
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.targets.engine.isa import HERE, ISAS
from compiler.targets.engine.library import Library
from compiler.targets.engine.plan import Plan
from compiler.targets.engine.planner import plan_function
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.targets.engine.kernel_cases import drawn, requantized, shifted_to_even
from tests.needs import NEEDS_C, skip

pytestmark = NEEDS_C

Array = np.ndarray[Any, Any]
HARNESS = Path(__file__).parent / "harness.c"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FACTS = {
    "amx": (4, 1, 16, 4, 0, 1, False, False, False, True, False, True, 16),
    "vnni": (4, 1, 16, 4, 0, 1, False, False, False, True, False, True),
    "avxvnni": (4, 1, 8, 1, 0, 1, False, False, False, True, True, False),
    "avx2": (2, 2, 8, 1, 0, 1, True, False, True, True, True, False),
    "i8mm": (4, 1, 1, 1, 0, 0, False, False, False, True, False, False, 2),
    "neon": (4, 1, 1, 1, 128, 0, False, False, False, True, False, False),
    "generic": (2, 2, 1, 1, 0, 0, True, True, False, False, False, False),
}
"""What each header says of itself, for instruction sets that cannot be loaded here; weights of 4
bits are taken as such in products of any size."""


@cache
def cases() -> list[tuple[IRModule, list[Array], list[Array]]]:
    """A network of most kernels, tails everywhere: extreme and random inputs, and its outputs."""
    op, rng = relay.op, np.random.default_rng(0)
    x = relay.var("x", (1, 3, 11, 9), "uint8")

    def conv(
        data: Any, shape: tuple[int, ...], bits: int = 8, wide: bool = False, **how: Any
    ) -> Any:
        weight = relay.const(drawn(rng, shape, "int8", False) >> np.int8(8 - bits))
        made = op.nn.conv2d(data, weight, out_dtype="int32", **how)
        return requantized(made, shape[0], 1, rng, wide)

    first = conv(x, (21, 3, 3, 3), padding=1, strides=(2, 2))
    same = conv(first, (21, 1, 3, 3), padding=1, groups=21)
    even = conv(
        op.concatenate((same, same, same, same), axis=1), (84, 1, 5, 5), padding=2, groups=84
    )
    less = conv(even, (84, 1, 3, 3), padding=1, strides=(2, 2), groups=84)
    deep = conv(first, (21, 1, 5, 3), padding=(2, 1, 2, 1), groups=21)
    left = conv(deep, (70, 21, 1, 1), bits=7)
    right = (
        conv(deep, (70, 7, 3, 3), padding=1, groups=3)
        if 70 % 3 == 0
        else conv(deep, (70, 21, 3, 3), padding=2, dilation=(2, 2))
    )
    total = op.add(op.cast(left, dtype="int32"), op.cast(right, dtype="int32"))
    wide = op.cast(total, dtype="int64")
    scaled = op.fixed_point_multiply(wide, multiplier=1268764032, shift=0)
    narrow = op.cast(op.clip(scaled, a_min=-128, a_max=127), dtype="int8")
    pooled = op.nn.max_pool2d(narrow, pool_size=(2, 2), strides=(2, 2), padding=(1, 1, 0, 0))
    table = relay.const(rng.integers(-128, 128, 256).astype("int8"))
    looked = op.lookup(pooled, table)
    rows = op.reshape(looked, newshape=(1, 70, -1))
    square = op.nn.batch_matmul(rows, rows, out_dtype="int32")
    small = op.clip(
        op.fixed_point_multiply(op.cast(square, dtype="int64"), multiplier=1 << 30, shift=-9),
        a_min=-128,
        a_max=127,
    )
    entries = relay.const(np.linspace(1 << 20, 0, 256).astype("int32"))
    probabilities = op.nn.integer_softmax(op.cast(small, dtype="int8"), entries)
    standard = op.nn.integer_standardize(op.cast(small, dtype="int8"), epsilon=3, root_bits=4)
    mean = op.nn.global_avg_pool2d(op.cast(looked, dtype="int32"))
    turned = op.reverse(pooled, axis=2)
    places = op.take(relay.const(rng.integers(-9, 9, (40, 3)).astype("int64")), turned, axis=0)
    largest = op.argmax(op.multiply(places, places), axis=(1, 4))
    sums = op.nn.conv2d(
        looked, relay.const(drawn(rng, (19, 70, 1, 1), "int8", False)), out_dtype="int32"
    )
    to_even = shifted_to_even(sums, np.arange(19), (19, 1, 1))
    spread = relay.const(drawn(rng, (70, 5, 3, 3), "int8", False))
    larger = op.nn.conv2d_transpose(pooled, spread, strides=(2, 2), out_dtype="int32")
    deeper = op.clip(op.multiply(op.cast(same, dtype="int32"), op.cast(deep, dtype="int32")),
                     a_min=-32768, a_max=32767)  # fmt: skip
    pairs = conv(op.cast(deeper, dtype="int16"), (21, 1, 5, 5), 4, padding=2, groups=21)
    more = conv(op.cast(deeper, dtype="int16"), (21, 1, 3, 2), strides=(2, 1), groups=21)
    whole = conv(op.cast(deeper, dtype="int16"), (53, 21, 3, 3), padding=1)
    widened = [
        conv(even, (84, 1, 3, 3), wide=True, padding=1, groups=84),
        conv(op.cast(deeper, dtype="int16"), (21, 1, 5, 5), 4, wide=True, padding=2, groups=21),
        conv(first, (53, 21, 1, 1), wide=True),
    ]
    table = relay.const(rng.integers(-128, 128, 4096).astype("int8"))
    moved = op.clip(op.add(deeper, relay.const(np.int32(2048))), a_min=0, a_max=4095)
    tables = [
        op.lookup(op.cast(moved, dtype="uint16"), table),
        op.lookup(op.cast(moved, dtype="uint16"), relay.const(np.arange(4096) // 17)),
        op.lookup(op.cast(deeper, dtype="int16"), relay.const(rng.integers(-9, 999, 65536))),
    ]
    small = conv(op.clip(deeper, a_min=-300, a_max=300), (36, 7, 1, 1), 4, groups=3)
    flat = op.reshape(first, newshape=(1, 630, 1, 1))
    head = conv(flat, (77, 630, 1, 1), bits=4)
    news = op.reshape(first, newshape=(90, 7))
    at = op.strided_slice(news, begin=(0,), end=(1,), axes=(1,))
    scatters: list[Any] = [
        op.scatter_nd(
            relay.const(np.full((40, 7), -3, dtype)),
            op.reshape(op.cast(at, dtype=index), newshape=(1, 90)),
            op.cast(news, dtype=dtype),
            mode=mode,
        )
        for mode, dtype, index in (
            *(("add", "int32", "int8"), ("add", "int64", "int64"), ("update", "int8", "int32")),
            *(("max", "int16", "int8"), ("min", "int32", "int64"), ("max", "int8", "int8")),
        )
    ]
    outputs = (probabilities, standard, mean, largest, op.negative(turned), to_even, larger, less,
               pairs, more, whole, small, head, *scatters, *tables, *widened)  # fmt: skip
    mod = infer_module(relay.module(relay.Tuple(outputs)))
    shape = (1, 3, 11, 9)
    both = [[drawn(rng, shape, "uint8", extreme)] for extreme in (False, True)]
    return [(mod, inputs, ReferenceExecutor(mod).run(inputs)) for inputs in both]


def plan_bytes(plan: Plan, inputs: Sequence[Array], outputs: Sequence[Array]) -> bytes:
    """A plan, inputs and the outputs that it should give, as the harness reads them."""
    head = [len(plan.rows), plan.arena_bytes, plan.blob_bytes, len(inputs), len(outputs)]
    head += [a.nbytes for a in (*inputs, *outputs)]
    numbers = np.array(head, np.int64).tobytes() + plan.rows.tobytes()
    arrays = [np.ascontiguousarray(a).tobytes() for a in (*inputs, *outputs)]
    return b"".join([numbers, plan.blob[: plan.blob_bytes].tobytes(), *arrays])


def write_plans(path: Path, isa: str) -> None:
    library = Library(HERE, isa, None, None, *FACTS[isa])
    parts: list[bytes] = []
    for mod, inputs, outputs in cases():
        _, plan = plan_function(mod, "main", library)
        parts.append(plan_bytes(plan, inputs, outputs))
    path.write_bytes(np.int64(len(parts)).tobytes() + b"".join(parts))


def build_harness(path: Path, isa: str, command: Sequence[str], flags: Sequence[str]) -> None:
    build = [
        *command, "-std=gnu99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror",
        "-I", str(HERE), f"-D{ISAS[isa].macro}", *flags, str(HARNESS), "-lm", "-pthread",
        "-o", str(path),
    ]  # fmt: skip
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_plans(
    folder: Path, isa: str, command: Sequence[str], flags: Sequence[str], run: Sequence[str] = ()
) -> None:
    write_plans(folder / "plans", isa)
    build_harness(folder / "run", isa, command, flags)
    found = subprocess.run(
        [*run, str(folder / "run"), str(folder / "plans")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, f"{isa}: 0 wrong\n"), found.stdout + found.stderr


def needs(*programs: str) -> str:
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        skip(*missing)
    return programs[0]


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    run_plans(tmp_path, "generic", [needs("gcc")], ["-O0", *SANITIZERS])


@pytest.mark.slow
def test_threads_that_share_a_sample_do_not_race(tmp_path: Path) -> None:
    run_plans(tmp_path, "generic", [needs("gcc")], ["-O0", "-g", "-fsanitize=thread"])


@pytest.mark.slow
def test_vnni_runs_without_its_instructions(tmp_path: Path) -> None:
    run_plans(tmp_path, "vnni", [needs("gcc")], ["-O0", "-DQK_SCALAR_INTRINSICS"])


@pytest.mark.slow
def test_amx_runs_without_its_instructions(tmp_path: Path) -> None:
    flags = ["-O0", "-DQK_SCALAR_INTRINSICS", *SANITIZERS]
    run_plans(tmp_path, "amx", [needs("gcc")], flags)


@pytest.mark.slow
def test_avx2_runs_on_a_processor_that_has_nothing_newer(tmp_path: Path) -> None:
    emulator = needs("qemu-x86_64", "gcc")
    run = [emulator, "-cpu", "Haswell"]
    run_plans(tmp_path, "avx2", ["gcc"], [*ISAS["avx2"].flags, "-O1"], run)


@pytest.mark.slow
def test_avxvnni_runs_without_its_instructions(tmp_path: Path) -> None:
    emulator = needs("qemu-x86_64", "gcc")
    flags = [*ISAS["avx2"].flags, "-O1", "-DQK_EMULATED"]
    run_plans(tmp_path, "avxvnni", ["gcc"], flags, [emulator, "-cpu", "Haswell"])


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["i8mm", "neon"])
def test_arm_runs_under_an_emulator(isa: str, tmp_path: Path) -> None:
    cross = needs("aarch64-linux-gnu-gcc", "qemu-aarch64")
    run = ["qemu-aarch64", "-cpu", "max"]
    run_plans(tmp_path, isa, [cross], ["-static", *ISAS[isa].flags, "-O1"], run)
