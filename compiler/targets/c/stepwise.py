"""SteppedC: the kernels of the exported C, called one by one on operands that the caller gives.

Source, flags and library are those of ``CExecutor``; kernels are found by a table behind the
source. Each runs where the exported function runs it, in an arena that is noise but for its
operands.

Passes rewrite the graph on its way to kernels. Operands are given, and results expected, at values
that exist in the module: they are what its own operators compute, so that an illegal pass is found.
A kernel that gives none of these values runs together with the one that reads it.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from compiler.errors import EvaluationError
from compiler.ir import dataflow as flat
from compiler.ir.dataflow import flatten_function
from compiler.ir.expr import Call, Expr, Function, GlobalVar
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt_function, typed_alike, with_operands
from compiler.ir.ty import TensorType
from compiler.ops.number_format import Array
from compiler.ops.rules.layout import Order, natural
from compiler.ops.transform.scan import ScanAttrs
from compiler.runtime.lowered_module import LoweredModule
from compiler.runtime.packed import numbers
from compiler.span import AnySpan, Span
from compiler.targets.c.executor import KERNELS, CExecutor
from compiler.targets.c.program import C_FORM, Step, Value

Calls = Sequence[tuple[Call, tuple[flat.Value, ...]]]
Orders = dict[AnySpan | None, Order]
Placed = tuple[flat.Value, Order]
"""A value of the module, and the order of its axes in the memory of the C."""
_MOVES: Final = ("layout_transform", "reshape", "transpose")


class Lowering(NamedTuple):
    """The passes that make kernels of a module.

    Attributes:
        fuse: a module whose kernels are functions; takes what ``ConvertLayout.orders`` is.
        lower: what ``compiler.lower`` gives, of such a module.
    """

    fuse: Callable[[IRModule, Orders], IRModule]
    lower: Callable[[IRModule], LoweredModule]


class _Kernels:
    """The kernels of one function; implements ``proof.steps.Form``.

    Args:
        form: of the whole source.
        function: its name.
        pairs: the values of the module and of the graph that the kernels are made of.
        starts: its operands, of both.
        results: what it gives, of both.
        calls: of kernels, with their results.
    """

    name = "generated C"

    def __init__(
        self,
        form: SteppedC,
        function: str,
        pairs: _Pairs,
        starts: Sequence[tuple[flat.Value, flat.Value]],
        results: Sequence[tuple[flat.Value, flat.Value]],
        calls: Calls,
    ) -> None:
        self._form = form
        self.flow = pairs.own
        self.starts: Sequence[flat.Value] = [mine for mine, _ in starts]
        kernels = [values for call, values in calls if isinstance(call.op, Function)]
        self._placement = form.package.entries[function].placement
        program = self._placement.program
        steps = [(n, step) for n, step in enumerate(program.steps) if step.number >= 0]
        if max((step.number for _, step in steps), default=-1) >= len(kernels):
            raise EvaluationError("the C has other kernels than the graph that it is made of")
        placed = pairs.placed | {made: (mine, _natural(mine)) for mine, made in (*starts, *results)}
        homes = dict(zip((made for _, made in starts), program.params, strict=True))
        stages: list[Sequence[flat.Value]] = []
        self._parts: list[list[tuple[int, Sequence[Placed | None]]]] = [[]]
        for number, step in steps:
            made = kernels[step.number]
            homes.update(zip(made, step.outs, strict=True))
            known = [placed.get(value) for value in made]
            self._parts[-1].append((number, known))
            values = [one[0] for one in known if one is not None]
            if values:
                stages.append(values)
                self._parts.append([])
        self.stages: Sequence[Sequence[flat.Value]] = stages
        self._homes: dict[flat.Value, list[tuple[Value, Order]]] = {}
        for value, home in homes.items():
            if value in placed:
                mine, order = placed[value]
                self._homes.setdefault(mine, []).append((home, order))
        self._sources = pairs.sources
        # What a kernel computes again on its way is not what is given.
        self._own = {v for v in self._homes if homes.keys() >= set(pairs.copies.get(v, ()))}
        inputs = {value.producer for value in self.starts}
        ends = {mine.producer for mine, _ in results}
        first = max((n for n, step in enumerate(self.flow.steps) if step in inputs), default=-1)
        last = max((n for n, step in enumerate(self.flow.steps) if step in ends), default=-1)
        self.operators = last - first

    def source(self, value: flat.Value) -> flat.Value:
        """The value that the C computes in place of an equal one."""
        return self._sources.get(value, value)

    def may_give(self, value: flat.Value) -> bool:
        """Return whether kernels give each other the value, and none computes it on its way."""
        return value in self._own

    def bounds(self) -> Mapping[flat.Value, tuple[int, int]]:
        """None: loops know their own."""
        return {}

    def begin(self, inputs: Sequence[Array], rng: np.random.Generator) -> None:
        """Keep nothing of the round before."""
        self._noise = rng.bytes(self._placement.arena_bytes + 16)
        self._made: dict[Value, Array] = {}

    def run_stage(self, stage: int, operands: Mapping[flat.Value, Array]) -> list[Array]:
        """The results of some kernels, the last of which computes values of the module."""
        for value, array in operands.items():
            for home, order in self._homes.get(value, ()):
                self._made[home] = array.transpose(order)
        found = []
        for number, known in self._parts[stage]:
            results = self._run_kernel(number)
            homes = self._placement.program.steps[number].outs
            for home, one, made in zip(homes, known, results, strict=True):
                self._made[home] = made
                if one is not None:
                    value, order = one
                    shape = [value.type.concrete_shape[axis] for axis in order]
                    found.append(made.reshape(shape).transpose(np.argsort(order)))
        return found

    def _run_kernel(self, number: int) -> list[Array]:
        """The results of one kernel on what earlier ones made, or on what is given."""
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
        for home in step.args:
            if home not in self._made:
                continue
            if home in others:
                others[home][...] = self._made[home].reshape(home.shape)
            else:
                held = np.ascontiguousarray(self._made[home])
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
        for home in step.outs:
            made = others.get(home)
            if made is None:
                at = self._placement.offsets[home]
                made = arena.view(np.uint8)[at : at + home.nbytes].view(home.dtype)
            found.append(made)
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
    """The kernels of a function that main calls once, against the operators of the module.

    Args:
        mod, flags: as for ``CExecutor``.
        prefix, core: names of the function that gives the operands of the other.
        lowering: makes the kernels of a module.
    Attributes:
        bodies: of the loops.
        symbols: addresses of kernels, by their names in the module.
    Raises:
        LoweringError, CodegenError: as ``CExecutor``.
        EvaluationError: the C has other kernels than the graph that it is made of.
    """

    def __init__(
        self, mod: IRModule, prefix: str, core: str, flags: Sequence[str], lowering: Lowering
    ) -> None:
        marked = _marked(mod)
        orders: Orders = {}
        fused = lowering.fuse(marked, orders)
        CExecutor.__init__(self, lowering.lower(fused).mod, "main", flags)
        table = (ctypes.c_void_p * len(self.package.functions)).in_dll(self._library, KERNELS)
        self.symbols = dict(zip(self.package.functions, table))
        own, own_calls = _flattened(mod, "main")
        flow, calls = _flattened(fused, "main")
        pairs = _Pairs(own, _flattened(marked, "main")[0], flow, orders)
        mine = {call.op.name_hint: v for call, v in own_calls if isinstance(call.op, GlobalVar)}
        called = [c.op.name_hint if isinstance(c.op, GlobalVar) else "" for c, _ in calls]
        before = called.index(prefix)
        behind = called.index(core)
        starts = list(zip(mine[prefix], calls[before][1], strict=True))
        results = list(zip(mine[core], calls[behind][1], strict=True))
        kernels = calls[before + 1 : behind]
        _Kernels.__init__(self, self, core, pairs, starts, results, kernels)
        bodies = [step for step in flow.steps if step.body is not None]
        loops = [step for step in self._placement.program.steps if step.loop is not None]
        self.bodies = [
            self._turn(loop.callee, pairs.body(step, orders), fused)
            for loop, step in zip(loops, bodies, strict=True)
        ]

    def _turn(self, function: str, pairs: _Pairs, fused: IRModule) -> _Kernels:
        """One turn of a loop: the calls of its body."""
        again, calls = _flattened(fused, function)
        body = pairs.fused
        same = dict(zip(flat.values_of(again), flat.values_of(body), strict=True))
        kernels = [(call, tuple(same.get(v, v) for v in values)) for call, values in calls]
        starts = list(zip(pairs.own.inputs, body.inputs, strict=True))
        results = list(zip(pairs.own.outputs, body.outputs, strict=True))
        return _Kernels(self, function, pairs, starts, results, kernels)

    def address(self, symbol: str) -> int:
        """Return the address of a function of the library."""
        return ctypes.cast(getattr(self._library, symbol), ctypes.c_void_p).value or 0


def _function(address: int, arguments: int) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)


class _Pairs:
    """The values of a module, and the same in the graph that its kernels are made of.

    A call of the graph has the mark of the call of the module that it comes from. A result of the
    last calls of a mark, but for moves, is that of the module's call.

    Args:
        own: the flow of the module.
        marked: the same of the module whose calls are marked.
        fused: that of the graph.
        orders: of the axes of results, by mark.
    Attributes:
        placed: values of ``fused`` -> those of ``own``.
        copies: values of ``own`` -> those of ``fused`` that are computed from its operands.
        sources: values of ``own`` that ``fused`` lacks -> equal ones that it has.
    """

    def __init__(
        self,
        own: flat.Dataflow,
        marked: flat.Dataflow,
        fused: flat.Dataflow,
        orders: Orders,
    ) -> None:
        self.own = own
        self.fused = fused
        self._origin = {
            other.span: (mine, other) for mine, other in zip(own.steps, marked.steps, strict=True)
        }
        self.placed: dict[flat.Value, Placed] = {}
        self.copies: dict[flat.Value, list[flat.Value]] = {}
        for step in fused.steps:
            if step.span in self._origin:
                mine = self._origin[step.span][0]
            else:
                mine = None
            if mine is None or len(mine.results) != len(step.results):
                continue
            moves = step.name in _MOVES and _mark(step.args[0]) == step.span
            for value, result in zip(mine.results, step.results):
                if moves:
                    order = _natural(value)
                else:
                    order = orders.get(step.span, _natural(value))
                last = all(u.span != step.span or u.name in _MOVES for u in result.users)
                shape = tuple(value.type.concrete_shape[axis] for axis in order)
                if last and result.type == TensorType(shape, value.type.dtype):
                    self.placed[result] = value, order
                    if not moves:
                        self.copies.setdefault(value, []).append(result)
        self.sources = self._equal_values()

    def body(self, step: flat.Step, orders: Orders) -> _Pairs:
        """The pairs of one turn of a loop of the graph."""
        mine, marked = self._origin[step.span]
        bodies = mine.body, marked.body, step.body
        own, other, made = (body for body in bodies if body is not None)
        return _Pairs(own, other, made, orders)

    def _equal_values(self) -> dict[flat.Value, flat.Value]:
        """Map each value that EliminateCommonSubexpr removes to the first equal one."""
        first: dict[flat.Value, flat.Value] = {}
        seen: dict[Any, flat.Step] = {}
        for step in self.own.steps:
            args = tuple(_known(first.get(arg, arg)) for arg in step.args)
            same = seen.setdefault((step.name, repr(step.attrs), args, step.body), step)
            first.update(zip(step.results, same.results))
        return {v: other for v, other in first.items() if v is not other and v not in self.copies}


def _known(value: flat.Value) -> Any:
    """A number by its bits, as EliminateCommonSubexpr compares it; other values themselves."""
    if value.data is not None and not value.data.shape:
        return value.type.dtype, value.data.tobytes()
    return value


def _natural(value: flat.Value) -> Order:
    return natural(len(value.type.shape))


def _mark(value: flat.Value) -> AnySpan | None:
    if value.producer is None:
        return None
    return value.producer.span


def _marked(mod: IRModule) -> IRModule:
    """The module with a mark at each of its calls, in place of the source."""
    marks = map("call {}".format, itertools.count())

    def mark(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call):
            return None
        made = with_operands(node, [new[child] for child in node.operands()])
        return typed_alike(node, made.with_fields(span=Span(next(marks))))

    functions = {
        name: rebuilt_function(function, mark) if isinstance(function, Function) else function
        for name, function in mod.functions.items()
    }
    return infer_module(mod.updated(functions))


def _flattened(mod: IRModule, function: str) -> tuple[flat.Dataflow, Calls]:
    """The flow of a function, and the calls that were inlined."""
    calls: list[tuple[Call, tuple[flat.Value, ...]]] = []
    return flatten_function(mod[function], mod, form=C_FORM, inlined=calls), calls
