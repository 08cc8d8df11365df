"""Calls of functions become their nodes: of a model's own functions, whose opset may be another one
than the model's, and of operators without a converter that onnx defines by others.

The nodes stand in place of the call and have its name. Values get the name of the call's first
output in front, because two calls have the same ones inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import onnx
from onnx import helper

from compiler.frontend.from_onnx.branches import renamed_node
from compiler.frontend.from_onnx.model_file import within
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import (
    NEWEST_OPSET,
    OLDEST_OPSET,
    find_converter,
    plain_domain,
)
from compiler.ir.expr import Expr

Functions = Mapping[tuple[str, str], onnx.FunctionProto]
"""The model's own functions by domain and name."""


class Opened(NamedTuple):
    """The nodes of a call, and the opsets that they are written in."""

    nodes: list[onnx.NodeProto]
    opsets: dict[str, int]


def is_call(proto: onnx.NodeProto, opset: int, functions: Functions) -> bool:
    """Return whether ``opened`` knows nodes for an operator."""
    if (proto.domain, proto.op_type) in functions:
        return True
    if find_converter(proto.op_type, opset, proto.domain) is not None:
        return False
    schema = _schema(proto, opset)
    return schema is not None and bool(_versions(schema, opset))


def opened(node: OnnxNode, functions: Functions) -> Opened:
    """Return what a call stands for.

    Raises:
        OnnxImportError: a function of an opset that is not supported.
    """
    own = functions.get((node.proto.domain, node.op_type))
    body = _of_schema(node) if own is None else own
    opsets = {plain_domain(entry.domain): entry.version for entry in body.opset_import}
    version = opsets.setdefault("", node.opset)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise node.error(f"its function imports opset {version}, which is not supported")
    attributes = {given.name: given for given in (*body.attribute_proto, *node.proto.attribute)}
    prefix = next(filter(None, node.proto.output), node.span.source_name)
    reads = [*node.proto.input, *[""] * len(body.input)]
    inside = {name for inner in body.node for name in inner.output if name}
    renamed = dict(zip(body.input, reads)) | {name: f"{prefix}/{name}" for name in inside}
    nodes = [renamed_node(_with(inner, attributes), renamed, "") for inner in body.node]
    for name, output in zip(body.output, node.proto.output):
        if output:
            nodes.append(helper.make_node("Identity", [renamed[name]], [output]))
    return Opened(nodes, opsets)


def _with(proto: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A node of a function with the attributes of the call."""
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    for inner in list(within(made, onnx.NodeProto)):
        own = list(inner.attribute)
        del inner.attribute[:]
        for attribute in own:
            if attribute.ref_attr_name in given:
                inner.attribute.add().CopyFrom(given[attribute.ref_attr_name])
                inner.attribute[-1].name = attribute.name
            elif not attribute.ref_attr_name:
                inner.attribute.add().CopyFrom(attribute)
    return made


# ---- operators of onnx ---------------------------------------------------------------------------


_LEFT_OUT: Final = ("Bernoulli", "SequenceMap")
"""Their definitions draw numbers or hold sequences."""


def _schema(proto: onnx.NodeProto, opset: int) -> Any:  # the stubs of OpSchema lack its functions
    if plain_domain(proto.domain) or proto.op_type in _LEFT_OUT:
        return None
    try:
        return onnx.defs.get_schema(proto.op_type, opset)
    except onnx.defs.SchemaError:
        return None


def _versions(schema: Any, opset: int) -> list[int]:
    """Opsets that definitions of an operator are written in, up to ``opset``."""
    return [version for version in schema.all_function_opset_versions if version <= opset]


def _of_schema(node: OnnxNode) -> onnx.FunctionProto:
    schema = _schema(node.proto, node.opset)
    assert schema is not None
    version = max(_versions(schema, node.opset))
    body = onnx.FunctionProto()
    if version in schema.function_opset_versions:
        body.ParseFromString(schema.get_function_with_opset_version(version))
    else:
        types = [_type(node, place).SerializeToString() for place in range(node.num_inputs)]
        proto = node.proto.SerializeToString()
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(version, proto, types)
        )
    if not body.node:
        raise node.error("onnx has no definition of it for these inputs")
    defaults = (attribute.default_value for attribute in schema.attributes.values())
    body.attribute_proto.extend(value for value in defaults if value.name)
    return body


def _type(node: OnnxNode, place: int) -> onnx.TypeProto:
    """Type of an input; an empty one of an input that is not given."""
    if not node.has_input(place):
        return onnx.TypeProto()
    known = node.known(place)
    value: Expr = node.arg(place) if known is None else node.const(known)
    ty = value.tensor_type
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    kind = onnx.TensorProto.DataType.Value(names.get(ty.dtype, ty.dtype.upper()))
    shape = [size if isinstance(size, int) else None for size in ty.shape]
    return helper.make_tensor_type_proto(kind, shape)
