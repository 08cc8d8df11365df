"""A module of ``requantization`` "tflite" as a LiteRT file that gives its integers.

Operators are recognised one after the other (``rules.py``): what an integer module computes in
int32 between two narrow tensors is inside an operator of the file, and its multipliers are those
that TFLM prepares from the file's scales. What is not the same integer for integer is refused.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Final

import compiler.export.to_tflite.moves  # noqa: F401  (fills the table of rules)
import compiler.export.to_tflite.rules as rules
from compiler.core.legalize import words_of
from compiler.errors import TfliteExportError, legal_names
from compiler.export.to_tflite.emitter import TfliteEmitter
from compiler.export.to_tflite.file import FileWriter, Grid
from compiler.export.to_tflite.inputs import CURE, TFLITE, Taken, firsts, taken_by
from compiler.export.to_tflite.values import ANY, Padded, Raw, Tensor
from compiler.ir.dataflow import SCAN, Step, dataflow
from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range

IO: Final = ("int8", "uint8", "float")
"""Dtypes of inputs and outputs of a file."""


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """The bytes, and what is in them.

    Attributes:
        operators: by name, with their number.
        inputs, outputs: scale and zero point of each of 8 or 16 bits, by name, as in the file.
    """

    data: bytes
    operators: dict[str, int]
    inputs: dict[str, tuple[float, int]]
    outputs: dict[str, tuple[float, int]]


def to_tflite(
    mod: IRModule,
    inputs: Sequence[str],
    outputs: Sequence[str],
    io: str | None = None,
) -> TfliteFile:
    """Write a module whose images lie in NHWC (ConvertLayout).

    Args:
        mod: typed and partitioned: quantize_inputs, quantized_main, dequantize_outputs.
        inputs, outputs: names that the file's signature gives them, in order.
        io: key of ``IO``: what the file takes and gives; None for the module's own integers.
    Raises:
        TfliteExportError: an operator, or a use of it, that TFLM has no equal for; the packages of
            ``[tflite]`` are not installed.
    """
    if io is not None and io not in IO:
        raise TfliteExportError(f"unknown type of inputs {io!r}", fix=legal_names(io, IO))
    flow = dataflow(mod, "quantized_main", TFLITE)
    graph = TfliteEmitter(FileWriter())
    taken: dict[str, int] = {}
    takes: dict[str, tuple[float, int]] = {}
    tensors: list[Tensor] = []
    parts = taken_by(mod)
    for part, first, value in zip(parts, firsts(parts), flow.inputs, strict=True):
        name = inputs[part.source]
        shape = value.type.concrete_shape
        dtype = value.type.dtype
        if first < len(tensors):
            tensors.append(graph.reshaped(tensors[first], shape))
        elif part.grid is None:
            tensors.append(graph.whole(name, shape))
            taken[name] = tensors[-1].tensor
        else:
            held = _input(part, shape, dtype)
            if held is None:
                raise TfliteExportError(f"input {name!r} is {dtype}", fix=CURE)
            taken[name], held = _taken(graph, name, held, io)
            takes[name] = held.scale, held.grid.zero
            tensors.append(_limited(graph, held, part))
        wide = part.grid is not None and dtype == "int32"
        graph.bind(value, Raw(tensors[-1]) if wide else tensors[-1])
    ruled = frozenset(rules.FToTflite.names())
    for step in flow.steps:
        if step.name == SCAN:
            read = [bool(value.users) or value in flow.outputs for value in step.results]
            _unroll(step, graph, ruled, read)
        else:
            _emit(step, graph, ruled)
    given: dict[str, int] = {}
    grids: dict[str, tuple[float, int]] = {}
    for name, value in zip(outputs, flow.outputs, strict=True):
        form = graph.form(value)
        if not isinstance(form, (Tensor, Padded)):
            raise TfliteExportError(f"output {name!r} is {value.type.dtype}, not 8 bits", fix=CURE)
        held = graph.tensor(form)
        given[name] = _given(graph, name, held, io)
        if held.dtype != "int32":
            grids[name] = held.scale, held.grid.zero
    data = graph.writer.finish(taken, given)
    return TfliteFile(data, graph.writer.counts, takes, grids)


def _no_form(step: Step) -> TfliteExportError:
    return TfliteExportError(
        f"{step.name} has no form in a LiteRT file that gives the same integers here",
        where=f"{step.results[0].type}",
        fix=f"{CURE}; --format c has a form of every operator",
        span=step.span,
    )


def _emit(step: Step, graph: TfliteEmitter, ruled: Container[str]) -> None:
    """The words of a step, but for what has a rule of its own."""
    words, results = words_of(step, ruled)
    if not rules.written(words, graph):
        raise _no_form(step)
    for value, made in zip(step.results, results, strict=True):
        found = graph.form(made)
        if found is not None:
            graph.bind(value, found)


MOST_STEPS: Final = 1 << 10
"""Upper limit of steps of loops, whose bodies a file holds as often as they run."""


def _unroll(step: Step, graph: TfliteEmitter, ruled: Container[str], read: Sequence[bool]) -> None:
    """A loop, written out: every step reads what the one before it has made.

    Args:
        ruled: operators that have a rule.
        read: for each result, whether anything reads it.
    """
    body = step.body
    length = step.attrs.length
    assert body is not None
    if length > MOST_STEPS:
        raise TfliteExportError(
            f"a loop of {length} steps is written out in a LiteRT file",
            fix=f"at most {MOST_STEPS} steps; --format c has loops",
            span=step.span,
        )
    states, moving = step.attrs.borders(len(body.outputs))
    for inner, outer in zip(body.inputs, step.args, strict=True):
        form = graph.form_of(outer)
        if form is not None:
            graph.bind(inner, form)
    reads = [graph.read(arg, *ANY) for arg in step.args[states:moving]]
    made: list[list[Tensor]] = [[] for _ in body.outputs[states:]]
    for turn in range(length):
        ends = step.attrs.reverse_inputs
        for inner, whole, backward in zip(body.inputs[states:moving], reads, ends, strict=True):
            if whole is not None:
                at = length - 1 - turn if backward else turn
                graph.bind(inner, graph.part(whole, at))
        for one in body.steps:
            _emit(one, graph, ruled)
        following = [graph.form(value) for value in body.outputs[:states]]
        for inner, form in zip(body.inputs[:states], following, strict=True):
            if not isinstance(form, (Tensor, Raw)):
                raise _no_form(step)
            graph.bind(inner, form)
        for rows, value, wanted in zip(made, body.outputs[states:], read[states:], strict=True):
            if wanted:
                row = graph.read(value, *ANY) or graph.wide(value)
            else:
                row = None
            rows.extend([] if row is None else [row])
    for value, inner in zip(step.results[:states], body.inputs[:states], strict=True):
        held = graph.form(inner)
        assert held is not None
        graph.bind(value, held)
    ends = step.attrs.reverse_outputs
    for value, rows, backward in zip(step.results[states:], made, ends, strict=True):
        if rows:
            graph.bind(value, graph.stacked(rows[::-1] if backward else rows))


def _input(part: Taken, shape: tuple[int, ...], dtype: str) -> Tensor | None:
    """Return the tensor of an input that the core takes in 8 bits, or in int16 around 0; None for
    others."""
    assert part.grid is not None
    (low, high), stored = part.ends, part.stored(dtype)
    offset, kind = (128, "int8") if stored == "uint8" else (0, stored)
    held = Tensor(-1, shape, *part.grid, offset, kind)
    lowest, highest = integer_range(stored)
    around = kind == "int8" or (kind == "int16" and not held.zero)
    if around and lowest <= low <= high <= highest:
        return held
    return None


def _taken(graph: TfliteEmitter, name: str, held: Tensor, io: str | None) -> tuple[int, Tensor]:
    """An input of the file, and the tensor of the core behind it."""
    if io is None or io == held.dtype:
        tensor = graph.writer.tensor(name, held.shape, held.dtype, held.grid)
        return tensor, replace(held, tensor=tensor)
    tensor = graph.writer.tensor(name, held.shape, *_outer(held, io))
    return tensor, graph.operator("QUANTIZE", [tensor], held, held.shape)


def _limited(graph: TfliteEmitter, held: Tensor, part: Taken) -> Tensor:
    """An input within what the module takes: hosts limit it to its dtype, which may be wider."""
    low, high = (end - held.offset for end in part.ends)
    if high == integer_range(held.dtype)[1]:
        return held
    return graph.limited(held, low, high)


def _given(graph: TfliteEmitter, name: str, held: Tensor, io: str | None) -> int:
    """An output of the file; positions are int32 in each."""
    if io is None or held.dtype in (io, "int32"):
        graph.writer.tensors[held.tensor].name = name
        return held.tensor
    tensor = graph.writer.tensor(name, held.shape, *_outer(held, io))
    graph.writer.operator("DEQUANTIZE" if io == "float" else "QUANTIZE", [held.tensor], tensor)
    return tensor


def _outer(held: Tensor, io: str | None) -> tuple[str, Grid | None]:
    if io == "float":
        return "float32", None
    if io != "uint8" or held.dtype != "int8":
        raise TfliteExportError(
            f"the module's integers are {held.dtype}, not {io}", fix=f"--io {held.dtype} or float"
        )
    return "uint8", Grid((held.scale,), held.grid.zero + 128)
