"""The graph of a model that is cut: who reads what, and what depends on constants only."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Final

import onnx
import onnx.shape_inference

from compiler.errors import OnnxImportError, nearest
from compiler.frontend.from_onnx.graph import in_order, names_read, node_name
from compiler.frontend.from_onnx.inlining import inline_functions

PRODUCTS: Final = frozenset(
    (
        "Conv",
        "ConvTranspose",
        "ConvInteger",
        "QLinearConv",
        "DeformConv",
        "Gemm",
        "MatMul",
        "MatMulInteger",
        "QLinearMatMul",
        "Einsum",
        "Attention",
        "LSTM",
        "GRU",
        "RNN",
    )
)
"""Operators whose multiplications are worth integers."""

LEARNED: Final = frozenset(
    (
        "LinearClassifier",
        "LinearRegressor",
        "SVMClassifier",
        "SVMRegressor",
        "TreeEnsemble",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    )
)
"""Operators of ai.onnx.ml, whose numbers are attributes: a multiplication or comparison each."""


class Graph:
    """A model whose functions are inlined, and who reads what in it.

    Args:
        model: left as it is; the graph's own copy has a name for every node.
        dims: sizes of dimensions of its inputs, as of ``load``; ``sized`` has those it knows.
    """

    def __init__(self, model: onnx.ModelProto, dims: Mapping[str, int] | None = None) -> None:
        self.model = deepcopy(inline_functions(model))
        proto = self.model.graph
        self.sized = set(_set_sizes(proto, dims or {}))
        for index, node in enumerate(proto.node):
            node.name = node_name(node, index)
        ordered = [node for _, node in in_order([(node.name, node) for node in proto.node])]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del proto.node[:]
        proto.node.extend(copies)
        stored = {tensor.name for tensor in proto.initializer}
        stored.update(tensor.values.name for tensor in proto.sparse_initializer)
        self.inputs = [info.name for info in proto.input if info.name not in stored]
        self.outputs = [info.name for info in proto.output]
        self.nodes = list(proto.node)
        self.reads = [tuple(dict.fromkeys(names_read(node))) for node in self.nodes]
        self.writer = {out: i for i, node in enumerate(self.nodes) for out in node.output if out}
        given = set(self.inputs)
        self.live: list[bool] = []
        """True for each node that depends on the inputs."""
        for node, reads in zip(self.nodes, self.reads):
            live = not given.isdisjoint(reads) or node.op_type.startswith("Random")
            given.update(node.output if live else ())
            self.live.append(live)

    @cached_property
    def types(self) -> dict[str, onnx.TypeProto]:
        """Types of values, as far as ONNX infers them."""
        made = self.model
        try:
            made = onnx.shape_inference.infer_shapes(self.model, data_prop=True)
        # What one node does not say, the others still do.
        except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
            made = self.model
        graph = made.graph
        return {i.name: i.type for i in (*graph.value_info, *graph.input, *graph.output)}

    def tensor(self, name: str) -> onnx.TypeProto.Tensor:
        """Return the type of a tensor; an empty one where ONNX infers none."""
        return self.types.get(name, onnx.TypeProto()).tensor_type

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of stored tensors."""
        return {tensor.name: tuple(tensor.dims) for tensor in self.model.graph.initializer}

    def multiplications(self, place: int) -> int:
        """Count the multiplications of a product for one sample; those of its weights where sizes
        are not known."""
        node = self.nodes[place]
        if node.op_type in LEARNED:
            return max(len(attribute.floats) for attribute in node.attribute) or 1
        if node.op_type not in PRODUCTS:
            return 0
        shapes = [self._shape(name) for name in node.input if name]
        sizes = self._shape(next(iter(node.output), ""))
        out = max(math.prod(sizes), 0)  # sizes that do not fit may be negative
        known = [shape for shape in shapes if shape]
        if not known:
            return out
        if node.op_type in ("Conv", "QLinearConv", "ConvInteger"):
            weight = shapes[3 if node.op_type == "QLinearConv" else 1]
            if sizes:
                return out * math.prod(weight[1:])
            return math.prod(weight)
        if node.op_type in ("MatMul", "MatMulInteger", "Gemm"):
            if not (shapes[0] and sizes):
                return math.prod(shapes[1] or shapes[0])
            turned = any(a.name == "transA" and a.i for a in node.attribute)
            return out * shapes[0][0 if turned else -1]
        steps = known[0][0] if node.op_type in ("LSTM", "GRU", "RNN") else 1
        return steps * sum(math.prod(shape) for shape in known[1:]) or out

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self.sizes:
            return self.sizes[name]
        return tuple(max(d.dim_value, 1) for d in self.tensor(name).shape.dim)

    def leaves_nothing(self, place: int) -> bool:
        """Return whether a result has no element by its sizes: a window does not fit the data."""
        dims = (dim for out in self.nodes[place].output for dim in self.tensor(out).shape.dim)
        return any(dim.HasField("dim_value") and dim.dim_value < 1 for dim in dims)

    def places(self, names: Collection[str]) -> set[int]:
        """Nodes of these names, or that hold nodes of them in a branch."""
        return {
            place
            for place, node in enumerate(self.nodes)
            if node.name in names
            or (node.op_type in ("If", "Loop", "Scan") and any(_inside(node, n) for n in names))
        }

    def deciders(self, names: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """Names of If nodes among these, each with the inputs of the model that decide them."""
        for place in sorted(self.places(names)):
            node = self.nodes[place]
            if node.op_type == "If":
                condition = node.input[0]
                above = self.above({self.writer[condition]} if condition in self.writer else ())
                read = {name for p in above for name in self.reads[p]} | {condition}
                if deciding := [name for name in self.inputs if name in read]:
                    yield node.name, deciding

    def decided(self, part: bytes | None) -> bool:
        """Return whether a part holds an If that a number among the inputs of the model decides."""
        held = () if part is None else onnx.load_model_from_string(part).graph.node
        found = self.deciders([node.name for node in held if node.op_type == "If"])
        return any(self._is_option(name) for _, names in found for name in names)

    def _is_option(self, name: str) -> bool:
        whole = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)
        tensor = self.tensor(name)
        single = len(tensor.shape.dim) < 2 and math.prod(self._shape(name)) == 1
        return tensor.elem_type in whole and single

    def products(self) -> set[int]:
        """Products that depend on the inputs."""
        worth = PRODUCTS | LEARNED
        return {p for p, n in enumerate(self.nodes) if n.op_type in worth and self.live[p]}

    def floats_behind(self, wanted: set[int]) -> set[int]:
        """Nodes that none of these needs."""
        needed = self.above(wanted)
        return {p for p, live in enumerate(self.live) if live and p not in needed}

    def writers(self, place: int) -> set[int]:
        """Nodes that depend on the inputs and compute what a node reads."""
        found = {self.writer[name] for name in self.reads[place] if name in self.writer}
        return {writer for writer in found if self.live[writer]}

    def above(self, starts: Iterable[int]) -> set[int]:
        """Nodes that compute something for these, and these."""
        found: set[int] = set()
        stack = list(starts)
        while stack:
            place = stack.pop()
            if place not in found and self.live[place]:
                found.add(place)
                stack.extend(self.writers(place))
        return found

    def below(self, starts: Iterable[int], values: Iterable[str] = ()) -> set[int]:
        """Nodes that read what these compute or one of the values, and these."""
        found = set(starts)
        tainted = set(values) | {out for place in found for out in self.nodes[place].output}
        for place, node in enumerate(self.nodes):
            if place in found or not tainted.isdisjoint(self.reads[place]):
                found.add(place)
                tainted.update(out for out in node.output if out)
        return found

    def named(self, names: Iterable[str], option: str) -> Iterator[tuple[int | None, str]]:
        """A node's place for the name of a node, and the name of a tensor for that of a tensor.

        Raises:
            OnnxImportError: the model has neither.
        """
        nodes = {node.name: place for place, node in enumerate(self.nodes)}
        for name in names:
            if name in nodes:
                yield nodes[name], name
            elif name in self.writer or name in self.inputs:
                yield None, name
            else:
                raise OnnxImportError(
                    f"{option} {name}: the model has no such node or tensor",
                    where=f"{len(nodes)} nodes",
                    fix=_nearest(name, [*nodes, *self.writer]),
                )


def _set_sizes(graph: onnx.GraphProto, dims: Mapping[str, int]) -> Iterator[str]:
    """Give axes of the inputs their sizes; the names that were used."""
    for info in graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            for name in (dim.dim_param, f"{info.name}:{axis}"):
                if name in dims and not dim.dim_value:
                    dim.dim_value = dims[name]
                    yield name


def _nearest(name: str, names: Sequence[str]) -> str:
    close = nearest(name, names)
    meant = f"did you mean {' or '.join(map(repr, close[:3]))}? " if close else ""
    return f"{meant}`qsearch doctor --json` lists the nodes; netron.app draws the file"


def _inside(node: onnx.NodeProto, name: str) -> bool:
    return name.startswith(f"{node.name}/")
