"""The checker of certificates: rules hold for every value, and narrowed bounds are refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.errors import CompilerError
from compiler.ir.module import IRModule
from compiler.proof import checker
from compiler.proof.certificate import certificate
from compiler.proof.checker import ELEMENTWISE, RULES, RefusedError, Tensor, check, numbers
from compiler.proof.derive import derive_static
from tests.compiler.inner_limits import OPERATORS, core_of, inputs_of, module_of
from tests.compiler.proof.test_loops import loop
from tests.each import each

Array = NDArray[Any]
Program = dict[str, Any]


def test_the_checker_imports_numpy_and_the_standard_library_alone() -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]);"
        "print([n for n in sys.modules if n.split('.')[0] in ('compiler', 'onnx', 'scipy')])"
    )
    words = [sys.executable, "-I", "-c", code, str(checker.__file__)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


# Rules, on all values of narrow types -------------------------------------------------------------

MEANING: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
    "floor_divide": lambda a, b: a // b if b else 0,
    "less": lambda a, b: int(a < b),
    "equal": lambda a, b: int(a == b),
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "left_shift": lambda a, b: a << b,
    "right_shift": lambda a, b: a >> b,
}


def tensor(low: Any, high: Any, dtype: str = "int32", shape: tuple[int, ...] = (1,)) -> Tensor:
    ends = [np.broadcast_to(numbers(end), shape) for end in (low, high)]
    return Tensor("%x", dtype, shape, ends[0], ends[1])


def constant(data: Array) -> Tensor:
    return Tensor("c", str(data.dtype), data.shape, numbers(data), numbers(data), data)


def ends_of(word: str, args: list[Tensor], result: Tensor, **attrs: Any) -> tuple[int, int]:
    low, high = map(numbers, RULES[word]({**attrs, "word": word}, args, result))
    return low.min(), high.max()


RANGES = [(low, high) for low in range(-6, 6) for high in range(low, 6)]


@pytest.mark.parametrize("word", MEANING)
def test_a_word_of_two_operands_stays_within_its_bounds_and_those_are_sharp(word: str) -> None:
    """All pairs of intervals of four bits and all their values; only bits may be wider."""
    wider = 0
    for (a, b), (c, d) in product(each(RANGES), RANGES):
        if word.endswith("_shift") and c < 0:
            continue
        values = [MEANING[word](x, y) for x, y in product(range(a, b + 1), range(c, d + 1))]
        low, high = ends_of(word, [tensor(a, b), tensor(c, d)], tensor(0, 0))
        assert low <= min(values)
        assert max(values) <= high
        wider += (low, high) != (min(values), max(values))
    assert wider == 0 or word.startswith("bitwise")


def test_a_square_is_never_negative() -> None:
    for low, high in each(RANGES):
        x = tensor(low, high)
        squares = [n * n for n in range(low, high + 1)]
        assert ends_of("multiply", [x, x], tensor(0, 0)) == (min(squares), max(squares))


def test_a_choice_is_of_the_branch_that_the_condition_allows() -> None:
    for (c, d), (low, high) in product([(0, 0), (0, 1), (1, 1)], each(RANGES)):
        args = [tensor(c, d, "bool"), tensor(low, high), tensor(2, 3)]
        values = [y for chosen in range(c, d + 1) for y in ((2, 3), (low, high))[chosen]]
        assert ends_of("where", args, tensor(0, 0)) == (min(values), max(values))


@pytest.mark.parametrize(("dtype", "low", "high"), [("bool", 0, 1), ("int8", -6, 5)])
def test_a_cast_keeps_the_number_or_says_whether_it_is_0(dtype: str, low: int, high: int) -> None:
    for a, b in each(RANGES):
        values = [int(n != 0) if dtype == "bool" else n for n in range(a, b + 1)]
        assert ends_of("cast", [tensor(a, b)], tensor(low, high, dtype)) == (
            min(values),
            max(values),
        )


@pytest.mark.parametrize(
    ("low", "high", "dtype", "held"),
    [
        (-3.7, 2.9, "int8", (-3, 2)),
        (5.0, 1e30, "int16", (0, 32767)),
        (-np.inf, np.inf, "int64", (-(1 << 63), (1 << 63) - 1)),
        (-9.0, -1.5, "uint8", (0, 0)),
    ],
)
def test_a_cast_of_floats_truncates_saturates_and_makes_0_of_nan(
    low: float, high: float, dtype: str, held: tuple[int, int]
) -> None:
    assert ends_of("cast", [tensor(low, high, "float32")], tensor(0, 0, dtype)) == held


def test_a_table_gives_the_entries_that_are_reached() -> None:
    table = np.random.default_rng(1).integers(-99, 99, 256).astype("int32")
    for low, high in each([(-128, 127), (-128, -128), (3, 40), (-7, 127)]):
        reached = table[low + 128 : high + 129]
        found = ends_of("lookup", [tensor(low, high, "int8"), constant(table)], tensor(0, 0))
        assert found == (reached.min(), reached.max())
        clipped = np.take(table, np.arange(low, high + 1), mode="clip")
        attrs = {"axis": 0, "batch_dims": 0, "mode": "clip"}
        found = ends_of("take", [constant(table), tensor(low, high)], tensor(0, 0), **attrs)
        assert found == (clipped.min(), clipped.max())


def test_products_are_bounded_by_every_choice_of_operands() -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        weight = rng.integers(-9, 9, (3, 2)).astype("int8")
        lows = rng.integers(-5, 1, 3)
        highs = lows + rng.integers(0, 6, 3)
        x = tensor(lows, highs, "int8", (1, 3))
        sums = [numbers(list(row)) @ weight for row in product(*zip(lows, highs))]
        low, high = RULES["nn.matmul"]({}, [x, constant(weight)], tensor(0, 0, shape=(1, 2)))
        np.testing.assert_array_equal(low.reshape(-1), np.min(sums, axis=0))
        np.testing.assert_array_equal(high.reshape(-1), np.max(sums, axis=0))


def test_a_partial_sum_that_leaves_its_dtype_is_refused_although_the_sum_fits() -> None:
    weight = np.array([[127], [127], [127], [-127]], "int8")
    x = tensor(127, 127, "int8", (1, 4))
    with pytest.raises(RefusedError, match="a partial sum"):
        RULES["nn.matmul"]({}, [x, constant(weight)], tensor(0, 0, "int16", (1, 1)))


def test_every_rule_of_a_word_is_a_rule_of_the_analysis() -> None:
    from compiler.core.words import WORDS
    from compiler.ranges.analysis import BY_NAME

    assert set(RULES) == WORDS | set(BY_NAME)
    assert set(ELEMENTWISE) < set(RULES)


# Certificates of modules --------------------------------------------------------------------------


def random_module(seed: int, index: int) -> tuple[IRModule, list[list[Array]]] | None:
    """A proved random module and inputs of its core."""
    rng = np.random.default_rng([seed, index])
    grown = core_of(rng, OPERATORS[index % len(OPERATORS)])
    try:
        mod = module_of(grown)
    except CompilerError:
        return None
    return (mod, inputs_of(mod, grown, 8)) if derive_static(mod).holds else None


def program_of(data: bytes) -> tuple[Program, dict[str, Array]]:
    with np.load(io.BytesIO(data)) as archive:
        arrays = dict(archive)
    return json.loads(arrays.pop("program").tobytes()), arrays


def refusal(program: Program, arrays: Mapping[str, Array]) -> str:
    """Why a changed certificate is refused; "" if it is accepted."""
    stream = io.BytesIO()
    text = np.frombuffer(json.dumps(program).encode(), np.uint8)
    np.savez(stream, program=text, **arrays)  # type: ignore[arg-type]
    stream.seek(0)
    try:
        check(stream)
    except RefusedError as error:
        return str(error)
    return ""


def reached(mod: IRModule, inputs: list[list[Array]]) -> dict[str, tuple[int, int]]:
    """Least and largest element that runs reach, of each step of the core as it is numbered."""
    from compiler.ir.dataflow import dataflow
    from compiler.ops.evaluate import evaluate_step

    found: dict[str, tuple[int, int]] = {}
    flow = dataflow(mod, "quantized_main")
    for each_input in inputs:
        held: dict[Any, Any] = dict(zip(flow.inputs, each_input))
        for number, step in enumerate(flow.steps):
            args = [arg.data if arg.data is not None else held[arg] for arg in step.args]
            made = evaluate_step(step, args)
            held.update(zip(step.results, made))
            if len(made) == 1 and made[0].size:
                name = f"%{number} {step.name}"
                low, high = int(made[0].min()), int(made[0].max())
                known = found.get(name, (low, high))
                found[name] = min(low, known[0]), max(high, known[1])
    return found


def forgeries(seed: int, indices: range) -> tuple[int, int, list[str]]:
    """(accepted modules, narrowed bounds, those that were accepted)."""
    modules = count = 0
    wrong = []
    for index in indices:
        made = random_module(seed, index)
        if made is None:
            continue
        modules += 1
        program, arrays = program_of(certificate(made[0]))
        assert refusal(program, arrays) == "", f"seed {seed}, index {index}"
        runs = reached(*made)
        for row in program["values"]:
            name, _, _, low, high = row
            if name not in runs:
                continue
            least, most = runs[name]
            above = numbers(np.maximum(numbers(low), least + 1)).tolist()
            below = numbers(np.minimum(numbers(high), most - 1)).tolist()
            for place, narrowed in ((3, above), (4, below)):
                kept = row[place]
                row[place] = narrowed
                count += 1
                if not refusal(program, arrays):
                    wrong.append(f"seed {seed}, index {index}, {name}: {narrowed} for {kept}")
                row[place] = kept
    return modules, count, wrong


def test_honest_modules_are_accepted_and_narrowed_bounds_refused() -> None:
    modules, count, wrong = forgeries(5, range(2 * len(OPERATORS)))
    assert modules >= 25
    assert count >= 100
    assert wrong == []


@pytest.mark.slow
def test_many_honest_modules_are_accepted_and_narrowed_bounds_refused() -> None:
    modules, count, wrong = forgeries(6, range(300))
    assert modules >= 180
    assert count >= 1000
    assert wrong == []


def test_a_loop_is_accepted_and_a_state_that_grows_out_of_its_bounds_refused() -> None:
    mod = loop()
    assert derive_static(mod).holds
    program, arrays = program_of(certificate(mod))
    assert refusal(program, arrays) == ""
    (scan,) = [step for step in program["steps"] if step[0] == "scan"]
    (state, *_) = scan[1]["inputs"]
    program["values"][state][4] = program["values"][state][3]
    assert refusal(program, arrays)


CHANGES: Mapping[str, tuple[Callable[[Program], None], str]] = {
    "another format": (lambda p: p.update(format=2), "it has the format 2"),
    "an unknown word": (lambda p: p["steps"][-2].__setitem__(0, "erf"), "it is no word"),
    "a step twice": (lambda p: p["steps"].insert(0, p["steps"][0]), "is computed twice"),
    "steps in another order": (lambda p: p["steps"].reverse(), "which nothing computes before"),
    "no values": (lambda p: p.pop("values"), "it is not a certificate: KeyError"),
    "an unknown value": (lambda p: p["inputs"].append(10**6), "it is not a certificate"),
    "an input that is narrowed": (
        lambda p: p["values"][p["inputs"][0]].__setitem__(3, 1),
        "is stated of",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_certificate_that_is_none_is_refused(what: str) -> None:
    made = next(filter(None, (random_module(9, index) for index in range(3, 50))))
    change, told = CHANGES[what]
    program, arrays = program_of(certificate(made[0]))
    change(program)
    assert told in refusal(program, arrays)


def test_the_checker_runs_alone(tmp_path: Path) -> None:
    made = next(filter(None, (random_module(9, index) for index in range(3, 50))))
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    good.write_bytes(certificate(made[0]))
    bad.write_bytes(b"no archive")
    for file, code, told in each(
        ((good, 0, "bounds follow"), (bad, 1, "REFUSED"), (tmp_path / "none", 2, "cannot be read"))
    ):
        words = [sys.executable, "-m", "compiler.proof.checker", str(file)]
        ended = subprocess.run(words, capture_output=True, text=True)
        assert ended.returncode == code
        assert told in ended.stdout + ended.stderr


def test_the_reference_stays_within_stated_bounds() -> None:
    mod, inputs = next(filter(None, (random_module(11, index) for index in range(50))))
    program, _ = program_of(certificate(mod))
    stated = {row[0]: row[3:] for row in program["values"]}
    for name, (low, high) in each(reached(mod, inputs).items()):
        assert np.min(stated[name][0]) <= low
        assert high <= np.max(stated[name][1])
