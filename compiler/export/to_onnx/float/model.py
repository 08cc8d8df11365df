"""Float and simulated modules as ONNX, operator by operator."""

from __future__ import annotations

from typing import Any

import onnx
from numpy.typing import NDArray

import compiler.export.to_onnx.float.rules  # noqa: F401  (fills the table)
from compiler.export.to_onnx.emitter import ONNX, Emitter, emit_step
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.ir.dataflow import Dataflow, flatten_function
from compiler.ir.expr import Function
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule


@collector_rests
def to_onnx(
    mod: IRModule,
    function: str | Function = "main",
    large: dict[str, NDArray[Any]] | None = None,
) -> onnx.ModelProto:
    """A function as an ONNX model (opset 17) that computes the same.

    Parameters become inputs of the same names and constants become initializers. A tuple result
    becomes outputs ``output_0, output_1, …``; a tensor becomes ``output``.

    Args:
        mod: a typed module; simulated_quantize is written out as division, clip, round half away
            from zero, product.
        function: a function of the module, or a typed function that may call such functions.
        large: as of ``GraphWriter.finish``; none of them is a copy.
    Raises:
        OnnxExportError: an operator, layout or dtype without ONNX form; integer convolutions
            (``integer.to_integer_onnx`` exports such modules).
    """
    fn = mod[function] if isinstance(function, str) else function
    flow = flatten_function(fn, mod, form=ONNX)
    writer = GraphWriter(function if isinstance(function, str) else "main")
    emitter = Emitter(writer, folds=large is not None)
    for value in flow.inputs:
        emitter.bind(value, writer.input(value.name, value.type))
    for step in flow.steps:
        emit_step(step, emitter)
    write_outputs(flow, emitter)
    flow.unlink()
    return writer.finish(large)


def write_outputs(flow: Dataflow, emitter: Emitter) -> None:
    """Declare the results of a function as graph outputs."""
    single = len(flow.outputs) == 1
    for index, value in enumerate(flow.outputs):
        hint = "output" if single else f"output_{index}"
        emitter.writer.output(hint, emitter.name(value), value.type)
