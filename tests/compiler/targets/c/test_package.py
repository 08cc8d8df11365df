"""The files that export writes: they compile strictly, run clean, and give the exact bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest

from compiler import lower, parse, relay
from compiler.errors import CodegenError
from compiler.ir.expr import Call, GlobalVar
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate, fuse_for_c
from compiler.runtime.artifact import Sample
from compiler.targets.c.constants import PICKED_BITS, c_bytes
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.package import CPackage, Unpack, c_package
from compiler.targets.c.toolchain import Command
from tests.each import each

ExitCode = Callable[[CPackage, Command, Sequence[str]], int]
SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("flags", [("-O3",), SANITIZED], ids=["optimised", "sanitized"])
def test_the_self_check_compiles_without_warnings_and_finds_equal_outputs(
    package: CPackage, cc: Command, exit_code: ExitCode, flags: Sequence[str]
) -> None:
    assert exit_code(package, cc, flags) == 0


def test_a_32_bit_program_gives_the_same_outputs(
    package: CPackage, cc32: Command, exit_code: ExitCode
) -> None:
    # Processors without float registers of 32 bits too: -mfpmath=387 is the default of -m32.
    assert exit_code(package, cc32, ("-O2",)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 6])
def test_packed_constants_take_their_bits_and_give_the_same_outputs(
    bits: int,
    integral_of: Callable[[int], IRModule],
    cc: Command,
    cc32: Command,
    exit_code: ExitCode,
) -> None:
    module = integral_of(bits)
    values = {"x": np.random.default_rng(7).normal(0, 1, (1, 3, 9, 11)).astype("float32")}
    sample = list(values.values()), evaluate(module, values)
    lowered, kinds = lower(module).mod, get_args(Unpack)
    run, load = (c_package(lowered, "net", sample, unpack=unpack) for unpack in kinds)
    ram = load.arena_bytes + load.loaded_bytes
    for package in (run, load):
        assert package.constant_bytes == c_bytes(fuse_for_c(module))
        assert exit_code(package, cc, SANITIZED) == 0
        assert exit_code(package, cc32, ("-O2",)) == 0
        # A header says what both cost.
        text = " ".join(package.files["net.h"].replace("*", "").split())
        assert f"(--unpack run), the module takes {run.arena_bytes} bytes of RAM" in text
        assert f"(--unpack load), {ram}, and less time" in text
    assert run.loaded_bytes == 0 < load.loaded_bytes


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_integers_of_any_bits_are_unpacked(dtype: str, cc: Command, exit_code: ExitCode) -> None:
    rng = np.random.default_rng(8)
    width = 8 * np.dtype(dtype).itemsize
    low = 0 if dtype[0] == "u" else -(1 << (width - 1))
    x = relay.var("x", (3, 100), dtype)
    arrays = []
    for bits in range(1, width):
        array = low + rng.integers(0, 1 << bits, (3, 100), dtype=np.uint64).astype(dtype)
        arrays += [array, array << 1, *([-array] if low else [])]
        arrays[-1][0] *= 1 if low == 0 else -1
    body = relay.Tuple([relay.op.maximum(x, relay.const(array.astype(dtype))) for array in arrays])
    mod = infer_module(relay.module(relay.Function((x,), body)))
    given = np.full((3, 100), low, dtype)
    made = c_package(lower(mod).mod, "net", ([given], [np.maximum(given, a) for a in arrays]))
    assert made.constant_bytes < 0.8 * sum(array.nbytes for array in arrays)
    assert exit_code(made, cc, ("-O3",)) == 0
    assert exit_code(made, cc, SANITIZED) == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_what_is_picked_from_a_packed_table_is_unpacked_alone(
    dtype: str, mode: str, cc: Command, cc32: Command, exit_code: ExitCode
) -> None:
    rng = np.random.default_rng(9)
    width = 8 * np.dtype(dtype).itemsize
    low = 0 if dtype[0] == "u" else -(1 << (width - 1))
    ids = np.array([0, 90, 45, 7, 90, -3, 200, 1])
    x, arrays = relay.var("x", (8,), "int64"), []
    for bits in range(1, min(width, PICKED_BITS) + 1):
        array = rng.integers(0, 1 << bits, (91, 7)).astype(dtype)
        arrays += [array, array << 1 if bits < width else array]
        arrays += [array + np.asarray(low, dtype)] if bits + 1 < width else []
    picks = [relay.op.take(relay.const(array), x, axis=0, mode=mode) for array in arrays]
    body = relay.Tuple([relay.op.add(one, relay.const(np.ones(1, dtype))) for one in picks])
    mod = infer_module(relay.module(relay.Function((x,), body)))
    (wanted,) = (evaluate(mod, {"x": ids}),)
    made = c_package(lower(mod).mod, "net", ([ids], wanted))
    assert made.arena_bytes == 0
    assert made.constant_bytes == c_bytes(fuse_for_c(mod))
    assert exit_code(made, cc, SANITIZED) == 0
    assert exit_code(made, cc32, ("-O2",)) == 0


def test_a_table_that_a_kernel_reads_more_often_than_it_is_long_is_unpacked_once(
    cc: Command, exit_code: ExitCode
) -> None:
    table = np.random.default_rng(3).integers(0, 1 << 23, 500).astype(np.int32)
    arenas = []
    for reads in (8, 2000):
        x = relay.var("x", (reads,), "int32")
        body = relay.op.take(relay.const(table), x, axis=0, mode="clip")
        mod = infer_module(relay.module(relay.Function((x,), body)))
        places = np.arange(reads, dtype=np.int32) % 500
        made = c_package(lower(mod).mod, "net", ([places], [table[places]]))
        assert exit_code(made, cc, SANITIZED) == 0
        arenas.append(made.arena_bytes)
    assert arenas[0] == 0
    assert arenas[1] >= table.nbytes


@pytest.mark.parametrize(
    ("low", "shift"), [(-(2**31) - 1, 0), (2**40, 3), (-5, 29), (-(2**63), 59)]
)
def test_a_packed_table_of_numbers_that_32_bits_do_not_hold_gives_them(
    low: int, shift: int, cc: Command, exit_code: ExitCode
) -> None:
    x = relay.var("x", (4,), "int32")
    numbers = np.arange(700, dtype="int64").reshape(100, 7) % 16
    table = (numbers << shift) + low
    body = relay.op.take(relay.const(table), x, axis=0, mode="clip")
    mod = infer_module(relay.module(relay.Function((x,), body)))
    places = np.array([0, 99, 17, 56], "int32")
    made = c_package(lower(mod).mod, "net", ([places], [table[places]]))
    assert made.constant_bytes == c_bytes(fuse_for_c(mod)) < table.nbytes
    assert exit_code(made, cc, SANITIZED) == 0


def test_a_state_that_a_part_does_not_read_is_no_warning(
    cc: Command, cc32: Command, exit_code: ExitCode
) -> None:
    x, state = relay.var("x", (3,), "int32"), relay.var("state", (2,), "int32")
    part = relay.Function((x, state), relay.op.add(x, x))
    outer = relay.var("x", (3,), "int32"), relay.var("state", (2,), "int32")
    called = Call(GlobalVar("part"), outer)
    main = relay.Function(outer, relay.Tuple((called, outer[1])))
    mod = lower(infer_module(IRModule({"main": main, "part": part}))).mod
    values, kept = np.array([1, -2, 3], "int32"), np.array([7, 8], "int32")
    made = c_package(mod, "net", ([values, kept], [2 * values, kept]))
    assert exit_code(made, cc, ("-O1",)) == 0
    assert exit_code(made, cc32, ("-O1",)) == 0


def test_constants_are_rounded_to_their_type_before_they_are_multiplied_by(
    cc32: Command, exit_code: ExitCode
) -> None:
    x = relay.var("x", (255,), "int32")
    scale = np.float32(0.028084112)
    body = relay.op.multiply(relay.op.cast(x, dtype="float32"), relay.const(scale))
    given = np.arange(-127, 128, dtype="int32")
    wanted = given.astype("float32") * scale
    mod = lower(infer_module(relay.module(relay.Function((x,), body)))).mod
    assert exit_code(c_package(mod, "net", ([given], [wanted])), cc32, ("-O2",)) == 0


def test_the_self_check_ends_with_1_when_an_output_differs(
    integral: IRModule, samples: list[Sample], cc: Command, exit_code: ExitCode
) -> None:
    inputs, (output,) = samples[0]
    wrong = output.copy()
    wrong[0, 3] = np.nextafter(wrong[0, 3], np.float32(9))
    made = c_package(lower(integral).mod, "net", (list(inputs.values()), [wrong]))
    assert exit_code(made, cc, ("-O0",)) == 1


@pytest.mark.parametrize("exact", [True, False])
def test_the_self_check_of_a_large_sample_is_short_and_finds_a_difference(
    exact: bool, cc: Command, exit_code: ExitCode
) -> None:
    """main.c repeats the beginning of an input, and compares a hash, or every few elements."""
    x, state = relay.var("x", (1, 3, 100, 100)), relay.var("state", (1, 700), "int16")
    both = relay.Tuple([relay.op.multiply(x, relay.const(np.float32(3))), relay.op.copy(state)])
    mod = lower(infer_module(relay.module(relay.Function((x, state), both)))).mod
    begin = np.random.default_rng(0).normal(size=500).astype("float32")
    counts = np.arange(700, dtype="int16")[None]
    wanted = [np.resize(begin, (1, 3, 100, 100)) * np.float32(3), counts]
    made = c_package(mod, "net", ([begin, counts], wanted), exact=exact)
    assert len(made.files["main.c"]) < 1 << 16
    assert exit_code(made, cc, ("-O1", "-Wconversion")) == 0
    for place in each([0, 1]):
        wrong = [array.copy() for array in wanted]
        wrong[place].reshape(-1)[0] += 1
        made = c_package(mod, "net", ([begin, counts], wrong), exact=exact)
        assert exit_code(made, cc, ("-O1",)) == 1


def test_the_files_need_nothing_but_fixed_width_integers(package: CPackage) -> None:
    included = set(re.findall(r"#include (\S+)", package.files["net.c"]))
    # The last one is for DSP instructions of Arm only.
    assert included == {'"net.h"', "<stdint.h>", "<arm_acle.h>"}
    assert set(re.findall(r"#include (\S+)", package.files["main.c"])) == {'"net.h"', "<string.h>"}
    assert not package.uses_libm
    code = re.sub(r"/\*.*?\*/", "", package.files["net.c"], flags=re.S)
    assert not re.search(r"\b(malloc|calloc|free|printf|goto)\b", code)
    # Nothing that outlives a call: every variable outside of functions is constant.
    assert not re.search(r"^static (?!const|inline|INLINED|NO_INLINE|void)", code, flags=re.M)


def test_there_is_one_main_and_it_is_in_main_c(package: CPackage) -> None:
    holders = [name for name, text in package.files.items() if re.search(r"\bmain\s*\(", text)]
    assert holders == ["main.c"]
    assert len(re.findall(r"\bmain\s*\(", package.files["main.c"])) == 1


def test_the_integer_core_holds_no_float(package: CPackage) -> None:
    kernels = re.split(r"^static NO_INLINE void ", package.files["net.c"], flags=re.M)[1:]
    core = package.entries["quantized_main"].placement.program
    names = {step.callee for step in core.steps if step.callee}
    bodies = [
        k
        for k in kernels
        if k[: k.index("(")].removeprefix("m_") in {name.removeprefix("m_") for name in names}
    ]
    assert len(bodies) == len(names)
    assert not any("float" in body[: body.index("\n}")] for body in bodies)


def test_equal_modules_give_equal_bytes(
    integral: IRModule, samples: list[Sample], package: CPackage
) -> None:
    inputs, outputs = samples[0]
    again = c_package(lower(integral).mod, "net", (list(inputs.values()), outputs))
    assert dict(again.files) == dict(package.files)


def test_outputs_are_those_of_the_reference_also_from_several_threads(
    integral: IRModule, samples: list[Sample], cc: Command
) -> None:
    executor = CExecutor(integral)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(executor.run, [inputs for inputs, _ in samples] * 8))
    for (output,), (_, (wanted,)) in each(zip(found, samples * 8)):
        assert output.tobytes() == wanted.tobytes()


def test_the_core_alone_takes_and_gives_integers(
    integral: IRModule, samples: list[Sample], cc: Command
) -> None:
    core = CExecutor(integral, "quantized_main")
    prefix = CExecutor(integral, "quantize_inputs")
    suffix = CExecutor(integral, "dequantize_outputs")
    inputs, (wanted,) = samples[1]
    integers = core.run(dict(zip(core.input_names, prefix.run(inputs))))
    assert integers[0].dtype == np.int32
    assert suffix.run(dict(zip(suffix.input_names, integers)))[0].tobytes() == wanted.tobytes()


def test_the_arena_is_as_small_as_the_fullest_moment(package: CPackage) -> None:
    for entry in package.entries.values():
        least = entry.placement.lower_bound_bytes or entry.placement.arena_bytes
        assert entry.placement.arena_bytes <= 1.15 * least
    core = package.entries["quantized_main"].placement
    assert package.arena_bytes >= core.arena_bytes > 0
    assert f"#define NET_ARENA_BYTES {package.arena_bytes}" in package.files["net.h"]


def test_a_residual_addition_is_written_over_what_it_adds_to() -> None:
    x = relay.var("x", (1, 6, 6, 4), "int8")
    rng = np.random.default_rng(0)
    weight = relay.const(rng.integers(-9, 9, (4, 1, 1, 4)).astype("int8"))
    first = relay.op.annotation.stop_fusion(relay.op.negative(x))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    conv = relay.op.nn.conv2d(first, weight, out_dtype="int32", **layouts)
    total = relay.op.add(conv, relay.op.cast(first, dtype="int32"))
    second = relay.op.annotation.stop_fusion(relay.op.cast(total, dtype="int8"))
    chain = relay.op.annotation.stop_fusion(relay.op.abs(second))
    mod = infer_module(relay.module(relay.Function((x,), relay.op.negative(chain))))
    placement = c_package(lower(mod).mod, "net").entries["main"].placement
    # The convolution reads its input at other places than it writes: it needs memory of its own.
    assert [bool(taken) for taken in placement.shared] == [False, False, True, False]
    assert placement.arena_bytes == placement.lower_bound_bytes == 2 * 144


def test_in_place_results_are_exact(cc: Command) -> None:
    x = relay.var("x", (5, 7), "int32")
    value = relay.op.annotation.stop_fusion(relay.op.multiply(x, relay.const(3, "int32")))
    for step in range(6):
        bias = relay.const(np.full((5, 7), step, "int32"))
        value = relay.op.annotation.stop_fusion(relay.op.add(relay.op.abs(value), bias))
    mod = infer_module(relay.module(relay.Function((x,), relay.op.negative(value))))
    given = {"x": np.arange(-17, 18, dtype="int32").reshape(5, 7)}
    executor = CExecutor(mod)
    assert sum(map(bool, executor.package.entries["main"].placement.shared)) >= 5
    np.testing.assert_array_equal(executor.run(given)[0], -(3 * abs(given["x"]) + 15))


def test_results_that_are_parameters_or_the_same_twice_are_copied(cc: Command) -> None:
    x = relay.var("x", (3,), "int32")
    twice = relay.op.add(x, x)
    mod = infer_module(relay.module(relay.Function((x,), relay.Tuple((x, twice, twice)))))
    given = np.array([1, -2, 3], "int32")
    found = CExecutor(mod).run({"x": given})
    assert [array.tolist() for array in found] == [[1, -2, 3], [2, -4, 6], [2, -4, 6]]


def test_branches_have_no_c_form() -> None:
    mod = parse(
        '#[version = "0.0.5"] '
        "def @main(%c: bool, %x: Tensor[(2), float32]) { if (%c) { exp(%x) } else { %x } }"
    )
    with pytest.raises(CodegenError, match="no C form") as caught:
        c_package(lower(infer_module(mod)).mod, "net")
    assert "branches" in str(caught.value.fix)


def test_a_module_that_was_not_lowered_is_refused(integral: IRModule) -> None:
    with pytest.raises(CodegenError, match="not lowered"):
        c_package(integral, "net")


def test_a_sample_must_fit_the_function(integral: IRModule, samples: list[Sample]) -> None:
    with pytest.raises(CodegenError, match="0 inputs"):
        c_package(lower(integral).mod, "net", ([], samples[0][1]))


@pytest.mark.parametrize(
    ("name", "made"), [("best", "best"), ("main", "main_"), ("9 lives", "n_9_lives")]
)
def test_names_become_legal(integral: IRModule, name: str, made: str) -> None:
    assert set(c_package(lower(integral).mod, name).files) == {f"{made}.h", f"{made}.c"}


def test_float_functions_say_that_they_need_the_maths_library(cc: Command) -> None:
    x = relay.var("x", (4,))
    mod = infer_module(relay.module(relay.Function((x,), relay.op.exp(x))))
    made = c_package(lower(mod).mod, "net")
    assert made.uses_libm
    assert "-lm" in made.files["net.h"]


def test_an_infinite_constant_and_sample_are_written_as_such(
    cc: Command, exit_code: ExitCode
) -> None:
    x = relay.var("x", (3,))
    edge = relay.const(np.array([np.inf, -np.inf, 2.5], "float32"))
    mod = infer_module(relay.module(relay.Function((x,), relay.op.maximum(x, edge))))
    given = np.array([1.0, np.inf, 3.0], "float32")
    wanted = np.array([np.inf, np.inf, 3.0], "float32")
    made = c_package(lower(mod).mod, "net", ([given], [wanted]))
    assert exit_code(made, cc, ("-O1",)) == 0


@pytest.mark.parametrize("ends", [(2048, 2048), (0, 4096), (30_000, 30_000), (65_000, 0)])
def test_a_table_takes_the_entries_that_its_data_reach(ends: tuple[int, int]) -> None:
    """Entries that repeat at both ends are no bytes of the package; data beyond them read them."""
    rng = np.random.default_rng(1)
    inner = np.append(rng.integers(-2000, 2000, 65_535 - sum(ends)), 2000)
    table = np.pad(inner, ends, mode="edge").astype("int16")
    x = relay.var("x", (65_536,), "int16")
    mod = infer_module(relay.module(relay.op.lookup(x, relay.const(table))))
    executor = CExecutor(mod)
    assert executor.package.constant_bytes <= 12 * inner.size // 8 + 64
    every = np.arange(-(1 << 15), 1 << 15, dtype="int16")
    np.testing.assert_array_equal(executor.run([every])[0], table)


def test_every_byte_survives_as_text() -> None:
    """Tables of bytes are strings in C: escapes, digits behind escapes, quotes, rows that end."""
    every = np.arange(256, dtype=np.uint8).view(np.int8)
    tables = (every, every[::-1].copy(), np.tile(every[40:60], 300))
    x = relay.var("x", (256,), "int8")
    mod = relay.module(relay.Tuple([relay.op.lookup(x, relay.const(t)) for t in tables]))
    executor = CExecutor(mod)
    # Twenty values of the third one fit in 5 bits.
    assert executor.package.constant_bytes == 2 * every.size + 5 * tables[2].size // 8
    for made, table in zip(executor.run([every]), tables, strict=True):
        np.testing.assert_array_equal(made, table[every.astype(np.int64) + 128])
