"""QuantizeLinear and DequantizeLinear of models that are quantized already.

    before                                      after
    QuantizeLinear, moves, DequantizeLinear     simulated_quantize of the real value, moves
    DequantizeLinear of a constant              simulated_quantize of the weight
    DequantizeLinear of other integers          arithmetic, and simulated_quantize that keeps it

Integers that a QuantizeLinear gives are remembered with the real value that they stand for
(``GraphValues.quantized``). What moves them moves that value as well, so that it meets the
DequantizeLinear behind. A Clip between them limits it. Parameters that are no constants, and blocks
of scales, are plain arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import onnx

from compiler.frontend.from_onnx.node import Grid, OnnxNode, Quantized, dtype_of
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Call, Expr, Op, Var, is_op_call
from compiler.ir.ty import TensorType, integer_range, is_float
from compiler.ops.number_format import Array, storage_dtype
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ops.rules.realize import first_that_holds
from compiler.ops.tensor.clip import ClipAttrs
from compiler.qtypes.qconfig import QAnnotateKind

MICROSOFT: Final = "com.microsoft"
QUARK: Final = "com.amd.quark"
_QUANTIZED = ("int4", "uint4", "int8", "uint8", "int16", "uint16")


def check_zero_point(node: OnnxNode, index: int, of: int | None = None) -> None:
    """Refuse a zero point of another dtype than input ``of``, or than quantized values have.

    Raises:
        OnnxImportError: a cast would give NaN and wide integers a meaning that ONNX does not.
    """
    if node.has_input(index):
        dtype = node.arg(index).tensor_type.dtype
        legal: tuple[str, ...] = _QUANTIZED if of is None else (node.arg(of).tensor_type.dtype,)
        if of is not None and node.known(of) is not None:  # a folded QuantizeLinear is in bytes
            legal += (dtype,) if str(storage_dtype(dtype)) in legal else ()
        if dtype not in legal:
            raise node.error(f"a zero point is {dtype} where {', '.join(legal)} is due")


def _parameter(node: OnnxNode, index: int) -> Expr:
    """A scale or zero point: a Constant where it is known, since it is no weight."""
    known = node.known(index)
    if known is None:
        return node.arg(index)
    return node.const(known)


def _per_axis(node: OnnxNode, value: Expr, data: Expr) -> Expr:
    """A scalar as it is; a vector or blocks shaped so that they broadcast along ``axis``."""
    if node.rank(value) == 0:
        return value
    if node.attr("block_size", 0):
        return _per_block(node, value, data)
    if node.rank(value) != 1:
        raise node.error(f"a scale or zero point of rank {node.rank(value)} needs block_size")
    if node.shape(value) == (1,):
        return node.call("squeeze", value, axis=(0,))
    return node.along(value, node.attr("axis", 1), node.rank(data))


def _per_block(node: OnnxNode, value: Expr, data: Expr) -> Expr:
    """One value per ``block_size`` elements along ``axis``, repeated for each of them."""
    axis = node.axis(node.attr("axis", 1), node.rank(data))
    size = node.shape(data)[axis]
    block = node.attr("block_size")
    blocks = node.shape(value)[axis]
    if not (blocks - 1) * block < size <= blocks * block:
        raise node.error(f"{blocks} blocks of {block} do not cover {size} elements")
    # Taking each block's value by index also cuts the last, shorter block.
    indices = node.const(np.arange(size, dtype=np.int64) // block)
    return node.call("take", value, indices, axis=axis)


@from_onnx("DequantizeLinear", since=10, folds=False)
@from_onnx("DequantizeLinear", domain=MICROSOFT, folds=False)
@from_onnx("ExtendedDequantizeLinear", domain=QUARK, folds=False)
def dequantize_linear(node: OnnxNode) -> Expr:
    """(x - zero_point) scale."""
    check_zero_point(node, 2, of=0)
    scale = _parameter(node, 1)
    dtype = scale.tensor_type.dtype
    if node.attr("output_dtype", 0):
        dtype = dtype_of(node.attr("output_dtype"), node.label)
    stored = node.known(0)
    grid = _grid(node)
    node.values.integer_weights |= stored is not None and stored.dtype != np.int32
    result = None
    if grid is not None:
        if stored is None:
            result = _point(node, grid)
        else:
            result = _weight(node, stored, grid)
    if result is None:
        result = _arithmetic(node, scale, dtype)
        codes = stored is None and node.arg(0).tensor_type.dtype in _QUANTIZED
        if codes and grid is not None and grid.scale.ndim == 0:
            result = _call(node, result, grid, QAnnotateKind.INPUT)
    return node.cast(result, dtype)


def _arithmetic(node: OnnxNode, scale: Expr, dtype: str) -> Expr:
    data = node.arg(0)
    result = node.call("cast", data, dtype=dtype)
    if node.has_input(2):
        zero = node.call("cast", _parameter(node, 2), dtype=dtype)
        result = node.call("subtract", result, _per_axis(node, zero, data))
    return node.call("multiply", result, node.cast(_per_axis(node, scale, data), dtype))


@from_onnx("QuantizeLinear", since=10)
@from_onnx("QuantizeLinear", domain=MICROSOFT)
@from_onnx("ExtendedQuantizeLinear", domain=QUARK)
def quantize_linear(node: OnnxNode) -> Expr:
    """saturate(round_half_to_even(x / scale) + zero_point)."""
    check_zero_point(node, 2)
    data = node.arg(0)
    grid = _grid(node)
    if grid is not None and data.tensor_type.dtype in ("float32", "float16"):
        return quantized(node, node.proto.output[0], data, grid)
    scale = _per_axis(node, _parameter(node, 1), data)
    target = _integer_dtype(node)
    result = node.call("round_even", node.call("divide", data, scale))
    if node.has_input(2):
        zero = node.call("cast", _parameter(node, 2), dtype=data.tensor_type.dtype)
        result = node.call("add", result, _per_axis(node, zero, data))
    low, high = integer_range(target)
    clipped = node.call("clip", result, a_min=float(low), a_max=float(high))
    return node.call("cast", clipped, dtype=target)


QONNX: Final = "qonnx.custom_op.general"


@from_onnx("Quant", domain=QONNX)
def quant(node: OnnxNode) -> Expr:
    """QONNX's point: (clip(round(x / scale + zero_point)) - zero_point) scale, of any bits.

    Source: QONNX, "Quant"; Brevitas and QKeras write it.
    """
    names = ("the scale", "the zero point", "the number of bits")
    scale, zero, width = (node.require_known(i, what) for i, what in enumerate(names, 1))
    data = node.arg(0)
    nbit = int(width.reshape(-1)[0])
    signed = int(node.attr("signed", 1))
    whole = width.size == 1 and width == nbit and not (zero % 1).any() and (scale > 0).all()
    stored = node.known(0) is not None
    most = 32 if stored else 16
    if not whole or not 2 <= nbit <= most or node.attr("rounding_mode", "ROUND") != "ROUND":
        raise node.error(
            f"{node.attr('rounding_mode', 'ROUND')} to {width.reshape(-1)[0]:g} bits is not read",
            "export points of 2 to 16 whole bits that round half to even",
        )
    narrow = int(node.attr("narrow", 0))
    high = (1 << (nbit - signed)) - 1
    low, high = (narrow - high - 1, high) if signed else (0, high - narrow)
    dtype = first_that_holds(low, high, (*_QUANTIZED[2:], "int32"))
    assert dtype is not None
    long = [place for place, size in enumerate(scale.shape) if size > 1]
    if len(long) > 1:
        raise node.error("scales along two axes are not read", "give one for each channel")
    axis = node.rank(data) - scale.ndim + long[0] if long else 0
    held = scale.astype(np.float32).reshape(-1 if long else ())
    zeros = np.broadcast_to(zero.reshape(-1 if zero.size > 1 else ()), held.shape)
    grid = Grid(held, zeros.astype(np.int64), axis, dtype, low, high)
    node.values.integer_weights |= stored
    if not stored:
        data, grid = _limited_by_point(data, grid)
    return _call(node, data, grid, QAnnotateKind.WEIGHT if stored else QAnnotateKind.INPUT)


def quantized(node: OnnxNode, name: str, data: Expr, grid: Grid) -> Expr:
    """The integers of ``data`` on a grid, remembered as tensor ``name`` with the real values."""
    data, grid = _limited_by_point(data, grid)
    stored = all(map(node.values.is_stored, node.proto.input))
    kind = QAnnotateKind.WEIGHT if stored else QAnnotateKind.INPUT
    real = _call(node, data, grid, kind)
    return _codes(node, name, Quantized(data, real, grid))


def _limited_by_point(data: Expr, grid: Grid) -> tuple[Expr, Grid]:
    """A relu or clip between an input of the model and a point becomes the point's own limits: as
    an operator on integers it would ask for a point in front."""
    base = data
    while isinstance(base, Call) and is_op_call(base, "nn.relu", "clip", "multiply", "reshape"):
        base = base.args[0]
    while isinstance(base, Var) and not grid.scale.ndim and isinstance(data, Call):
        if not is_op_call(data, "nn.relu", "clip"):
            break
        low, high = 0.0, np.inf
        if is_op_call(data, "clip"):
            low = ClipAttrs.of(data).a_min
            high = ClipAttrs.of(data).a_max
        ends = np.clip(np.rint(np.array([low, high]) / grid.scale), *_bounds(grid)).astype(int)
        lowest, highest = (int(end + grid.zero_point) for end in ends)
        data = data.args[0]
        grid = grid._replace(low=lowest, high=highest)
    return data, grid


def _codes(node: OnnxNode, name: str, held: Quantized) -> Expr:
    node.values.quantized[name] = held
    data, real, grid = held
    if grid.scale.ndim:
        scale = node.const(grid.scale, real.tensor_type.dtype)
        units = node.call("round_even", node.call("divide", real, _per_axis(node, scale, data)))
    else:  # at the scale 1 a module has them as integers
        units = node.times(real, 1 / float(grid.scale))
        units = _call(
            node, units, grid._replace(scale=np.ones((), np.float32)), QAnnotateKind.INPUT
        )
    zero = _per_axis(node, node.const(grid.zero_point, "int32"), data)
    low, high = _bounds(grid)  # known, so that no sum leaves its dtype
    whole = node.call("clip", node.call("cast", units, dtype="int32"), a_min=low, a_max=high)
    codes = node.call("add", whole, zero)
    return node.call("cast", codes, dtype=grid.dtype)


# What stands between QuantizeLinear and DequantizeLinear -----------------------------------------

PERMUTATIONS: Final = (
    "DepthToSpace",
    "Flatten",
    "Identity",
    "Reshape",
    "SpaceToDepth",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
"""Operators whose result has the elements of their operand, each once."""
MOVES: Final = (
    *PERMUTATIONS,
    "Concat",
    "Expand",
    "Gather",
    "GatherElements",
    "GatherND",
    "MaxPool",
    "Pad",
    "ReduceMax",
    "ReduceMin",
    "Slice",
    "Split",
    "Tile",
)
"""Operators that give integers of their operands: what they do to real values as well."""


def _scaled_product(node: OnnxNode) -> Sequence[Expr] | None:
    """A product of integers as float, or that times constants."""
    products = node.values.products
    reads = node.proto.input
    result = node.proto.output[0]
    place = next((i for i, name in enumerate(reads) if name in products), None)
    if place is None:
        return None
    times = products[reads[place]]
    factor = np.ones((), np.float32)
    if node.op_type == "Cast":
        if dtype_of(node.attr("to"), node.label) != "float32":
            return None
        products[result] = times
    else:
        known = node.known(1 - place)
        if known is None or known.dtype != np.float32:
            return None
        factor = known
    real = times(factor)
    if real is None:
        return None
    return [real]


def carried(node: OnnxNode, convert: Callable[[OnnxNode], Sequence[Expr]]) -> Sequence[Expr] | None:
    """The integers that a node between QuantizeLinear and DequantizeLinear gives, by the real
    values that it moves or limits; None for any other node."""
    values = node.values
    proto = node.proto
    if values.products and proto.op_type in ("Cast", "Mul"):
        return _scaled_product(node)
    held = [values.quantized[name] for name in proto.input if name in values.quantized]
    if (
        not held
        or held[0].grid.scale.ndim
        or any(not one.grid.equals(held[0].grid) for one in held)
    ):
        return None
    grid = held[0].grid
    if proto.op_type == "Clip" and len(proto.output) == 1:
        limits = [node.known(index) for index in range(1, node.num_inputs) if node.has_input(index)]
        if len(limits) != 2 or limits[0] is None or limits[1] is None:
            return None
        low = max(grid.low, int(limits[0]))
        high = min(grid.high, int(limits[1]))
        limited = grid._replace(low=low, high=high)
        return [quantized(node, proto.output[0], held[0].data, limited)]
    nearest = proto.op_type == "Resize" and node.attr("mode", "nearest") == "nearest"
    if not (proto.op_type in MOVES or nearest):
        return None
    moved = onnx.NodeProto()
    moved.CopyFrom(proto)
    for index, name in enumerate(proto.input):
        if name in values.quantized:
            moved.input[index] = f"{name} as real"
            values.bind(moved.input[index], values.quantized[name].real, [name])
    if proto.op_type == "Pad":
        if node.has_input(2):
            filled = node.known(2)
        else:
            filled = np.zeros((), np.int64)
        if filled is None:
            return None
        number = (int(filled.reshape(())) - int(grid.zero_point)) * grid.scale
        name = f"{proto.output[0]} is filled"
        values.bind(name, node.scalar_like(float(number), held[0].real))
        moved.input[2:3] = [name]
    found = convert(replace(node, proto=moved))
    return [
        _codes(node, name, Quantized(real, real, grid))
        if is_float(real.tensor_type.dtype)
        else real
        for name, real in zip(proto.output, found)
    ]


@from_onnx("MatMulNBits", domain="com.microsoft")
def matmul_nbits(node: OnnxNode) -> Expr:
    """data W^T + bias; W[n,k] = (q[n,k] - zero[n,b]) scale[n,b] in blocks b along k."""
    rows, columns, block = (int(node.attr(name)) for name in ("N", "K", "block_size"))
    nbit = int(node.attr("bits", 4))
    blocks = -(-columns // block)
    if node.has_input(4) or nbit not in (2, 4, 8):
        raise node.error(f"weights of {nbit} bits, in an order of their own or not, are not read")
    stored = node.require_known(1, "the weight").reshape(rows, -1)
    node.values.integer_weights = True
    scale = node.require_known(2, "the scales").reshape(rows, blocks).astype(np.float32)
    zero = np.full((rows, blocks), 1 << (nbit - 1), np.float32)
    if node.has_input(3):
        held = node.require_known(3, "the zero points").reshape(rows, -1)
        if held.dtype == np.uint8:
            zero = unpacked(held, nbit, blocks)
        else:
            zero = held
        zero = zero.astype(np.float32)
    levels = unpacked(stored, nbit, blocks * block).reshape(rows, blocks, block)
    weight = (levels.astype(np.float32) - zero[:, :, None]) * scale[:, :, None]
    held = np.ascontiguousarray(weight.reshape(rows, -1)[:, :columns])
    result = node.call("nn.dense", node.arg(0), node.const(held), units=rows)
    if node.has_input(5):
        return node.call("add", result, node.arg(5))
    return result


def unpacked(rows: Array, nbit: int, count: int) -> Array:
    """Return the numbers of ``nbit`` bits in the bytes of each row, the lowest bits first."""
    shifts = np.arange(0, 8, nbit, dtype=np.uint8)
    numbers = (rows[:, :, None] >> shifts) & np.uint8((1 << nbit) - 1)
    return np.asarray(numbers.reshape(len(rows), -1)[:, :count])


# Points and weights ------------------------------------------------------------------------------

SIMULATED_QUANTIZE = "relay.op.annotation.simulated_quantize"
# Bounds are float32: 2^31 - 1 is not one, 2^31 is never reached by an int32.
_INT32 = (-(2.0**31), 2.0**31)


def _grid(node: OnnxNode) -> Grid | None:
    """Scale, zero point and range where they are constant: one, or one for each channel."""
    scale = node.known(1)
    if scale is None or scale.dtype.kind != "f" or node.attr("block_size", 0):
        return None
    scale = scale.astype(np.float32)
    if scale.ndim > 1 or not (np.isfinite(scale) & (scale > 0)).all():
        return None
    zero_point = node.known(2)
    if zero_point is None:
        if node.has_input(2):
            return None
        zero_point = np.zeros(scale.shape, np.int64)
    zero_point = zero_point.astype(np.int64)
    dtype = _integer_dtype(node)
    narrow = node.values.has_2_bits(node.proto.input[2 if node.has_input(2) else 0])
    if dtype not in (*_QUANTIZED, "int32") or zero_point.shape != scale.shape:
        return None
    if scale.shape == (1,):
        scale = scale.reshape(())
        zero_point = zero_point.reshape(())
    low, high = integer_range(dtype)
    if narrow:
        low, high = (low // 4, high // 4) if low else (0, 3)
    return Grid(scale, zero_point, node.attr("axis", 1), dtype, low, high)


def _integer_dtype(node: OnnxNode) -> str:
    """The dtype of the integers that a node reads or gives."""
    if node.has_input(2):
        return _parameter(node, 2).tensor_type.dtype
    if node.op_type.endswith("DequantizeLinear"):
        return node.arg(0).tensor_type.dtype
    given = node.attr("output_dtype", 0)
    if given:
        return dtype_of(given, node.label)
    return "uint8"


def _point(node: OnnxNode, grid: Grid) -> Expr | None:
    """The real value of integers that a QuantizeLinear gave; at another scale, stored anew."""
    source = node.values.quantized.get(node.proto.input[0])
    if source is None or not np.array_equal(source.grid.zero_point, grid.zero_point):
        return None
    if source.grid.equals(grid):
        return source.real
    if grid.scale.ndim:
        return None
    limited = grid._replace(low=source.grid.low, high=source.grid.high)
    factor = float(grid.scale) / float(source.grid.scale)
    return _call(node, node.times(source.real, factor), limited, QAnnotateKind.INPUT)


def _weight(node: OnnxNode, stored: Array, grid: Grid) -> Expr | None:
    if not np.issubdtype(stored.dtype, np.integer):
        stored = stored.astype(np.int64)
    axis = _axis(node, stored.ndim, grid)
    shape = [1] * stored.ndim
    if axis is not None:
        shape[axis] = -1
        if stored.shape[axis] != grid.scale.size:
            return None
    centred = stored.astype(np.int64) - grid.zero_point.reshape(shape or ())
    values = centred.astype(np.float32) * grid.scale.reshape(shape or ())
    if not np.array_equal(_simulated(values, grid, axis), values):
        return None
    digest = hashlib.sha256(repr(grid.axis).encode() + grid.scale.tobytes())
    digest.update(grid.zero_point.tobytes())  # integers may be shared, and their scales differ
    weight = node.weight(0, f"dequantized_{digest.hexdigest()[:8]}", lambda _: values)
    assert weight is not None
    return _call(node, weight, grid, QAnnotateKind.WEIGHT)


def _bounds(grid: Grid) -> tuple[float, float]:
    """Lowest and highest integer minus the zero points."""
    if grid.dtype == "int32" and not grid.zero_point.any():
        return _INT32
    zeros = grid.zero_point
    return float(grid.low - zeros.max()), float(grid.high - zeros.min())


def _axis(node: OnnxNode, rank: int, grid: Grid) -> int | None:
    if grid.scale.ndim:
        return node.axis(grid.axis, rank)
    return None


def _simulated(values: Array, grid: Grid, axis: int | None) -> Array:
    """Return the values after simulated_quantize, which differ where a tiny scale is rounded
    away."""
    op = Op.get(SIMULATED_QUANTIZE)
    assert op.attrs_type is not None
    attrs = op.attrs_type.make(kind=int(QAnnotateKind.WEIGHT), rounding="round_even", axis=axis)
    arrays = [values, grid.scale, *(np.asarray(bound, np.float32) for bound in _bounds(grid))]
    out_type = TensorType(values.shape, str(values.dtype))
    return FNumpyCompute.require(op)(attrs, arrays, out_type)[0]


def _call(node: OnnxNode, data: Expr, grid: Grid, kind: QAnnotateKind) -> Expr:
    low, high = (node.const(np.float32(bound)) for bound in _bounds(grid))
    return node.call(
        SIMULATED_QUANTIZE,
        data,
        node.const(grid.scale),
        low,
        high,
        kind=int(kind),
        rounding="round_even",
        axis=_axis(node, node.rank(data), grid),
        given=kind == QAnnotateKind.INPUT and grid.scale.ndim == 0,
    )
