"""An exported module as its callers know the model: names, dtypes, any number of samples.

Modules are made for one sample. Almost every ONNX node takes more of them as it is; the others are
written anew here:

    Reshape to (1, 4, 49, 16)                      Reshape to (-1, 4, 49, 16)
    Concat of a constant (1, 1, 64) and samples    the constant, expanded to their number
    Resize to the sizes (1, 8, 14, 14)             their number in front of (8, 14, 14)

``sample_axis`` derives that no operator joins samples; shape inference with another number of
them checks the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from compiler.errors import OnnxExportError
from compiler.export.to_onnx.graph_writer import drop_unread, onnx_type, with_inner
from compiler.export.to_onnx.sample_axis import first_that_joins
from compiler.runtime.interface import CONVERTED, Interface, Port

_ANY = "batch"
_TRIED = 3


def with_batch(
    model: onnx.ModelProto, interface: Interface | None, batch: int | None = None
) -> onnx.ModelProto:
    """The model for ``batch`` samples; for any number of them where it is None.

    Args:
        model: exported for one sample; left as it is.
        interface: of the model it came from, which names the number of samples.
    Raises:
        OnnxExportError: an input has no leading axis for samples, or an operator joins samples.
    """
    made = deepcopy(model)
    carried, symbol = _inputs_of_samples(made.graph, interface)
    tensors = _tensors_of_samples(made.graph, carried)
    shapes = _shapes_of(made)
    if batch == 1:
        joins = None
    else:
        joins = first_that_joins(made.graph, dict.fromkeys(carried, 0), shapes)
    if joins is not None:
        raise _mixing(f"{joins} works along the samples, or has the samples on another axis")
    _take_more_samples(made, tensors, shapes)
    tried = _sized(made, carried, _TRIED if batch is None else batch)
    try:
        inferred = onnx.shape_inference.infer_shapes(tried, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        told = str(error).strip().splitlines()[-1]
        node = re.search(r"op_type:(\w+)", told)
        if node:
            why = f"a {node[1]} has the samples on another axis than the first"
        else:
            why = told
        raise _mixing(why) from error
    for before, after in zip(made.graph.output, inferred.graph.output, strict=True):
        if before.name not in tensors:
            continue
        one, more = (_sizes(info) for info in (before, after))
        if one:
            wanted = [one[0] * (_TRIED if batch is None else batch), *one[1:]]
        else:
            wanted = []
        if not one or more != wanted:
            raise _mixing(f"output {before.name!r} has sizes {more}")
        _set_leading(before, symbol if batch is None else wanted[0])
    for info in made.graph.input:
        if info.name in carried:
            _set_leading(info, symbol if batch is None else batch * _sizes(info)[0])
    return made


def with_names(model: onnx.ModelProto, interface: Interface) -> onnx.ModelProto:
    """The model with the names, order and float dtypes of the one that it came from.

    Inputs that the module does not read are declared, too.
    """
    made = deepcopy(model)
    graph = made.graph
    given = {info.name: info for info in graph.input}
    outputs = {port.name for port in interface.outputs}
    taken = _taken(graph)
    free = _free_names(taken | outputs)
    # What has the name of an output inside gives way.
    inside = taken - given.keys() - {info.name for info in graph.output}
    names = {name: free(f"{name}_inner") for name in outputs & inside}
    converted: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    for port in interface.inputs:
        info = given.get(port.name)
        if info is None:
            inputs.append(declared(port))
            continue
        inputs.append(info)
        if _is_converted(info, port):
            names[port.name] = free(f"{port.name}_float32")
            converted.append(_cast(port.name, names[port.name], "float32"))
            info.type.tensor_type.elem_type = onnx_type(port.dtype)
    ends: list[onnx.NodeProto] = []
    for info, port in zip(graph.output, interface.outputs, strict=True):
        names[info.name] = port.name
        if _is_converted(info, port):
            names[info.name] = free(f"{port.name}_float32")
            ends.append(_cast(names[info.name], port.name, port.dtype))
            info.type.tensor_type.elem_type = onnx_type(port.dtype)
        info.name = port.name
    for node in (inner for outer in graph.node for inner in with_inner(outer)):
        for read_or_written in (node.input, node.output):
            read_or_written[:] = [names.get(name, name) for name in read_or_written]
    inner_entries = [e for b in _bodies(graph) for e in (*b.input, *b.output, *b.initializer)]
    for entry in (*graph.initializer, *inner_entries):
        entry.name = names.get(entry.name, entry.name)
    nodes = [*converted, *graph.node, *ends]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    return made


def with_metadata(model: onnx.ModelProto, facts: Mapping[str, str]) -> None:
    """Add ``metadata_props``."""
    helper.set_model_props(model, {p.key: p.value for p in model.metadata_props} | dict(facts))


# Samples ----------------------------------------------------------------------------------------


def _inputs_of_samples(graph: onnx.GraphProto, interface: Interface | None) -> tuple[set[str], str]:
    """Inputs whose leading axis counts samples, and what the model calls their number."""
    named: dict[str, str] = {}
    for port in () if interface is None else interface.inputs:
        if port.dims and isinstance(port.dims[0], str):
            named[port.name] = port.dims[0]
    found = {info.name for info in graph.input if _sizes(info)}
    if found & named.keys():
        found &= named.keys()
    if not found:
        raise OnnxExportError(
            "no input has a leading axis for samples", fix="export it for one: --batch 1"
        )
    symbols = {named.get(name, "?") for name in found} - {"?"}
    return found, min(symbols) if symbols else _ANY


def _tensors_of_samples(graph: onnx.GraphProto, carried: Iterable[str]) -> set[str]:
    """Everything that is computed from these inputs; nodes stand behind what they read."""
    found = set(carried)
    for node in graph.node:
        if found.intersection(node.input):
            found.update(node.output)
    return found


def _shapes_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Sizes of every tensor that shape inference knows."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        info.name: _sizes(info)
        for info in (*inferred.value_info, *inferred.input, *inferred.output)
    }


def _take_more_samples(
    model: onnx.ModelProto, tensors: set[str], shapes: Mapping[str, list[int]]
) -> None:
    """Write anew what names the number of samples."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    free = _free_names(_taken(graph))

    def constant(values: Any) -> str:
        name = free("samples")
        graph.initializer.append(numpy_helper.from_array(np.asarray(values, "int64"), name))
        return name

    def computed(op_type: str, inputs: list[str], **attrs: Any) -> str:
        name = free("samples")
        nodes.append(helper.make_node(op_type, inputs, [name], name=f"{op_type}_{name}", **attrs))
        return name

    for node in graph.node:
        reads = tensors.intersection(node.input)
        if reads and node.op_type == "Reshape":
            sizes = shapes.get(node.output[0], [])
            if not sizes or not all(sizes[1:]):
                raise _mixing(f"{node.name} gives sizes {sizes}")
            node.input[1] = constant([-1, *sizes[1:]])
        elif reads and node.op_type == "Concat" and len(reads) < len(node.input):
            axis = next(a.i for a in node.attribute if a.name == "axis")
            number = computed("Shape", [min(reads)], start=0, end=1)
            for place, name in enumerate(node.input):
                held = constants.get(name)
                if name in reads or held is None:
                    continue
                rank = len(held.dims)
                if axis % rank == 0 or held.dims[0] != 1:
                    raise _mixing(f"{node.name} joins tensors along the samples")
                whole = computed("Concat", [number, constant([1] * (rank - 1))], axis=0)
                node.input[place] = computed("Expand", [name, whole])
        elif reads and node.op_type == "Resize" and len(node.input) > 3 and node.input[3]:
            sizes = shapes[node.output[0]]
            number = computed("Shape", [node.input[0]], start=0, end=1)
            node.input[3] = computed("Concat", [number, constant(sizes[1:])], axis=0)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unread(graph)


def _sized(model: onnx.ModelProto, carried: set[str], batch: int) -> onnx.ModelProto:
    """A copy for so many samples, whose output sizes are left open."""
    made = deepcopy(model)
    for info in made.graph.input:
        if info.name in carried:
            _set_leading(info, batch * _sizes(info)[0])
    for info in made.graph.output:
        info.type.tensor_type.ClearField("shape")
    return made


def _mixing(why: str) -> OnnxExportError:
    return OnnxExportError(
        f"the module takes one sample at a time: {why}", fix="export it for one: --batch 1"
    )


# Protobuf ---------------------------------------------------------------------------------------


def declared(port: Port) -> onnx.ValueInfoProto:
    """An input or output of a graph as the model has it."""
    dims = [None if dim == "?" else dim for dim in port.dims]
    return helper.make_tensor_value_info(port.name, onnx_type(port.dtype), dims)


def _sizes(info: onnx.ValueInfoProto) -> list[int]:
    return [int(dim.dim_value) for dim in info.type.tensor_type.shape.dim]


def _set_leading(info: onnx.ValueInfoProto, size: int | str) -> None:
    leading = info.type.tensor_type.shape.dim[0]
    if isinstance(size, int):
        leading.dim_value = size
    else:
        leading.dim_param = size


def _cast(source: str, target: str, dtype: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"Cast_{target}", to=onnx_type(dtype))


def _bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The bodies of loops, whose names are like no other name around them."""
    for node in graph.node:
        for inner in with_inner(node):
            yield from (attribute.g for attribute in inner.attribute if attribute.HasField("g"))


def _taken(graph: onnx.GraphProto) -> set[str]:
    graphs = (graph, *_bodies(graph))
    names = {name for one in graphs for node in one.node for name in (*node.input, *node.output)}
    return names.union(entry.name for one in graphs for entry in (*one.input, *one.initializer))


def _is_converted(info: onnx.ValueInfoProto, port: Port) -> bool:
    """Return whether a module has float32 for a float of the model."""
    return port.dtype in CONVERTED and info.type.tensor_type.elem_type == onnx_type("float32")


def _free_names(taken: set[str]) -> Callable[[str], str]:
    """``free(hint)`` gives a name that is not taken, another one every time."""

    def free(hint: str) -> str:
        name = hint
        count = len(taken)
        while name in taken:
            name = f"{hint}_{count}"
            count = count + 1
        taken.add(name)
        return name

    return free
