"""A module of ``requantization`` "tflite" as a LiteRT file that gives its integers.

Operators are recognised one after the other (``rules.py``): what an integer module computes in
int32 between two narrow tensors is inside an operator of the file, and its multipliers are those
that TFLM prepares from the file's scales. What is not the same integer for integer is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

import compiler.export.to_tflite.rules as rules
from compiler.core.legalize import words_of
from compiler.errors import TfliteExportError, legal_names
from compiler.export.to_tflite.emitter import TfliteEmitter
from compiler.export.to_tflite.file import FileWriter, Grid
from compiler.export.to_tflite.values import Narrow, Padded
from compiler.ir.dataflow import Form, Step, Value, dataflow
from compiler.ir.module import IRModule

TFLITE: Final = Form("LiteRT", TfliteExportError)
IO: Final = ("int8", "uint8", "float")
"""What a file may take and give."""

_CURE = "compile it with requantization=tflite and 8 bits everywhere (no bits in layers)"


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """The bytes, and what is in them.

    Attributes:
        operators: by name, with their number.
        inputs, outputs: scale and zero point of each, by name, as the file has them.
    """

    data: bytes
    operators: dict[str, int]
    inputs: dict[str, tuple[float, int]]
    outputs: dict[str, tuple[float, int]]


def to_tflite(
    mod: IRModule, inputs: Sequence[str], outputs: Sequence[str], io: str = "int8"
) -> TfliteFile:
    """Write a module whose images lie in NHWC (ConvertLayout).

    Args:
        mod: typed and partitioned: quantize_inputs, quantized_main, dequantize_outputs.
        inputs, outputs: names that the file's signature gives them, in order.
        io: key of ``IO``: what the file takes and gives.
    Raises:
        TfliteExportError: an operator, or a use of it, that TFLM has no equal for; the packages of
            ``[tflite]`` are not installed.
    """
    if io not in IO:
        raise TfliteExportError(f"unknown type of inputs {io!r}", fix=legal_names(io, IO))
    flow = dataflow(mod, "quantized_main", TFLITE)
    if len(flow.inputs) != len(inputs):
        raise TfliteExportError(
            f"{len(inputs)} inputs are converted to {len(flow.inputs)} integer tensors",
            fix="let one layer read each input, and others what it gives",
        )
    graph = TfliteEmitter(FileWriter())
    taken: dict[str, int] = {}
    for name, value, (scale, zero) in zip(inputs, flow.inputs, _input_grids(mod), strict=True):
        offset = {"int8": 0, "uint8": 128}.get(value.type.dtype)
        if offset is None:
            raise TfliteExportError(f"input {name!r} is {value.type.dtype}", fix=_CURE)
        held = Narrow(-1, value.type.concrete_shape, scale, zero, offset)
        taken[name], held = _taken(graph, name, held, io)
        graph.bind(value, held)
    for step in flow.steps:
        _emit(step, graph)
    given: dict[str, int] = {}
    grids: dict[str, tuple[float, int]] = {}
    for name, value in zip(outputs, flow.outputs, strict=True):
        form = graph.form(value)
        if not isinstance(form, (Narrow, Padded)):
            raise TfliteExportError(f"output {name!r} is {value.type.dtype}, not 8 bits", fix=_CURE)
        held = graph.tensor(form)
        given[name] = _given(graph, name, held, io)
        grids[name] = held.scale, held.grid.zero
    data = graph.writer.finish(taken, given)
    ends = zip(inputs, flow.inputs, strict=True)
    takes = {name: _grid_of(graph.form(value)) for name, value in ends}
    return TfliteFile(data, graph.writer.counts, takes, grids)


def _grid_of(form: object) -> tuple[float, int]:
    assert isinstance(form, Narrow)
    return form.scale, form.grid.zero


def _emit(step: Step, graph: TfliteEmitter) -> None:
    """The words of a step, but for what has a rule of its own."""
    words, results = words_of(step, _Ruled())
    for word in words:
        if all(arg.data is not None for arg in word.args):
            continue
        rule = rules.FToTflite.get(word.op)
        form = None if rule is None else rule(word, graph)
        if form is None:
            raise TfliteExportError(
                f"{step.name} has no form in a LiteRT file that gives the same integers here",
                where=f"{step.result.type}",
                fix=f"{_CURE}; --format c has a form of every operator",
                span=step.span,
            )
        graph.bind(word.result, form)
    for value, made in zip(step.results, results, strict=True):
        found = graph.form(made)
        if found is not None:
            graph.bind(value, found)


class _Ruled:
    """The names of operators with a rule."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in rules.FToTflite


def _taken(graph: TfliteEmitter, name: str, held: Narrow, io: str) -> tuple[int, Narrow]:
    """An input of the file, and the tensor of int8 behind it."""
    if io == "int8":
        tensor = graph.writer.tensor(name, held.shape, "int8", held.grid)
        return tensor, Narrow(tensor, held.shape, held.scale, held.zero, held.offset)
    tensor = graph.writer.tensor(name, held.shape, *_outer(held, io))
    made = graph.new(held, held.shape)
    graph.writer.operator("QUANTIZE", [tensor], made.tensor, "QuantizeOptions")
    return tensor, made


def _given(graph: TfliteEmitter, name: str, held: Narrow, io: str) -> int:
    """An output of the file."""
    if io == "int8":
        graph.writer.tensors[held.tensor].name = name
        return held.tensor
    tensor = graph.writer.tensor(name, held.shape, *_outer(held, io))
    kind = ("DEQUANTIZE", "DequantizeOptions") if io == "float" else ("QUANTIZE", "QuantizeOptions")
    graph.writer.operator(kind[0], [held.tensor], tensor, kind[1])
    return tensor


def _outer(held: Narrow, io: str) -> tuple[str, Grid | None]:
    if io == "float":
        return "float32", None
    return "uint8", Grid((held.scale,), held.grid.zero + 128)


def _input_grids(mod: IRModule) -> list[tuple[float, int]]:
    """Scale and zero point of every input, as the module's integers have them."""
    flow = dataflow(mod, "quantize_inputs", TFLITE)
    return [_grid_behind(value) for value in flow.outputs]


def _grid_behind(value: Value) -> tuple[float, int]:
    """cast(clip(round(x * (1 / scale))) + zero), read from its end."""
    zero, step = 0, value.producer
    while step is not None:
        number = step.args[1].data if len(step.args) == 2 else None
        if step.name == "add" and number is not None and number.size == 1:
            zero += int(number.reshape(-1)[0])
        elif step.name == "multiply" and number is not None and number.size == 1:
            # Scales have 12 bits, and their float32 reciprocal 24: the nearest is the one.
            fraction, exponent = np.frexp(1 / float(number.reshape(-1)[0]))
            scale = float(np.ldexp(np.rint(np.ldexp(fraction, 12)), exponent - 12))
            if np.float32(1) / np.float32(scale) == number.reshape(-1)[0]:
                return scale, zero
            break
        elif step.name not in ("cast", "clip", "round", "round_even", "annotation.stop_fusion"):
            break
        step = step.args[0].producer
    raise TfliteExportError(
        "an input is not converted to 8 bits by one scale of 12 bits", fix=_CURE
    )
