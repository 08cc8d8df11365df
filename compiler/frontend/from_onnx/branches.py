"""Replace an If with a known condition by the branch that is taken.

Names inside a branch get the If's name in front, because two branches may use the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import onnx

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import STANDARD_DOMAINS


def is_branching(proto: onnx.NodeProto) -> bool:
    """True for the standard If."""
    return proto.op_type == "If" and proto.domain in STANDARD_DOMAINS


def taken_branch(
    node: OnnxNode, name: str
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], None]:
    """Nodes and initializers that compute what the If ``node`` does; nothing stands behind them.

    Args:
        node: an If; its condition must be constant.
        name: a name no other node has.
    Raises:
        OnnxImportError: the condition depends on the inputs, or the branch does not fit the node.
    """
    condition = node.require_known(0, "the condition")
    if condition.reshape(-1)[:1].any():
        key = "then_branch"
    else:
        key = "else_branch"
    branch, renamed = inner_graph(node, key, name)
    outputs = [info.name for info in branch.output]
    if len(outputs) != len(node.proto.output):
        raise node.error(f"{key} has {len(outputs)} outputs for {len(node.proto.output)}")
    nodes = [renamed_node(inner, renamed, name) for inner in branch.node]
    # What the branch gives may be a tensor from outside, so the outputs are new names for it.
    for inner_name, outer_name in zip(outputs, node.proto.output):
        if outer_name:
            given = renamed.get(inner_name, inner_name)
            nodes.append(onnx.helper.make_node("Identity", [given], [outer_name], name=name))
    return nodes, [renamed_tensor(tensor, renamed) for tensor in branch.initializer], None


def inner_graph(node: OnnxNode, key: str, name: str) -> tuple[onnx.GraphProto, dict[str, str]]:
    """The graph in an attribute, and new names for all that it defines.

    Raises:
        OnnxImportError: there is none, or it has sparse initializers.
    """
    graph: onnx.GraphProto | None = next(
        (a.g for a in node.proto.attribute if a.name == key and a.HasField("g")), None
    )
    if graph is None:
        raise node.error(f"attribute {key!r} is missing")
    if graph.sparse_initializer:
        raise node.error("sparse initializers are not supported")
    return graph, {old: f"{name}/{old}" for old in defined_names(graph) if old}


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a graph within a graph defines, which hide names outside."""
    names = {output for node in graph.node for output in node.output}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(info.name for info in graph.input)
    return names


def renamed_tensor(tensor: onnx.TensorProto, renamed: Mapping[str, str]) -> onnx.TensorProto:
    """A copy with its new name."""
    copy = deepcopy(tensor)
    copy.name = renamed[tensor.name]
    return copy


def renamed_node(proto: onnx.NodeProto, renamed: Mapping[str, str], prefix: str) -> onnx.NodeProto:
    """A copy that reads and writes the new names, in its subgraphs too."""
    copy = deepcopy(proto)
    if copy.name and prefix:
        copy.name = f"{prefix}/{copy.name}"
    copy.output[:] = [renamed.get(name, name) for name in copy.output]
    stack: list[tuple[onnx.NodeProto, Mapping[str, str]]] = [(copy, renamed)]
    while stack:
        node, names = stack.pop()
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                own = defined_names(graph)
                visible = {old: new for old, new in names.items() if old not in own}
                for info in graph.output:
                    info.name = visible.get(info.name, info.name)
                stack.extend((inner, visible) for inner in graph.node)
    return copy
