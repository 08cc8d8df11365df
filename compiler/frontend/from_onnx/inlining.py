"""Calls that become the nodes of their definition before the import: the model's own functions, and
standard operators that ONNX defines by others. Their size is known beforehand."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import TensorProto, helper

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.model_file import within
from compiler.frontend.from_onnx.opsets import STANDARD_DOMAINS, find_converter

# Thirty functions that call each other twice ask for 2**30 nodes in two kilobytes.
MAX_INLINED_NODES = 500_000

DEFINED_BY_OTHERS = (
    "Attention",
    "CausalConvWithState",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
)
"""Standard operators without a converter: the function in ONNX's schema is imported."""
_LARGEST_DEFINITION = 200
_ATTENDS_BY_LENGTH = (1, 23)
"""First onnx whose function of Attention counts is_causal from the end of nonpad_kv_seqlen."""

_Name = tuple[str, str]


def inline_definitions(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model without the operators of DEFINED_BY_OTHERS that have no converter.

    Args:
        opset: of the standard operators.
    Raises:
        OnnxImportError: too many nodes once all are inlined, or inputs that do not fit.
    """
    names = {name for name in DEFINED_BY_OTHERS if find_converter(name, opset) is None}
    standard = (node for node in model.graph.node if node.domain in STANDARD_DOMAINS)
    used = [node for node in standard if node.op_type in names]
    if not used:
        return model
    if len(used) * _LARGEST_DEFINITION > MAX_INLINED_NODES:
        raise OnnxImportError(
            f"{len(used)} operators that are defined by others are too many",
            where=used[0].op_type,
            fix=f"the limit is {MAX_INLINED_NODES // _LARGEST_DEFINITION}",
        )
    lengths = [n for n in used if n.op_type == "Attention" and len(n.input) > 6 and n.input[6]]
    version = tuple(int(part) for part in onnx.__version__.split(".")[:2])
    if lengths and version < _ATTENDS_BY_LENGTH:
        raise OnnxImportError(
            f"onnx {onnx.__version__} defines Attention with nonpad_kv_seqlen in another way than "
            "onnxruntime computes it",
            where=f"node {lengths[0].name or lengths[0].output[0]!r}",
            fix="pip install 'onnx>=1.23'",
        )
    try:
        typed = onnx.shape_inference.infer_shapes(model)
        # Definitions depend on element types. The inliner asks for that of an absent input too,
        # and does not look at initializers.
        types = {"": TensorProto.FLOAT} | {t.name: t.data_type for t in model.graph.initializer}
        typed.graph.value_info.extend(
            helper.make_tensor_value_info(name, dtype, None) for name, dtype in types.items()
        )
        return onnx.inliner.inline_selected_functions(
            typed, [("", name) for name in sorted(names)], inline_schema_functions=True
        )
    except _INLINER_ERRORS as error:
        raise OnnxImportError(
            f"{used[0].op_type} cannot be written with other operators: "
            f"{str(error).splitlines()[0]}",
            where=f"node {used[0].name or used[0].output[0]!r}",
            fix="export it with other operators, for example with an opset below 23",
        ) from error


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
