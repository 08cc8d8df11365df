"""SteppedEngine: the plan of an engine, run value by value on operands that the caller gives.

    stage 0    rows 0, 1    write a buffer with its border       %0 is read
    stage 1    row 2        reads that buffer, in place           %3 is read: %1 and %2 lie nowhere

Rows, blob, views and places are those of ``EngineExecutor``. A value that is given is written over
the elements of its view, so that what lies around them is what its producer left. Memory that no
later row reads is noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from compiler.ir.dataflow import Value
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.targets.engine.executor import Arena, Batch, EngineExecutor, array_of
from compiler.targets.engine.plan import Plan
from compiler.targets.engine.planner import Planner, plan_function
from compiler.targets.engine.steps import SLACK
from compiler.targets.engine.values import bits_of, is_integer
from compiler.targets.engine.views import Buffer, View


class SteppedEngine(EngineExecutor):
    """Implements ``proof.steps.Form``.

    Args:
        mod, function, isa: as for ``EngineExecutor``.
    Raises:
        CodegenError, PlanError: as ``EngineExecutor``.
    """

    name = "engine"
    _planner: Planner

    def __init__(self, mod: IRModule, function: str = "main", isa: str | None = None) -> None:
        super().__init__(mod, function, isa)
        self.flow = self._planner.flow
        self.starts: Sequence[Value] = self.flow.inputs
        self.operators = len(self.flow.steps)
        emitter = self._planner.emitter
        self._actions = emitter.kept
        kept = set(map(id, self._actions))
        behind = np.cumsum([0, *(id(action) in kept for action in emitter.actions)])
        last: dict[Buffer, int] = {}
        for at, action in enumerate(self._actions):
            last |= {b: at for b in (*action.reads, *action.writes) if isinstance(b, Buffer)}
        self._dying: dict[int, list[Buffer]] = {}
        for buffer, at in last.items():
            self._dying.setdefault(at, []).append(buffer)
        # Values between the words of an operator have no name in the module.
        results = (value for step in self.flow.steps for value in step.results)
        named = {*self.flow.inputs, *results}
        self._items = {v: i for v, i in self._planner.items.items() if v in named}
        values: dict[Any, Value] = {}
        for value, item in self._items.items():
            if item.data is None:
                values.setdefault(item, value)
        self._places: list[tuple[int, Value, View]] = []
        for (item, place), actions in self._planner.placed.items():
            at = int(behind[actions])
            if item in values and last.get(place.buffer, -1) >= at:
                self._places.append((at, values[item], place))
        self._places.sort(key=lambda place: place[0])
        alone = [(value,) for _, value, _ in self._places]
        self.stages: Sequence[Sequence[Value]] = [*alone, self.flow.outputs]
        self._first_in = self._shared()
        self._within = {root for value, root in self._planner.equal() if value not in named}

    def _planned(self, mod: IRModule, function: str) -> Plan:
        self._planner, plan = plan_function(mod, function, self._library)
        return plan

    def _shared(self) -> set[Value]:
        """Values that lie in memory of their own, rather than being other views of such ones, and
        are no moved copies, which the plan may read as what they are moved from."""
        owners: dict[Buffer, Value] = {}
        for _, value, place in self._places:
            owners.setdefault(place.buffer, value)
        lying = {self._items[value] for _, value, _ in self._places}
        moves = {value: self._planner.behind_moves(value) for value in owners.values()}
        return {
            v for v, (p, of) in moves.items() if not p or self._planner.items.get(of) not in lying
        }

    def source(self, value: Value) -> Value:
        """The value that an equal one is computed as."""
        return self._planner.root(value)

    def may_give(self, value: Value) -> bool:
        """Whether a value can be given without changing another one."""
        return value in self._first_in and value not in self._within

    def bounds(self) -> dict[Value, tuple[int, int]]:
        """What the plan relies on, for every integer that it computes."""
        return {
            value: (item.low, item.high)
            for value, item in self._items.items()
            if is_integer(value.type.dtype)
            and all(item.shape)
            and value not in self._planner.folded
        }

    def begin(self, inputs: Sequence[Array], rng: np.random.Generator) -> None:
        """Start with other inputs, in memory that is all noise."""
        self._ins = [np.ascontiguousarray(array) for array in inputs]
        self._outs = [np.zeros(shape, dtype) for shape, dtype in self._out]
        self._noise = np.frombuffer(rng.bytes(self.plan.arena_bytes), np.uint8)
        self._arena = Arena(self.plan.arena_bytes)
        self._arena.bytes[:-SLACK] = self._noise
        self._batch = Batch(*self._sizes).fill(self._ins, self._outs)
        self._at = 0
        self._lying: dict[Value, View] = {}
        self._given: set[Value] = set()

    def run_stage(self, stage: int, operands: Mapping[Value, Array]) -> list[Array]:
        """The values of one stage, after the stages before it.

        Args:
            operands: what earlier values are from now on.
        """
        for value, array in operands.items():
            if value not in self._given and value in self._lying:
                self._given.add(value)
                place = self._lying[value]
                memory = array_of(place, self._arena.bytes)
                memory[...] = (bits_of(array).astype(np.int64) + place.buffer.zero).astype(
                    memory.dtype
                )
        if stage == len(self._places):
            self._run_until(len(self._actions))
            return self._outs
        at, value, place = self._places[stage]
        self._run_until(at)
        self._lying[value] = place
        stored = array_of(place, self._arena.bytes)
        if value.type.dtype == "float32":
            return [np.array(stored).view(np.float32)]  # ascontiguousarray gives a scalar an axis
        return [stored.astype(np.int64) - place.buffer.zero]

    def _run_until(self, stop: int) -> None:
        while self._at < stop:
            last = self._at
            while self._actions[self._at].kind == "loop" and self._actions[last].kind != "repeat":
                last += 1  # a loop runs as a whole
            self.kernels((self._at, last + 1), self._batch, self._arena)
            dying = [self._dying.get(at, ()) for at in range(self._at, last + 1)]
            for buffer in chain.from_iterable(dying):
                lost = slice(buffer.place, buffer.place + buffer.size)
                self._arena.bytes[lost] = self._noise[lost]
            self._at = last + 1
