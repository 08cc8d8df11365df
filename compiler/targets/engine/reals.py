"""Rules of conversions: float32 inputs become integers, and integers float32 outputs."""

from __future__ import annotations

from typing import Final

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array
from compiler.targets.engine import moves
from compiler.targets.engine.layouts import MOVES, factors_moved, moved_back
from compiler.targets.engine.planner import Planner, reals, rule
from compiler.targets.engine.values import Item, bits_of, constants, is_integer
from compiler.targets.engine.views import View, compact

_LARGEST_QUANTIZED = 1 << 23
_ELEMENTWISE: Final = {
    "add": "FADD",
    "subtract": "FSUB",
    "multiply": "FMUL",
    "minimum": "FMIN",
    "maximum": "FMAX",
    "round": "FROUND",
    "round_even": "FEVEN",
}

rule(*MOVES, of=reals)(moves.reshape)
rule("transpose", of=reals)(moves.transpose)
rule("strided_slice", of=reals)(moves.strided_slice)
rule("concatenate", of=reals)(moves.concatenate)


@rule(*_ELEMENTWISE, of=reals)
def elementwise(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Write an operator that rounds as numpy does."""
    return planner.elementwise(step, _ELEMENTWISE[step.name], args)


@rule("clip", of=reals)
def clip(planner: Planner, step: Step, args: list[Item]) -> bool:
    """NaN stays NaN."""
    low, high = (constants(bits_of(np.array(end, np.float32))) for end in _limits(step))
    return planner.elementwise(step, "FMAX", (planner.compose("FMIN", (args[0], high)), low))


def _limits(step: Step) -> tuple[float, float]:
    return step.attrs.a_min, step.attrs.a_max


@rule("cast", of=reals)
def cast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Write a cast of floats to integers, as one step from the input if that has such loops."""
    dtype = step.results[0].type.dtype
    if is_integer(step.args[0].type.dtype):
        return planner.elementwise(step, "TO_REAL", args)
    if dtype in ("bool", "float32"):
        return dtype == "float32" and planner.alias(step, args[0])
    if _quantized(planner, step):
        return True
    low, high = integer_range(dtype)
    clipped = _made_by(planner, step.args[0], "clip")
    if clipped is not None:
        ends = _limits(clipped)
        if all(abs(end) < _LARGEST_QUANTIZED for end in ends) and ends[0] <= 0 <= ends[1]:
            low, high = max(low, int(ends[0])), min(high, int(ends[1]))
    return planner.elementwise(step, "TO_INT", args, dtype, low, high)


def _quantized(planner: Planner, step: Step) -> bool:
    """``cast(clip(round(x * scale)) + zero)`` of an input of the function, moved before."""
    dtype = step.results[0].type.dtype
    shifted = _made_by(planner, step.args[0], "add")
    zero = planner.root(shifted.args[1]).data if shifted else np.float32(0)
    if zero is None or zero.size != 1 or float(zero.item()) != int(zero.item()):
        return False
    offset = int(zero.item())
    clipped = _made_by(planner, shifted.args[0] if shifted else step.args[0], "clip")
    if clipped:
        rounded = _made_by(planner, clipped.args[0], "round")
    else:
        rounded = None
    if rounded:
        times = _made_by(planner, rounded.args[0], "multiply")
    else:
        times = None
    if clipped is None or times is None:
        return False
    source, scale = (planner.root(a) for a in times.args)
    if source.data is not None:
        source, scale = scale, source
    shape = source.type.concrete_shape
    path, source = planner.behind_moves(source)
    inputs = [planner.root(v) for v in planner.flow.inputs]
    if source not in inputs or scale.data is None or times.results[0].type.concrete_shape != shape:
        return False
    factor, axis = _along_one_axis(scale.data, shape, path)
    bounds = _limits(clipped)
    if not all(abs(b) < _LARGEST_QUANTIZED and b == int(b) for b in bounds) or factor is None:
        return False
    low = int(bounds[0]) + offset
    high = int(bounds[1]) + offset
    info = integer_range(dtype)
    # The kernel gives 0 for NaN, and so does the cast as long as 0 is within the bounds.
    if not info[0] <= low <= 0 <= high <= info[1]:
        return False
    item = planner.define(step, Item(shape, low, high))
    number = inputs.index(source)
    view = item.view = planner.emitter.allocate(item)
    target: View | None = view
    for move in path:
        target = target and moved_back(target, move)
    if target is not None:
        return planner.emitter.quantize(number, target, factor, axis, (low, high), offset)
    item.border = None
    target = compact(item.storage, source.type.concrete_shape)
    if not planner.emitter.quantize(number, target, factor, axis, (low, high), offset):
        return False
    item.view = planner.moved(target, path)
    return True


def _along_one_axis(
    factor: Array, shape: tuple[int, ...], path: list[Step]
) -> tuple[Array | None, int]:
    """Factors of an input that is moved to ``shape``, and the axis along which they differ.

    Args:
        path: the operators that move it, last one first.
    """
    if factor.size == 1:
        return factor.reshape(1), 0
    whole = np.broadcast_to(factor, shape)
    for move in path:
        whole = factors_moved(whole, move, back=True)
    differ = [a for a in range(whole.ndim) if (whole != whole.take([0], axis=a)).any()]
    if len(differ) > 1:
        return None, 0
    (axis,) = differ or [0]
    return np.moveaxis(whole, axis, -1).reshape(-1, whole.shape[axis])[0], axis


def _made_by(planner: Planner, value: FlowValue, name: str) -> Step | None:
    step = planner.root(value).producer
    if step is not None and step.name == name:
        return step
    return None
