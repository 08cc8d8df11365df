"""SteppedEngine: the plan of an engine, run value by value on operands that the caller gives.

    stage 0    rows 0, 1    write a buffer with its border       %0 is read
    stage 1    row 2        reads that buffer, in place           %3 is read: %1 and %2 lie nowhere

Rows, blob, views and places are those of ``EngineExecutor``. A value that is given is written over
the elements of its view, so that what lies around them is what its producer left. Memory that no
later row reads is noise.

A loop runs as a whole, on given operands. The rows of its body are run once more one by one, for
one turn whose states and inputs are given: what a turn seldom computes is computed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from compiler.ir.dataflow import Value
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float
from compiler.ops.number_format import Array
from compiler.targets.engine.executor import Arena, Batch, EngineExecutor, array_of
from compiler.targets.engine.library import Library
from compiler.targets.engine.plan import Plan
from compiler.targets.engine.planner import Loop, Planner, plan_function
from compiler.targets.engine.steps import SLACK
from compiler.targets.engine.values import bits_of, is_integer
from compiler.targets.engine.views import Buffer, View


class _Rows:
    """The rows that one planner made; implements ``proof.steps.Form``.

    Args:
        engine: of the whole plan.
        planner: made the rows.
        rows: of the plan.
        results: values that are read behind the last row.
        views: where ``starts`` lie in front of the rows; empty where they are inputs of the plan.
    """

    name = "engine"

    def __init__(
        self,
        engine: SteppedEngine,
        planner: Planner,
        rows: range,
        results: Sequence[Value],
        views: Mapping[Value, View | None],
    ) -> None:
        self._engine = engine
        self._planner = planner
        self._rows = rows
        self._views = views
        self.flow = planner.flow
        self.starts: Sequence[Value] = [v for v in self.flow.inputs if v.data is None]
        self.operators = len(self.flow.steps)
        # Values between the words of an operator have no name in the module.
        made = (value for step in self.flow.steps for value in step.results)
        self._named = named = {*self.flow.inputs, *made}
        self._items = {v: i for v, i in planner.items.items() if v in named}
        values: dict[Any, Value] = {}
        for value, item in (self._items | planner.items).items():
            if item.data is None:
                values.setdefault(item, value)
        # An item without a value, such as one in front of a zero point, is a part of its reader's.
        parts = dict(values)
        waiting = list(parts.items())
        while waiting:
            item, value = waiting.pop()
            for arg in () if item.chain is None else item.chain.args:
                if arg.data is None and arg not in parts:
                    parts[arg] = value
                    waiting.append((arg, value))
        lying = [
            (at, parts[item], place, item in values)
            for (item, place), actions in planner.placed.items()
            if item in parts
            and engine.last_use.get(place.buffer, -1) >= (at := engine.row_of(actions))
        ]
        lying.sort(key=lambda place: place[0])
        self._places = [
            (at, value, place)
            for at, value, place, whole in lying
            if whole and value in self._items
        ]
        alone = [(value,) for _, value, _ in self._places]
        self.stages: Sequence[Sequence[Value]] = [*alone, results]
        within = {root for value, root in planner.equal() if value not in named}
        self._own = {v for v in self._shared() - within if not is_float(v.type.dtype)}
        self._own -= self._computed_twice([(at, value) for at, value, _, _ in lying])

    def _shared(self) -> set[Value]:
        """Values that lie in memory of their own, rather than being other views of such ones, are
        no moved copies, which the plan may read as what they are moved from, and are not computed
        by the row that computes another value, which then is not what the given one makes it."""
        places = [*self._views.items(), *((value, place) for _, value, place in self._places)]
        owners: dict[Buffer, Value] = {}
        for value, place in places:
            if place is not None:
                owners.setdefault(place.buffer, value)
        lying = {self._items[value] for value, _ in places}
        written = ([b for b in a.writes if b in owners] for a in self._engine.actions)
        joint = {b for buffers in written if len(buffers) > 1 for b in buffers}
        alone = (value for buffer, value in owners.items() if buffer not in joint)
        moves = {value: self._planner.behind_moves(value) for value in alone}
        return {
            v for v, (p, of) in moves.items() if not p or self._planner.items.get(of) not in lying
        }

    def _computed_twice(self, lying: Sequence[tuple[int, Value]]) -> set[Value]:
        """Values that are computed on the way to one that lies in front of them and is not given,
        which then is not what the given ones make it."""
        rows = {value: at for at, value, _ in self._places}
        found: set[Value] = set()
        seen: set[Value] = set()
        for at, start in lying:
            if start in found or start not in self._own:
                waiting = [start]
            else:
                waiting = []
            while waiting:
                producer = waiting.pop().producer
                for arg in map(self._planner.root, () if producer is None else producer.args):
                    if arg not in seen and rows.get(arg, at + 1) > at:
                        seen.add(arg)
                        waiting.append(arg)
                        if arg in rows:
                            found.add(arg)
        return found

    def source(self, value: Value) -> Value:
        """The value that an equal one is computed as; itself where that is within an operator."""
        root = self._planner.root(value)
        if root in self._named:
            return root
        return value

    def may_give(self, value: Value) -> bool:
        """Return whether a value can be given: an integer whose change changes no other value."""
        return value in self._own

    def bounds(self) -> dict[Value, tuple[int, int]]:
        """Return the bounds that the plan relies on, for every integer that it computes."""
        return {
            value: (item.low, item.high)
            for value, item in self._items.items()
            if is_integer(value.type.dtype)
            and all(item.shape)
            and value not in self._planner.folded
        }

    def begin(self, inputs: Sequence[Array], rng: np.random.Generator) -> None:
        """Start with other inputs, in memory that is all noise."""
        plan = self._engine.plan
        self._noise = np.frombuffer(rng.bytes(plan.arena_bytes), np.uint8)
        self._arena = Arena(plan.arena_bytes)
        self._arena.bytes[:-SLACK] = self._noise
        self._at = self._rows.start
        self._lying: dict[Value, View] = {}
        self._given: set[Value] = set()
        self._enter(inputs)

    def _enter(self, inputs: Sequence[Array]) -> None:
        """The turn of a loop reads what lies in memory, and no input of the module."""
        self._ins, self._outs = self._engine.empty()
        for place, (value, array) in enumerate(zip(self.starts, inputs, strict=True)):
            view = self._views.get(value)
            if value not in self._views:
                self._ins[place] = np.ascontiguousarray(array)
            elif view is not None and view.buffer in self._engine.last_use:  # else no row reads it
                self._write(view, array)
        self._batch = Batch(*self._engine.sizes).fill(self._ins, self._outs)

    def _write(self, place: View, array: Array) -> None:
        memory = array_of(place, self._arena.bytes)
        memory[...] = (bits_of(array).astype(np.int64) + place.buffer.zero).astype(memory.dtype)

    def _read(self, place: View, value: Value) -> Array:
        stored = array_of(place, self._arena.bytes)
        if value.type.dtype == "float32":
            return np.array(stored).view(np.float32)  # ascontiguousarray gives a scalar an axis
        return np.asarray(stored.astype(np.int64) - place.buffer.zero)

    def run_stage(self, stage: int, operands: Mapping[Value, Array]) -> list[Array]:
        """The values of one stage, after the stages before it.

        Args:
            operands: what earlier values are from now on.
        """
        for value, array in operands.items():
            if value not in self._given and value in self._lying:
                self._given.add(value)
                self._write(self._lying[value], array)
        if stage == len(self._places):
            self._run_until(self._rows.stop)
            return self._results()
        at, value, place = self._places[stage]
        self._run_until(at)
        self._lying[value] = place
        return [self._read(place, value)]

    def _results(self) -> list[Array]:
        return self._outs

    def _run_until(self, stop: int) -> None:
        actions = self._engine.actions
        while self._at < stop:
            last = self._at
            while actions[self._at].kind == "loop" and actions[last].kind != "repeat":
                last += 1  # a loop runs as a whole
            if last > self._at or actions[last].kind != "part":  # it counts the turns of a loop
                self._engine.kernels((self._at, last + 1), self._batch, self._arena)
            dying = [self._engine.dying.get(at, ()) for at in range(self._at, last + 1)]
            for buffer in chain.from_iterable(dying):
                lost = slice(buffer.place, buffer.place + buffer.size)
                self._arena.bytes[lost] = self._noise[lost]
            self._at = last + 1


class _Turn(_Rows):
    """One turn of a loop; its results are the next states, where they lie."""

    def __init__(self, engine: SteppedEngine, loop: Loop) -> None:
        begin = engine.row_of(loop.action) + 1
        kinds = [action.kind for action in engine.actions[begin:]]
        rows = range(begin, begin + kinds.index("repeat"))
        self._states = loop.states
        flow = loop.body.flow
        views = dict(zip(flow.inputs, loop.views, strict=True))
        super().__init__(engine, loop.body, rows, flow.outputs[: len(loop.states)], views)

    def _results(self) -> list[Array]:
        return list(map(self._read, self._states, self.stages[-1]))


class SteppedEngine(_Rows, EngineExecutor):
    """The rows of a module.

    Args:
        mod, function, isa: as for ``EngineExecutor``.
    Attributes:
        bodies: one turn of each loop.
        actions: the rows.
        last_use, dying: the last row that touches a buffer, and the other way round.
    Raises:
        CodegenError, PlanError: as ``EngineExecutor``.
    """

    _planner: Planner

    def __init__(
        self, mod: IRModule, function: str = "main", isa: str | Library | None = None
    ) -> None:
        EngineExecutor.__init__(self, mod, function, isa)
        planner = self._planner
        emitter = self._planner.emitter
        self.actions = emitter.kept
        self.sizes = self._sizes
        kept = set(map(id, self.actions))
        self._behind = np.cumsum([0, *(id(action) in kept for action in emitter.actions)])
        self.last_use: dict[Buffer, int] = {}
        for at, action in enumerate(self.actions):
            self.last_use |= {
                b: at for b in (*action.reads, *action.writes) if isinstance(b, Buffer)
            }
        self.dying: dict[int, list[Buffer]] = {}
        for buffer, at in self.last_use.items():
            self.dying.setdefault(at, []).append(buffer)
        rows = range(len(self.actions))
        _Rows.__init__(self, self, planner, rows, planner.flow.outputs, {})
        self.bodies = [_Turn(self, loop) for loop in planner.loops]

    def row_of(self, actions: int) -> int:
        """Return the number of rows that the first ``actions`` of the planner became."""
        return int(self._behind[actions])

    def empty(self) -> tuple[list[Array], list[Array]]:
        """Return zeros for the inputs and outputs, which a turn of a loop does not use."""
        ins, outs = ([np.zeros(shape, d) for shape, d in side] for side in (self._in, self._out))
        return ins, outs

    def _planned(self, mod: IRModule, function: str) -> Plan:
        self._planner, plan = plan_function(mod, function, self._library)
        return plan
