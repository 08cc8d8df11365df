"""Words that move integers without changing them, and casts."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.integer.emitter import SINGLE, FToInteger, Held, IntegerEmitter
from compiler.ir.dataflow import Step
from compiler.ir.ty import bits, integer_range, is_float, is_integer


@FToInteger.register("reshape", "transpose", "strided_slice", "broadcast_to", "concatenate", "take")
def move(step: Step, e: IntegerEmitter) -> Held:
    """The plain form, in the dtype that the elements are held in."""
    if step.name == "concatenate":
        moved = step.args
    else:
        moved = step.args[:1]
    dtypes = {e.held(value).dtype for value in moved}
    dtype = dtypes.pop()
    if dtypes:
        wide = e.reach(moved) >= SINGLE or dtype == "bool"
        dtype = step.result.type.dtype if wide else "float32"
    made = Held(e.plain(step, dtype, moved), dtype)
    if step.name == "transpose":
        e.transposed[made.name] = e.held(step.args[0]), list(step.attrs.axes)
    return made


@FToInteger.register("scatter_nd")
def scatter(step: Step, e: IntegerEmitter) -> Held:
    """The plain form in a dtype that holds all sums."""
    sides = [step.args[0], step.args[2]]
    if bits(step.result.type.dtype) <= 16:
        wide = "int32"
    else:
        wide = e.working_dtype(step)
    work = e.exact_dtype(e.reach((*sides, step.result))) or wide
    return e.result(step, e.plain(step, work, sides), work)


@FToInteger.register("cast")
def cast(step: Step, e: IntegerEmitter) -> Held | str:
    """Nothing, where the dtype holds the integers, else a Cast; from floats in double, which holds
    every bound of 32 bits, and NaN becomes 0."""
    source = step.args[0]
    dtype = step.result.type.dtype
    if not is_float(source.type.dtype):
        if is_integer(source.type.dtype) and is_integer(dtype):
            low, high = integer_range(dtype)
            if low <= e.ends(source)[0] and e.ends(source)[1] <= high:
                return e.held(source)
        return e.cast(e.name(source), source.type.dtype, dtype)
    name = e.name(source)
    if is_float(dtype) or dtype == "bool":
        return e.cast(name, source.type.dtype, dtype)
    if dtype == "uint64":
        raise e.refuse(step, "a float cannot be limited to uint64 in double")
    wide = e.cast(name, source.type.dtype, "float64")
    zero = e.writer.constant(np.asarray(0.0))
    number = e.node("Where", [e.node("IsNaN", [wide]), zero, wide])
    low, high = integer_range(dtype)
    least, most = (e.writer.constant(np.asarray(end, "float64")) for end in (low, high))
    if dtype == "int64":  # 2^63, in double, is the first number beyond
        below = e.writer.constant(np.nextafter(np.float64(high), 0.0))
        made = e.writer.cast(e.node("Clip", [number, least, below]), "int64")
        inside = e.node("Less", [number, most])
        return e.node("Where", [inside, made, e.constant(high, "int64")])
    return e.writer.cast(e.writer.cast(e.node("Clip", [number, least, most]), "int64"), dtype)
