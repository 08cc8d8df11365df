"""read_network: an int8 ONNX file as DequantizeLinear, operator, QuantizeLinear, and its products.

    before                                      after
    QLinearConv, QGemm, …                       by ``convert.qlinear``, as the importer reads them
    com.microsoft.QuantizeLinear                QuantizeLinear
    DequantizeLinear → Transpose                Transpose → DequantizeLinear
    MatMulNBits                                 DequantizeLinear in blocks, MatMul
    DynamicQuantizeMatMul(a, b, sb, zb)         DynamicQuantizeLinear, DQ, DQ, MatMul

Scales that two operands share by a product (a bias has the scale sx sw) stay exact in float64: the
rewritten graph is for ``exact.Evaluation``, not for a runtime.
Source: onnx.ai, operators of ai.onnx; onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from compiler.errors import OnnxImportError, raised_as
from compiler.frontend.from_onnx.convert.qlinear import written_out
from compiler.frontend.from_onnx.convert.quant import MICROSOFT, PERMUTATIONS, unpacked
from compiler.frontend.from_onnx.graph import in_order, node_name
from compiler.frontend.from_onnx.inlining import inline_functions
from compiler.frontend.from_onnx.model_file import read_model, within
from compiler.frontend.from_onnx.opsets import STANDARD_DOMAINS
from compiler.ir.ty import integer_range
from compiler.judgement.nodes import (
    DEQUANTIZE,
    DYNAMIC,
    FOLDED,
    MOVES,
    QUANTIZE,
    Grid,
    attribute,
    evaluate_node,
    given,
)
from compiler.ops.number_format import Array

PRODUCTS: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm", "MatMulInteger", "ConvInteger")


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A Conv, MatMul or Gemm of integers.

    Attributes:
        name: of the node.
        op: the operator in the rewritten graph.
        node: the node there.
        data, weight: grids of the two operands.
        data_name, weight_name: tensors of their integers.
        weights: integers of the weight; None where it is computed.
        bias: in units of the accumulator, float64 with whole numbers if the file stores integers.
        whole_bias: whether the file stores it in the scale of the accumulator.
        result: the grid behind it; None where the result stays float, or int32.
        result_name: tensor of its integers.
        between: operators between the product and its QuantizeLinear.
        integer_form: written as QLinearConv and the like, not as QDQ.
    """

    name: str
    op: str
    node: onnx.NodeProto
    data: Grid
    weight: Grid
    data_name: str
    weight_name: str
    weights: Array | None
    bias: Array | None
    whole_bias: bool
    result: Grid | None
    result_name: str
    between: tuple[str, ...]
    integer_form: bool

    @property
    def groups(self) -> int:
        """Groups of a convolution."""
        return int(attribute(self.node, "group", 1))

    def matrix(self) -> Array | None:
        """Integers of the weight as [outputs, K], K in the order of onnxruntime's kernels: kernel
        places, then channels."""
        weights = self.weights
        if weights is None or weights.ndim < 2 or not weights.size:
            return None
        if self.op in ("Conv", "ConvInteger"):
            return np.moveaxis(weights, 1, -1).reshape(len(weights), -1)
        if self.op == "ConvTranspose":
            parts = weights.reshape(self.groups, -1, *weights.shape[1:])
            moved = np.moveaxis(parts, 1, 2)
            return moved.reshape(moved.shape[0] * moved.shape[1], -1)
        if self.output_axis(weights.ndim) == 0:
            return weights
        return np.swapaxes(weights, -1, -2).reshape(-1, weights.shape[-2])

    def output_axis(self, rank: int) -> int:
        """The axis of the weight that the outputs lie along."""
        if self.op == "ConvTranspose":
            return 1
        turned = self.op == "Gemm" and attribute(self.node, "transB", 0)
        if turned or "Conv" in self.op:
            return 0
        return rank - 1

    @property
    def by_channel(self) -> bool:
        """The weight has one scale, or one for each output: sums of integers have a scale."""
        scale = self.weight.scale
        weights = self.weights
        if scale is None or scale.size == 1 or weights is None:
            return scale is not None
        return scale.ndim == 1 and self.weight.axis % weights.ndim == self.output_axis(weights.ndim)

    @property
    def sums_int32(self) -> bool:
        """Both operands have up to 8 bits: kernels add their products up in int32."""
        return max(self.data.bits, self.weight.bits) <= 8

    def by_output(self, values: Array) -> Array:
        """A scale or zero point of the weight, or a bias, for each row of ``matrix``."""
        matrix = self.matrix()
        assert matrix is not None
        return np.resize(values.reshape(-1), len(matrix))

    def scales(self) -> tuple[float, Array, float] | None:
        """Scales of data, of each row of ``matrix`` and of the result; None where one is open."""
        data = self.data.scale
        weight = self.weight.scale
        result = None if self.result is None else self.result.scale
        if data is None or weight is None or result is None or not data.size == result.size == 1:
            return None
        if attribute(self.node, "alpha", 1.0) != 1.0:
            return None
        return float(data.item()), self.by_output(weight), float(result.item())


class Network:
    """A rewritten graph: nodes in order, constants, who writes and reads what.

    Attributes:
        model: as the file holds it.
        nodes: of the rewritten graph, in order.
        constants: by name; floats as float64, integers as int64.
        integer_forms: names of nodes that the file writes as QLinearConv and the like.
        products: the integer products, in order.
        live: names of values that depend on the inputs, or come from the graph around.

    Args:
        around: the graph that has this one in an attribute.
    """

    def __init__(self, model: onnx.ModelProto, around: Network | None = None) -> None:
        self.model = model
        graph = model.graph
        own = {t.name: dtype_name(t.data_type) for t in graph.initializer}
        self.dtypes: ChainMap[str, str] = ChainMap(own, {} if around is None else around.dtypes)
        outer: MutableMapping[str, Array] = {} if around is None else around.constants
        held = {t.name: _array(t) for t in graph.initializer}
        self.constants: ChainMap[str, Array] = ChainMap(held, outer)
        named = [(node_name(node, i), node) for i, node in enumerate(graph.node)]
        self.nodes: list[onnx.NodeProto] = []
        self.writer: dict[str, onnx.NodeProto] = {}
        self.integer_forms: set[str] = set()
        self.types = {i.name: i.type.tensor_type.elem_type for i in (*graph.input, *graph.output)}
        for name, node in in_order(named):
            made = onnx.NodeProto()
            made.CopyFrom(node)
            made.name = name
            for part in self._rewritten(made):
                self.nodes.append(part)
                self.writer |= {out: part for out in part.output if out}
        self.inputs = [i.name for i in graph.input if i.name not in self.constants]
        self.outputs = [i.name for i in graph.output]
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        self.live = set(self.inputs)
        if around is not None:
            read = {name for node in self.nodes for name in node.input if name}
            self.live |= read - self.writer.keys() - self.constants.keys()
        for node in self.nodes:
            for read in node.input:
                self.readers.setdefault(read, []).append(node)
            if not self.live.isdisjoint(node.input) or node.op_type.startswith("Random"):
                self.live.update(node.output)
        self._fold()
        self.products = [p for node in self.nodes if (p := self._product(node)) is not None]
        self.operands = {n for p in self.products for n in (p.data_name, p.weight_name)}

    def branches(self) -> Iterator[Network]:
        """The graphs in attributes of the nodes: branches of If, bodies of loops."""
        for node in self.nodes:
            for attr in node.attribute:
                for graph in (*[attr.g] * attr.HasField("g"), *attr.graphs):
                    model = onnx.ModelProto(opset_import=self.model.opset_import, graph=graph)
                    yield Network(model, self)

    def _fold(self) -> None:
        """Compute integers of constant weights: QuantizeLinear, Clip and moves of constants."""
        for node in self.nodes:
            known = all(name in self.constants for name in node.input if name)
            if node.op_type in FOLDED and known:
                values = [self.constants[name] if name else None for name in node.input]
                self.constants[node.output[0]] = evaluate_node(self, node, values)[0]

    def _rewritten(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        if node.op_type in (QUANTIZE, DEQUANTIZE) and node.domain == MICROSOFT:
            node.domain = ""
        if node.op_type == "DynamicQuantizeMatMul":
            q, s, z = (f"{node.name}#{part}" for part in "qsz")
            yield helper.make_node(DYNAMIC, [given(node, 0)], [q, s, z], name=q)
            node.input[:] = [q, given(node, 1), s, given(node, 2), z, *node.input[3:]]
            node.op_type = "MatMulIntegerToFloat"
        parts = written_out(node, node.name, self._rank_of)
        if parts:
            self.integer_forms.add(node.name)
        for part in parts or [node]:
            if part.op_type == "Constant" and part.output:
                stored = next((a.t for a in part.attribute if a.name == "value"), None)
                if stored is not None:
                    self.dtypes[part.output[0]] = dtype_name(stored.data_type)
                values = [helper.get_attribute_value(a) for a in part.attribute]
                if stored is None:
                    value = np.asarray(values[0] if values else 0)
                else:
                    value = _array(stored)
                self.constants[part.output[0]] = value
            elif part.op_type == "MatMulNBits":
                yield from self._blocks_written_out(part)
            else:
                yield from self._moved_integers(part)

    def _moved_integers(self, move: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Move the integers of a DequantizeLinear in front of a move, and dequantize behind it."""
        point = self.point_of(given(move, 0)) if move.op_type in PERMUTATIONS else None
        scale = None if point is None else self.constants.get(point.input[1])
        if point is None or scale is None or attribute(point, "block_size", 0):
            yield move
            return
        axis = int(attribute(point, "axis", 1))
        if scale.size > 1:
            order = list(attribute(move, "perm", ()))
            if move.op_type != "Transpose" or axis not in order:
                yield move
                return
            axis = order.index(axis)
        out = move.output[0]
        move.input[0] = point.input[0]
        move.output[0] = f"{out}#integers"
        yield move
        inputs = [move.output[0], *point.input[1:]]
        yield helper.make_node(DEQUANTIZE, inputs, [out], name=f"{out}#point", axis=axis)

    def _blocks_written_out(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Write a MatMulNBits as the DequantizeLinear of its weight [K, N] and a MatMul."""
        blocks = read_blocks(node, [self.constants.get(name) for name in node.input])
        if blocks is None:
            yield node
            return
        levels, scale, zero = blocks
        weight, real = f"{node.name}#weight", f"{node.name}#real"
        self.constants |= {weight: levels.T, f"{weight}#scale": scale.T, f"{weight}#zero": zero.T}
        size = int(attribute(node, "block_size", 0))
        self.dtypes[weight] = f"uint{int(attribute(node, 'bits', 4))}"
        inputs = [weight, f"{weight}#scale", f"{weight}#zero"]
        yield helper.make_node(DEQUANTIZE, inputs, [real], name=real, axis=0, block_size=size)
        out = node.output[0]
        if not given(node, 5):
            yield helper.make_node("MatMul", [node.input[0], real], [out], name=node.name)
            return
        sums = f"{node.name}#sums"
        yield helper.make_node("MatMul", [node.input[0], real], [sums], name=node.name)
        yield helper.make_node("Add", [sums, node.input[5]], [out], name=f"{node.name}#bias")

    def _rank_of(self, name: str) -> int:
        """The rank that the file declares; of images where it does not."""
        graph = self.model.graph
        for info in (*graph.input, *graph.value_info):
            if info.name == name and info.type.tensor_type.HasField("shape"):
                return len(info.type.tensor_type.shape.dim)
        return 4

    def dtype_of(self, name: str) -> str:
        """The integer dtype of a tensor; "" where the file does not say."""
        node = self.writer.get(name)
        while node is not None and node.op_type in MOVES and node.input and name not in self.dtypes:
            name = node.input[0]
            node = self.writer.get(node.input[0])
        if name in self.dtypes:
            return self.dtypes[name]
        if node is not None and node.op_type == DYNAMIC:
            if name != node.output[1]:
                return "uint8"
            return ""
        if node is not None and node.op_type == QUANTIZE:
            zero = given(node, 2)
            kind = attribute(node, "output_dtype", 0)
            if zero:
                return self.dtype_of(zero)
            if kind:
                return dtype_name(kind)
            return "uint8"
        return dtype_name(self.types.get(name, 0))

    def grid(self, node: onnx.NodeProto, integers: str) -> Grid:
        """The grid of a QuantizeLinear or DequantizeLinear, whose integers have this name."""
        names = [given(node, 1), given(node, 2)]
        return self._grid(integers, names[0], names[1], int(attribute(node, "axis", 1)))

    def _grid(self, integers: str, scale: str, zero: str, axis: int) -> Grid:
        dtype = self.dtype_of(zero) if zero else ""
        dtype = dtype or self.dtype_of(integers)
        dtype = dtype if dtype.lstrip("uint").isdigit() else ""
        low, high = integer_range(dtype) if dtype else (0, 0)
        written = self.writer.get(integers)
        while written is not None and written.op_type in MOVES and written.input:
            if written.op_type == "Clip":
                ends = [self.constants.get(given(written, i)) for i in (1, 2)]
                low = low if ends[0] is None else max(low, int(ends[0].item()))
                if ends[1] is None:
                    high = high
                else:
                    high = min(high, int(ends[1].item()))
            written = self.writer.get(written.input[0])
        none = np.zeros((), np.int64) if not zero else None
        steps = self.constants.get(scale)
        if steps is not None and not (steps.size and (np.isfinite(steps) & (steps > 0)).all()):
            steps = None  # no grid at all
        held = self.constants.get(zero, none)
        if held is not None and (held.dtype.kind not in "iu" or not held.size):
            held = None
        return Grid(dtype, steps, held, axis, low, high)

    def kept(self, name: str) -> bool:
        """True if a value is an output, or the integers of a point or of a product's operand."""
        node = self.writer.get(name)
        written = (
            node is not None and node.op_type in (QUANTIZE, DYNAMIC) and name == node.output[0]
        )
        return written or name in self.outputs or name in self.operands

    def point_of(self, name: str) -> onnx.NodeProto | None:
        """The DequantizeLinear that writes a value."""
        node = self.writer.get(name)
        is_point = node is not None and node.op_type == DEQUANTIZE and len(node.input) > 1
        if is_point:
            return node
        return None

    def _product(self, node: onnx.NodeProto) -> Product | None:
        op = node.op_type
        if op not in PRODUCTS or node.domain not in STANDARD_DOMAINS or len(node.input) < 2:
            return None
        if op.endswith("Integer"):
            names = (node.input[0], node.input[1])
            self.constants.setdefault("#1", np.ones(()))
            data, weight = (
                self._grid(names[i], "#1", given(node, 2 + i), 0 if "Conv" in op else -1)
                for i in (0, 1)
            )
            bias = None
        else:
            points = self.point_of(node.input[0]), self.point_of(node.input[1])
            if points[0] is None or points[1] is None:
                return None
            names = (points[0].input[0], points[1].input[0])
            data = self.grid(points[0], names[0])
            weight = self.grid(points[1], names[1])
            bias = given(node, 2)
        if not data.dtype or not weight.dtype:
            return None
        weights = self.constants.get(names[1])
        result, result_name, between = self._result(node)
        units, whole = self._bias(node, bias or "", data, weight)
        return Product(
            node.name,
            op,
            node,
            data,
            weight,
            *names,
            weights,
            units,
            whole,
            result,
            result_name,
            between,
            node.name in self.integer_forms,
        )

    def _bias(
        self, node: onnx.NodeProto, name: str, data: Grid, weight: Grid
    ) -> tuple[Array | None, bool]:
        """The bias in units of the accumulator; whether the file stores it so."""
        alpha, beta = (float(attribute(node, factor, 1.0)) for factor in ("alpha", "beta"))
        if not name or data.scale is None or weight.scale is None or data.scale.size != 1:
            return None, True
        if not alpha or not beta:
            return None, False
        unit = data.scale.reshape(()) * weight.scale * alpha / beta
        point = self.point_of(name)
        if point is None:
            known = self.constants.get(name)
            fits = known is not None and unit.size in (1, known.size)
            return (known / unit if known is not None and fits else None), False
        stored, scale = (self.constants.get(given(point, i)) for i in (0, 1))
        if stored is None or scale is None or {unit.size, scale.size} - {1, stored.size}:
            return None, False
        # A bias has its scale as float32, which the product of two of them is not.
        if np.allclose(scale, unit, rtol=1e-6, atol=0):
            return stored.astype(np.float64), True
        return stored * scale / unit, False

    def _result(self, node: onnx.NodeProto) -> tuple[Grid | None, str, tuple[str, ...]]:
        between: list[str] = []
        out = node.output[0]
        while len(readers := self.readers.get(out, [])) == 1 and out not in self.outputs:
            reader = readers[0]
            if reader.op_type == QUANTIZE and len(reader.input) > 1:
                return self.grid(reader, reader.output[0]), reader.output[0], tuple(between)
            if reader.op_type not in ("Relu", *MOVES):
                break
            between.append(reader.op_type)
            out = reader.output[0]
        return None, "", tuple(between)


def read_blocks(
    node: onnx.NodeProto, stored: Sequence[Array | None]
) -> tuple[Array, Array, Array] | None:
    """Return the integers [N, K] of a MatMulNBits, and scales and zero points [N, blocks].

    None if they are computed, or in an order of their own.
    """
    rows, columns, size = (int(attribute(node, name, 0)) for name in ("N", "K", "block_size"))
    nbit = int(attribute(node, "bits", 4))
    if nbit not in (2, 4, 8) or not size or given(node, 4) or len(stored) < 3:
        return None
    packed, scale = stored[1], stored[2]
    if packed is None or scale is None:
        return None
    blocks = -(-columns // size)
    levels = unpacked(packed.astype(np.uint8).reshape(rows, -1), nbit, blocks * size)
    zero = np.full((rows, blocks), 1 << (nbit - 1), np.int64)
    if given(node, 3):
        points = stored[3]
        if points is None or points.dtype.kind == "f":
            return None
        zero = unpacked(points.astype(np.uint8).reshape(rows, -1), nbit, blocks).astype(np.int64)
    return levels[:, :columns].astype(np.int64), scale.reshape(rows, blocks), zero


def dtype_name(kind: int) -> str:
    """ONNX's number of an element type as text: int8, uint4; "" of others than tensors have."""
    names = onnx.TensorProto.DataType
    return names.Name(kind).lower() if kind and kind in names.values() else ""


def _array(tensor: onnx.TensorProto) -> Array:
    """A stored tensor; floats as float64, integers as int64."""
    what = f"tensor {tensor.name!r} cannot be read"
    kinds = (ValueError, TypeError, KeyError)
    with raised_as(OnnxImportError, what, *kinds, fix="export the file again"):
        values = numpy_helper.to_array(tensor)
    kind = dtype_name(tensor.data_type)
    if "int" in kind:
        return values.astype(np.int64)
    if "float" in kind or kind == "double":
        return values.astype(np.float64)
    return values


def read_network(source: str | os.PathLike[str] | bytes) -> Network:
    """Read an int8 ONNX file of any author.

    Raises:
        OnnxImportError: it cannot be read, or holds no integers.
    """
    model = inline_functions(read_model(source))
    if not any(map(_holds_integers, within(model.graph, onnx.NodeProto))):
        raise OnnxImportError(
            "the file holds no integers: no QuantizeLinear, DequantizeLinear, QLinearConv or the "
            "like",
            where=str(source) if not isinstance(source, bytes) else None,
            fix="give a quantized ONNX file; `qsearch doctor` says what a float model becomes",
        )
    return Network(model)


def _holds_integers(node: onnx.NodeProto) -> bool:
    op = node.op_type
    named = any(word in op for word in ("uantize", "Integer", "NBits"))
    return named or op.startswith(("QLinear", "QGemm", "QAttention"))
