"""Inputs of the integer core, and the inputs of the model behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from compiler.errors import TfliteExportError
from compiler.ir.dataflow import Form, Value, dataflow
from compiler.ir.module import IRModule

TFLITE = Form("LiteRT", TfliteExportError)
CURE = "compile it with requantization=tflite and 8 bits everywhere (no bits in layers)"
_RESHAPES = ("expand_dims", "reshape", "squeeze")
_CONVERTS = ("cast", "round", "round_even", "annotation.stop_fusion", *_RESHAPES)


@dataclass(frozen=True, slots=True)
class Taken:
    """One tensor of the core.

    Attributes:
        source: number of the model's input.
        grid: scale and zero point of its integers; None of an input of integers, which stay.
        ends: smallest and largest of its integers.
        moves: axes of transposes on the way.
    """

    source: int
    grid: tuple[float, int] | None
    ends: tuple[int, int] = (0, 0)
    moves: tuple[tuple[int, ...], ...] = ()

    def stored(self, dtype: str) -> str:
        """The dtype of its integers in a file, uint8 as it is; what the core takes in 32 bits has
        that of its ends."""
        if dtype not in ("int32", "int64"):
            return dtype
        low, high = self.ends
        if low < -128 or high > 255:
            return "int16"
        if low >= 0:
            return "uint8"
        return "int8"


def taken_by(mod: IRModule) -> list[Taken]:
    """Return the tensors that ``quantize_inputs`` makes of the inputs.

    Raises:
        TfliteExportError: an input is converted otherwise than by one scale of 12 bits.
    """
    flow = dataflow(mod, "quantize_inputs", TFLITE)
    sources = {value: number for number, value in enumerate(flow.inputs)}
    return [_taken(value, sources) for value in flow.outputs]


def firsts(taken: Iterable[Taken]) -> list[int]:
    """For each tensor of the core the first one that holds the same integers: the file has one
    input for them.

    Raises:
        TfliteExportError: an input is converted in two ways.
    """
    found: list[int] = []
    known: dict[int, tuple[int, Taken]] = {}
    for place, one in enumerate(taken):
        first, other = known.setdefault(one.source, (place, one))
        if one != other:
            raise TfliteExportError(
                f"input {one.source} is converted to integers at more than one scale or layout",
                fix="let one layer read each input, and others what it gives",
            )
        found.append(first)
    return found


def _taken(value: Value, sources: dict[Value, int]) -> Taken:
    """cast(clip(round(x * (1 / scale))) + zero), read from its end."""
    zero = 0
    inverse = 0.0
    moves = []
    ends = (0, 0)
    quant = value.quant
    while value not in sources:
        step = value.producer
        quant = quant or value.quant
        if step is not None and len(step.args) == 2:
            number = step.args[1].data
        else:
            number = None
        if number is None or number.size != 1:
            single = None
        else:
            single = number.reshape(-1)[0]
        if step is None:
            break
        if step.name == "transpose":
            moves.append(tuple(step.attrs.axes))
        elif step.name == "add" and single is not None:
            zero += int(single)
        elif step.name == "multiply" and single is not None and not inverse:
            inverse = float(single)
        elif step.name == "clip":
            ends = int(step.attrs.a_min) + zero, int(step.attrs.a_max) + zero
        elif step.name not in _CONVERTS:
            break
        value = step.args[0]
    whole = value.type.dtype in ("int32", "int64")
    scale = np.float32(0 if quant is None or quant.of_tensor is None else quant.of_tensor[0])
    if whole:
        exact = not inverse
    else:
        exact = bool(scale) and np.float32(1) / scale == inverse
    if value not in sources or not exact:
        raise TfliteExportError("an input is not converted to 8 bits by one scale", fix=CURE)
    return Taken(sources[value], None if whole else (float(scale), zero), ends, tuple(moves))
