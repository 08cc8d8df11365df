"""SteppedC: the kernels of the exported C, called one by one on operands that the caller gives.

Source, flags and library are those of ``CExecutor``; kernels are found by a table behind the
source. Each runs where the exported function runs it, in an arena that is noise but for its
operands.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import EvaluationError
from compiler.ir import dataflow as flat
from compiler.ir.dataflow import flatten_function
from compiler.ir.expr import Call, Function, GlobalVar
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.ops.transform.scan import ScanAttrs
from compiler.runtime.packed import numbers
from compiler.targets.c.executor import KERNELS, CExecutor
from compiler.targets.c.program import C_FORM, Step, Value

Calls = Sequence[tuple[Call, tuple[flat.Value, ...]]]


class _Kernels:
    """The kernels of one function; implements ``proof.steps.Form``.

    Args:
        form: of the whole source.
        function: its name.
        flow: that it was made of, or that holds its operators.
        starts: its operands.
        calls: of kernels, with their results.
    """

    name = "generated C"

    def __init__(
        self,
        form: SteppedC,
        function: str,
        flow: flat.Dataflow,
        starts: Sequence[flat.Value],
        calls: Calls,
    ) -> None:
        self._form = form
        self.flow = flow
        self.starts = starts
        kernels = [values for call, values in calls if isinstance(call.op, Function)]
        self._placement = form.package.entries[function].placement
        program = self._placement.program
        self._numbers = [n for n, step in enumerate(program.steps) if step.number >= 0]
        steps = [program.steps[n] for n in self._numbers]
        if max((step.number for step in steps), default=-1) >= len(kernels):
            raise EvaluationError("the C has other kernels than the graph that it is made of")
        self.stages: Sequence[Sequence[flat.Value]] = [kernels[step.number] for step in steps]
        inputs, results = (
            {value.producer for value in values}
            for values in (self.starts, (v for made in kernels for v in made))
        )
        places = [n for n, step in enumerate(self.flow.steps) if step in inputs]
        ends = [n for n, step in enumerate(self.flow.steps) if step in results]
        self.operators = max(ends, default=-1) - max(places, default=-1)
        self._homes = dict(zip(self.starts, program.params, strict=True))
        for step, values in zip(steps, self.stages):
            self._homes.update(zip(values, step.outs, strict=True))

    def source(self, value: flat.Value) -> flat.Value:
        """The value itself."""
        return value

    def may_give(self, value: flat.Value) -> bool:
        """Return whether kernels give each other the value."""
        return value in self._homes

    def bounds(self) -> Mapping[flat.Value, tuple[int, int]]:
        """None: loops know their own."""
        return {}

    def begin(self, inputs: Sequence[Array], rng: np.random.Generator) -> None:
        """Nothing is kept from one kernel to the next."""
        self._noise = rng.bytes(self._placement.arena_bytes + 16)

    def run_stage(self, stage: int, operands: Mapping[flat.Value, Array]) -> list[Array]:
        """The results of one kernel."""
        number = self._numbers[stage]
        step = self._placement.program.steps[number]
        arena = np.frombuffer(bytearray(self._noise), np.int64, len(self._noise) // 8)
        start = arena.ctypes.data
        others: dict[Value, Array] = {}
        for home in (*step.args, *step.outs):
            if home.packed is not None:
                others[home] = np.frombuffer(numbers(*home.packed), np.uint8)
            elif home.data is not None:
                others[home] = np.ascontiguousarray(home.data)
            elif home not in self._placement.offsets:
                others.setdefault(home, np.zeros(home.shape, home.dtype))
        for value, array in operands.items():
            home = self._homes[value]
            if home not in step.args:  # read by a later kernel
                continue
            if home in others:
                others[home][...] = array.reshape(home.shape)
            else:
                held = np.ascontiguousarray(array)
                ctypes.memmove(start + self._placement.offsets[home], held.ctypes.data, held.nbytes)
        places = [
            others[home].ctypes.data if home in others else start + self._placement.offsets[home]
            for home in (*step.args, *step.outs)
        ]
        places += [start + offset for offset in self._placement.temps[number]]
        if step.loop is None:
            _function(self._form.symbols[step.callee], len(places))(*places)
        else:
            self._run_loop(step, step.loop, start, places)
        found = []
        for value, home in zip(self.stages[stage], step.outs, strict=True):
            made = others.get(home)
            if made is None:
                at = self._placement.offsets[home]
                made = arena.view(np.uint8)[at : at + home.nbytes].view(home.dtype)
            found.append(made.reshape(value.type.concrete_shape))
        return found

    def _run_loop(self, step: Step, loop: ScanAttrs, arena: int, places: Sequence[int]) -> None:
        """Run a loop as the C does: the function of the body for each step."""
        count, (states, moving) = len(step.args), loop.borders(len(step.outs))
        behind = count + len(step.outs)
        args = places[:count]
        outs = places[count:behind]
        following = places[behind:]
        entry = self._form.package.entries[step.callee]
        first = [arena] if entry.placement.arena_bytes else []
        call = _function(self._form.address(entry.symbol), len(first) + count + len(step.outs))

        def moved(targets: Sequence[int], sources: Sequence[int]) -> None:
            for target, source, value in zip(targets, sources, step.states):
                ctypes.memmove(target, source, value.nbytes)

        def turns(
            turn: int, at: Sequence[int], values: Sequence[Value], back: Sequence[int]
        ) -> list[int]:
            steps = (loop.length - 1 - turn if b else turn for b in back)
            return [p + n * v.nbytes // loop.length for p, n, v in zip(at, steps, values)]

        moved(outs, args)
        for turn in range(loop.length):
            read = turns(turn, args[states:moving], step.args[states:moving], loop.reverse_inputs)
            made = turns(turn, outs[states:], step.outs[states:], loop.reverse_outputs)
            call(*first, *outs[:states], *read, *args[moving:], *following, *made)
            moved(outs, following)


class SteppedC(_Kernels, CExecutor):
    """The kernels of a function that main calls once.

    Args:
        mod, flags: as for ``CExecutor``.
        prefix, core: names of the function that gives the operands of the other.
    Attributes:
        bodies: of the loops.
        symbols: addresses of kernels, by their names in the module.
    Raises:
        LoweringError, CodegenError: as ``CExecutor``.
        EvaluationError: the C has other kernels than the graph that it is made of.
    """

    def __init__(self, mod: IRModule, prefix: str, core: str, flags: Sequence[str]) -> None:
        pipeline = importlib.import_module("compiler.pipeline")
        fused = pipeline.fuse_for_c(mod)
        CExecutor.__init__(self, pipeline.lower_fused(fused).mod, "main", flags)
        table = (ctypes.c_void_p * len(self.package.functions)).in_dll(self._library, KERNELS)
        self.symbols = dict(zip(self.package.functions, table))
        calls: list[tuple[Call, tuple[flat.Value, ...]]] = []
        flow = flatten_function(fused["main"], fused, form=C_FORM, inlined=calls)
        called = [c.op.name_hint if isinstance(c.op, GlobalVar) else "" for c, _ in calls]
        before = called.index(prefix)
        behind = called.index(core)
        _Kernels.__init__(self, self, core, flow, calls[before][1], calls[before + 1 : behind])
        bodies = [step.body for step in flow.steps if step.body is not None]
        loops = [step for step in self._placement.program.steps if step.loop is not None]
        self.bodies = [self._turn(s.callee, b, fused) for s, b in zip(loops, bodies, strict=True)]

    def _turn(self, function: str, body: flat.Dataflow, fused: IRModule) -> _Kernels:
        """One turn of a loop: the calls of its body, whose flow is ``body``."""
        calls: list[tuple[Call, tuple[flat.Value, ...]]] = []
        again = flatten_function(fused[function], fused, form=C_FORM, inlined=calls)
        same = dict(zip(flat.values_of(again), flat.values_of(body), strict=True))
        kernels = [(call, tuple(same.get(v, v) for v in values)) for call, values in calls]
        return _Kernels(self, function, body, body.inputs, kernels)

    def address(self, symbol: str) -> int:
        """Return the address of a function of the library."""
        return ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value or 0


def _function(address: int, arguments: int) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)
