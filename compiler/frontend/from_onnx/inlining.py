"""Functions of the model itself, inlined before the import; their size is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx.inliner

from compiler.errors import OnnxImportError

# Thirty functions that call each other twice ask for 2**30 nodes in two kilobytes.
MAX_INLINED_NODES = 500_000

_Name = tuple[str, str]


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without calls of its own functions.

    Raises:
        OnnxImportError: functions that call themselves, too many nodes once all are inlined, or
            calls that do not fit.
    """
    if not model.functions:
        return model
    _refuse_explosion(model)
    try:
        return onnx.inliner.inline_local_functions(model)
    # The inliner is C++: what it throws arrives as one of these.
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise OnnxImportError(
            f"the model's functions cannot be inlined: {str(error).splitlines()[0]}",
            fix="export the model without functions",
        ) from error


def _refuse_explosion(model: onnx.ModelProto) -> None:
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[_Name, int] = {}
    for name in bodies:
        _measure(name, bodies, sizes)
    total = _size(model.graph.node, sizes)
    if total > MAX_INLINED_NODES:
        raise OnnxImportError(
            f"inlining the model's functions gives {total} nodes; the limit is {MAX_INLINED_NODES}",
            where=f"{len(bodies)} functions",
            fix="export the model without functions",
        )


def _measure(
    root: _Name, bodies: dict[_Name, Sequence[onnx.NodeProto]], sizes: dict[_Name, int]
) -> None:
    """Nodes of ``root`` and of all it calls, once inlined, into ``sizes``."""
    open_names: set[_Name] = set()
    stack: list[tuple[_Name, bool]] = [(root, False)]
    while stack:
        name, callees_measured = stack.pop()
        if name in sizes:
            continue
        if callees_measured:
            sizes[name] = _size(bodies[name], sizes)
            open_names.discard(name)
            continue
        open_names.add(name)
        stack.append((name, True))
        for node in _all_nodes(bodies[name]):
            callee = (node.domain, node.op_type)
            if callee in open_names:
                raise OnnxImportError(
                    f"function {callee[1]!r} of domain {callee[0]!r} calls itself",
                    fix="recursive functions have no finite graph; export the model again",
                )
            if callee in bodies and callee not in sizes:
                stack.append((callee, False))


def _size(nodes: Sequence[onnx.NodeProto], sizes: dict[_Name, int]) -> int:
    return sum(sizes.get((node.domain, node.op_type), 1) for node in _all_nodes(nodes))


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, with the nodes of their subgraphs."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            stack.extend(attribute.g.node)
            for graph in attribute.graphs:
                stack.extend(graph.node)
