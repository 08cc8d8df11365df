"""A realised integer module as a QDQ graph: float operators between 8 bit tensors.

    integer module                                          exported
    cast(clip(fixed_point_multiply(nn.conv2d(q, W) + b)))   Q(Conv(DQ(q), DQ(W, r), DQ(b, r)))
    the same of q1 * r1 + q2 * r2                           Q(Add(DQ(q1, r1), DQ(q2, r2)))

Runtimes replace the groups by their 8 bit kernels. Their requantization is a float product and
their pools round elsewhere, so a QDQ graph gives nearly the module's integers and not exactly them.
A module is made for the form: its values have 8 bits. Softmax and layer normalisation are computed
in float; what it cannot express is written in integer words, as ``integer`` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

import compiler.export.to_onnx.float.rules
import compiler.export.to_onnx.integer.rules
import compiler.export.to_onnx.qdq.rules  # noqa: F401  (fills the table)
from compiler.core.legalize import is_integral, is_whole
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.emitter import ONNX
from compiler.export.to_onnx.float.model import write_outputs
from compiler.export.to_onnx.graph_writer import OPSET, GraphWriter
from compiler.export.to_onnx.narrow_weights import NEWEST_OPSET, narrowed
from compiler.export.to_onnx.qdq.emitter import LEVELS, FToQdq, QdqEmitter
from compiler.export.to_onnx.qdq.limits import is_same, limits_in, needless_clips
from compiler.export.to_onnx.qdq.rules.elementwise import move
from compiler.ir.dataflow import Step, Value, dataflow
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float, is_integer
from compiler.ops.qnn.requantize import RESCALING
from compiler.ops.rules.dom_scale import carry_scales
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ranges.analysis import ranges_of

_IN_FLOAT = ("nn.integer_softmax", "nn.integer_standardize")
_FLOATS = (*_IN_FLOAT, "lookup")
_SUMS = ("add", "subtract")
_LINEAR = (*_SUMS, "multiply", "clip", *RESCALING)
_BITS = 8


@dataclass(frozen=True, slots=True)
class QdqExport:
    """The model, and what is not 8 bits in it.

    Attributes:
        macs: multiplications of all products.
        float_products: operator, ONNX node that it came from, and multiplications of every product
            that is computed in float.
        float_ops: other operators that QDQ has no integers for, with their number.
    """

    model: onnx.ModelProto
    macs: int
    float_products: tuple[tuple[str, str, int], ...]
    float_ops: dict[str, int]


@collector_rests
def to_qdq_onnx(
    mod: IRModule,
    reduce_range: bool = False,
    *,
    opset: int | None = None,
) -> QdqExport:
    """Export a realised module for onnxruntime's 8 bit kernels.

    Args:
        mod: a typed module after QuantizeRealize.
        reduce_range: weights of 7 bits, for processors whose 8 bit kernels add pairs of products in
            16 bits (AVX2 and AVX512 without VNNI).
        opset: the newest that may be used; weights of up to 2 bits take 2 from opset 25 on, those
            of up to 4 bits take 4 from 21 on. None: the newest that onnxruntime takes.
    Raises:
        OnnxExportError: a value of more than 8 bits; integers that may wrap.
    """
    flow = dataflow(mod, "main", ONNX)
    carry_scales(flow)
    _refuse_wide(flow.steps)
    ranges = ranges_of(flow)
    clips: set[Step] = set()
    for step in flow.steps:
        clips.update(needless_clips(step))
    for found in ranges.findings:
        if found.bound is not None:
            raise OnnxExportError(
                found.what,
                where=found.node,
                fix="QDQ has no wrapping arithmetic; requantize before this operator",
            )
    graph = QdqEmitter(GraphWriter("main"), ranges, reduce_range)
    for value in flow.inputs:
        graph.words.bind(value, graph.writer.input(value.name, value.type))
        if graph.is_held(value):
            graph.settle(value)
    for step in flow.steps:
        _emit(clips, step, graph)
    for value in flow.outputs:
        if is_whole(value):
            graph.native(value)
    write_outputs(flow, graph.words)
    made = _reported(graph.writer.finish(), flow.steps, graph)
    newest = opset or NEWEST_OPSET
    if newest <= OPSET:
        return made
    return replace(made, model=narrowed(made.model, newest))


def _refuse_wide(steps: Sequence[Step]) -> None:
    """Refuse values of more than 8 bits that products, tables and sums of two computed values read,
    but for those that an operator in float reads or gives.

    Raises:
        OnnxExportError: with the first one, and how to make a module of 8 bits.
    """
    in_float = _in_float(steps)
    wide: dict[Value, Value] = {}
    for step in steps:
        computed = [arg for arg in step.args if arg.data is None]
        source = next((wide[arg] for arg in computed if arg in wide), None)
        adds = step.name in _SUMS and len(computed) > 1 and in_float.isdisjoint(step.results)
        multiplies = step.name == "lookup" or FQProductShape.get(step.op) is not None
        if source is not None and (adds or multiplies):
            raise _of_more_bits(source)
        limits = limits_in(step)
        narrow = limits is not None and limits[1] - limits[0] < LEVELS
        for value in step.results:
            if _bits_of(value) > _BITS and value not in in_float:
                wide[value] = value
            elif source is not None and _hands_on(step) and not narrow:
                wide[value] = source


def _bits_of(value: Value) -> int:
    if value.quant is None:
        return 0
    return value.quant.bits


def _of_more_bits(value: Value) -> OnnxExportError:
    step = value.producer
    return OnnxExportError(
        f"a value has {_bits_of(value)} bits, and 8 bit kernels take {_BITS}",
        where=f"{value.type}" if step is None else f"{step.name}: {value.type}",
        fix="make the module for the form: qsearch compile --qconfig auto,for=qdq, or "
        "qsearch launch --for qdq",
        span=None if step is None else step.span,
    )


def _in_float(steps: Sequence[Step]) -> set[Value]:
    """Return the values that operators in float read and give, but for factors, limits and moves
    between; O(edges)."""
    values: set[Value] = set()
    for step in steps:
        if step.name in _IN_FLOAT or (_hands_on(step) and step.args[0] in values):
            values.update(step.results)
    for step in reversed(steps):
        if step.name in _IN_FLOAT or (_hands_on(step) and not values.isdisjoint(step.results)):
            values.update(step.args[:1])
    return values


def _hands_on(step: Step) -> bool:
    """Return whether a step gives its operand with constant factors, addends or limits."""
    alone = all(arg.data is not None for arg in step.args[1:])
    return alone and (step.name in _LINEAR or is_same(step))


def _emit(clips: Collection[Step], step: Step, graph: QdqEmitter) -> None:
    """Integers in the QDQ form, where there is one; floats at once, from integers in their dtypes;
    other integers once they are read."""
    real = graph.real(step.args[0]) if step.args else None
    if not all(is_integer(value.type.dtype) for value in step.results):
        if step.name == "cast" and real is not None and is_float(step.result.type.dtype):
            name = real.emit(graph, np.ones(()))
            wanted = step.result.type.dtype
            if wanted == "float32":
                held = name
            else:
                held = graph.writer.cast(name, wanted)
            graph.words.bind(step.result, held)
        elif not is_integral(step):
            for value in filter(is_whole, step.args):
                graph.native(value)
            graph.words.emit(step)
        return
    rule = FToQdq.get(step.op) or move
    made = real if step in clips else rule(step, graph)
    for value in step.results:
        if made is not None:
            graph.set_real(value, made)
        if graph.is_held(value) and value.users:
            source = graph.quantized(step.args[0]) if step.args else None
            if made is not None and source is not None and made is graph.real(step.args[0]):
                graph.set_quantized(value, source)
            else:
                graph.settle(value)


def _reported(model: onnx.ModelProto, steps: tuple[Step, ...], graph: QdqEmitter) -> QdqExport:
    written = {name for node in model.graph.node for name in node.output}
    narrow = {step for name, step in graph.products.items() if name in written}
    products = [step for step in steps if FQProductShape.get(step.op) is not None]
    left = tuple(
        (step.name, str(step.span or ""), _macs(step)) for step in products if step not in narrow
    )
    counted = Counter(step.name for step in steps if step.name in _FLOATS)
    return QdqExport(model, sum(map(_macs, products)), left, dict(counted))


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
