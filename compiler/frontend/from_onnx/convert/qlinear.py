"""Operators on integers with scales beside them, as DequantizeLinear, the float operator, and
QuantizeLinear.

    before                                            after
    QLinearAdd (a, sa, za, b, sb, zb, sy, zy)         x = DequantizeLinear (a, sa, za)
                                                      y = DequantizeLinear (b, sb, zb)
                                                      s = Add (x, y)
                                                      QuantizeLinear (s, sy, zy)

One table holds where each operator has them. Source: ONNX; onnxruntime, docs/ContribOperators.md.

The operands of integer products and convolutions become int32 less their zero points, so that the
product is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from compiler.frontend.from_onnx.convert.conv import convolution
from compiler.frontend.from_onnx.convert.matmul import product
from compiler.frontend.from_onnx.convert.quant import MICROSOFT, carried, check_zero_point
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import find_converter, from_onnx, plain_domain
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
    "QLinearConcat": Form("Concat", (), 0),
    "QGemm": Form("Gemm", _TWO, 7, 6, axes=(0, 1, 1)),
    "MatMulIntegerToFloat": Form("MatMul", ((0, 2, 4), (1, 3, 5)), None, addend=6, axes=_ROWS),
    "NhwcMaxPool": Form("MaxPool", (0,), None),
}


def written_out(
    proto: onnx.NodeProto, name: str, rank_of: Callable[[str], int]
) -> list[onnx.NodeProto]:
    """Return the nodes in place of one on integers, in order; [] for any other operator.

    Args:
        name: of the node, which the float operator takes.
        rank_of: rank of a tensor, for an operator whose channels are its last axis.
    """
    form = CONTRIBUTED.get(proto.op_type) or STANDARD.get(proto.op_type)
    if form is None or plain_domain(proto.domain) not in ("", MICROSOFT):
        return []
    given = {a.name: a for a in proto.attribute}
    nhwc = given.pop("channels_last", None)
    given.pop("opset", None)
    turns = (nhwc is not None and nhwc.i) or proto.op_type == "NhwcMaxPool"
    axes = (0, 0, 1) if "transB" in given and given["transB"].i else form.axes
    made: list[onnx.NodeProto] = []

    def add(op: str, *inputs: str, **attrs: Any) -> str:
        out = f"{proto.output[0]}#{len(made)}"
        made.append(helper.make_node(op, inputs, [out], name=out, **attrs))
        return out

    def reads(index: int | None) -> str:
        return proto.input[index] if index is not None and index < len(proto.input) else ""

    parts = form.reads or [(i, i + 1, i + 2) for i in range(2, len(proto.input), 3)]
    operands = []
    for place, part in enumerate(parts):
        places = (part,) if isinstance(part, int) else part
        tensor = reads(places[0])
        if turns and place == 0:
            rank = rank_of(tensor)
            tensor = add("Transpose", tensor, perm=[0, rank - 1, *range(1, rank - 1)])
        if places[1:]:
            grid = map(reads, places[1:])
            axis = axes[min(place, 1)]
            tensor = add("DequantizeLinear", tensor, *grid, axis=axis)
        operands.append(tensor)
    if reads(form.bias):
        scale = add("Mul", reads(1), reads(4))
        if "alpha" in given and given["alpha"].f != 1.0:
            scale = add("Mul", scale, add("Constant", value_float=given["alpha"].f))
        operands.append(add("DequantizeLinear", reads(form.bias), scale, axis=-1))
    found = add(form.op, *operands)
    made[-1].name = name
    made[-1].attribute.extend(given.values())
    if reads(form.addend):
        found = add("Add", found, reads(form.addend))
    if reads(form.result):
        assert form.result is not None
        units = reads(form.result), reads(form.result + 1)
        found = add("QuantizeLinear", found, *units, axis=axes[-1])
    if turns:
        add("Transpose", found, perm=[0, *range(2, rank), 1])
    made[-1].output[0] = proto.output[0]
    return made


def _convert(node: OnnxNode, proto: onnx.NodeProto, opset: int = _OPSET) -> Expr:
    """Convert a node that stands in place of another one."""
    sub = replace(node, proto=proto, opset=opset)
    (result,) = carried(sub, _converted) or _converted(sub)
    node.values.bind(proto.output[0], result, proto.input)
    return result


def _converted(node: OnnxNode) -> Sequence[Expr]:
    if node.op_type == "Mul":
        known = [node.known(i) for i in range(node.num_inputs)]
    else:
        known = []
    if len(known) == 2 and known[0] is not None and known[1] is not None:
        return [node.const(np.float32(known[0]) * np.float32(known[1]))]  # scale of a bias
    converter = find_converter(node.op_type, node.opset)
    assert converter is not None
    result = converter(node)
    if isinstance(result, Expr):
        return [result]
    return result


def _rewritten(node: OnnxNode) -> Expr:
    if node.op_type == "MatMulIntegerToFloat":
        node.require_known(2, "the scale of the data", _DYNAMIC)
    opset = node.attr("opset", _OPSET)
    for proto in written_out(node.proto, "", lambda name: node.rank(node.values.expr(name))):
        result = _convert(node, proto, opset)
    return result


for _name in STANDARD:
    from_onnx(_name, since=10)(_rewritten)
for _name in CONTRIBUTED:
    from_onnx(_name, domain=MICROSOFT)(_rewritten)


def remember_product(node: OnnxNode, op: str, axis: int) -> None:
    """Remember the real value of a MatMulInteger or ConvInteger of which an operand comes from a
    QuantizeLinear and the other is stored: what a Cast to float gives, times constants.

    Args:
        axis: of the weight's channels.
    """
    source = node.values.quantized.get(node.proto.input[0])
    stored = node.known(1)
    zeros = [node.known(2 + i) if node.has_input(2 + i) else np.zeros(()) for i in range(2)]
    if source is None or stored is None or zeros[0] is None or zeros[1] is None:
        return
    scale = source.grid.scale
    channels = stored.shape[axis]
    if scale.ndim or zeros[0].size > 1 or (zeros[0] != source.grid.zero_point).any():
        return
    if op == "MatMul":
        shape = (channels,)
    else:
        shape = (channels, *(1,) * (stored.ndim - 2))
    attrs = {one.name: node.attr(one.name) for one in node.proto.attribute}

    def times(factor: Array) -> Expr | None:
        """The product times what its channels are multiplied by."""
        if factor.size > 1 and factor.shape != (1,) * (factor.ndim - len(shape)) + shape:
            return None
        units = np.broadcast_to(factor.reshape(-1) / scale, channels).astype(np.float32)
        zero = np.broadcast_to(np.asarray(zeros[1]).reshape(-1), channels).astype(stored.dtype)
        result = node.proto.output[0]
        grid = [f"{result} reads {part}" for part in ("scale", "scales", "zeros")]
        for name, value in zip(grid, (scale, units, zero)):
            node.values.bind(name, node.const(value))
        data, weight = (f"{result} of {part}" for part in ("data", "weight"))
        read = [node.proto.input[0], grid[0], *filter(None, node.proto.input[2:3])]
        _convert(node, helper.make_node("DequantizeLinear", read, [data]))
        read = [node.proto.input[1], *grid[1:]]
        _convert(node, helper.make_node("DequantizeLinear", read, [weight], axis=axis))
        return _convert(node, helper.make_node(op, [data, weight], [f"{result} in float"], **attrs))

    node.values.products[node.proto.output[0]] = times


# ---- integers with zero points -------------------------------------------------------------------


def _centred(node: OnnxNode, index: int, zero_index: int, axis: int | None) -> Expr:
    """Input ``index`` as int32 less its zero point; a vector of these lies along ``axis``."""
    check_zero_point(node, zero_index, of=index)
    data = node.call("cast", node.arg(index), dtype="int32")
    if not node.has_input(zero_index):
        return data
    zero = node.call("cast", node.arg(zero_index), dtype="int32")
    rank = node.rank(data)
    if node.rank(zero) == 1 and rank > 1 and axis is not None:
        zero = node.along(zero, axis, rank)
    return node.call("subtract", data, zero)


@from_onnx("MatMulInteger", since=10)
def matmul_integer(node: OnnxNode) -> Expr:
    """int32 product of 8-bit operands; zero points per row of A and per column of B."""
    remember_product(node, "MatMul", -1)
    return product(node, _centred(node, 0, 2, -2), _centred(node, 1, 3, -1))


@from_onnx("ConvInteger", since=10)
def conv_integer(node: OnnxNode) -> Expr:
    """int32 convolution of 8-bit operands; the weight's zero points are per output channel."""
    remember_product(node, "Conv", 0)
    return convolution(node, _centred(node, 0, 2, None), _centred(node, 1, 3, 0))


@from_onnx("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: OnnxNode) -> list[Expr]:
    """uint8 by the range of the data itself: values, scale, zero point."""
    data = node.arg(0)
    axes = tuple(range(node.rank(data)))
    zero = node.scalar_like(0, data)
    high = node.call("maximum", node.call("max", data, axis=axes), zero)
    low = node.call("minimum", node.call("min", data, axis=axes), zero)
    levels = node.const(np.float32(255))
    scale = node.call("divide", node.call("subtract", high, low), levels)
    offset = node.call("divide", node.call("subtract", zero, low), scale)
    point = node.call("round_even", node.call("clip", offset, a_min=0.0, a_max=255.0))
    moved = node.call("add", node.call("round_even", node.call("divide", data, scale)), point)
    values = node.call("cast", node.call("clip", moved, a_min=0.0, a_max=255.0), dtype="uint8")
    return [values, scale, node.call("cast", point, dtype="uint8")]
