"""A large ONNX graph as a row of sessions: what onnxruntime takes a node grows with the graph.

A session of 12,000 nodes costs three times as much a node as one of 2,000. A graph is cut only
where its bits stay: between operators that onnxruntime fuses with no operand that it must keep, at
tensors that it keeps anyway, because they are outputs of the whole graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import onnx
from numpy.typing import NDArray
from onnx import helper

from compiler.export.to_onnx.graph_writer import with_inner
from compiler.runtime.executor import Inputs, ordered_inputs
from compiler.targets.ort.session import OrtExecutor

NODES: Final = 1_000
"""Nodes of one session; a graph of up to twice as many is left whole."""

_APART: Final = frozenset(
    (
        "Add",
        "AveragePool",
        "Clip",
        "Conv",
        "Gemm",
        "GlobalAveragePool",
        "Identity",
        "MatMul",
        "MaxPool",
        "Mul",
        "Relu",
        "Sigmoid",
    )
)
"""Operators that onnxruntime fuses with no operand that is an output of the graph."""
_COPIED_BYTES: Final = 1 << 30
"""Bytes of all weights, up to which sessions have copies of them, packed for their products."""


class SegmentedExecutor:
    """Runs an ONNX model in sessions of bounded size; implements ``runtime.executor.Executor``.

    Args:
        model: of which most tensors are outputs, as calibration runs it; others are not cut.
        nodes: of a session, at least.
        arena, large: as of ``OrtExecutor``.
    Raises:
        CodegenError: onnxruntime refuses the model.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        nodes: int = NODES,
        arena: bool = True,
        large: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.input_names = tuple(value.name for value in model.graph.input)
        self._outputs = [value.name for value in model.graph.output]
        self._sessions = []
        copies = sum(array.nbytes for array in (large or {}).values()) <= _COPIED_BYTES
        for part in segments(model, nodes):
            names = {tensor.name for tensor in part.graph.initializer}
            held = {name: array for name, array in (large or {}).items() if name in names}
            session = OrtExecutor(part, arena=arena, fused_grids=False, large=held, copies=copies)
            self._sessions.append(session)

    def run(self, inputs: Inputs) -> list[NDArray[Any]]:
        """See OrtExecutor."""
        if len(self._sessions) == 1:
            return self._sessions[0].run(inputs)
        held = dict(zip(self.input_names, ordered_inputs(self.input_names, inputs)))
        for session in self._sessions:
            found = session.run({name: held[name] for name in session.input_names})
            held.update(zip(session.output_names, found))
        return [held[name] for name in self._outputs]


def segments(model: onnx.ModelProto, nodes: int) -> Iterator[onnx.ModelProto]:
    """Parts of a model, each of inputs and outputs of the model: what one makes, later ones read.

    O(nodes of the model).

    Args:
        nodes: of a part, at least; a model of up to twice as many is one part.
    """
    graph = model.graph
    if len(graph.node) <= 2 * nodes:
        yield model
        return
    ports = {value.name: value for value in (*graph.input, *graph.output)}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    begin = 0
    for end in (*_borders(graph, ports.keys() | weights.keys()), len(graph.node)):
        if end - begin < nodes and end < len(graph.node):
            continue
        if end - begin == len(graph.node):
            yield model  # with its ports in their order
            return
        part = graph.node[begin:end]
        begin = end
        made = {name for node in part for name in node.output}
        read = dict.fromkeys(name for node in part for name in _read(node) if name not in made)
        whole = helper.make_graph(
            part,
            graph.name,
            [ports[name] for name in read if name in ports],
            [ports[name] for node in part for name in node.output if name in ports],
            [weights[name] for name in read if name in weights],
        )
        yield helper.make_model(
            whole, opset_imports=model.opset_import, ir_version=model.ir_version
        )


def _borders(graph: onnx.GraphProto, known: Collection[str]) -> Iterator[int]:
    """Numbers of the nodes in front of which the graph may be cut.

    Args:
        known: inputs, outputs and weights.
    """
    last: dict[str, int] = {}  # tensor → the last node that reads it
    tied: dict[str, int] = {}  # the last one that may be fused with what made it
    for place, node in enumerate(graph.node):
        apart = node.op_type in _APART and all(name in known for name in node.input if name)
        last.update(dict.fromkeys(_read(node), place))
        if not apart:
            tied.update(dict.fromkeys(_read(node), place))
    reach = 0  # the last node that must be in the session of an earlier one
    for place, node in enumerate(graph.node):
        if reach < place:
            yield place
        for name in node.output:
            crosses = node.op_type in _APART and name in known
            reach = max(reach, (tied if crosses else last).get(name, 0))


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads, and the graphs in it."""
    return [name for inner in with_inner(node) for name in inner.input]
