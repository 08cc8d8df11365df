"""Bounds of the parameters of quantized_main: what quantize_inputs can hand over for any input."""

from __future__ import annotations

import math
from collections.abc import Mapping

from compiler.export.to_onnx.dataflow import Step, Value, dataflow
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float, is_integer
from compiler.ops.number_format import integer_range
from compiler.proof.wiring import PREFIX

Bounds = tuple[float, float]
_ANYTHING: Bounds = (-math.inf, math.inf)
_EXACT = 1 << 23
_ROUNDINGS = ("round", "round_even", "floor", "ceil", "trunc")
_IDENTITIES = ("annotation.stop_fusion", "annotation.cast_hint", "copy", "reshape", "transpose")


def input_ranges(mod: IRModule, function: str = PREFIX) -> tuple[tuple[int, int], ...]:
    """(low, high) of every value that ``function`` returns, in order.

    Floats are anything at all, NaN included, until a clip bounds them; integers that are not such
    a conversion may be anything their dtype holds.

    Args:
        mod: a partitioned, typed module.
        function: the conversion of the inputs.
    """
    flow = dataflow(mod, function)
    known: dict[Value, Bounds] = {}
    for step in flow.steps:
        for value in step.results:
            known[value] = _bounds(step, known)
    return tuple(_of_dtype(value, known) for value in flow.outputs)


def _bounds(step: Step, known: Mapping[Value, Bounds]) -> Bounds:
    source = step.args[0] if step.args else None
    if source is None or not is_float(source.type.dtype):
        whole = step.name in _IDENTITIES and source is not None
        return known.get(source, _ANYTHING) if whole and source is not None else _ANYTHING
    held = known.get(source, _ANYTHING)
    if step.name == "clip":
        low, high = float(step.attrs.a_min), float(step.attrs.a_max)
        return min(max(held[0], low), high), max(min(held[1], high), low)
    if step.name in _ROUNDINGS:
        return _outward(held)
    if step.name in _IDENTITIES:
        return held
    if step.name == "add":
        # A zero point; float32 adds whole numbers of these sizes exactly.
        more = step.args[1].data
        if more is not None and more.ndim == 0 and max(map(abs, held)) < _EXACT:
            return held[0] + float(more), held[1] + float(more)
        return _ANYTHING
    if step.name == "cast" and is_integer(step.result.type.dtype):
        # NaN passes every clip and becomes 0.
        low, high = _outward(held)
        return min(low, 0), max(high, 0)
    return _ANYTHING


def _outward(held: Bounds) -> Bounds:
    low, high = held
    return (
        low if math.isinf(low) else math.floor(low),
        high if math.isinf(high) else math.ceil(high),
    )


def _of_dtype(value: Value, known: Mapping[Value, Bounds]) -> tuple[int, int]:
    low, high = integer_range(value.type.dtype) if is_integer(value.type.dtype) else (0, 1)
    held = known.get(value, _ANYTHING)
    return int(max(low, held[0])), int(min(high, held[1]))
