"""Constants of an exported graph in the fewest bytes.

    before                                    after
    DequantizeLinear(w int8, scale, 0)        DequantizeLinear(Cast(w int4), scale, zero)
    Gather(table int8, indices)               Gather(Cast(table int4), indices)
    Mul(x, f float64)                         Mul(x, Cast(f float32)), if that is the same number

Runtimes compute the Cast when they load the model: products stay on their 8 bit kernels, and give
the same bits. Rows that hold 2^(b-1) are stored less by one, with the zero point -1. int4 exists
from opset 21 on, int2 from 25; weights of 3 bits take 4, those of 5 to 7 take 8. Scales that are
one number are stored once, names of nodes not at all.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter

from compiler.export.to_onnx.graph_writer import OPSET, drop_unread
from compiler.ops.number_format import Array
from compiler.runtime.packed import Form, numbers

NEWEST_OPSET: Final = 25
_WIDTHS: Final = ((2, NEWEST_OPSET, TensorProto.INT2), (4, 21, TensorProto.INT4))
"""Bits, the first opset that has them, and their type."""
_READERS: Final = ("DequantizeLinear", "Gather")
_LEAST_BYTES: Final = 256
"""Bytes of a weight from which on a Cast pays."""
_LEAST_SAVED: Final = 64
"""Bytes that are worth a Cast."""
_SHORTER: Final = {
    TensorProto.DOUBLE: ("int8", "int16", "float32"),
    TensorProto.FLOAT: ("int8", "int16"),
    TensorProto.INT64: ("int8", "int16", "int32"),
    TensorProto.INT32: ("int8", "int16"),
}
"""Narrower dtypes, by the element type of a constant; -0.0 and what is not finite stay floats."""
_IR_VERSIONS: Final = {21: 10, 25: 13}


def narrowed(model: onnx.ModelProto, opset: int = NEWEST_OPSET) -> onnx.ModelProto:
    """The model with constants in the fewest bytes that an opset has.

    Args:
        model: of opset 17.
        opset: the newest that may be used, from 21 on; the file has the oldest that holds it.
    """
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    readers: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            readers[name].add((node.op_type, place))
    found: dict[str, tuple[int, int, int, Array]] = {}
    for node in model.graph.node:
        if node.op_type in _READERS:
            held = arrays.get(node.input[0])
        else:
            held = None
        if held is None or held.dtype != np.int8 or held.nbytes < _LEAST_BYTES:
            continue
        table = node.op_type == "Gather"
        if readers[node.input[0]] != {(node.op_type, 0)}:
            continue
        if not table and (len(node.input) < 3 or np.any(arrays[node.input[2]])):
            continue
        axis = _axis(node)
        for bits, since, kind in _WIDTHS:
            zero = None if since > opset else _zero_points(held, axis, bits)
            if zero is not None and not (table and np.any(zero)):
                found[node.input[0]] = bits, since, kind, zero
                break
    made = at_opset(model, max((since for _, since, _, _ in found.values()), default=OPSET))
    _add_in_front(made.graph, _replace(made.graph, found, arrays))
    _drop_known(made.graph)
    _add_in_front(made.graph, _shortened(made.graph))
    return made


def at_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """The model of opset 17 in another one of those that this file knows."""
    if version not in _IR_VERSIONS:
        return model
    made = version_converter.convert_version(model, version)
    del made.graph.value_info[:]  # of the converter
    made.ir_version = _IR_VERSIONS[version]
    return made


def _add_in_front(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)


def _drop_known(graph: onnx.GraphProto) -> None:
    """Leave out names of nodes, zero points of biases, and all but one of equal scales; those of
    rows of a MatMul keep the runtime from rounding its data (``qdq/rules/product.py``)."""
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    by_rows = {node.input[1] for node in graph.node if node.op_type == "MatMul"}
    for node in graph.node:
        node.ClearField("name")
        held = [arrays[name] for name in node.input[1:] if name in arrays]
        if node.op_type != "DequantizeLinear" or not held or not held[0].size > 1:
            continue
        if held[-1].dtype == np.int32 and not np.any(held.pop()):
            del node.input[2]  # biases; kernels of weights look for theirs
        rows = node.output[0] in by_rows and helper.get_node_attr_value(node, "axis") == 0
        if not rows and all(np.ptp(one) == 0 for one in held):
            for place, one in enumerate(held, start=1):
                name = f"{node.input[place]}_one"
                if name not in arrays:
                    arrays[name] = one.flat[0]
                    graph.initializer.append(numpy_helper.from_array(one.flat[0], name))
                node.input[place] = name
    drop_unread(graph)


def _shortened(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Store arrays in the shortest dtype that holds the same numbers; what widens them again."""
    casts: dict[str, onnx.NodeProto] = {}
    for one in graph.initializer:
        if len(one.raw_data) < _LEAST_SAVED or one.data_type not in _SHORTER:
            continue
        array = numpy_helper.to_array(one)
        for dtype in _SHORTER[one.data_type]:
            with np.errstate(invalid="ignore", over="ignore"):
                held = array.astype(dtype)
            exact = held.astype(array.dtype).tobytes() == array.tobytes()
            if array.nbytes - held.nbytes > _LEAST_SAVED and exact:
                name = one.name
                wide = f"{one.name}_w"
                casts[name] = helper.make_node("Cast", [name], [wide], to=one.data_type)
                one.CopyFrom(numpy_helper.from_array(held, name))
                break
    for node in graph.node:
        node.input[:] = [casts[n].output[0] if n in casts else n for n in node.input]
    return list(casts.values())


def initializer_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all constants of a model."""
    return sum(len(one.raw_data) for one in model.graph.initializer)


def _axis(node: onnx.NodeProto) -> int:
    default = 1 if node.op_type == "DequantizeLinear" else 0
    return next((one.i for one in node.attribute if one.name == "axis"), default)


def _zero_points(weight: Array, axis: int, bits: int) -> Array | None:
    """0 or -1 for each row; None where a row has more bits."""
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).astype(np.int64)
    low = rows.min(axis=1)
    high = rows.max(axis=1)
    limit = 1 << (bits - 1)
    plain = (low >= -limit) & (high < limit)
    moved = (low > -limit) & (high <= limit)
    if np.all(plain | moved):
        return np.where(plain, 0, -1).astype(np.int8)
    return None


def _replace(
    graph: onnx.GraphProto,
    found: dict[str, tuple[int, int, int, Array]],
    arrays: dict[str, Array],
) -> list[onnx.NodeProto]:
    """Store the weights of ``found`` packed; the nodes that widen them again."""
    casts: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        name = node.input[0] if node.op_type in _READERS else ""
        if name not in found:
            continue
        bits, _, kind, zero = found[name]
        axis = _axis(node)
        wide = f"{name}_int8"
        points = f"{name}_zero"
        levels = arrays[name]
        if name not in casts:
            shape = [-1 if at == axis else 1 for at in range(levels.ndim)]
            stored = levels + zero.reshape(shape)
            casts[name] = helper.make_node("Cast", [name], [wide], to=TensorProto.INT8)
            place = next(at for at, one in enumerate(graph.initializer) if one.name == name)
            graph.initializer[place].CopyFrom(_packed(name, stored, bits, kind))
            graph.initializer.append(numpy_helper.from_array(zero, points))
        node.input[0] = wide
        if np.any(zero):
            node.input[2] = points
    return list(casts.values())


def _packed(name: str, levels: Array, bits: int, kind: int) -> TensorProto:
    """Levels of some bits, the first in the lowest."""
    data = numbers(levels, Form(bits))
    return TensorProto(name=name, data_type=kind, dims=levels.shape, raw_data=data)
