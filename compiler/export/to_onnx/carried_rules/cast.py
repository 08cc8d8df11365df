"""cast between integers, from float to integers, and from integers to float."""

from __future__ import annotations

import math

import numpy as np

from compiler.errors import OnnxExportError
from compiler.export.to_onnx.carried_emitter import (
    FLOAT_LIMIT,
    Carried,
    CarriedEmitter,
    FToCarried,
    narrowed,
)
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import integer_range, is_float


@FToCarried.register("cast")
def cast(step: Step, graph: CarriedEmitter) -> Carried:
    """To an integer dtype."""
    source, dtype = step.args[0], step.result.type.dtype
    if source.type.dtype == "bool":
        return Carried(graph.writer.cast(graph.name(source), "float32"), "float32", 0, 1)
    if is_float(source.type.dtype):
        return _from_float(source, dtype, graph)
    return wrapped(graph.carried(source), dtype, graph)


def wrapped(carried: Carried, dtype: str, graph: CarriedEmitter) -> Carried:
    """Integer to integer: nothing to do where the bounds fit, else modulo 2^bits."""
    low, high = integer_range(dtype)
    if low <= carried.low and carried.high <= high:
        return carried
    span = high - low + 1
    if carried.carrier != "float32":
        moved = graph.node("Sub", [carried.name, graph.ints([low])])
        rest = graph.node("Mod", [moved, graph.ints([span])], fmod=0)
        return narrowed(graph.node("Add", [rest, graph.ints([low])]), "int64", low, high, graph)
    if carried.magnitude + span >= FLOAT_LIMIT:
        return wrapped(
            Carried(graph.as_int64(carried), "int64", carried.low, carried.high), dtype, graph
        )
    # span is a power of two, so the scaled value and its floor are exact.
    moved = graph.node("Sub", [carried.name, graph.float_constant(low)])
    turns = graph.node("Floor", [graph.node("Mul", [moved, graph.float_constant(1 / span)])])
    turned = graph.node("Mul", [turns, graph.float_constant(span)])
    return Carried(graph.node("Sub", [carried.name, turned]), "float32", low, high)


def _from_float(source: Value, dtype: str, graph: CarriedEmitter) -> Carried:
    """Integers stay as they are; other floats are truncated and saturated; NaN becomes 0."""
    held = _integral_bounds(source)
    low, high = integer_range(dtype)
    if (
        held is not None
        and low <= held[0]
        and held[1] <= high
        and max(map(abs, held)) < FLOAT_LIMIT
    ):
        name = graph.name(source)
        if source.type.dtype != "float32":
            name = graph.writer.cast(name, "float32")
        name = graph.node("Where", [graph.node("IsNaN", [name]), graph.float_constant(0), name])
        return Carried(name, "float32", min(held[0], 0), max(held[1], 0))
    if dtype in ("int64", "uint64"):
        raise OnnxExportError(
            f"cast of {source.type.dtype} to {dtype} without a clip cannot be exported exactly",
            fix="clip before the cast",
        )
    wide = graph.writer.cast(graph.name(source), "float64")
    bounds = [graph.writer.constant(np.asarray(b, "float64")) for b in (low, high)]
    number = graph.node("Where", [graph.node("IsNaN", [wide]), graph.writer.constant(0.0), wide])
    integer = graph.writer.cast(graph.node("Clip", [number, *bounds]), "int64")
    return narrowed(integer, "int64", low, high, graph)


def _integral_bounds(value: Value) -> tuple[int, int] | None:
    """Bounds of a float value that clip(round(x)) or round(clip(x)) made integral.

    A zero point added behind them is part of the bounds, which are as the float dtype holds them.
    """
    kind, exact = np.dtype(value.type.dtype), 1 << np.finfo(value.type.dtype).nmant
    bounds: tuple[float, float] | None = None
    rounded = False
    moved = 0.0
    while value.producer is not None:
        step = value.producer
        if step.name == "clip" and bounds is None:
            with np.errstate(over="ignore"):
                low, high = kind.type(step.attrs.a_min), kind.type(step.attrs.a_max)
                bounds = (float(low), float(high))
        elif step.name in ("round", "round_even", "floor", "ceil", "trunc"):
            rounded = True
        elif step.name == "add" and bounds is None and not rounded:
            added = _whole_number(step.args[1])
            if added is None:
                break
            moved += added
        elif step.name not in ("annotation.stop_fusion", "annotation.cast_hint"):
            break
        if rounded and bounds is not None:
            break
        value = step.args[0]
    if not rounded or bounds is None or not all(map(math.isfinite, bounds)):
        return None
    if any(b != int(b) for b in bounds) or (moved and max(map(abs, bounds)) + abs(moved) > exact):
        return None
    return int(bounds[0] + moved), int(bounds[1] + moved)


def _whole_number(value: Value) -> float | None:
    if value.data is None or value.data.ndim:
        return None
    number = float(value.data)
    return number if number.is_integer() else None


def to_float(step: Step, graph: CarriedEmitter) -> str:
    """An integer value as float tensor, zeros positive as integers have them."""
    source, dtype = graph.carried(step.args[0]), step.result.type.dtype
    # Rounding floats leaves -0.0, which would show in the bits of the output.
    integer = source.name
    if source.carrier == "float32":
        integer = graph.writer.cast(source.name, "int32")
    return graph.writer.cast(integer, dtype)
