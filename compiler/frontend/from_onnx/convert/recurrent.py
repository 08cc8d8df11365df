"""RNN, GRU and LSTM as loops.

One nn.dense multiplies the inputs of all steps; each step adds nn.dense of the hidden state by one
shared weight and applies its activations. The marks of open loops are written (``ir/loops.py``);
the importer closes them at its end.

Source of the formulas: ONNX operators RNN, GRU, LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
from onnx import helper

from compiler.frontend.from_onnx.convert.matmul import dense
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import find_converter, from_onnx
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""True for each pass of a direction that goes from the last step to the first."""

# What the activations take from activation_alpha and activation_beta, with ONNX's defaults.
ACTIVATIONS: dict[str, dict[str, float]] = {
    "Tanh": {},
    "Sigmoid": {},
    "Relu": {},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "Softsign": {},
    "Softplus": {},
}

_Activation = Callable[[Expr], Expr]
_States = tuple[Expr, ...]
"""Hidden state and, in an LSTM, cell state, each (batch, hidden)."""
_Step = Callable[[Expr, _States], tuple[Expr, ...]]
"""From what the inputs give to the gates (batch, gates * hidden) and the states: next states."""


@dataclass(frozen=True, slots=True)
class _Direction:
    """One direction of a recurrence: its part of the inputs, and its activations."""

    node: OnnxNode
    index: int
    hidden: int
    activations: Sequence[_Activation]

    def part(self, place: int, *rows: tuple[int, int], axis: int = 0) -> Expr:
        """This direction's part of input ``place``, or the sum of rows of it.

        Args:
            rows: (first, last + 1) of each summand, in units of ``hidden``; () for all rows.
            axis: where the input counts directions.
        """
        node = self.node
        index = self.index
        cuts = [(first * self.hidden, last * self.hidden) for first, last in rows]
        title = ".".join((f"direction_{index}", *(f"rows_{a}_{b}" for a, b in cuts)))

        def own(array: Array) -> Array:
            mine = np.take(array, index, axis)
            return reduce(np.add, [mine[a:b] for a, b in cuts]) if cuts else mine

        stored = node.weight(place, title, own)
        if stored is not None:
            return stored
        taken = node.call(
            "strided_slice", node.arg(place), begin=(index,), end=(index + 1,), axes=(axis,)
        )
        whole = node.call("squeeze", taken, axis=(axis,))
        parts = [
            node.call("strided_slice", whole, begin=(a,), end=(b,), axes=(0,)) for a, b in cuts
        ]
        if parts:
            return reduce(partial(node.call, "add"), parts)
        return whole

    def start(self, place: int, batch: int, dtype: str) -> Expr:
        """The first state (batch, hidden) in input ``place``, or zeros."""
        if self.node.has_input(place):
            return self.part(place, axis=self.node.attr("layout", 0))
        return self.node.const(np.zeros((batch, self.hidden)), dtype)

    def gates(self, data: Expr, count: int, alike: int = 1) -> list[Expr]:
        """Pieces of the last axis, the first as long as ``alike`` of the others together."""
        cuts: int | tuple[int, ...] = count
        if alike > 1:
            cuts = tuple(place * self.hidden for place in range(alike, count))
            count -= alike - 1
        pieces = self.node.call("split", data, indices_or_sections=cuts, axis=-1)
        return [self.node.field(pieces, i) for i in range(count)]


@from_onnx("RNN", folds=False)
def rnn(node: OnnxNode) -> list[Expr]:
    """H = f(X W + H R + b)."""

    def cell(run: _Direction) -> _Step:
        (activation,) = run.activations
        weight = run.part(2)

        def step(gates: Expr, states: _States) -> tuple[Expr, ...]:
            gates = node.call("add", gates, dense(node, states[0], weight))
            return (activation(gates),)

        return step

    return _recurrence(node, 1, ("Tanh",), cell, ((0, 1), (1, 2)))


@from_onnx("GRU", folds=False)
def gru(node: OnnxNode) -> list[Expr]:
    """z, r = f(X W + H R + b); n = g(X W + (r H) R + b); H = n + z (H - n).

    With linear_before_reset n = g(X W + b + r (H R + b)).
    """
    late = bool(node.attr("linear_before_reset", 0))

    def cell(run: _Direction) -> _Step:
        f, g = run.activations
        if late:
            weights = [run.part(2)]
        else:
            weights = [run.part(2, (0, 2)), run.part(2, (2, 3))]
        if late and node.has_input(3):
            bias = run.part(3, (3, 6))
        else:
            bias = None

        def step(gates: Expr, states: _States) -> tuple[Expr, ...]:
            (state,) = states
            both, n = run.gates(gates, 3, alike=2)
            product = of_both = dense(node, state, weights[0])
            if late:
                if bias is not None:
                    product = node.call("add", product, bias)
                of_both, of_n = run.gates(product, 3, alike=2)
            z, r = run.gates(f(node.call("add", both, of_both)), 2)
            if late:
                n = node.call("add", n, node.call("multiply", r, of_n))
            else:
                kept = node.call("multiply", r, state)
                n = node.call("add", n, dense(node, kept, weights[1]))
            n = g(n)
            change = node.call("multiply", z, node.call("subtract", state, n))
            return (node.call("add", n, change),)

        return step

    return _recurrence(node, 3, ("Sigmoid", "Tanh"), cell, ((0, 3),) if late else ((0, 3), (3, 6)))


@from_onnx("LSTM", folds=False)
def lstm(node: OnnxNode) -> list[Expr]:
    """i, o, f, c = X W + H R + b; C = f(f) C + f(i) g(c); H = f(o) h(C)."""
    if node.attr("input_forget", 0):
        raise node.error("input_forget is not supported", "give the forget gate weights of its own")

    def cell(run: _Direction) -> _Step:
        f, g, h = run.activations
        weight = run.part(2)
        if node.has_input(7):
            peepholes = [run.part(7, (k, k + 1)) for k in range(3)]
        else:
            peepholes = None

        def seen(gate: Expr, peephole: int, state: Expr) -> Expr:
            if peepholes is None:  # f was applied to all three gates
                return gate
            return f(node.call("add", gate, node.call("multiply", peepholes[peephole], state)))

        def step(gates: Expr, states: _States) -> tuple[Expr, ...]:
            hidden, state = states
            gates = node.call("add", gates, dense(node, hidden, weight))
            three, c = run.gates(gates, 4, alike=3)
            i, o, forget = run.gates(f(three) if peepholes is None else three, 3)
            new = node.call("multiply", seen(i, 0, state), g(c))
            new = node.call("add", node.call("multiply", seen(forget, 2, state), state), new)
            return node.call("multiply", seen(o, 1, new), h(new)), new

        return step

    return _recurrence(node, 4, ("Sigmoid", "Tanh", "Tanh"), cell, ((0, 4), (4, 8)))


def _recurrence(
    node: OnnxNode,
    gates: int,
    activations: Sequence[str],
    cell: Callable[[_Direction], _Step],
    bias: Sequence[tuple[int, int]],
) -> list[Expr]:
    """The states of all steps (steps, directions, batch, hidden), then the last of each kind.

    Args:
        gates: blocks of rows in the weights.
        activations: ONNX's defaults for one direction; one that ends in a cell state has three.
        cell: what computes a step of a direction.
        bias: rows that are added to the product of the inputs, as in ``_Direction.part``.
    """
    directions = _DIRECTIONS[node.choice("direction", tuple(_DIRECTIONS))]
    by_batch = bool(node.attr("layout", 0))
    data = node.arg(0)
    if by_batch:
        data = node.call("transpose", data, axes=(1, 0, 2))
    steps, batch, features = node.shape(data)
    hidden = node.shape(node.arg(2))[2]
    if not steps:
        raise node.error("the sequence has no step")
    running = _running(node, steps, batch)
    rows = node.call("reshape", data, newshape=(steps * batch, features))
    functions = _activations(node, activations, len(directions))
    places = (5, 6) if len(activations) == 3 else (5,)
    dtype = data.tensor_type.dtype
    sequences: list[Expr] = []
    last: list[tuple[Expr, ...]] = []
    for index, backwards in enumerate(directions):
        run = _Direction(node, index, hidden, functions[index])
        inputs = dense(node, rows, run.part(1))
        if node.has_input(3):
            inputs = node.call("add", inputs, run.part(3, *bias))
        inputs = node.call("reshape", inputs, newshape=(steps, batch, gates * hidden))
        name = next(output for output in node.proto.output if output)
        marks = {"loop": f"{name}:{index}", "length": steps}
        backward = (int(backwards),)
        states = [
            node.call("scan.state", run.start(place, batch, dtype), **marks) for place in places
        ]
        given = node.call("scan.step", inputs, **marks, reverse=backward)
        done = cell(run)(given, tuple(states))
        output = done[0]
        if running is not None:
            now = node.call("scan.step", running, **marks, reverse=backward)
            done = tuple(node.call("where", now, new, old) for new, old in zip(done, states))
            zeros = node.const(np.zeros((batch, hidden)), dtype)
            output = node.call("where", now, output, zeros)
        groups = [node.tuple(group) for group in (states, done, (output,))]
        end = node.call("scan.end", *groups, **marks, reverse=backward)
        last.append(tuple(node.field(end, place) for place in range(len(states))))
        sequence = node.field(end, len(states))
        sequences.append(node.call("reshape", sequence, newshape=(steps, 1, batch, hidden)))
    results = [node.joined(sequences, 1)]
    for kind in zip(*last):
        each = [node.call("reshape", state, newshape=(1, batch, hidden)) for state in kind]
        results.append(node.joined(each, 0))
    if not by_batch:
        return results
    axes = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    return [node.call("transpose", r, axes=a) for r, a in zip(results, axes)]


def _running(node: OnnxNode, steps: int, batch: int) -> Expr | None:
    """Return whether each step belongs to each sequence (steps, batch, 1); None where all do."""
    if not node.has_input(4):
        return None
    known = node.known(4)
    if known is not None and (known >= steps).all():
        return None
    lengths = node.call(
        "reshape", node.call("cast", node.arg(4), dtype="int64"), newshape=(1, -1, 1)
    )
    return node.call("less", node.const(np.arange(steps).reshape(-1, 1, 1), "int64"), lengths)


def _activations(
    node: OnnxNode, defaults: Sequence[str], directions: int
) -> list[list[_Activation]]:
    """The activations of each direction."""
    names = node.attr("activations", None) or list(defaults) * directions
    if len(names) != len(defaults) * directions:
        raise node.error(f"{len(names)} activations, {len(defaults) * directions} are needed")
    legal = {name.casefold(): name for name in ACTIVATIONS}
    given = {kind: iter(node.attr(f"activation_{kind}", ())) for kind in ("alpha", "beta")}
    functions: list[_Activation] = []
    count = len(defaults)
    for place, name in enumerate(names):
        found = legal.get(name.casefold())
        if found is None:
            raise node.error(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
        factors = {k: next(given[k], default) for k, default in ACTIVATIONS[found].items()}
        # Runtimes clip the gates of an LSTM and not its cell, which the third function reads.
        clips = place % count < 2
        functions.append(activation(node, found, factors, node.attr("clip", 0.0) if clips else 0))
    return [functions[i * count : (i + 1) * count] for i in range(directions)]


def activation(
    node: OnnxNode, name: str, factors: dict[str, float], bound: float = 0.0
) -> _Activation:
    """Return the importer's form of the ONNX operator ``name``, on data clipped to ``bound``."""
    convert = find_converter(name, node.opset)
    if convert is None:
        raise node.error(f"activation {name!r} is read from a later opset on")
    # The name of an output is free until the recurrence is converted.
    operand = next(output for output in node.proto.output if output)
    inner = replace(node, proto=helper.make_node(name, [operand], [operand]))
    inner.proto.attribute.extend(helper.make_attribute(k, v) for k, v in factors.items())

    def apply(data: Expr) -> Expr:
        if bound:
            data = node.call("clip", data, a_min=-bound, a_max=bound)
        node.values.bind(operand, data)
        result = convert(inner)
        assert isinstance(result, Expr)
        return result

    return apply
