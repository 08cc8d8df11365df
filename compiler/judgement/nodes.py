"""Evaluation of one node by ONNX's definition, and the grid of a quantization point.

Integers are int64, everything else float64. Operators without a form here are the reference
implementation of the package onnx on float64; what that lacks runs in onnxruntime, in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from compiler.errors import CompilerError, EvaluationError
from compiler.frontend.from_onnx.convert.quant import PERMUTATIONS
from compiler.ops.number_format import Array, aligned_vector
from compiler.targets.ort.session import OrtExecutor

if TYPE_CHECKING:
    from compiler.judgement.layers import Network

QUANTIZE: Final = "QuantizeLinear"
DEQUANTIZE: Final = "DequantizeLinear"
DYNAMIC: Final = "DynamicQuantizeLinear"
MOVES: Final = (*PERMUTATIONS, "Clip")
"""Operators that are followed from a product to its point, and from a point to its integers."""
FOLDED: Final = (
    "QuantizeLinear",
    "Clip",
    "Identity",
    "Transpose",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Cast",
    "Mul",
)
"""Operators of constants that ``Network`` computes when it is read."""
_MOST_ELEMENTS: Final = 1 << 28
_FAULTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors of numpy and of onnx's reference evaluator for a node that they cannot compute."""
_SUBGRAPHS: Final = ("If", "Loop", "Scan", "SequenceMap")
Values = Sequence[Array | None]


@dataclass(frozen=True, slots=True)
class Grid:
    """A quantization point: scale (q - zero), q in [low, high].

    Attributes:
        dtype: of the integers; "" is not known.
        scale, zero: constants, float64 and int64; None where the file computes them.
        axis: of a vector of scales.
        low, high: of the integers, with a Clip behind QuantizeLinear.
    """

    dtype: str
    scale: Array | None
    zero: Array | None
    axis: int
    low: int
    high: int

    @property
    def bits(self) -> int:
        """Bits of an integer; 0 is not known."""
        if self.dtype:
            return int(self.dtype.lstrip("uint"))
        return 0

    def along(self, rank: int, values: Array) -> Array:
        """A scale or a zero point in the shape that broadcasts with a tensor of this rank."""
        vector = values.ndim == 1 and values.size > 1
        if vector:
            return aligned_vector(values, self.axis, rank)
        return values.reshape(())


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The value of an attribute."""
    found = next((a for a in node.attribute if a.name == name), None)
    if found is None:
        return default
    return helper.get_attribute_value(found)


def given(node: onnx.NodeProto, place: int) -> str:
    """The name of an input; "" where there is none."""
    return node.input[place] if place < len(node.input) else ""


def evaluate_node(
    network: Network, node: onnx.NodeProto, taken: Values, ties: dict[str, int] | None = None
) -> list[Array]:
    """Results of one node; ties of a QuantizeLinear are counted in ``ties``."""
    try:
        with np.errstate(all="ignore"):
            if node.op_type == QUANTIZE:
                return [_quantize(network, node, taken, ties)]
            if node.op_type == DEQUANTIZE:
                return [_dequantize(network.grid(node, node.input[0]), node, taken)]
            if node.domain in ("", "ai.onnx"):
                rule = _RULES.get(node.op_type)
            else:
                rule = None
            if rule is not None:
                return [rule(node, taken)]
            return _by_reference(network, node, taken)
    except _FAULTS as error:
        raise EvaluationError(
            f"{node.op_type} {node.name!r} has no exact evaluation: {error}",
            fix="give data of the model; without it overflow and machines are judged all the same",
        ) from error


def widened(value: Array) -> Array:
    """Return integers as int64 and floats as float64."""
    if value.dtype.kind in "iu":
        return value.astype(np.int64)
    if value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def known(value: Array | None) -> Array:
    """Return a value that has to be there."""
    assert value is not None, "an input is missing"
    return value


def _quantize(
    network: Network, node: onnx.NodeProto, taken: Values, ties: dict[str, int] | None
) -> Array:
    grid = network.grid(node, node.output[0])
    if not grid.dtype:
        raise TypeError(f"integers of an unknown dtype {grid.dtype!r}")
    data = known(taken[0])
    scale = known(taken[1])
    zero = taken[2] if len(taken) > 2 else None
    units = _blocks(node, grid, scale, data)
    if _is_input(network, node.input[0]):  # ONNX divides float32 by float32
        steps: Array = data.astype(np.float32) / units.astype(np.float32)
    else:
        steps = data / units
    rounded = np.rint(steps)
    if ties is not None:
        near = np.abs(steps - np.floor(steps) - 0.5) == 0
        ties[node.output[0]] = int(near.sum())
    # NaN has no integer; ONNX leaves it open.
    rounded = np.nan_to_num(rounded, nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
    if zero is not None:
        rounded = rounded + _blocks(node, grid, zero, data)
    narrowed: Array = np.clip(rounded, grid.low, grid.high).astype(np.int64)
    return narrowed


def _is_input(network: Network, name: str) -> bool:
    """A float32 input of the network, moved or not."""
    while (writer := network.writer.get(name)) is not None and writer.op_type in MOVES:
        name = writer.input[0]
    return network.types.get(name) == onnx.TensorProto.FLOAT and name in network.inputs


def _dequantize(grid: Grid, node: onnx.NodeProto, taken: Values) -> Array:
    data = known(taken[0])
    scale = known(taken[1])
    zero = taken[2] if len(taken) > 2 else None
    if zero is None:
        centred = data
    else:
        centred = data - _blocks(node, grid, zero, data)
    result: Array = centred * _blocks(node, grid, scale, data)
    return result


def _blocks(node: onnx.NodeProto, grid: Grid, values: Array, data: Array) -> Array:
    size = int(attribute(node, "block_size", 0))
    if not size:
        return grid.along(data.ndim, values)
    axis = grid.axis % data.ndim
    return np.repeat(values, size, axis).take(range(data.shape[axis]), axis)


def multiply(node: onnx.NodeProto, taken: Values) -> Array:
    """A Conv, ConvTranspose, MatMul or Gemm of float64, with its bias where ``taken`` has one."""
    product = product_of(node, known(taken[0]), known(taken[1]))
    return with_bias(node, product, taken[2] if len(taken) > 2 else None)


def product_of(node: onnx.NodeProto, a: Array, b: Array) -> Array:
    """The sums of a product of float64, without the factors and the bias of its node."""
    if node.op_type in ("Conv", "ConvInteger"):
        return _convolve(node, a, b)
    if node.op_type == "ConvTranspose":
        pair: Any = {"0": a, "1": b}
        made: Any = ReferenceEvaluator(_alone(node, 2, ())).run(None, pair)
        return np.asarray(made[0])
    turned = [attribute(node, name, 0) for name in ("transA", "transB")]
    a = a.T if turned[0] else a
    b = b.T if turned[1] else b
    return np.asarray(a @ b)


def with_bias(node: onnx.NodeProto, product: Array, bias: Array | None) -> Array:
    """Return alpha times a product, and beta times a bias."""
    result: Array = product * float(attribute(node, "alpha", 1.0))
    if bias is None:
        return result
    bias = bias * float(attribute(node, "beta", 1.0))
    convolved = "Conv" in node.op_type
    return result + (bias.reshape(1, -1, *[1] * (result.ndim - 2)) if convolved else bias)


def _convolve(node: onnx.NodeProto, data: Array, weight: Array) -> Array:
    groups = int(attribute(node, "group", 1))
    parts = weight.reshape(groups, len(weight) // groups, *weight.shape[1:])
    by_place: Any = np.moveaxis(parts, (1, 2), (-2, -1))
    total: Array | None = None
    for place, seen in windows(node, data, weight.shape[2:], 0.0):
        rows = seen.reshape(len(data), groups, seen.shape[1] // groups, -1)
        made = by_place[(slice(None), *place)] @ rows
        total = made if total is None else total + made
        shape = (len(data), len(weight), *seen.shape[2:])
    if total is None:
        return np.zeros(())
    return total.reshape(shape)


def windows(
    node: onnx.NodeProto, data: Array, kernel: Sequence[int], fill: float
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each place of the kernel what it sees of the padded data, [N, C, *output]."""
    rank = len(kernel)
    strides = attribute(node, "strides", [1] * rank)
    steps = attribute(node, "dilations", [1] * rank)
    pads = list(attribute(node, "pads", [0] * (2 * rank)))
    auto = attribute(node, "auto_pad", b"NOTSET")
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, steps)]
    sizes = data.shape[2:]
    if auto.startswith(b"SAME"):
        needed = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, strides, extents)]
        less = [n // 2 for n in needed]
        more = [n - m for n, m in zip(needed, less)]
        pads = less + more if auto == b"SAME_UPPER" else more + less
    ceil = bool(attribute(node, "ceil_mode", 0))
    widths = [(0, 0), (0, 0)]
    counts = []
    for axis, (n, s, e) in enumerate(zip(sizes, strides, extents)):
        begin, end = pads[axis], pads[axis + rank]
        whole = n + begin + end - e
        count = (-(-whole // s) if ceil else whole // s) + 1
        if ceil and (count - 1) * s >= n + begin:  # a window may not begin in the padding
            count -= 1
        counts.append(max(count, 0))
        widths.append((begin, max(end, (count - 1) * s + e - n - begin)))
    padded = np.pad(data, widths, constant_values=fill)
    for place in itertools.product(*map(range, kernel)):
        cut = [
            slice(k * d, k * d + (c - 1) * s + 1, s)
            for k, d, c, s in zip(place, steps, counts, strides)
        ]
        yield place, padded[(slice(None), slice(None), *cut)]


# Operators whose reference implementation is slow, or makes float32 ------------------------------


def _pooled(node: onnx.NodeProto, taken: Values) -> Array:
    data = known(taken[0])
    kernel = attribute(node, "kernel_shape", [1])
    if node.op_type == "MaxPool":
        if data.dtype.kind == "f":
            least = -np.inf
        else:
            least = np.iinfo(np.int64).min
        seen = (part for _, part in windows(node, data.astype(np.float64), kernel, least))
        result: Array = np.maximum.reduce([*seen]).astype(data.dtype)
        return result
    included = bool(attribute(node, "count_include_pad", 0))
    total = sum(part for _, part in windows(node, data, kernel, 0.0))
    ones = np.ones((1, 1, *data.shape[2:]))
    counts = sum(part for _, part in windows(node, ones, kernel, float(included)))
    return np.asarray(total / counts)


def _cast(node: onnx.NodeProto, taken: Values) -> Array:
    kind = helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1))
    data = known(taken[0])
    if kind.kind in "biu":
        return widened(data.astype(kind))
    return data.astype(np.float64)


_RULES: Final[dict[str, Callable[[onnx.NodeProto, Values], Array]]] = {
    "Conv": multiply,
    "MatMul": multiply,
    "Gemm": multiply,
    "MaxPool": _pooled,
    "AveragePool": _pooled,
    "Cast": _cast,
}


def _by_reference(network: Network, node: onnx.NodeProto, taken: Values) -> list[Array]:
    if node.op_type == DYNAMIC:
        return _dynamic_points(known(taken[0]))
    if node.op_type in _SUBGRAPHS:
        raise TypeError("its graph would have to be evaluated")
    opsets = network.model.opset_import
    feeds = {str(i): value for i, value in enumerate(taken) if value is not None}
    model = _alone(node, len(taken), opsets, taken)
    size = sum(value.size for value in feeds.values())
    if size > _MOST_ELEMENTS:
        raise MemoryError(f"{size} numbers are too many")
    if node.domain in ("", "ai.onnx", "ai.onnx.ml"):
        try:
            return [widened(np.asarray(v)) for v in ReferenceEvaluator(model).run(None, feeds)]
        except (AttributeError, RuntimeError, TypeError, ValueError):
            pass  # no implementation, or none of float64
    narrowed: dict[str, Array] = {}
    for place, value in feeds.items():
        dtype = network.dtype_of(node.input[int(place)])
        is_byte = value.dtype == np.int64 and dtype in ("int8", "uint8", "int32")
        is_real = value.dtype == np.float64
        narrowed[place] = value.astype(dtype if is_byte else "float32" if is_real else value.dtype)
    for info in model.graph.input:
        element = helper.np_dtype_to_tensor_dtype(narrowed[info.name].dtype)
        info.type.tensor_type.elem_type = element
    try:
        executor = OrtExecutor(model, optimize=False, limited=True, folds=False)
        return [widened(value) for value in executor.run(narrowed)]
    except CompilerError as error:
        raise RuntimeError(error.what) from error


def _dynamic_points(data: Array) -> list[Array]:
    """DynamicQuantizeLinear: a uint8 grid of the whole tensor, scale and zero point in float32."""
    low = min(float(data.min()), 0.0)
    high = max(float(data.max()), 0.0)
    scale = float(np.float32((np.float32(high) - np.float32(low)) / np.float32(255))) or 1.0
    zero = float(np.clip(np.rint(-low / scale), 0, 255))
    whole = np.clip(np.rint(data / scale) + zero, 0, 255).astype(np.int64)
    return [whole, np.asarray(scale), np.asarray(int(zero))]


def _alone(
    node: onnx.NodeProto, count: int, opsets: Sequence[Any], taken: Values = ()
) -> onnx.ModelProto:
    """A model of one node whose inputs are called by their places."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    present = [i for i in range(count) if not taken or taken[i] is not None]
    made.input[:] = [str(i) if i in present else "" for i in range(count)]
    inputs = [helper.make_empty_tensor_value_info(str(i)) for i in present]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([made], "one", inputs, outputs)
    return helper.make_model(
        graph, opset_imports=list(opsets) or [helper.make_opsetid("", 17)], ir_version=8
    )
