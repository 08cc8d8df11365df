"""Every step of a form against the reference, on operands that no input of the module may reach.

A form of the core is a list of stages. Each computes some values from earlier ones, which are set
before it runs to what ``drives`` chooses within their proved bounds. What it gives is compared with
the numpy meaning of the operators between, bit for bit. What stands behind a condition that no
input meets is run like everything else.

    engine          its own plan on its own buffers; a value is given in place, so that what lies
                    around it is what its producer wrote; memory that no later row reads is noise
    integer ONNX    the exported nodes, every value cut in as an input, a user's session options;
                    what onnxruntime fuses across values is left to ``replay``: the whole file
    generated C     the kernels of the exported source, in the library that ``replay`` compiles,
                    between values of the module: what passes made of its operators is not believed

Operators that a form computes at once are one step of it: ties in the middle are traced back to
what can be given. A loop is such a step; then its body is stepped as a flow of its own, for one
turn on given states and inputs. A condition inside a step of a form is said if one of its outcomes
changed no result in any round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.at_work import at_work
from compiler.errors import CodegenError, CompilerError, EvaluationError
from compiler.ir.dataflow import Dataflow, Step, Value, dataflow, values_of
from compiler.ir.module import IRModule
from compiler.ops.evaluate import evaluate_step
from compiler.proof.drives import ROUNDS, Drives
from compiler.proof.wiring import CORE, PREFIX, SUFFIX
from compiler.proof.work import Work, replay_inputs, run_seconds
from compiler.ranges.analysis import value_bounds
from compiler.ranges.finding import Finding
from compiler.ranges.interval import Interval
from compiler.targets.c.stepwise import Lowering, SteppedC
from compiler.targets.engine.stepwise import SteppedEngine
from compiler.targets.ort.stepwise import SteppedOnnx

Array = NDArray[Any]
Bounds = Mapping[Value, Interval]

CHECK: Final = "steps"
_INPUTS_PER_ROUND: Final = 4
"""A round of all forms costs as much as so many inputs of ``replay`` at most."""
_INPUTS: Final = 16
"""Number of inputs that the replay of a small module runs."""
_BUILD_S: Final = 0.25
"""CPU seconds of the replay beside its runs, at least: sessions, and a C compiler."""
_ROUNDS: Final = 32
"""At most."""
_SHOWN: Final = 5
"""Findings of one form that are reported."""


class Form(Protocol):
    """A form whose values can be given.

    Attributes:
        name: for people.
        flow: operators with their operands, conversions around the core included.
        operators: how many of them are to be tested.
        starts: values that nothing computes.
        stages: the values that each stage computes, in order. A value may lie at two places, and
            then belongs to two stages.
    """

    name: str
    flow: Dataflow
    operators: int
    starts: Sequence[Value]
    stages: Sequence[Sequence[Value]]

    def source(self, value: Value) -> Value:
        """The value that an equal one is computed as."""

    def may_give(self, value: Value) -> bool:
        """Return whether the value can be set for the stages behind it."""

    def bounds(self) -> Mapping[Value, tuple[int, int]]:
        """Bounds that the form relies on; empty for one that relies on none."""

    def begin(self, inputs: Sequence[Array], rng: np.random.Generator) -> None:
        """Start a round; ``inputs`` are what ``starts`` are."""

    def run_stage(self, stage: int, operands: Mapping[Value, Array]) -> Sequence[Array]:
        """The values of a stage; stages run in order.

        Args:
            operands: what values of earlier stages are from now on, those of later stages too: a
                form may prepare an operand long before it is read.
        """


class Whole(Form, Protocol):
    """A form of a module."""

    @property
    def bodies(self) -> Sequence[Form]:
        """One turn of each of its loops."""


@dataclass(frozen=True, slots=True)
class Tested:
    """Record of the tests of one form.

    Attributes:
        form: its name.
        steps: operators that ran on given operands, in stages of one or several.
        of: how many operators there are; of the engine and of ONNX conversions included.
        given: values that operands were set to numbers of.
        rounds: runs of each stage.
        elements: results compared.
        bounds: values whose bounds were compared with the proof's.
        unmet: outcomes of conditions that changed no result, a sentence each.
        without: why nothing was run; "" where it was.
    """

    form: str
    steps: int = 0
    of: int = 0
    given: int = 0
    rounds: int = 0
    elements: int = 0
    bounds: int = 0
    unmet: tuple[str, ...] = ()
    without: str = ""

    def plus(self, other: Tested) -> Tested:
        """Add the counts of the body of a loop to those of its form."""
        names = ("steps", "of", "given", "elements", "bounds", "unmet")
        return replace(self, **{n: getattr(self, n) + getattr(other, n) for n in names})

    def __str__(self) -> str:
        if self.without:
            return f"steps of the {self.form}: none, {self.without}"
        told = f"steps of the {self.form}: {self.steps} of {self.of} operators on given operands"
        told += f", {self.rounds} rounds, {self.elements} elements"
        if self.bounds:
            told += f"; {self.bounds} bounds are not narrower"
        if self.unmet:
            if len(self.unmet) <= _SHOWN:
                more = ""
            else:
                more = f" and {len(self.unmet) - _SHOWN} more"
            told += f"; changed no result: {', '.join(self.unmet[:_SHOWN])}{more}"
        return told


def rounds_of(work: Work) -> int:
    """Rounds that take at most the CPU time of the replay; 1 at least."""
    seconds = run_seconds(work)
    replayed = seconds * min(replay_inputs(work), _INPUTS) + _BUILD_S
    return max(1, min(_ROUNDS, int(replayed / (_INPUTS_PER_ROUND * seconds))))


MOST_C_BYTES: Final = 1 << 28
"""Upper limit of the bytes of constants of a module that is compiled as C to be compared."""


def built_in_c(mod: IRModule, flags: Sequence[str], lowering: Lowering) -> Callable[[], SteppedC]:
    """The C of a partitioned module, built once, when it is asked for."""

    def build() -> SteppedC:
        size = sum(data.nbytes for data in dataflow(mod).constants())
        if size > MOST_C_BYTES:
            raise CodegenError(f"a compiler would read {size} bytes of constants as text")
        return SteppedC(mod, PREFIX, CORE, flags, lowering)

    return cache(build)


def check_forms(
    mod: IRModule, rounds: int, seed: int, in_c: Callable[[], Whole] | None = None
) -> tuple[tuple[Tested, ...], tuple[Finding, ...]]:
    """``check_bounds`` and ``check_steps`` for every form of a proved module.

    Args:
        mod: partitioned and typed.
        rounds: of each stage; 1 at least.
        in_c: gives the C; None leaves it out.
    """
    tested: list[Tested] = []
    findings: list[Finding] = []
    forms: dict[str, Callable[[], Whole]] = {
        SteppedEngine.name: lambda: SteppedEngine(mod),
        SteppedOnnx.name: lambda: SteppedOnnx(mod),
    }
    if in_c is not None:
        forms[SteppedC.name] = in_c
    own = dataflow(mod)
    proved = value_bounds(own)
    for name, make in forms.items():
        at_work(str, f"the {name}")
        try:
            form = make()
        except CompilerError as error:
            tested.append(Tested(name, without=error.what))
            continue
        titles = Titles(form.flow, mod)
        bounds = _bounds_in(form.flow, own, proved)
        done = Tested(name, rounds=rounds)
        for part in (form, *form.bodies):
            findings += check_bounds(part, bounds, titles)
            rng = np.random.default_rng(seed)
            try:
                of_part, found = check_steps(part, bounds, rounds, rng, titles)
            except EvaluationError as error:
                of_part = Tested(name)
                found = (Finding(CHECK, f"the {name}", f"cannot be run: {error}"),)
            done = done.plus(of_part)
            findings += found
        tested.append(done)
    return tuple(tested), tuple(findings)


def _bounds_in(flow: Dataflow, own: Dataflow, known: Mapping[Value, Interval]) -> Bounds:
    """Bounds of the values of a flow; those of the module's own where it is no other one."""
    if _operators(flow) != _operators(own):
        return value_bounds(flow)
    pairs = zip(values_of(own), values_of(flow), strict=True)
    return {value: known[mine] for mine, value in pairs if mine in known}


def _operators(flow: Dataflow) -> list[tuple[str, tuple[int, ...]]]:
    """Operators with their constants, of which a form may have others."""
    steps = (step for one in flow.flows() for step in one.steps)
    return [(s.name, tuple(id(a.data) for a in s.args if a.data is not None)) for s in steps]


def check_bounds(form: Form, bounds: Bounds, titles: Titles) -> tuple[Finding, ...]:
    """Values of which a form assumes less than ``bounds``, which are proved."""
    found = []
    for value, (low, high) in form.bounds().items():
        known = bounds[value]
        if low > known.lowest or high < known.highest:
            what = (
                f"the {form.name} takes it to be in [{low}, {high}], but it may be anything in "
                f"[{known.lowest}, {known.highest}]"
            )
            found.append(Finding(CHECK, titles.of(value), what))
    return tuple(found[:_SHOWN])


def check_steps(
    form: Form, bounds: Bounds, rounds: int, rng: np.random.Generator, titles: Titles
) -> tuple[Tested, tuple[Finding, ...]]:
    """Run every stage on given operands, ``rounds`` times.

    Args:
        form: of a proved module.
        bounds: of its values.
        rounds: what changes from one to the next: see ``drives.ROUNDS``.
    Raises:
        EvaluationError: a stage cannot be run.
    """
    bounds = {v: b for v, b in bounds.items() if all(v.type.shape)}
    needed = _Needed(form, bounds)
    drives = Drives(form.flow, bounds, rng)
    elements = 0
    wrong = dict[str, Finding]()
    for number in range(rounds):
        if number < len(ROUNDS):
            kind = ROUNDS[number]
        else:
            kind = ROUNDS[number % 2]
        given = {value: drives.draw(value, kind) for value in form.starts}
        form.begin([given[value] for value in form.starts], rng)
        for stage, values in enumerate(form.stages):
            if values:  # kernels of a loop may compute no value of the module
                at_work(titles.of, values[0])
            leaves = needed.leaves[stage]
            given |= {v: drives.draw(v, kind) for v in leaves if v not in given}
            results = form.run_stage(stage, given)
            expected = needed.evaluate(stage, given)
            for value, ours, theirs in zip(values, results, expected, strict=True):
                elements += theirs.size
                if not np.array_equal(ours, theirs):
                    name = titles.of(value)
                    wrong.setdefault(name, _difference(form, name, ours, theirs))
            read = (value for value in values if value in needed.given)
            given |= {v: drives.draw(v, kind) for v in read if v not in given}
            for value in needed.read_last[stage]:
                del given[value]
    done = Tested(
        form.name,
        needed.steps,
        form.operators,
        len(needed.given),
        rounds,
        elements,
        len(form.bounds()),
        tuple(f"{titles.of(v)} is {str(met).lower()}" for v, met in needed.unmet()),
    )
    return done, tuple(wrong.values())[:_SHOWN]


def _difference(form: Form, name: str, ours: Array, theirs: Array) -> Finding:
    if ours.shape != theirs.shape:
        return Finding(CHECK, name, f"the {form.name} gives {ours.shape} for {theirs.shape}")
    different = np.argwhere(ours != theirs)
    at = tuple(int(n) for n in different[0])
    what = (
        f"the {form.name} computes other numbers than the reference from operands within their "
        f"bounds: {len(different)} of {theirs.size}, {ours[at]} for {theirs[at]} at {list(at)}"
    )
    return Finding(CHECK, name, what)


class _Needed:
    """Values that each stage is given, and the steps between them and its results.

    Attributes:
        leaves: for each stage, the values that are given.
        read_last: those of them that no later stage reads.
        given: all of them.
        steps: how many operators are run in some stage, or are equal to one.
    """

    def __init__(self, form: Form, bounds: Mapping[Value, Interval]) -> None:
        self._form = form
        order = {step: number for number, step in enumerate(form.flow.steps)}
        self.leaves: list[list[Value]] = []
        self._between: list[list[Step]] = []
        self._lain: list[list[bool]] = []
        self._unmet: list[list[tuple[Value, bool]]] = []
        self.given: set[Value] = set()
        known: set[Value] = set(form.starts)
        run: set[Step] = set()
        for values in form.stages:
            leaves: dict[Value, None] = {}
            between: set[Step] = set()
            # What is given already has to be still the same at another place.
            self._lain.append([form.source(value) in known for value in values])
            for value in values:
                waiting = [form.source(value)]
                while waiting:
                    top = waiting.pop()
                    if top in known:
                        leaves[top] = None
                    elif top.producer is not None and top.producer not in between:
                        between.add(top.producer)
                        waiting.extend(form.source(arg) for arg in top.producer.args)
                if value in bounds and form.may_give(value):
                    known.add(value)
            self.leaves.append(list(leaves))
            self._between.append(sorted(between, key=order.__getitem__))
            self.given.update(leaves)
            run |= between
            self._unmet.append(_outcomes(between, bounds))
        covered = (form.source(s.results[0]).producer for s in form.flow.steps)
        self.steps = sum(producer in run for producer in covered)
        last = {value: n for n, leaves in enumerate(self.leaves) for value in leaves}
        self.read_last: list[list[Value]] = [[] for _ in self.leaves]
        for value, stage in last.items():
            self.read_last[stage].append(value)

    def unmet(self) -> dict[tuple[Value, bool], None]:
        """Return the outcomes of conditions that changed no result of some stage."""
        return {one: None for outcomes in self._unmet for one in outcomes}

    def evaluate(self, stage: int, given: Mapping[Value, Array]) -> list[Array]:
        """Compute one stage with the reference, and note the outcomes that change a result."""
        held: dict[Value, Array] = {}
        results = self._evaluate(stage, given, held)
        for condition, outcome in list(self._unmet[stage]):
            made = held[condition]
            if not (made == outcome).any():
                continue
            without = self._evaluate(stage, given, {condition: np.full_like(made, not outcome)})
            if not all(map(np.array_equal, results, without)):
                self._unmet[stage].remove((condition, outcome))
        return results

    def _evaluate(
        self, stage: int, given: Mapping[Value, Array], held: dict[Value, Array]
    ) -> list[Array]:
        """Compute one stage.

        Args:
            held: takes what steps compute; what it has already stays.
        """
        source = self._form.source

        def operand(value: Value) -> Array:
            value = source(value)
            if value.data is not None:
                return value.data
            if value in leaves:
                return given[value]
            return held[value]

        leaves = set(self.leaves[stage])
        for step in self._between[stage]:
            made = evaluate_step(step, [operand(arg) for arg in step.args])
            for value, array in zip(step.results, made, strict=True):
                held.setdefault(value, array)
        return [
            operand(value) if lain or value.producer is None else held[source(value)]
            for value, lain in zip(self._form.stages[stage], self._lain[stage])
        ]


def _outcomes(steps: Iterable[Step], bounds: Bounds) -> list[tuple[Value, bool]]:
    """Return the conditions that steps compute, with the outcomes that their bounds allow."""
    made = (value for step in steps for value in step.results if value in bounds)
    conditions = [value for value in made if value.type.dtype == "bool"]
    ends = {value: (bounds[value].lowest, bounds[value].highest) for value in conditions}
    return [(value, bool(end)) for value in conditions for end in sorted(set(ends[value]))]


class Titles:
    """Names of values for people.

    Args:
        flow: of the whole module, or of what it became.
        mod: the module.
    """

    def __init__(self, flow: Dataflow, mod: IRModule) -> None:
        parts = [(name, len(dataflow(mod, name).steps)) for name in (PREFIX, CORE, SUFFIX)]
        places = [(name, n) for name, count in parts for n in range(count)]
        if len(places) != len(flow.steps):  # other operators
            places = [("", n) for n in range(len(flow.steps))]
        self._places = dict(zip(flow.steps, places))
        self._loops = {
            inner: step for step in flow.steps if step.body is not None for inner in step.body.steps
        }

    def of(self, value: Value) -> str:
        """Number and operator as ``qsearch show`` has them, and the ONNX nodes it came from."""
        step = value.producer
        if step is None:
            return f"%{value.name}"
        loop = self._loops.get(step)
        if loop is not None:
            assert loop.body is not None
            number = loop.body.steps.index(step)
            return f"{self.of(loop.results[0])}, in its body %{number} {step.name}"
        function, number = self._places[step]
        where = "" if function in ("", CORE) else f"@{function}, "
        source = "" if step.span is None else f", from {step.span}"
        return f"{where}%{number} {step.name}{source}"
