"""Operators on integers with scales beside them, as DequantizeLinear, the float operator, and
QuantizeLinear.

    before                                            after
    QLinearAdd (a, sa, za, b, sb, zb, sy, zy)         x = DequantizeLinear (a, sa, za)
                                                      y = DequantizeLinear (b, sb, zb)
                                                      s = Add (x, y)
                                                      QuantizeLinear (s, sy, zy)

One table holds where each operator has them. Source: ONNX; onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from onnx import helper

from compiler.frontend.from_onnx.convert.quant import MICROSOFT, carried
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import find_converter, from_onnx
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

Triple = tuple[int, int, int]
"""Inputs that hold integers, their scale and their zero point."""

_OPSET: Final = 17
"""The opset of the operators that are put in place: axes of a mean are an attribute."""


@dataclass(frozen=True, slots=True)
class Form:
    """The places of the operands of an operator on integers.

    Attributes:
        op: the float operator.
        reads: its operands; a single number is one that is no quantized tensor.
        result: inputs that hold scale and zero point of the result; None where it is float.
        bias: input that holds int32 at the product of both scales.
        addend: input that holds floats which are added.
        axes: of vectors of scales, operand by operand, and of the result.
    """

    op: str
    reads: tuple[Triple | int, ...]
    result: int | None
    bias: int | None = None
    addend: int | None = None
    axes: tuple[int, ...] = (1, 1, 1)


_DYNAMIC: Final = "give the float model, or quantize it with quantize_static"

_ONE: Final = ((0, 1, 2),)
_TWO: Final = ((0, 1, 2), (3, 4, 5))
_ROWS: Final = (-2, -1, -2)

STANDARD: Final = {
    "QLinearConv": Form("Conv", _TWO, 6, 8, axes=(1, 0, 1)),
    "QLinearMatMul": Form("MatMul", _TWO, 6, axes=_ROWS),
}
CONTRIBUTED: Final = {
    "QLinearConv": STANDARD["QLinearConv"],
    "QLinearAdd": Form("Add", _TWO, 6),
    "QLinearMul": Form("Mul", _TWO, 6),
    "QLinearWhere": Form("Where", (0, (1, 2, 3), (4, 5, 6)), 7),
    "QLinearAveragePool": Form("AveragePool", _ONE, 3),
    "QLinearGlobalAveragePool": Form("GlobalAveragePool", _ONE, 3),
    "QLinearReduceMean": Form("ReduceMean", _ONE, 3),
    "QLinearLeakyRelu": Form("LeakyRelu", _ONE, 3),
    "QLinearSigmoid": Form("Sigmoid", _ONE, 3),
    "QLinearSoftmax": Form("Softmax", _ONE, 3),
    "QGemm": Form("Gemm", _TWO, 7, 6, axes=(0, 1, 1)),
    "MatMulIntegerToFloat": Form("MatMul", ((0, 2, 4), (1, 3, 5)), None, addend=6, axes=_ROWS),
}


@dataclass(frozen=True, slots=True)
class _Builder:
    """Nodes in place of one, converted as they are added; each result has a name."""

    node: OnnxNode
    names: list[str] = field(default_factory=list)

    def add(self, op: str, *inputs: str, opset: int = _OPSET, **attrs: Any) -> str:
        out = f"{self.node.proto.output[0]} of {op} {len(self.names)}"
        made = helper.make_node(op, inputs, [out], **attrs)
        sub = replace(self.node, proto=made, opset=opset)
        (result,) = carried(sub, _converted) or _converted(sub)
        self.names.append(out)
        self.node.values.bind(out, result, inputs)
        return out

    def store(self, value: Expr) -> str:
        name = f"{self.node.proto.output[0]} reads {len(self.names)}"
        self.names.append(name)
        self.node.values.bind(name, value)
        return name

    def dequantized(self, triple: Triple, axis: int) -> str:
        names = [self.node.proto.input[i] if self.node.has_input(i) else "" for i in triple]
        return self.add("DequantizeLinear", *names, axis=axis)

    def turned(self, name: str, back: bool) -> str:
        """Channels moved in front of the image, or behind it again."""
        rank = len(self.node.values.expr(name).tensor_type.shape)
        image = range(2, rank) if back else range(1, rank - 1)
        perm = [0, *image, 1] if back else [0, rank - 1, *image]
        return self.add("Transpose", name, perm=perm)

    def result(self, name: str) -> Expr:
        """The last value, remembered as that of the whole node."""
        values = self.node.values
        if name in values.quantized:
            values.quantized[self.node.proto.output[0]] = values.quantized[name]
        return values.expr(name)


def _converted(node: OnnxNode) -> Sequence[Expr]:
    converter = find_converter(node.op_type, node.opset)
    assert converter is not None
    result = converter(node)
    return [result] if isinstance(result, Expr) else result


def _rewritten(form: Form, node: OnnxNode) -> Expr:
    attrs = {one.name: node.attr(one.name) for one in node.proto.attribute}
    nhwc, opset = attrs.pop("channels_last", 0), attrs.pop("opset", _OPSET)
    axes = form.axes
    if form.op == "Gemm" and attrs.get("transB", 0):
        axes = (0, 0, 1)
    b = _Builder(node)
    if form.result is None:
        node.require_known(2, "the scale of the data", _DYNAMIC)
    operands = [
        node.proto.input[part] if isinstance(part, int) else b.dequantized(part, axis)
        for part, axis in zip(form.reads, axes)
    ]
    if form.bias is not None and node.has_input(form.bias):
        operands.append(_bias(b, form.bias, attrs.get("alpha", 1.0)))
    if nhwc:
        operands[0] = b.turned(operands[0], back=False)
    found = b.add(form.op, *operands, opset=opset, **attrs)
    if form.addend is not None and node.has_input(form.addend):
        found = b.add("Add", found, node.proto.input[form.addend])
    if nhwc:
        found = b.turned(found, back=True)
    if form.result is not None and node.has_input(form.result):
        grid = (
            node.proto.input[i] for i in range(form.result, min(form.result + 2, node.num_inputs))
        )
        found = b.add("QuantizeLinear", found, *grid, axis=axes[-1])
    return b.result(found)


def _bias(b: _Builder, index: int, alpha: float) -> str:
    """int32 at the product of the scales of both operands."""
    node = b.node
    scales = node.known(1), node.known(4)
    if scales[0] is None or scales[1] is None:
        scale = node.times(node.call("multiply", node.arg(1), node.arg(4)), alpha)
    else:
        held = (scales[0] * scales[1] * np.float32(alpha)).astype(np.float32)
        scale = node.const(held.reshape(()) if held.size == 1 else held)
    rank = node.rank(node.arg(index))
    return b.add("DequantizeLinear", node.proto.input[index], b.store(scale), axis=rank - 1)


for _name, _form in STANDARD.items():
    from_onnx(_name, since=10)(partial(_rewritten, _form))
for _name, _form in CONTRIBUTED.items():
    from_onnx(_name, domain=MICROSOFT)(partial(_rewritten, _form))


@from_onnx("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: OnnxNode) -> Expr:
    """Concat of tensors with scales of their own."""
    triples = ((at, at + 1, at + 2) for at in range(2, node.num_inputs, 3))
    return _rewritten(
        Form("Concat", tuple(triples), 0, axes=(1,) * (node.num_inputs // 3 + 1)), node
    )


@from_onnx("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: OnnxNode) -> Expr:
    """MaxPool of integers whose channels are their last axis."""
    b = _Builder(node)
    attrs = {one.name: node.attr(one.name) for one in node.proto.attribute}
    pooled = b.add("MaxPool", b.turned(node.proto.input[0], back=False), **attrs)
    return b.result(b.turned(pooled, back=True))


def remember_product(node: OnnxNode, op: str, axis: int) -> None:
    """Remember the real value of a MatMulInteger or ConvInteger of which an operand comes from a
    QuantizeLinear and the other is stored: what a Cast to float gives, times constants.

    Args:
        axis: of the weight's channels.
    """
    source, stored = node.values.quantized.get(node.proto.input[0]), node.known(1)
    zeros = [node.known(2 + i) if node.has_input(2 + i) else np.zeros(()) for i in range(2)]
    if source is None or stored is None or zeros[0] is None or zeros[1] is None:
        return
    scale, channels = source.grid.scale, stored.shape[axis]
    if scale.ndim or zeros[0].size > 1 or (zeros[0] != source.grid.zero_point).any():
        return
    names = [[n] if n else [] for n in (*node.proto.input[2:], "", "")[:2]]
    shape = (channels,) if op == "MatMul" else (channels, *(1,) * (stored.ndim - 2))
    attrs = {one.name: node.attr(one.name) for one in node.proto.attribute}

    def times(factor: Array) -> Expr | None:
        """The product times what its channels are multiplied by."""
        if factor.size > 1 and factor.shape != (1,) * (factor.ndim - len(shape)) + shape:
            return None
        b = _Builder(node)
        units = np.broadcast_to(factor.reshape(-1) / scale, channels).astype(np.float32)
        zero = np.broadcast_to(np.asarray(zeros[1]).reshape(-1), channels).astype(stored.dtype)
        parameters = b.store(node.const(units)), b.store(node.const(zero))
        data = b.add("DequantizeLinear", node.proto.input[0], b.store(node.const(scale)), *names[0])
        weight = b.add("DequantizeLinear", node.proto.input[1], *parameters, axis=axis)
        return node.values.expr(b.add(op, data, weight, **attrs))

    node.values.products[node.proto.output[0]] = times
