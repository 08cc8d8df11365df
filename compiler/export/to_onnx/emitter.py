"""The emitter that export rules work on, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from compiler.core.legalize import forget, is_integral, words_of
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.ir.dataflow import Dataflow, Form, Step, Value, flatten_function
from compiler.ir.module import IRModule
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType
from compiler.ops.evaluate import definition_of
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference

ONNX: Final = Form("ONNX", OnnxExportError)


class Emitter:
    """Tensor names by value; constants are written when a rule first asks for their name.

    Args:
        writer: of the graph.
        folds: who reads the model folds its constants: none is computed here.
    """

    def __init__(self, writer: GraphWriter, folds: bool = False) -> None:
        self.writer = writer
        self.folds = folds
        self._names: dict[Value, str] = {}

    def bind(self, value: Value, name: str) -> None:
        """The ONNX tensor that holds a value."""
        self._names[value] = name

    def within(self, writer: GraphWriter) -> Emitter:
        """An emitter of the same kind for a graph in this one."""
        return Emitter(writer, self.folds)

    def emit(self, step: Step) -> None:
        """Write one step.

        Raises:
            OnnxExportError: it has no form.
        """
        emit_step(step, self)

    def name(self, value: Value) -> str:
        """ONNX tensor of a value."""
        name = self._names.get(value)
        if name is None:
            assert value.data is not None, "a step was emitted before the step it reads"
            name = self.writer.constant(value.data)
            self._names[value] = name
        return name

    def args(self, step: Step) -> list[str]:
        """ONNX tensors of all arguments."""
        return [self.name(a) for a in step.args]

    def node(self, op_type: str, inputs: Sequence[str], **attrs: Any) -> str:
        """A node with one output."""
        return self.writer.node(op_type, inputs, **attrs)

    def ints(self, values: Sequence[int]) -> str:
        """A constant int64 vector."""
        return self.writer.constant(np.asarray(values, "int64"))

    def along(self, name: str, axis: int, rank: int) -> str:
        """A vector shaped to broadcast along one axis of a tensor of a rank."""
        shape = [-1 if i == axis % rank else 1 for i in range(rank)]
        return self.node("Reshape", [name, self.ints(shape)])

    def like(self, number: float, value: Value) -> str:
        """A rank-0 constant in the dtype of a value; infinite where that holds no such number."""
        with np.errstate(over="ignore"):
            return self.writer.constant(np.asarray(number, value.type.dtype))

    def refuse(self, step: Step, what: str, fix: str | None = None) -> OnnxExportError:
        """An error that names the call."""
        return OnnxExportError(
            f"{step.name} has no ONNX form here: {what}",
            where=f"result {step.results[0].type}" if step.results else None,
            fix=fix,
            span=step.span,
        )


_SINGLE = frozenset(("add", "subtract", "multiply", "clip", "round_even"))
"""Operators of conversions that onnxruntime computes in float32 where they are float16."""


class _InSingle(Emitter):
    """Widens float16. onnxruntime would do so itself, and leave out the rounding between two
    operators; between casts that the graph names it rounds."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter.writer)
        self._emitter = emitter

    def name(self, value: Value) -> str:
        """In float32."""
        return self.writer.cast(self._emitter.name(value), "float32")

    def like(self, number: float, value: Value) -> str:
        """In float32, a number that float16 holds."""
        with np.errstate(over="ignore"):
            held = np.asarray(number, value.type.dtype)
        return self.writer.constant(held.astype("float32"))


ToOnnx = Callable[[Step, Emitter], str | Sequence[str] | None]
"""``rule(step, emitter)`` writes nodes and gives one tensor name per result. An operator without a
rule, and a step that its rule gives None for, is written by its definition or in words."""

FToOnnx: OpRule[ToOnnx] = OpRule(
    "FToOnnx", asked_by="export.to_onnx", defined_in="compiler/export/to_onnx/float/rules"
)


def emit_loop(step: Step, body: Dataflow, emitter: Emitter) -> None:
    """Write a scan as the operator Scan, whose graph is the body.

    Raises:
        OnnxExportError: a step of the body has no form.
    """
    states, moving = step.attrs.borders(len(body.outputs))
    inner = emitter.within(GraphWriter("body", emitter.writer))
    for place, (value, arg) in enumerate(zip(body.inputs, step.args, strict=True)):
        if place < moving:
            inner.bind(value, inner.writer.input(value.name, value.type))
        elif value.data is None:
            inner.bind(value, emitter.name(arg))
    read = [emitter.name(arg) for arg in step.args[:moving]]
    if moving == states:  # a Scan takes as many steps as its inputs have
        inner.writer.input("step", TensorType((), "bool"))
        read.append(emitter.writer.constant(np.zeros(step.attrs.length, "bool")))
    for one in body.steps:
        inner.emit(one)
    for value in body.outputs:
        inner.writer.output("output", inner.name(value), value.type)
    names = emitter.writer.nodes(
        "Scan",
        read,
        len(body.outputs),
        body=inner.writer.graph(),
        num_scan_inputs=len(read) - states,
        scan_input_directions=list(step.attrs.reverse_inputs) or None,
        scan_output_directions=list(step.attrs.reverse_outputs) or None,
    )
    for value, name in zip(step.results, names, strict=True):
        emitter.bind(value, name)


def emit_step(step: Step, emitter: Emitter) -> None:
    """Write one step by its rule, or in words, and bind its results.

    Raises:
        OnnxExportError: the operator has neither.
    """
    if step.body is not None:
        emit_loop(step, step.body, emitter)
        return
    rule = FToOnnx.get(step.op)
    if rule is not None and step.name in _SINGLE and step.results[0].type.dtype == "float16":
        single = rule(step, _InSingle(emitter))
        assert isinstance(single, str)
        names: Sequence[str] = [emitter.writer.cast(single, "float16")]
    else:
        made = None if rule is None else rule(step, emitter)
        if made is None:
            made = _by_definition(step, emitter) or _in_words(step, emitter)
        names = [made] if isinstance(made, str) else made
    for value, name in zip(step.results, names, strict=True):
        emitter.bind(value, name)


def _by_definition(step: Step, emitter: Emitter) -> Sequence[str]:
    """Write the operators that a composite of floats stands for; none of other operators."""
    rule = FDefinition.get(step.op) or FSimplifyInference.get(step.op)
    if rule is None or is_integral(step):
        return ()
    types = [arg.type for arg in step.args]
    function = definition_of(rule, step.op, step.attrs, types, step.span)
    flow = flatten_function(function, IRModule())
    for value, arg in zip(flow.inputs, step.args, strict=True):
        emitter.bind(value, emitter.name(arg))
    for part in flow.steps:
        emit_step(part, emitter)
    return [emitter.name(value) for value in flow.outputs]


def _in_words(step: Step, emitter: Emitter) -> Sequence[str]:
    words, results = words_of(step, floats=True)
    if words == [step]:
        raise OnnxExportError(
            f"{step.name} has no ONNX form",
            fix="write a rule in compiler/export/to_onnx/float/rules",
            span=step.span,
        )
    for word in words:
        emit_step(word, emitter)
    names = [emitter.name(made) for made in results]
    forget(words, step)
    return names
