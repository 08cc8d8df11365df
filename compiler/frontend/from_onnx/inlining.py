"""Calls of the model's own functions become the nodes of these before the import; their number is
known beforehand."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.inliner
import onnx.shape_inference

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.model_file import within

# Thirty functions that call each other twice ask for 2**30 nodes in two kilobytes.
MAX_INLINED_NODES = 500_000

_Name = tuple[str, str]


# The inliner and shape inference are C++: what they throw arrives as one of these.
_INLINER_ERRORS = (
    RuntimeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)


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
    except _INLINER_ERRORS as error:
        raise OnnxImportError(
            f"the model's functions cannot be inlined: {str(error).splitlines()[0]}",
            fix="export the model without functions",
        ) from error


def _refuse_explosion(model: onnx.ModelProto) -> None:
    bodies = {(f.domain, f.name): f for f in model.functions}
    callees = {
        name: {(node.domain, node.op_type) for node in within(body, onnx.NodeProto)}
        for name, body in bodies.items()
    }
    sizes: dict[_Name, int] = {}
    try:
        for name in TopologicalSorter(callees).static_order():
            if name in bodies:
                sizes[name] = _size(bodies[name], sizes)
    except CycleError as error:
        domain, function = error.args[1][0]
        raise OnnxImportError(
            f"function {function!r} of domain {domain!r} calls itself",
            fix="recursive functions have no finite graph; export the model again",
        ) from error
    total = _size(model.graph, sizes)
    if total > MAX_INLINED_NODES:
        raise OnnxImportError(
            f"inlining the model's functions gives {total} nodes; the limit is {MAX_INLINED_NODES}",
            where=f"{len(bodies)} functions",
            fix="export the model without functions",
        )


def _size(body: onnx.GraphProto | onnx.FunctionProto, sizes: dict[_Name, int]) -> int:
    nodes = within(body, onnx.NodeProto)
    return sum(sizes.get((node.domain, node.op_type), 1) for node in nodes)
