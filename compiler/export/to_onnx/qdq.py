"""A realised integer module as a QDQ graph: float operators between 8 bit tensors.

    integer module                                          exported
    cast(clip(fixed_point_multiply(nn.conv2d(q, W) + b)))   Q(Conv(DQ(q), DQ(W, r), DQ(b, r)))
    the same of q1 * r1 + q2 * r2                           Q(Add(DQ(q1, r1), DQ(q2, r2)))

Runtimes replace the groups by their 8 bit kernels. Their requantization is a float product and
their pools round elsewhere, so a QDQ graph gives nearly the module's integers and not exactly them.
Residual sums of 16 bits are narrowed to 8 (``qdq_sums``). What it cannot express (softmax, layer
normalisation, tables) is computed in float.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

import compiler.export.to_onnx.carried_rules
import compiler.export.to_onnx.convert
import compiler.export.to_onnx.qdq_rules  # noqa: F401  (fills the table)
from compiler.errors import OnnxExportError, legal_names
from compiler.export.to_onnx.carried_emitter import Carried, CarriedEmitter, FToCarried
from compiler.export.to_onnx.carried_rules.cast import to_float
from compiler.export.to_onnx.carried_rules.elementwise import COMPARISONS, compare
from compiler.export.to_onnx.emitter import ONNX, emit_step
from compiler.export.to_onnx.float_model import write_outputs
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.export.to_onnx.qdq_emitter import RUNTIMES, FToQdq, QdqEmitter
from compiler.export.to_onnx.qdq_sums import (
    ChannelMaxima,
    Levels,
    last_products,
    narrow_levels,
    needless_clips,
)
from compiler.ir.dataflow import Step, dataflow
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range, is_float, is_integer

PRODUCTS = ("nn.conv2d", "nn.dense", "nn.matmul", "nn.batch_matmul", "nn.conv2d_transpose")
_NARROW = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class QdqExport:
    """The model, and what is not 8 bits in it.

    Attributes:
        macs: multiplications of all products.
        float_products: operator, ONNX node that it came from, and multiplications of every product
            that is computed in float.
        float_ops: other operators that QDQ has no integers for, with their number.
        narrowed: residual sums, inputs of such, of layers and of tables that have more bits in the
            module, and 8 here.
    """

    model: onnx.ModelProto
    macs: int
    float_products: tuple[tuple[str, str, int], ...]
    float_ops: dict[str, int]
    narrowed: int = 0


@collector_rests
def to_qdq_onnx(
    mod: IRModule,
    runtime: str = "onnxruntime",
    reduce_range: bool = False,
    function: str = "main",
    *,
    wide_sums: bool = False,
    maxima: ChannelMaxima | None = None,
) -> QdqExport:
    """Export a realised module for a runtime with 8 bit kernels.

    Args:
        mod: a typed module after QuantizeRealize.
        runtime: key of ``qdq_emitter.RUNTIMES``.
        reduce_range: weights of 7 bits, for processors whose 8 bit kernels add pairs of products in
            16 bits (AVX2 and AVX512 without VNNI).
        function: "main", or another function.
        wide_sums: residual sums and inputs of layers of 16 bits stay float, which is more exact,
            and slower.
        maxima: how large the channels become that grouped convolutions read in more than 8 bits;
            without them, and for others, their narrowed inputs have one range for all channels.
    Raises:
        OnnxExportError: an unknown runtime; integers that neither 8 bits nor floats hold.
    """
    if runtime not in RUNTIMES:
        raise OnnxExportError(f"unknown runtime {runtime!r}", fix=legal_names(runtime, RUNTIMES))
    flow = dataflow(mod, function, ONNX)
    narrow: dict[Step, Levels] = {}
    clips: set[Step] = set()
    last = last_products(flow.steps)
    for step in flow.steps:
        levels = None if wide_sums else narrow_levels(step, maxima or {}, last)
        if levels is not None:
            narrow[step] = levels
        clips.update(needless_clips(step) if levels is None else levels.clips)
    graph = QdqEmitter(GraphWriter(function), RUNTIMES[runtime], reduce_range, not narrow)
    for value in flow.inputs:
        name = graph.writer.input(value.name, value.type)
        graph.bind(value, name)
        if is_integer(value.type.dtype):
            low, high = integer_range(value.type.dtype)
            small = value.type.dtype in ("int8", "uint8", "int16", "uint16")
            carrier = "float32" if small else "int64"
            held = name if value.type.dtype == carrier else graph.writer.cast(name, carrier)
            graph.carry(value, Carried(held, carrier, low, high))
    for step in flow.steps:
        _emit(narrow, clips, step, graph)
    for value in flow.outputs:
        if is_integer(value.type.dtype):
            graph.bind(value, graph.native(value))
    write_outputs(flow, graph)
    return _reported(graph.writer.finish(), flow.steps, graph)


def _emit(
    narrow: Mapping[Step, Levels], clips: Collection[Step], step: Step, graph: QdqEmitter
) -> None:
    """The carried form first, which knows the bounds; then the QDQ form, where there is one."""
    real = graph.real(step.args[0]) if step.args else None
    if step.name == "cast" and real is not None and is_float(step.result.type.dtype):
        name = real.emit(graph, np.ones(()))
        wanted = step.result.type.dtype
        graph.bind(step.result, name if wanted == "float32" else graph.writer.cast(name, wanted))
        return
    _emit_carried(step, graph)
    if not all(is_integer(value.type.dtype) for value in step.results):
        return
    rule = FToQdq.get(step.op)
    made = real if step in clips else None if rule is None else rule(step, graph)
    levels = narrow.get(step)
    if made is not None and levels is not None:
        graph.narrow(step, made, levels.factor, int(levels.low), int(levels.high))
        return
    for value in step.results:
        if made is not None:
            graph.set_real(value, made)
        if value.type.dtype in _NARROW and value.users:
            source = graph.quantized(step.args[0]) if step.args else None
            if made is not None and source is not None and made is graph.real(step.args[0]):
                held = graph.carried(step.args[0])
                graph.set_quantized(value, source, held.low, held.high)
            else:
                graph.settle(value)


def _emit_carried(step: Step, graph: CarriedEmitter) -> None:
    """Write one step in the form that fits its types."""
    integer_result = all(is_integer(r.type.dtype) for r in step.results)
    integer_args = [a for a in step.args if is_integer(a.type.dtype)]
    rule = FToCarried.get(step.op) if integer_result else None
    if rule is not None:
        carried = rule(step, graph)
        results = [carried] if isinstance(carried, Carried) else carried
        for value, held in zip(step.results, results, strict=True):
            graph.carry(value, held, step)
        return
    if step.name == "cast" and integer_args and is_float(step.result.type.dtype):
        graph.bind(step.result, to_float(step, graph))
        return
    if step.name in COMPARISONS and integer_args:
        graph.bind(step.result, compare(step, graph))
        return
    # No rule: the plain operator on real integers.
    for value in integer_args:
        graph.bind(value, graph.native(value))
    emit_step(step, graph)
    for value in step.results:
        if is_integer(value.type.dtype):
            low, high = integer_range(value.type.dtype)
            graph.carry(value, Carried(graph.name(value), value.type.dtype, low, high), step)


def _reported(model: onnx.ModelProto, steps: tuple[Step, ...], graph: QdqEmitter) -> QdqExport:
    written = {name for node in model.graph.node for name in node.output}
    narrow = {step for name, step in graph.products.items() if name in written}
    products = [step for step in steps if step.name in PRODUCTS]
    left = tuple(
        (step.name, str(step.span or ""), _macs(step)) for step in products if step not in narrow
    )
    counted: dict[str, int] = {}
    for step in steps:
        if step.name in ("nn.integer_softmax", "nn.integer_standardize", "lookup"):
            counted[step.name] = counted.get(step.name, 0) + 1
    return QdqExport(model, sum(map(_macs, products)), left, counted, len(graph.narrowed))


def _macs(step: Step) -> int:
    """Multiplications of a product."""
    out = step.result.type.num_elements
    weight = step.args[1].type.concrete_shape
    if step.name == "nn.conv2d":
        return out * math.prod(weight[1:])
    if step.name == "nn.conv2d_transpose":
        return step.args[0].type.num_elements * math.prod(weight[1:])
    data = step.args[0].type.concrete_shape
    return out * (data[-2] if getattr(step.attrs, "transpose_a", False) else data[-1])
