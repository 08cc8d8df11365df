"""A realised integer module as ONNX that computes exactly its integers, in float32 and 8 bits.

Float32 sums of whole numbers below 2^24 are exact in any order, and onnxruntime runs them fast. Its
8 bit convolutions are faster still and multiply by real scales, which is proven to round alike
or not used. So a candidate is judged by what would be shipped, at less than the float model's cost.

    integer module                                           exported
    cast(clip(round(multiply(x, r)), -127, 127), int8)       Mul, round half away, Clip
    add(nn.conv2d(q, W: int8) -> int32, b)                   Conv with bias
    cast(clip(fixed_point_multiply(nn.relu(a)), …), int8)    Mul, Round, Clip
    the last two, proven                                     QLinearConv

Bounds of every value are derived with the actual weights; what could reach 2^24 is computed in
double or int64. Float parts of a module that is not fully integral are exported as they are.
Measured: 0 differing bits, 0.6 times the CPU time of the float model on EfficientNet-Lite0
(tests/benchmarks/bench_grid.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import onnx

import compiler.export.to_onnx.convert
import compiler.export.to_onnx.grid_rules  # noqa: F401  (fills the table)
from compiler.export.to_onnx.emitter import emit_step
from compiler.export.to_onnx.float_model import write_outputs
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.export.to_onnx.grid_emitter import Carried, FToGrid, GridEmitter
from compiler.export.to_onnx.grid_rules.cast import to_float
from compiler.export.to_onnx.grid_rules.elementwise import COMPARISONS, compare
from compiler.ir.dataflow import Dataflow, Step, dataflow
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range, is_float, is_integer

G = TypeVar("G", bound=GridEmitter)


@collector_rests
def to_grid_onnx(
    mod: IRModule, function: str = "main", narrow_kernels: bool = False
) -> onnx.ModelProto:
    """Export a realised module, partitioned or not, onto the integer grid.

    onnxruntime gives the module's integers with the session options it has by default. Graph inputs
    and outputs have the dtypes of the function's own.

    Args:
        mod: a typed module after QuantizeRealize.
        function: "main", or another function such as "quantized_main".
        narrow_kernels: convolutions may run on 8 bit kernels; true where
            ``targets.ort.narrow_kernels.are_exact`` says so.
    Raises:
        OnnxExportError: an operator without a grid form, or integers that may wrap.
    """
    flow = dataflow(mod, function)
    grid = GridEmitter(GraphWriter(function), narrow_kernels)
    return write_graph(flow, grid, emit_integers)


def write_graph(flow: Dataflow, grid: G, emit: Callable[[Step, G], None]) -> onnx.ModelProto:
    """Write inputs, steps and outputs; integers of up to 16 bits enter in float32."""
    for value in flow.inputs:
        name = grid.writer.input(value.name, value.type)
        grid.bind(value, name)
        if is_integer(value.type.dtype):
            low, high = integer_range(value.type.dtype)
            small = value.type.dtype in ("int8", "uint8", "int16", "uint16")
            carrier = "float32" if small else "int64"
            held = name if value.type.dtype == carrier else grid.writer.cast(name, carrier)
            grid.carry(value, Carried(held, carrier, low, high))
    for step in flow.steps:
        emit(step, grid)
    for value in flow.outputs:
        if is_integer(value.type.dtype):
            grid.bind(value, grid.native(value))
    write_outputs(flow, grid)
    return grid.writer.finish()


def emit_integers(step: Step, grid: GridEmitter) -> None:
    """Write one step in the form that fits its types."""
    integer_result = all(is_integer(r.type.dtype) for r in step.results)
    integer_args = [a for a in step.args if is_integer(a.type.dtype)]
    rule = FToGrid.get(step.op) if integer_result else None
    if rule is not None:
        carried = rule(step, grid)
        results = [carried] if isinstance(carried, Carried) else carried
        for value, held in zip(step.results, results, strict=True):
            grid.carry(value, held, step)
        return
    if step.name == "cast" and integer_args and is_float(step.result.type.dtype):
        grid.bind(step.result, to_float(step, grid))
        return
    if step.name in COMPARISONS and integer_args:
        grid.bind(step.result, compare(step, grid))
        return
    # No grid form: the plain operator on real integers.
    for value in integer_args:
        grid.bind(value, grid.native(value))
    emit_step(step, grid)
    for value in step.results:
        if is_integer(value.type.dtype):
            low, high = integer_range(value.type.dtype)
            grid.carry(value, Carried(grid.name(value), value.type.dtype, low, high), step)
