"""A fully integral module as ONNX that computes the module's integers, bit for bit.

    nn.conv2d(q: int8, W: int8) -> int32     Conv where every sum stays below 2^23, else ConvInteger
    nn.matmul, nn.batch_matmul               MatMul; MatMulInteger
    fixed_point_multiply(x: int32)           Mul, Add 1/2, Floor in float64 where it is exact; else
                                             Mul, Add, BitShift right on uint64, Cast int32
    qnn.requantize(x, low, high)             Mul, Round, Clip in float32 where that is the same
    anything that is no word of core         its body

Nothing is approximated: what a float dtype does not hold, by the bounds of ``compiler.ranges``, is
computed in integers, and wraps where the reference does. The file shares no numeric code with the
reference or the engine, so it is the independent oracle of a proof, and the one exact form for
other runtimes; it takes 2 to 4 times as long as the float model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import onnx

import compiler.export.to_onnx.float.rules
import compiler.export.to_onnx.integer.rules  # noqa: F401  (fills the table)
from compiler.errors import TooLargeError
from compiler.export.to_onnx.emitter import ONNX
from compiler.export.to_onnx.float.model import write_outputs
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.export.to_onnx.integer.emitter import Held, IntegerEmitter
from compiler.ir.dataflow import Dataflow, Value, dataflow
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.ranges.analysis import RangeContext

MOST_BYTES: Final = (1 << 31) - (1 << 24)
"""Upper limit of the bytes of constants, which leaves the nodes some room in a message of 2 GB."""


@collector_rests
def to_integer_onnx(mod: IRModule, function: str = "main") -> onnx.ModelProto:
    """Export a realised module, partitioned or not, with its integers as they are.

    Float operators, as in quantize_inputs and dequantize_outputs, are exported as
    ``float.model.to_onnx`` does. Inputs and outputs have the dtypes of the function's own.

    Args:
        mod: a typed module after QuantizeRealize.
        function: "main", or another function such as "quantized_main".
    Raises:
        OnnxExportError: an operator or dtype without an exact integer form.
    """
    flow = dataflow(mod, function, ONNX)
    model = integer_model(flow, function)[0]
    flow.unlink()
    return model


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A flow, the graph that it became, and the tensors that hold its values."""

    flow: Dataflow
    graph: onnx.GraphProto
    tensors: Mapping[Value, Held]


def integer_model(flow: Dataflow, name: str) -> tuple[onnx.ModelProto, Written, list[Written]]:
    """``to_integer_onnx`` for a flow; what it wrote of the flow, and of the bodies of loops.

    Args:
        name: of the graph.
    Raises:
        OnnxExportError: an operator or dtype without an exact integer form.
        TooLargeError: its constants do not fit into one message.
    """
    # Factors of float products take 4 bytes each, whatever they have in the module.
    size = sum(max(4, data.itemsize) * data.size for data in flow.constants())
    if size > MOST_BYTES:
        raise TooLargeError(
            f"the constants of the integer ONNX may take {size} bytes, a message has at most "
            f"{MOST_BYTES}",
            fix="the engine and the C have no such limit",
        )
    emitter = IntegerEmitter(GraphWriter(name), RangeContext())
    for value in flow.inputs:
        emitter.bind(value, emitter.writer.input(value.name, value.type))
    for step in flow.steps:
        emitter.emit(step)
    write_outputs(flow, emitter)
    model = emitter.writer.finish()
    graphs = {
        held.g.output[0].name: held.g
        for node in model.graph.node
        for held in node.attribute
        if held.g.output
    }
    bodies = [step.body for step in flow.steps if step.body is not None]
    inner = [
        _written(body, graphs[one.writer.output_names[0]], one, emitter.writer.renamed)
        for body, one in zip(bodies, emitter.loops, strict=True)
        if one.writer.output_names[0] in graphs  # a loop without readers is left out
    ]
    return model, _written(flow, model.graph, emitter, {}), inner


def _written(
    flow: Dataflow, graph: onnx.GraphProto, emitter: IntegerEmitter, outside: Mapping[str, str]
) -> Written:
    """Return the graph of a flow; ``outside`` has new names of tensors that a body may read."""
    own = {*flow.inputs, *(value for step in flow.steps for value in step.results)}
    tensors = {
        value: Held(outside.get(held.name, held.name), held.dtype)
        for value, held in emitter.tensors().items()
        if value in own
    }
    return Written(flow, graph, tensors)
