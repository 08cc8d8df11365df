"""PrefixRuns: values of a float network and of its quantized form, side by side, layer after layer.

A walk over a network that changes its weights on the way needs the values in front of each layer.
``advance`` runs the network up to a layer from the values that are kept, and drops the values that
no later node reads. While the kept values are large, few samples run; once the values are small,
more samples run through the whole prefix. So memory is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Expr, Function, Tuple, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import looped
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import TensorType
from compiler.ir.walk import behind, function_of, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import SQ, point_attrs
from compiler.qtypes.input_sample import InputSample
from compiler.quantize.calibration.collect_stats import float_executor

_HELD_ELEMENTS: Final = 1 << 25
"""Values that are held of each form; 128 MB of float32."""

_FEWEST: Final = 8

Values = dict[Expr, list[NDArray[Any]]]
"""The value of a node in every run."""


class PrefixRuns:
    """Both forms of a simulated function over a sample of its inputs, up to its loops.

    Args:
        main: function of a module that ``bind_scales`` has made.
        sample: inputs of the runs.

    The float form runs when somebody asks for its values, in the same pieces as the quantized one.

    Attributes:
        replaced: points of constants → what stands for them in the quantized form from now on.
        count: of the runs.
        pieces: digest of nodes and runs at the end of each piece: equal ones give equal float
            values.
    """

    def __init__(self, main: Function, sample: InputSample) -> None:
        self.replaced: dict[Expr, Expr] = {}
        self._params = main.params
        self._sample = sample
        self._varies = set[Expr](main.params)
        self._order: list[Expr] = []
        late = looped(main)
        for node in nodes_of(main):
            if node not in late and any(child in self._varies for child in node.operands()):
                self._varies.add(node)
                self._order.append(node)
        self._place = {node: place for place, node in enumerate(self._order)}
        self._last: dict[Expr, int] = {}
        for place, node in enumerate(self._order):
            if _held(node):
                self._last.update((child, place) for child in self._read(node))
        self._done = 0
        self.count = min(_FEWEST, len(sample.runs))
        self._quantized = self._inputs(range(self.count))
        self._float = dict(self._quantized)
        self._late: list[Callable[[], None]] = []
        self.pieces = b""

    def values(self, node: Expr) -> list[NDArray[Any]]:
        """The values of an operand of the call that was advanced to, run by run, in the quantized
        form."""
        return self._quantized[node]

    def float_values(self, node: Expr) -> list[NDArray[Any]]:
        """The same in the float form."""
        for piece in self._late:
            piece()
        self._late.clear()
        return self._float[source_of(node)]

    def __contains__(self, node: Expr) -> bool:
        """Return whether the node depends on an input, and on no loop; what depends on no input has
        one value in all runs."""
        return node in self._place

    def advance(self, call: Expr, wanted: int) -> None:
        """Run all that stands in front of a call; the call itself runs with the next one.

        Args:
            wanted: runs that the call needs; there are fewer where memory or the sample ends.
        """
        start = self._done
        self._done = self._place[call]
        known = (*self._quantized, *self._order[start : self._done])
        live = [n for n in known if _held(n) and self._last.get(n, -1) >= self._done]
        done = self._done
        self._quantized = self._values((start, done), self._quantized, live, quantized=True)
        sources = list(dict.fromkeys(map(source_of, live)))

        def go_on() -> None:
            self._float = self._values((start, done), self._float, sources, quantized=False)

        self._late.append(go_on)
        if wanted > self.count:
            self._run_more(wanted, sum(node.tensor_type.num_elements for node in live))
        end = f"{done} {self.count}".encode()
        self.pieces = hashlib.sha256(self.pieces + end).digest()

    def _run_more(self, wanted: int, elements: int) -> None:
        """Twice as many samples or more, through the whole prefix, where the values have room.

        One session for the prefix takes less time than a session for each layer.
        """
        runs = len(self._sample.runs)
        room = _HELD_ELEMENTS // max(elements, 1)
        count = min(runs, room, max(wanted, 2 * self.count))
        if count < min(2 * self.count, runs) or count == self.count:
            return
        inputs = self._inputs(range(self.count, count))
        span = (0, self._done)

        def go_on(values: Values, quantized: bool) -> None:
            more = self._values(span, inputs, list(values), quantized)
            values.update({node: values[node] + more[node] for node in values})

        go_on(self._quantized, True)
        self._late.append(lambda: go_on(self._float, False))
        self.count = count

    def _inputs(self, runs: Iterable[int]) -> Values:
        taken = [self._sample.runs[run] for run in runs]
        return {param: [run[k] for run in taken] for k, param in enumerate(self._params)}

    def _values(
        self, span: tuple[int, int], given: Values, wanted: list[Expr], quantized: bool
    ) -> Values:
        """Values of ``wanted``, by the nodes of ``span``, from those in front of it."""
        fresh = [node for node in wanted if node not in given]
        found = {node: given[node] for node in wanted if node in given}
        if not fresh:
            return found
        params: dict[Expr, Var] = {
            node: Var(f"value{k}", node.checked_type) for k, node in enumerate(given)
        }
        new: dict[Expr, Expr] = dict(params)
        for node in self._order[slice(*span)]:
            if node not in new:
                new[node] = self._rebuilt(node, new, quantized)
        function = function_of(tuple(params.values()), Tuple(tuple(new[node] for node in fresh)))
        run = float_executor(infer_module(IRModule.from_expr(function)), arena=False)
        read = (given[node] for node, param in params.items() if param in function.params)
        made = [run.run(arrays) for arrays in zip(*read, strict=True)]
        if quantized:
            made = [[_finite_quotient(value) for value in results] for results in made]
        return found | {node: [results[k] for results in made] for k, node in enumerate(fresh)}

    def _rebuilt(self, node: Expr, new: dict[Expr, Expr], quantized: bool) -> Expr:
        """The node over the new form of its operands; without its point in the float form."""
        if not quantized and node is not source_of(node):
            return new[source_of(node)]
        operands = []
        for child in node.operands():
            if child in self._varies:
                # A tuple is not held: where it lies before the start, it is made once more.
                operands.append(new[child] if child in new else self._tuple(child, new, quantized))
            elif quantized:
                operands.append(self.replaced.get(child, child))
            else:
                operands.append(source_of(child))
        made = with_operands(node, operands)
        attrs = point_attrs(made)
        if attrs is not None:
            # Halves go to either side: onnxruntime has an operator for this one.
            made = made.with_fields(attrs=attrs.with_values(rounding="round_even"))
        made.set_checked_type(node.checked_type)
        return made

    def _tuple(self, node: Expr, new: dict[Expr, Expr], quantized: bool) -> Expr:
        waiting = [node]
        while waiting:
            missing = [c for c in waiting[-1].operands() if c in self._varies and c not in new]
            if missing:
                waiting += missing
            else:
                last = waiting.pop()
                new[last] = self._rebuilt(last, new, quantized)
        return new[node]

    def _read(self, node: Expr) -> Iterator[Expr]:
        """The values that a node reads, looking through tuples."""
        waiting = list(node.operands())
        while waiting:
            child = waiting.pop()
            if child not in self._varies:
                continue
            if _held(child):
                yield child
            else:
                waiting += child.operands()


def _finite_quotient(value: NDArray[Any]) -> NDArray[Any]:
    """0 for a zero over what was rounded to zero, as integers divide."""
    if not np.isnan(value.min(initial=0)):  # NaN is the least of any
        return value
    return np.where(np.isnan(value), value.dtype.type(0), value)


def _held(node: Expr) -> bool:
    """Tensors are held; tuples are made again from what they hold."""
    return isinstance(node.checked_type_or_none, TensorType)


def source_of(node: Expr) -> Expr:
    """Return the value that a chain of quantize points reads."""
    return behind(node, (SQ,))[1]
