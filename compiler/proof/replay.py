"""Running a module again: stored samples, and independent executors against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.at_work import at_work
from compiler.errors import CodegenError, CompilerError, LoweringError, TooLargeError
from compiler.ir.dataflow import dataflow
from compiler.ir.expr import Var
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float
from compiler.ops.number_format import Array, storage_dtype
from compiler.proof.wiring import CORE, PREFIX
from compiler.proof.work import known_work
from compiler.ranges.analysis import dtype_range
from compiler.ranges.finding import Finding
from compiler.runtime.artifact import OutputHash, StoredSample
from compiler.runtime.executor import Executor
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.toolchain import EXACT_FLAGS
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import is_available
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor

Inputs = dict[str, Array]

RANDOM_RUNS = 4
MAIN = "main"
REAL = "real inputs"
DRAWN = "random inputs"
TIES = "ties of rounding"
SPECIAL = "special floats"
ENDS = "extreme inputs"
CORE_DRAWN = "random integers"
CORE_ENDS = "extreme integers"
_TURNS = (
    (MAIN, REAL),
    (MAIN, SPECIAL),
    (CORE, CORE_ENDS),
    (MAIN, TIES),
    (CORE, CORE_DRAWN),
    (MAIN, ENDS),
    (MAIN, DRAWN),
)
"""Function and kind of inputs, the most important first."""
EXACT = "integer ONNX"
IN_C = "generated C"
ENGINE = "engine"
_NO_FORM: dict[str, tuple[type[CompilerError], ...]] = {
    EXACT: (TooLargeError,),
    IN_C: (LoweringError, CodegenError),
    ENGINE: (CodegenError,),
}
"""Form → errors of a module that has no such form, which need not have one."""
_SAMPLES = "stored samples, computed again"
_MOST_TIES = 1 << 24
"""Beyond this float32 holds whole numbers only."""
REPLAY_FLAGS = ("-O1", *EXACT_FLAGS[1:])
"""A dozen runs do not pay for the compiler's slowest optimisations."""
_SHORT_RUN_UNITS = 10**7
_LONG_RUN_MACS = 10**9
"""Units of one run below which no optimization of the compiler pays, and MACs from which a stronger
one does."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outputs that were computed twice.

    Attributes:
        what: which outputs of which executors, on what inputs.
        runs: how many inputs.
        elements: outputs compared.
        differing: of these, how many differ in any bit.
        of: how many inputs of this kind there are; more than ``runs`` for a large module.
    """

    what: str
    runs: int
    elements: int
    differing: int
    of: int

    def finding(self, check: str) -> tuple[Finding, ...]:
        """The finding that a difference is; none without one."""
        if not self.differing:
            return ()
        what = f"{self.differing} of {self.elements} elements differ in {self.runs} runs"
        return (Finding(check, self.what, what),)


def differing_elements(
    ours: Sequence[Array], theirs: Sequence[Array | OutputHash]
) -> tuple[int, int]:
    """(compared, differing) over all outputs, bit by bit; another shape, dtype or hash differs
    wholly."""
    total = sum(array.size for array in ours)
    if len(ours) != len(theirs):
        return total, max(total, 1)
    differing = 0
    for one, other in zip(ours, theirs):
        if isinstance(other, OutputHash):
            differing += 0 if OutputHash.of(one) == other else max(one.size, 1)
        elif one.shape != other.shape or one.dtype != other.dtype:
            differing += max(one.size, 1)
        elif one.size:
            if one.dtype.kind != "b":
                bits = np.dtype(f"u{one.dtype.itemsize}")
            else:
                bits = one.dtype
            differing += int((_bits(one, bits) != _bits(other, bits)).sum())
    return total, differing


def _bits(array: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(array).view(dtype)


def compare_runs(
    what: str, pairs: Iterable[tuple[Sequence[Array], Sequence[Array | OutputHash]]], of: int
) -> Comparison:
    """Count what differs between both outputs of each run; ``of`` is how many inputs there are."""
    runs = elements = differing = 0
    for pair in pairs:
        compared, different = differing_elements(*pair)
        runs = runs + 1
        elements = elements + compared
        differing = differing + different
    return Comparison(what, runs, elements, differing, of)


def replay_samples(mod: IRModule, samples: Sequence[StoredSample], most: int) -> Comparison:
    """The stored outputs of the stored inputs, ``most`` of them, computed again by the reference.

    Raises:
        EvaluationError: a stored input does not fit the module.
    """
    reference = ReferenceExecutor(mod)
    pairs = ((reference.run(inputs), stored) for inputs, stored in samples[:most])
    return compare_runs(_SAMPLES, pairs, len(samples))


def replay(
    mod: IRModule,
    ranges: Sequence[tuple[int, int]],
    samples: Sequence[StoredSample],
    rng: np.random.Generator,
    in_c: Callable[[], CExecutor] | None = None,
    most: int | None = None,
) -> tuple[tuple[Comparison, ...], tuple[Finding, ...]]:
    """main and quantized_main on the reference, and in every form that ships.

    The forms are exact integer ONNX, C and the engine. main runs on real, random and special inputs
    (``main_inputs``), quantized_main on random and extreme integers within its bounds.

    Args:
        mod: partitioned, typed, and not refuted.
        ranges: bounds of each parameter of quantized_main.
        samples: real inputs of main with the outputs stored for them.
        in_c: gives main as the C that export writes, if it has such a form; None leaves it out.
        most: inputs to run; where there are more, a real one, special floats and the ends of the
            bounds come first. None runs all.
    Raises:
        EvaluationError: a stored input does not fit the module.
    """
    params = mod[CORE].params
    batches = {
        (MAIN, REAL): [inputs for inputs, _ in samples],
        **{(MAIN, kind): made for kind, made in main_inputs(mod, ranges, rng).items()},
        (CORE, CORE_DRAWN): list(random_inputs(params, ranges, rng)),
        (CORE, CORE_ENDS): list(extreme_inputs(params, ranges, rng)),
    }
    taken = _taken(batches, most)
    reference = {name: ReferenceExecutor(mod, name) for name in (MAIN, CORE)}
    wanted = {key: list(map(reference[key[0]].run, inputs)) for key, inputs in taken.items()}
    stored = [outputs for _, outputs in samples]
    found = [compare_runs(_SAMPLES, zip(wanted[MAIN, REAL], stored), len(samples))]
    findings = [*found[0].finding("samples")]
    for form, make in _forms(mod, in_c).items():
        at_work(str, f"the {form}")
        try:
            executors = make()
        except CompilerError as error:
            # No loops or no C for an operator says nothing against the integers.
            if not isinstance(error, _NO_FORM[form]):
                findings.append(Finding("executors", f"@{CORE}", f"has no exact {form}: {error}"))
            continue
        for (name, kind), inputs in taken.items():
            what = f"@{name}, reference and {form}, {kind}"
            pairs = zip(wanted[name, kind], map(executors[name].run, inputs))
            found.append(compare_runs(what, pairs, len(batches[name, kind])))
            findings += found[-1].finding("executors")
    return tuple(found), tuple(findings)


def _taken(
    batches: Mapping[tuple[str, str], Sequence[Inputs]], most: int | None
) -> dict[tuple[str, str], list[Inputs]]:
    """Choose as many inputs as may run, by function and kind: one of each kind in turn, in
    ``_TURNS``.

    Of real inputs the first come first, of the others the last, which are mixed.
    """
    turns = sorted(
        (place, _TURNS.index(key))
        for key, inputs in batches.items()
        for place in range(len(inputs))
    )
    counts = Counter(_TURNS[turn] for _, turn in turns[:most])
    return {
        key: list(inputs[: counts[key]] if key[1] == REAL else inputs[len(inputs) - counts[key] :])
        for key, inputs in batches.items()
    }


def _forms(
    mod: IRModule, in_c: Callable[[], CExecutor] | None
) -> dict[str, Callable[[], dict[str, Executor]]]:
    """Form → what makes its executors of main and quantized_main."""
    forms: dict[str, Callable[[], dict[str, Executor]]] = {
        EXACT: lambda: {name: IntegerExecutor(mod, name) for name in (MAIN, CORE)},
    }
    if is_available():
        forms[ENGINE] = lambda: {name: EngineExecutor(mod, name) for name in (MAIN, CORE)}
    if in_c is not None:
        forms[IN_C] = lambda: {MAIN: (made := in_c()), CORE: made.callee(CORE)}
    return forms


def c_flags(mod: IRModule) -> tuple[str, ...]:
    """Flags of the compiler: quick to compile, or quick to run."""
    work = known_work(mod)
    if work is None or work.macs >= _LONG_RUN_MACS:
        return ("-O2", *REPLAY_FLAGS[1:])
    if work.units < _SHORT_RUN_UNITS:
        return ("-O0", *REPLAY_FLAGS[1:])
    return REPLAY_FLAGS


def random_inputs(
    params: Sequence[Var], ranges: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Iterator[Inputs]:
    """Uniform over what each parameter may be."""
    for _ in range(RANDOM_RUNS):
        yield {p.name_hint: _drawn(rng, low, high, p) for p, (low, high) in zip(params, ranges)}


def extreme_inputs(
    params: Sequence[Var], ranges: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Iterator[Inputs]:
    """All lowest, all highest, all nearest to 0, the two ends in turn, and the ends at random."""

    def filled(choose: Any) -> Inputs:
        return {
            p.name_hint: np.full(_shape(p), choose(low, high), _dtype(p))
            for p, (low, high) in zip(params, ranges)
        }

    yield filled(lambda low, high: low)
    yield filled(lambda low, high: high)
    yield filled(lambda low, high: min(max(0, low), high))
    for chosen in (lambda p: np.indices(_shape(p)).sum(axis=0) % 2 == 0, _tossed(rng)):
        yield {
            p.name_hint: np.where(chosen(p), *(np.asarray(end, _dtype(p)) for end in ends))
            for p, ends in zip(params, ranges)
        }


def _tossed(rng: np.random.Generator) -> Callable[[Var], Array]:
    return lambda param: rng.random(_shape(param)) < 0.5


def main_inputs(
    mod: IRModule, ranges: Sequence[tuple[int, int]], rng: np.random.Generator
) -> dict[str, list[Inputs]]:
    """Inputs of main by kind.

    Random floats reach a little beyond the clips of quantize_inputs. Special ones are NaN, both
    infinities, both zeros, denormals, the largest numbers, and the floats next to every
    float that scales to half a step, where rounding turns; all NaN, and all kinds in one tensor.
    Integers are random, and the ends of their dtype.

    Args:
        ranges: bounds of each parameter of quantized_main.
    """
    scales = _scales(mod)
    params = mod[MAIN].params
    reach = max((max(abs(low), abs(high)) for low, high in ranges), default=1) + 2
    reach = min(reach, _MOST_TIES)

    def made(kind: str) -> Inputs:
        return {
            p.name_hint: _floats(kind, p, scale, reach, rng)
            if is_float(_dtype(p))
            else _drawn(rng, *dtype_range(p.tensor_type.dtype), p)
            for p, scale in zip(params, scales)
        }

    kinds = {DRAWN: [made("random") for _ in range(2)]}
    if any(is_float(_dtype(p)) for p in params):
        kinds[TIES] = [made("ties")]
        kinds[SPECIAL] = [made("nan"), made("special")]
    if not all(is_float(_dtype(p)) for p in params):
        whole = [p for p in params if not is_float(_dtype(p))]
        others = made("random")
        ends = [dtype_range(p.tensor_type.dtype) for p in whole]
        kinds[ENDS] = [{**others, **one} for one in extreme_inputs(whole, ends, rng)]
    return kinds


def _scales(mod: IRModule) -> list[Array]:
    """Return the factor of each parameter of main in quantize_inputs; 1 where there is none."""
    found: list[Array] = []
    for value in dataflow(mod, PREFIX).inputs:
        factors = [
            arg.data
            for step in value.users
            if step.name == "multiply"
            for arg in step.args
            if arg.data is not None and is_float(arg.type.dtype)
        ]
        usable = factors and np.isfinite(factors[0]).all() and (factors[0] != 0).all()
        scale = np.asarray(factors[0] if usable else 1.0, np.float64)
        fits = np.broadcast_shapes(scale.shape, value.type.concrete_shape)
        found.append(scale if fits == value.type.concrete_shape else np.asarray(1.0))
    return found


def _floats(kind: str, param: Var, scale: Array, reach: int, rng: np.random.Generator) -> Array:
    shape = _shape(param)
    dtype = np.dtype(_dtype(param))
    with np.errstate(all="ignore"):
        drawn = (rng.uniform(-reach, reach, shape) / scale).astype(dtype)
        if kind == "random":
            return drawn
        if kind == "nan":
            return np.full(shape, np.nan, dtype)
        ties = ((rng.integers(-reach, reach, shape) + 0.5) / scale).astype(dtype)
        beside = np.nextafter(ties, np.where(rng.random(shape) < 0.5, dtype.type(-np.inf), np.inf))
        ties = np.where(rng.random(shape) < 1 / 3, ties, beside.astype(dtype))
        if kind == "ties":
            return ties
        info = np.finfo(dtype)
        ends = info.smallest_subnormal, info.tiny, info.max
        both = (sign * end for end in ends for sign in (1, -1))
        row = (np.nan, np.inf, -np.inf, -0.0, 0.0, *both)
        special = rng.choice(np.array(row, dtype), shape)
    return np.choose(rng.integers(3, size=shape), [special, ties, drawn]).astype(dtype)


def _drawn(rng: np.random.Generator, low: int, high: int, param: Var) -> Array:
    wide = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    drawn = rng.integers(low, high, _shape(param), dtype=wide, endpoint=True)
    return drawn.astype(_dtype(param))


def _shape(param: Var) -> tuple[int, ...]:
    return param.tensor_type.concrete_shape


def _dtype(param: Var) -> str:
    """Return the dtype of the array that holds it; 4 bits lie in 8."""
    return str(storage_dtype(param.tensor_type.dtype))
