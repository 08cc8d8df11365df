"""Running a module again: stored samples, and independent executors against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError, CompilerError, LoweringError
from compiler.ir.expr import Var
from compiler.ir.module import IRModule
from compiler.proof.finding import Finding
from compiler.proof.wiring import CORE, PREFIX
from compiler.runtime.artifact import Sample
from compiler.runtime.executor import Executor
from compiler.runtime.executor import Inputs as AnyInputs
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.toolchain import EXACT_FLAGS
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor

Array = NDArray[Any]
Inputs = dict[str, Array]

RANDOM_RUNS = 4
REPLAY_FLAGS = ("-O1", *EXACT_FLAGS[1:])
"""A dozen runs do not pay for the compiler's slowest optimisations."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outputs that were computed twice.

    Attributes:
        what: which outputs of which executors, on what inputs.
        runs: how many inputs.
        elements: outputs compared.
        differing: of these, how many differ in any bit.
    """

    what: str
    runs: int
    elements: int
    differing: int

    def finding(self, check: str) -> tuple[Finding, ...]:
        """The finding that a difference is; none without one."""
        if not self.differing:
            return ()
        what = f"{self.differing} of {self.elements} elements differ in {self.runs} runs"
        return (Finding(check, self.what, what),)


def differing_elements(ours: Sequence[Array], theirs: Sequence[Array]) -> tuple[int, int]:
    """(compared, differing) over all outputs, bit by bit; another shape or dtype differs wholly."""
    total = sum(array.size for array in ours)
    if len(ours) != len(theirs):
        return total, max(total, 1)
    differing = 0
    for one, other in zip(ours, theirs):
        if one.shape != other.shape or one.dtype != other.dtype:
            differing += max(one.size, 1)
        elif one.size:
            bits = np.dtype(f"u{one.dtype.itemsize}") if one.dtype.kind != "b" else one.dtype
            differing += int((_bits(one, bits) != _bits(other, bits)).sum())
    return total, differing


def _bits(array: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(array).view(dtype)


def replay_samples(mod: IRModule, samples: Sequence[Sample]) -> Comparison:
    """The stored outputs of the stored inputs, computed again by the reference.

    Raises:
        EvaluationError: a stored input does not fit the module.
    """
    executor = ReferenceExecutor(mod)
    elements = differing = 0
    for inputs, stored in samples:
        compared, different = differing_elements(executor.run(inputs), stored)
        elements, differing = elements + compared, differing + different
    return Comparison("stored samples, computed again", len(samples), elements, differing)


def compare_executors(
    what: str, ours: Executor, theirs: Executor, batches: Iterable[Mapping[str, Array]]
) -> Comparison:
    """Both executors on the same inputs."""
    runs = elements = differing = 0
    for inputs in batches:
        compared, different = differing_elements(ours.run(inputs), theirs.run(inputs))
        runs, elements, differing = runs + 1, elements + compared, differing + different
    return Comparison(what, runs, elements, differing)


def replay_core(
    mod: IRModule,
    ranges: Sequence[tuple[int, int]],
    samples: Sequence[Sample],
    rng: np.random.Generator,
    compiled: bool = False,
) -> tuple[tuple[Comparison, ...], tuple[Finding, ...]]:
    """quantized_main on the reference and as exact integer ONNX: random, extreme, real inputs.

    Args:
        mod: partitioned, typed.
        ranges: bounds of each parameter of quantized_main.
        samples: real inputs of main.
        compiled: also as the C that export writes, if it has such a form; needs a C compiler.
    """
    others: dict[str, Callable[[], Executor]] = {"integer ONNX": lambda: IntegerExecutor(mod, CORE)}
    if compiled:
        others["generated C"] = lambda: CExecutor(mod, CORE, REPLAY_FLAGS)
    params = mod[CORE].params
    kinds = {
        "random integers": list(random_inputs(params, ranges, rng)),
        "extreme integers": list(extreme_inputs(params, ranges, rng)),
        "real inputs": list(real_inputs(mod, samples)),
    }
    ours = _Remembering(ReferenceExecutor(mod, CORE))
    found: list[Comparison] = []
    findings: list[Finding] = []
    for name, make in others.items():
        try:
            theirs = make()
        except (LoweringError, CodegenError):
            # No loops or no C for an operator says nothing against the integers.
            continue
        except CompilerError as error:
            findings.append(Finding("executors", f"@{CORE}", f"has no exact {name}: {error}"))
            continue
        for kind, batches in kinds.items():
            what = f"@{CORE}, reference and {name}, {kind}"
            found.append(compare_executors(what, ours, theirs, batches))
    findings += [f for one in found for f in one.finding("executors")]
    return tuple(found), tuple(findings)


class _Remembering:
    """An executor that computes every batch once, however many others are compared with it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._known: dict[int, list[Array]] = {}
        self.input_names = executor.input_names

    def run(self, inputs: AnyInputs) -> list[Array]:
        """The results for a batch; batches are told apart by identity."""
        if id(inputs) not in self._known:
            self._known[id(inputs)] = self._executor.run(inputs)
        return self._known[id(inputs)]


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
    yield {
        p.name_hint: np.where(np.indices(_shape(p)).sum(axis=0) % 2 == 0, low, high).astype(
            _dtype(p)
        )
        for p, (low, high) in zip(params, ranges)
    }
    yield {
        p.name_hint: np.where(rng.random(_shape(p)) < 0.5, low, high).astype(_dtype(p))
        for p, (low, high) in zip(params, ranges)
    }


def real_inputs(mod: IRModule, samples: Sequence[Sample]) -> Iterator[Inputs]:
    """What quantize_inputs makes of the samples."""
    convert = ReferenceExecutor(mod, PREFIX)
    names = [p.name_hint for p in mod[CORE].params]
    for inputs, _ in samples:
        yield dict(zip(names, convert.run(inputs), strict=True))


def _drawn(rng: np.random.Generator, low: int, high: int, param: Var) -> Array:
    wide = np.uint64 if high > np.iinfo(np.int64).max else np.int64
    drawn = rng.integers(low, high, _shape(param), dtype=wide, endpoint=True)
    return drawn.astype(_dtype(param))


def _shape(param: Var) -> tuple[int, ...]:
    return param.tensor_type.concrete_shape


def _dtype(param: Var) -> str:
    return param.tensor_type.dtype
