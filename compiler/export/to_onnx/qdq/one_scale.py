"""A QDQ graph in which every 8 bit tensor has one scale, for whoever quantizes and for all readers.

    before                                     after
    b = Q(Conv(DQ(x, 1), DQ(W, r)), 1)         b = Q(Conv(DQ(x, 1/64), DQ(W, 32 r)), 1/2)
    Add(DQ(b, 1/2), DQ(c, 1))                  Add(DQ(b, 1/2), DQ(c, 1))

The unit of the exporter's tensors is the module's integer, and each reader has a scale of its own.
Compilers of NPUs hold one scale for a tensor. What is computed between two of them may have any
unit: a factor of all operands of a sum or a maximum is one of the result, and products put theirs
into the scale of the weights. So each tensor takes the unit in which it is read.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.export.to_onnx.graph_writer import drop_unread
from compiler.ops.number_format import Array

_PRODUCTS: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_HOMOGENEOUS: Final = (
    "Add Sub Sum Max Min Relu LeakyRelu PRelu Clip Concat Split MaxPool AveragePool "
    "GlobalAveragePool GlobalMaxPool ReduceMean ReduceMax ReduceMin ReduceSum Reshape Flatten "
    "Transpose Squeeze Unsqueeze Slice Pad Resize Gather Expand Identity DepthToSpace "
    "SpaceToDepth"
)
"""Operators whose result has a factor that all their computed operands have."""
_SCALED_CONSTANTS: Final = {"Add", "Sub", "Sum", "Max", "Min", "Clip", "Concat", "Pad"}
"""Those of them whose float constants are operands."""
_ONE_NUMBER: Final = 1e-5
"""Scales that differ by no more of themselves are one."""
_FIXED: Final = ""
"""Stands for what keeps its unit: inputs and outputs, and operators of no factor."""


def with_one_scale(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same arithmetic with one scale for each tensor, where there is one; O(edges).

    Args:
        model: as ``to_qdq_onnx`` writes it; left as it is. Scales may differ in the last bits of
            float32: factors of a module have 31 bits.
    """
    made = deepcopy(model)
    graph = made.graph
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    units = _Units(graph, arrays, makers)

    def scaled(node: onnx.NodeProto, place: int, factor: float) -> None:
        old = arrays[node.input[place]]
        name = f"{node.input[place]}_{node.output[0]}"
        if name not in arrays:  # of a constant that the node reads twice
            arrays[name] = np.asarray(old * factor).astype(old.dtype)
            graph.initializer.append(numpy_helper.from_array(arrays[name], name))
        node.input[place] = name

    renamed: dict[str, str] = {}
    for node in graph.node:
        factor = _factor(node, arrays)
        if factor:
            read, given = node.input[0], node.output[0]
            if math.isclose(units.of(read), units.of(given) * factor, rel_tol=_ONE_NUMBER):
                renamed[given] = renamed.get(read, read)
            else:
                scaled(node, 1, units.of(given) / units.of(read))
        elif node.op_type == "QuantizeLinear":
            scaled(node, 1, units.of(node.input[0]))
        elif node.op_type == "DequantizeLinear":
            unit, maker = units.of(node.output[0]), makers.get(node.input[0])
            wanted = arrays[node.input[1]] * unit
            written = ""
            if maker is not None and maker.op_type == "QuantizeLinear":
                written = maker.input[1]
            if written and np.allclose(arrays[written], wanted, _ONE_NUMBER, 0):
                node.input[1] = written
            else:
                scaled(node, 1, unit)
        elif node.op_type in _PRODUCTS:
            out, data = units.of(node.output[0]), units.of(node.input[0])
            for place, name in enumerate(node.input[1:], start=1):
                factor = out / data if place == 1 else out
                weight = makers.get(name)
                if weight is not None and weight.input[0] in arrays:
                    scaled(weight, 1, factor)
                elif name in arrays:
                    scaled(node, place, factor)
        elif node.op_type in _SCALED_CONSTANTS:
            for place, name in enumerate(node.input):
                if name in arrays and arrays[name].dtype == np.float32:
                    scaled(node, place, units.of(node.output[0]))
    needless = set(renamed)
    for info in graph.output:  # keep their names
        inner = renamed.pop(info.name, "")
        if inner:
            renamed = {name: info.name if to == inner else to for name, to in renamed.items()}
            renamed[inner] = info.name
    nodes = [node for node in graph.node if node.output[0] not in needless]
    del graph.node[:]
    graph.node.extend(nodes)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    drop_unread(graph)
    return made


def _factor(node: onnx.NodeProto, arrays: dict[str, Array]) -> float:
    """The positive number that a node multiplies by; 0 for other nodes, which stay."""
    held = arrays.get(node.input[1]) if node.op_type == "Mul" else None
    single = held is not None and held.size == 1 and held.dtype == np.float32
    return max(float(held.flat[0]), 0.0) if held is not None and single else 0.0


def _weight(node: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> str:
    """The tensor that a product multiplies by, or the integers that stand for it."""
    maker = makers.get(node.input[1])
    return str(node.input[1] if maker is None else maker.input[0])


class _Units:
    """Of each float tensor the number that all of it is multiplied by.

    Tensors whose factors have a known ratio are one set (union-find with ratios). Of a tensor that
    is read in two units the first counts.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        arrays: dict[str, Array],
        makers: dict[str, onnx.NodeProto],
    ) -> None:
        self._above: dict[str, tuple[str, float]] = {}
        for info in (*graph.input, *graph.output):
            self._join(_FIXED, info.name, 1.0)
        ratios: list[tuple[str, str, float]] = []
        for node in graph.node:
            computed = [name for name in node.input if name and name not in arrays]
            factor = _factor(node, arrays)
            if factor:
                ratios.append((node.output[0], node.input[0], factor))
            elif node.op_type == "DequantizeLinear":
                maker = makers.get(node.input[0])
                if maker is not None and maker.op_type == "QuantizeLinear":
                    theirs, mine = (arrays[one.input[1]].flat[0] for one in (maker, node))
                    ratio = float(theirs) / float(mine)
                    ratios.append((maker.input[0], node.output[0], ratio))
            elif node.op_type in _HOMOGENEOUS.split():
                for name in (*computed, *node.output):
                    self._join(node.output[0], name, 1.0)
            elif node.op_type in _PRODUCTS and _weight(node, makers) in arrays:
                continue
            elif node.op_type != "QuantizeLinear":
                for name in (*computed, *node.output):
                    self._join(_FIXED, name, 1.0)
        # Last: where two ratios contradict each other a tensor keeps two scales, nothing else.
        for one, other, ratio in ratios:
            self._join(one, other, ratio)

    def of(self, name: str) -> float:
        """The factor of a tensor."""
        root, ratio = self._root(name)
        fixed, unit = self._root(_FIXED)
        return ratio / unit if root == fixed else ratio

    def _root(self, name: str) -> tuple[str, float]:
        """The set of a tensor, and its factor by that of the set; paths become short."""
        path = []
        while name in self._above:
            path.append(name)
            name = self._above[name][0]
        ratio = 1.0
        for one in reversed(path):
            ratio *= self._above[one][1]
            self._above[one] = name, ratio
        return name, ratio

    def _join(self, one: str, other: str, ratio: float) -> None:
        """The factor of ``other`` is that of ``one`` times ``ratio``."""
        (a, of_one), (b, of_other) = self._root(one), self._root(other)
        if a != b:
            self._above[b] = a, of_one * ratio / of_other
