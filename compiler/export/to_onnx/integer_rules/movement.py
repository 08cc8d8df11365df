"""Operators that move or repeat integers without changing them."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.export.to_onnx.emitter import FToOnnx
from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.export.to_onnx.integer_rules.arithmetic import plain
from compiler.export.to_onnx.movement_operators import IDENTITIES, MOVES
from compiler.ir.dataflow import Step


@FToInteger.register(*IDENTITIES)
def pass_through(step: Step, e: IntegerEmitter) -> str:
    """The value itself; roundings are identities on integers."""
    return e.name(step.args[0])


@FToInteger.register(*MOVES)
def move(step: Step, e: IntegerEmitter) -> str | Sequence[str]:
    """The plain form, which onnxruntime has for every integer dtype."""
    return FToOnnx.require(step.op)(step, e)


@FToInteger.register("image.resize2d", "nn.upsampling")
def resize(step: Step, e: IntegerEmitter) -> str | Sequence[str]:
    """Resize to the nearest neighbour; interpolation is no integer operation."""
    if step.attrs.method != "nearest_neighbor":
        raise e.refuse(step, f"{step.attrs.method} interpolation of integers")
    return plain(step, e)
