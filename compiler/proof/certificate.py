"""Write the words of a module with the bounds of their results, for ``proof.checker`` to check.

An operator is written as the words of its body, as ``compiler.ranges`` bounds it, and attributes in
one form: axes count from 0, slices are Python's. A certificate is an .npz that holds the constants
of the module, and ``program``, JSON in UTF-8:

    {"format": 1,
     "values": [["%1", "int8", [1, 3], low, high], …],   a bound: a number, or nested lists
     "constants": {"7": "c0"}, "inputs": [0],            numbers of values
     "steps": [["add", {}, [0, 7], [1]], …]}             word, attributes, operands, results
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.core.legalize import forget, words_of
from compiler.errors import CompilerError
from compiler.ir.dataflow import Dataflow, Step, Value, dataflow
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float
from compiler.ops.reduce.axes import axes_of
from compiler.ops.transform.strided_slice import slices_of
from compiler.proof.checker import FORMAT
from compiler.proof.steps import Titles
from compiler.ranges.analysis import BY_NAME, RangeContext, analyse_step, analyse_word

Attrs = dict[str, Any]


def certificate(mod: IRModule) -> bytes:
    """Return the certificate of a proved module.

    Raises:
        CompilerError: a bound cannot be derived.
    """
    flow = dataflow(mod)
    writer = _Writer(Titles(flow, mod))
    inputs = [writer.add(value, f"%{value.name}") for value in flow.inputs]
    steps = writer.steps(flow.steps)
    program = {
        "format": FORMAT,
        "values": writer.values,
        "constants": writer.constants,
        "inputs": inputs,
        "steps": steps,
    }
    flow.unlink()
    text = np.frombuffer(json.dumps(program).encode(), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, program=text, **writer.arrays)
    return stream.getvalue()


class _Writer:
    """Numbers the values of a flow and states their bounds."""

    def __init__(self, titles: Titles) -> None:
        self._titles = titles
        self._ctx = RangeContext()
        self._numbers: dict[Value, int] = {}
        self.values: list[Any] = []
        self.constants: dict[str, str] = {}
        self.arrays: dict[str, Any] = {}

    def add(self, value: Value, name: str) -> int:
        """State the bounds of a value; its number."""
        self._numbers[value] = len(self.values)
        dtype = value.type.dtype
        ends: Sequence[Any] = (0, 0)
        if value.data is None and is_float(dtype):
            ends = [float(end) for end in self._ctx.ends_of(value)]
        elif value.data is None:
            bounds = self._ctx.of(value)
            ends = [e.item() if e.size == 1 else e.tolist() for e in (bounds.low, bounds.high)]
        self.values.append([name, dtype, value.type.concrete_shape, *ends])
        return self._numbers[value]

    def steps(self, steps: Sequence[Step]) -> list[Any]:
        """The steps of a flow as words."""
        rows: list[Any] = []
        for step in steps:
            title = self._titles.of(step.results[0])
            if any(is_float(value.type.dtype) for value in (*step.args, *step.results)):
                analyse_step(step, self._ctx)
                rows.append(self._row(step, title))
                continue
            words, results = words_of(step, BY_NAME)
            for place, word in enumerate(words):
                if not analyse_word(word, self._ctx):
                    raise CompilerError(f"{title}: {self._ctx.findings[0]}")
                is_result = word.results[0] in results
                if is_result:
                    name = title
                else:
                    name = f"{title}, word {place} {word.name}"
                rows.append(self._row(word, name))
            for value, made in zip(step.results, results):
                if value is not made:
                    self._ctx.set(value, self._ctx.of(made))
                    self._numbers[value] = self._number(made)
            forget(words, step)
        return rows

    def _number(self, value: Value) -> int:
        if value not in self._numbers:
            assert value.data is not None
            name = f"constant {len(self.constants)}"
            number = self.add(value, name)
            self.constants[str(number)] = key = f"c{len(self.arrays)}"
            self.arrays[key] = value.data
        return self._numbers[value]

    def _row(self, step: Step, name: str) -> Any:
        operands = [self._number(arg) for arg in step.args]
        if step.body is not None:
            attrs = self._loop(step, step.body)
        else:
            attrs = _attrs(step)
        many = len(step.results) > 1
        results = [
            self.add(value, f"{name}.{place}" if many else name)
            for place, value in enumerate(step.results)
        ]
        return [step.name, attrs, operands, results]

    def _loop(self, step: Step, body: Dataflow) -> Attrs:
        states, moving = step.attrs.borders(len(body.outputs))
        inputs = []
        for value, arg in zip(body.inputs, step.args, strict=True):
            if value.data is not None:
                self._numbers[value] = self._number(arg)
                inputs.append(self._number(arg))
            else:
                inputs.append(self.add(value, f"%{value.name} of a turn"))
        rows = self.steps(body.steps)
        outputs = [self._number(value) for value in body.outputs]
        length = step.attrs.length
        found: Attrs = {"length": length, "states": states, "moving": moving - states}
        return {**found, "inputs": inputs, "steps": rows, "outputs": outputs}


def _reduction(step: Step) -> Attrs:
    return {"axes": axes_of(step), "keepdims": bool(step.attrs.keepdims)}


def _slices(step: Step) -> Attrs:
    shape = step.args[0].type.concrete_shape
    named = slices_of(shape, step.attrs)
    return {"slices": [list(named.get(axis, (None, None, 1))) for axis in range(len(shape))]}


def _average(step: Step) -> Attrs:
    attrs = step.attrs
    source = step.attrs.layout
    return {
        "spatial": [source.index(letter) for letter in "HW"],
        "order": [source.index(letter) for letter in attrs.out_layout or source],
        "pool_size": attrs.pool_size,
        "padded": bool(any(attrs.padding) or attrs.ceil_mode),
    }


def _order(step: Step) -> list[int]:
    rank = len(step.result.type.shape)
    return [axis % rank for axis in step.attrs.axes]


def _named(*names: str) -> Callable[[Step], Attrs]:
    return lambda step: {name: getattr(step.attrs, name) for name in names}


_ATTRS: dict[str, Callable[[Step], Attrs]] = {
    "nn.conv2d": lambda step: {"groups": step.attrs.groups, "padded": any(step.attrs.padding)},
    "nn.max_pool2d": _named("strides", "padding", "dilation", "pool_size"),
    "nn.avg_pool2d": _average,
    "nn.pad": _named("pad_width"),
    "sum": _reduction,
    "max": _reduction,
    "argmax": _reduction,
    "reshape": lambda step: {"shape": step.result.type.concrete_shape},
    "broadcast_to": lambda step: {"shape": step.result.type.concrete_shape},
    "transpose": lambda step: {"axes": _order(step)},
    "concatenate": _named("axis"),
    "strided_slice": _slices,
    "take": _named("axis", "batch_dims", "mode"),
    "scatter_nd": _named("mode"),
    "clip": _named("a_min", "a_max"),
}


def _attrs(step: Step) -> Attrs:
    rule = _ATTRS.get(step.name)
    if rule is None:
        return {}
    return rule(step)
