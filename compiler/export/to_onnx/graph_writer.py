"""Building blocks of an ONNX graph: named nodes, shared constants, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import OnnxExportError
from compiler.ir.ty import DTYPES, NARROW_DTYPES, TensorType
from compiler.ops.number_format import Array

OPSET = 17
IR_VERSION = 8
_SHARED = 1 << 12
"""Elements of constants of which equal ones are one."""
LARGE_BYTES = 1 << 16
"""Bytes of a constant from which on a message may lack it."""


def _some_of(array: Array) -> tuple[tuple[int, ...], bytes]:
    """A key of a table in any dtype: its shape and 64 of its elements at least, or all."""
    step = max(1, array.size // 64)
    return array.shape, array.flat[::step].astype("float64").tobytes()


def _without_data(name: str, array: NDArray[Any]) -> TensorProto:
    """A constant whose data a session is given beside the model."""
    made = TensorProto(name=name, dims=array.shape, data_type=onnx_type(str(array.dtype)))
    made.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", "0"), ("length", str(array.nbytes))):
        made.external_data.add(key=key, value=value)
    return made


def onnx_type(dtype: str) -> int:
    """ONNX element type of one of our dtypes.

    Raises:
        OnnxExportError: opset 17 has none (int4, uint4).
    """
    if dtype not in DTYPES or dtype in (*NARROW_DTYPES, "void"):
        raise OnnxExportError(f"dtype {dtype} has no ONNX element type in opset {OPSET}")
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class GraphWriter:
    """Collects nodes in order; ``finish`` makes the model.

    Attributes:
        renamed: tensors that took the name of an output, and that name.
    """

    def __init__(self, name: str, outer: GraphWriter | None = None) -> None:
        self._graph_name = name
        self._outer = outer
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, Array] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._output_sources: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self._padded: set[str] = set()
        self._tables: dict[tuple[tuple[int, ...], bytes], str] = {}
        # Names in a graph within a graph are like no other name around it.
        self._taken: set[str] = set() if outer is None else outer._taken
        self._next: dict[str, int] = {} if outer is None else outer._next
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def unique(self, hint: str) -> str:
        """A tensor name that is not used yet."""
        name = hint
        while name in self._taken:
            # Continue where the last search for this hint ended: many tensors share a hint.
            self._next[hint] = self._next.get(hint, 0) + 1
            name = f"{hint}_{self._next[hint]}"
        self._taken.add(name)
        return name

    def input(self, hint: str, ty: TensorType) -> str:
        """Declare a graph input; returns its tensor name."""
        name = self.unique(hint)
        self._inputs.append(
            helper.make_tensor_value_info(name, onnx_type(ty.dtype), ty.concrete_shape)
        )
        return name

    def output(self, hint: str, source: str, ty: TensorType) -> str:
        """Declare a graph output that holds ``source``; returns its name."""
        name = self.unique(hint)
        self._output_sources[name] = source
        self._outputs.append(
            helper.make_tensor_value_info(name, onnx_type(ty.dtype), ty.concrete_shape)
        )
        return name

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [info.name for info in self._outputs]

    def constant(self, value: ArrayLike, dtype: str | None = None) -> str:
        """An initializer; equal ones of up to ``_SHARED`` elements are shared, and those of any
        size with a table that a Gather reads. The transpose of one is computed from it."""
        array = np.asarray(value, dtype=dtype)
        # Not ascontiguousarray: it gives rank-0 arrays an axis.
        if array.flags.c_contiguous:
            array = array
        else:
            array = array.copy(order="C")
        onnx_type(str(array.dtype))
        if array.size <= _SHARED:
            key = (str(array.dtype), array.shape, array.tobytes())
        else:
            key = None
        if key is not None and key in self._small:
            return self._small[key]
        if array.ndim == 2 and self._tables:
            table = self._tables.get(_some_of(array), "")
            held = self._initializers.get(table)
            if held is not None and held.dtype == array.dtype and np.array_equal(held, array):
                return table
            table = self._tables.get(_some_of(array.T), "")
            held = self._initializers.get(table)
            if held is not None and np.array_equal(held.T, array):
                turned = self.node("Transpose", [table], perm=[1, 0])
                if held.dtype == array.dtype:
                    return turned
                return self.cast(turned, str(array.dtype))
        name = self.unique("c")
        self._initializers[name] = array
        if key is not None:
            self._small[key] = name
        return name

    def node(self, op_type: str, inputs: Sequence[str], **attrs: Any) -> str:
        """A node with one output; returns the tensor's name."""
        return self.nodes(op_type, inputs, 1, **attrs)[0]

    def nodes(self, op_type: str, inputs: Sequence[str], outputs: int, **attrs: Any) -> list[str]:
        """A node with several outputs; attributes that are None are left out."""
        if op_type == "MaxPool" and inputs[0] in self._padded:
            # onnxruntime's Pad_Fusion makes the zeros of a Pad padding, which no maximum sees. It
            # leaves a MaxPool that tells places, too.
            outputs += 1
        if op_type == "Gather":
            table = self._initializers.get(inputs[0])
        else:
            table = None
        if table is not None and table.ndim == 2:
            self._tables[_some_of(table)] = inputs[0]
        names = [self.unique(f"t{len(self._nodes)}") for _ in range(outputs)]
        if op_type == "Pad":
            self._padded.update(names)
        given = {key: value for key, value in attrs.items() if value is not None and value != []}
        node = helper.make_node(op_type, list(inputs), names, name=f"{op_type}_{names[0]}", **given)
        # onnx cannot tell what kind of list an empty one is; ours are lists of axes.
        for key, value in attrs.items():
            if value == []:
                node.attribute.append(onnx.AttributeProto(name=key, type=onnx.AttributeProto.INTS))
        self._nodes.append(node)
        return names

    def cast(self, source: str, dtype: str) -> str:
        """Cast to one of our dtypes."""
        return self.node("Cast", [source], to=onnx_type(dtype))

    def finish(self, large: dict[str, NDArray[Any]] | None = None) -> onnx.ModelProto:
        """The model: opset 17, or 18 if it scatters maxima; IR version 8; all in one message.

        Args:
            large: takes the constants of more than ``LARGE_BYTES`` by name; the message then names
                them and lacks their data. None leaves all of them in the message.
        """
        graph = self.graph(large)
        opsets = [helper.make_opsetid("", _settled_opset(graph))]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="qsearch")
        model.ir_version = IR_VERSION
        return model

    def graph(self, large: dict[str, NDArray[Any]] | None = None) -> onnx.GraphProto:
        """The graph alone, as a node that is a loop holds it; ``large`` as for ``finish``.

        Args:
            large: takes the constants of more than ``LARGE_BYTES`` by name; the message then names
                them and lacks their data. None leaves all of them in the message.

        Nodes and constants that no output depends on are left out: rules write a form at once and
        a later rule may replace it by a fused one.
        """
        self._name_outputs()
        needed = {info.name for info in self._outputs}
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self._nodes):
            if needed.intersection(node.output):
                needed.update(*(inner.input for inner in with_inner(node)))
                nodes.append(node)
        initializers = []
        for name, array in self._initializers.items():
            if name not in needed:
                continue
            if large is None or array.nbytes <= LARGE_BYTES:
                initializers.append(numpy_helper.from_array(array, name))
            else:
                large[name] = array
                initializers.append(_without_data(name, array))
        return helper.make_graph(
            nodes[::-1], self._graph_name, self._inputs, self._outputs, initializers
        )

    def _name_outputs(self) -> None:
        """Results of nodes take the names of the outputs; only what cannot is copied.

        onnxruntime would keep an Identity node, which copies the whole tensor.
        """
        results = {name for node in self._nodes for name in node.output}
        renamed = self.renamed
        for name, source in self._output_sources.items():
            if source in results and source not in renamed:
                renamed[source] = name
        for node in self._nodes:
            for inner in with_inner(node):
                inner.input[:] = [renamed.get(name, name) for name in inner.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        for name, source in self._output_sources.items():
            source = renamed.get(source, source)
            if source != name:
                node = helper.make_node("Identity", [source], [name], name=f"Identity_{name}")
                self._nodes.append(node)
        self._output_sources.clear()


def _settled_opset(graph: onnx.GraphProto) -> int:
    """Write a graph that scatters maxima or minima in opset 18, with the axes of reductions as
    inputs, and leave another one in OPSET; return the opset."""
    nodes = [inner for node in graph.node for inner in with_inner(node)]
    scattered = (node.attribute for node in nodes if node.op_type == "ScatterElements")
    if not any(each.s in (b"max", b"min") for attributes in scattered for each in attributes):
        return OPSET
    for node in nodes:
        axes = [each for each in node.attribute if each.name == "axes"]
        if node.op_type.startswith("Reduce") and axes:
            name = f"{node.output[0]}_axes"
            graph.initializer.append(numpy_helper.from_array(np.array(axes[0].ints), name))
            node.input.append(name)
            node.attribute.remove(axes[0])
    return 18


def with_inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A node and those of the graphs in it, which may read what is around them."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        yield found
        for attribute in found.attribute:
            waiting += attribute.g.node


def drop_unread(graph: onnx.GraphProto) -> None:
    """Leave out the initializers that neither a node nor an output reads."""
    read = {name for node in graph.node for inner in with_inner(node) for name in inner.input}
    read |= {info.name for info in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
