"""Rules for kernels of processors and runtimes that answer differently from one int8 file.

``pair_sums`` gives the integers of onnxruntime 1.31 on an emulated AVX2 processor, in
convolutions of 9 shapes and products of 3 (``tests/benchmarks/avx2_only.py`` runs it there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.frontend.from_onnx.convert.quant import MOVES
from compiler.frontend.from_onnx.graph import node_name
from compiler.frontend.from_onnx.model_file import within
from compiler.judgement.exact import Evaluation
from compiler.judgement.kernels import BLOCKS, INTEGER, Kind
from compiler.judgement.layers import Network, Product
from compiler.judgement.nodes import DEQUANTIZE, DYNAMIC, QUANTIZE, attribute, given, windows
from compiler.judgement.overflow import biases, centred_data, centred_weights, terms_of
from compiler.ops.number_format import Array
from compiler.text_output import abbreviated

EXACT: Final = "exact"
MAY: Final = "may differ"
SATURATES: Final = "can saturate"
UNKNOWN: Final = "not examined"
X86: Final = ("x86 AVX2", "x86 AVX512", "x86 VNNI", "x86 AMX")
ARM: Final = ("Arm dot", "Arm i8mm")
TFLM: Final = "TFLM"
MACHINES: Final = (*X86, *ARM, TFLM)
_PAIRED: Final = X86[:2]


@dataclass(frozen=True, slots=True)
class Rule:
    """A reason of a cell, its source, and the version of the runtime that it is of."""

    says: str
    source: str
    version: str = "onnxruntime 1.31"


RULES: Final = {
    "pairs": Rule(
        "vpmaddubsw adds two products of uint8 by int8 in 16 bits, which saturate; "
        "session.x64quantprecision=1 avoids it, and quantize_static(..., reduce_range=True)",
        "onnxruntime, Quantize ONNX models, U8S8; mlas QgemmU8S8KernelAvx2",
    ),
    "sums": Rule(
        "products of 8 bits add up in 32 bits; the rescale in float32 is one on all processors",
        "onnxruntime mlas, qgemm kernels and quantize.cpp; Arm SDOT, SMMLA; Intel VPDPBUSD",
    ),
    "swapped": Rule(
        "the kernel takes uint8 weights for the unsigned operand; give ConvInteger uint8 data",
        "onnxruntime mlas, ConvInteger on an emulated AVX2 processor",
    ),
    "amx": Rule(
        "up to 1.24 the AMX kernel of uint8 by int8 computed rows wrongly; later ones are exact",
        "onnxruntime #26324, mended by #27671",
        "onnxruntime 1.21 to 1.24",
    ),
    "tflm": Rule(
        "the rescale is a multiplication by 31 bits and a shift, and rounds a tie up",
        "tensorflow/lite/kernels/internal/common.h, MultiplyByQuantizedMultiplier",
        "TFLM of 2026",
    ),
    "tie": Rule(
        "the rescale meets exact ties, which go to even in ONNX and up elsewhere",
        "onnx.ai, QuantizeLinear; gemmlowp, rounding",
        "onnx opset 10 to 25",
    ),
    "float sums": Rule(
        "it adds up in float: the order is the processor's, the threads' and the version's",
        "onnxruntime mlas, sgemm and softmax kernels; #29849",
    ),
    "blocks": Rule(
        "onnxruntime multiplies it by MatMulNBits, which rounds the data to int8 in blocks; in a "
        "QDQ file session.qdq_matmulnbits_accuracy_level=1 keeps them in float",
        "onnxruntime, docs/ContribOperators.md, MatMulNBits, accuracy_level 4",
    ),
    "function": Rule(
        "a function in float is approximated, with other instructions on other processors",
        "onnxruntime mlas, logistic.cpp, tanh.cpp, erf.cpp, compute.cpp",
    ),
    "fused": Rule(
        "the optimizer fuses it with its points, which rounds otherwise near a tie",
        "onnxruntime mlas, qladd.cpp and qlmul.cpp",
    ),
    "softmax": Rule(
        "1.0 is above the grid of the result; QLinearSoftmax of int8 wrapped it to -128",
        "onnxruntime #29727, mended by #29728 of July 2026",
        "onnxruntime before that; 1.31 saturates",
    ),
    "batch": Rule(
        "its range is measured over the whole batch: a sample depends on its neighbours",
        "onnx.ai, DynamicQuantizeLinear",
        "onnx opset 11 to 25",
    ),
}

_SUMS: Final = frozenset(
    (
        "Softmax",
        "LogSoftmax",
        "LayerNormalization",
        "InstanceNormalization",
        "ReduceMean",
        "GroupNormalization",
        "RMSNormalization",
        "ReduceSum",
        "ReduceL2",
        "ReduceL1",
        "Gemm",
        "ReduceSumSquare",
        "ReduceLogSumExp",
        "GlobalAveragePool",
        "AveragePool",
        "MatMul",
        "Conv",
        "ConvTranspose",
        "LSTM",
        "GRU",
        "RNN",
        "Einsum",
        "CumSum",
        "LpNormalization",
        "Attention",
        "SkipLayerNormalization",
        "SimplifiedLayerNormalization",
        "FusedMatMul",
        "LRN",
        "Resize",
        "MatMulNBits",
        "MultiHeadAttention",
        "GroupQueryAttention",
    )
)
_FUNCTIONS: Final = frozenset(
    (
        "Sigmoid",
        "Tanh",
        "Exp",
        "Log",
        "Erf",
        "Gelu",
        "FastGelu",
        "QuickGelu",
        "Elu",
        "Selu",
        "Softplus",
        "Mish",
        "Swish",
        "Pow",
        "Sin",
        "Cos",
        "BiasGelu",
        "Celu",
        "HardSwish",
    )
)
_ONE_ROUNDING: Final = frozenset(
    (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Sqrt",
        "Neg",
        "Abs",
        "LeakyRelu",
        "PRelu",
        "Min",
        "Max",
        "BatchNormalization",
        "HardSigmoid",
        "Sum",
        "Reciprocal",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
    )
)
_EXACT: Final = frozenset(
    (
        *MOVES,
        "Shape",
        "Cast",
        "Constant",
        "Range",
        "Not",
        "ConstantOfShape",
        "Where",
        "Equal",
        "Greater",
        "Less",
        "And",
        "Or",
        "ArgMax",
        "Size",
        "GlobalMaxPool",
        "Relu",
        "Clip",
        "Dropout",
        "Trilu",
        "ScatterND",
        "GreaterOrEqual",
        "LessOrEqual",
        "TopK",
        "ArgMin",
        "OneHot",
        "NonZero",
        "MatMulInteger",
        "ConvInteger",
        QUANTIZE,
        DEQUANTIZE,
        DYNAMIC,
        "If",
        "Loop",
        "Scan",
        "SequenceMap",
    )
)
"""Operators that give the same values everywhere."""


@dataclass(slots=True)
class Row:
    """A layer on every machine.

    Attributes:
        layer, op: name and operator.
        cells: machine → "exact", "may differ", "can saturate" or "not examined".
        rules: keys of RULES.
        pair: a pair of products that saturates, and its emulation.
        tie: an accumulator that the rescale meets a tie with.
        samples: calibration samples that saturate; None where none was looked at.
    """

    layer: str
    op: str
    cells: dict[str, str]
    rules: list[str] = field(default_factory=list)
    pair: dict[str, Any] | None = None
    tie: dict[str, Any] | None = None
    witness: str = ""
    samples: int | None = None


def machines(
    network: Network, runs: Sequence[Evaluation], kernels: Mapping[str, Kind] = MappingProxyType({})
) -> list[Row]:
    """A row for each product and each operator that is not a move, in order.

    Args:
        runs: evaluations of samples, which are counted.
        kernels: of ``read_kernels``; a product that has none there is taken for one of integers.
    """
    rows: list[Row] = []
    pending = [network]
    while pending:
        network = pending.pop()
        pending += network.branches()
        products = {product.name: product for product in network.products}
        for node in network.nodes:
            if node.name in products:
                rows.append(_product_row(products[node.name], network, runs, kernels))
            elif node.op_type == DYNAMIC:
                rows.append(Row(node.name, DYNAMIC, dict.fromkeys(MACHINES, EXACT), ["batch"]))
            elif node.op_type in _WEIGHTS_INSIDE:
                rows.append(_opaque_row(node, network))
            elif node.op_type not in _EXACT and not network.live.isdisjoint(node.output):
                rows.append(_float_row(node, network, kernels))
        runs = ()  # of the whole graph
    return rows


_WEIGHTS_INSIDE: Final = {"DynamicQuantizeLSTM": (1, 2), "QAttention": (1,)}
"""Operators of onnxruntime that multiply integers by these inputs, and are not written out."""


def _opaque_row(node: onnx.NodeProto, network: Network) -> Row:
    row = Row(node.name, node.op_type, dict.fromkeys(MACHINES, UNKNOWN))
    for place in _WEIGHTS_INSIDE[node.op_type]:
        name = given(node, place)
        weights = network.constants.get(name)
        dtype = network.dtype_of(name)
        signed = node.op_type == "QAttention" and network.dtype_of(node.input[0]) != "uint8"
        if dtype != "int8" or signed or (weights is not None and weights.ndim < 2):
            continue
        if weights is None:
            pairs = None
        else:
            pairs = np.swapaxes(weights, -1, -2)
        pair = _saturating_pair(None if pairs is None else _paired(pairs), *_UNSIGNED)
        if pair is not None:
            row.pair = pair
            row.rules = ["pairs"]
            row.cells |= dict.fromkeys(_PAIRED, SATURATES)
    return row


def _float_row(node: onnx.NodeProto, network: Network, kernels: Mapping[str, Kind]) -> Row:
    op = node.op_type
    row = Row(node.name, op, dict.fromkeys(MACHINES, EXACT))
    reads = [network.point_of(name) for name in node.input]
    writes = [reader.op_type for out in node.output for reader in network.readers.get(out, [])]
    if op in _SUMS or op in _FUNCTIONS:
        row.cells = dict.fromkeys(MACHINES, MAY) | {TFLM: UNKNOWN}
        row.rules = ["float sums" if op in _SUMS else "function"]
        if kernels.get(node.output[0]) == BLOCKS:
            row.rules = ["blocks"]
        if op == "Softmax":
            _softmax(row, node, network)
    elif op in ("Add", "Mul") and any(reads) and QUANTIZE in writes:
        row.cells = dict.fromkeys(MACHINES, MAY) | {TFLM: UNKNOWN}
        row.rules = ["fused"]
    elif op in _ONE_ROUNDING:
        row.cells[TFLM] = UNKNOWN
    else:
        row.cells = dict.fromkeys(MACHINES, UNKNOWN)
    return row


def _softmax(row: Row, node: onnx.NodeProto, network: Network) -> None:
    """The grid of an int8 softmax lacks 1.0: find operands that reach it."""
    readers = network.readers.get(node.output[0], [])
    if len(readers) != 1 or readers[0].op_type != QUANTIZE:
        return
    grid = network.grid(readers[0], readers[0].output[0])
    if grid.scale is None or grid.zero is None or grid.dtype != "int8" or grid.scale.size != 1:
        return
    top = 1.0 / float(grid.scale.item()) + int(grid.zero.item())
    if round(min(top, 1e9)) <= grid.high:
        return
    row.rules.append("softmax")
    point = network.point_of(node.input[0])
    if point is None:
        return
    data = network.grid(point, point.input[0])
    if data.scale is None or data.scale.size != 1:
        return
    # One operand at the top of its grid, another one at the bottom.
    gap = float(data.scale.item()) * (data.high - data.low)
    share = 1.0 / (1.0 + np.exp(-gap))
    result = round(min(share / float(grid.scale.item()), 1e9)) + int(grid.zero.item())
    if result > grid.high:
        row.witness = (
            f"operands {data.high} and {data.low} give {share:.6f}, {result} on the grid: "
            f"{grid.high} by ONNX, {(result + 128) % 256 - 128} where it wraps"
        )


def _product_row(
    product: Product,
    network: Network,
    runs: Sequence[Evaluation],
    kernels: Mapping[str, Kind],
) -> Row:
    row = Row(product.name, product.op, dict.fromkeys(MACHINES, EXACT), ["sums"])
    kernel = kernels.get(product.node.output[0], INTEGER)
    if not product.sums_int32 or not (product.integer_form or kernel == INTEGER):
        row.cells = dict.fromkeys(MACHINES, MAY) | {TFLM: UNKNOWN}
        row.rules = ["blocks" if kernel == BLOCKS else "float sums"]
        return row
    unsigned = product.data.dtype == "uint8"
    # The optimizer turns int8 data of a QDQ graph into uint8 on x86.
    mixed = product.weight.dtype == "int8" and (unsigned or not _one_type(product))
    # ConvInteger hands its kernel the weights as the unsigned operand.
    swapped = (product.op, product.data.dtype, product.weight.dtype) == _SWAPPED
    if mixed or swapped:
        row.rules += ["amx"] if mixed else ["swapped"]
        pairs = _pairs(product)
        known = pairs is not None or product.weights is None
        if known:
            row.pair = _saturating_pair(pairs, *(_UNSIGNED if mixed else _SIGNED))
        else:
            row.pair = None
        if row.pair is not None:
            row.cells |= dict.fromkeys(_PAIRED, SATURATES)
            row.rules.append("pairs")
            if runs and mixed:
                row.samples = sum(_saturates(product, pairs, run) for run in runs)
    elif product.weight.dtype != product.data.dtype:
        row.cells |= dict.fromkeys(X86, UNKNOWN)
    if product.result is None or product.weight.dtype != "int8":
        row.cells[TFLM] = UNKNOWN
    else:
        row.cells[TFLM] = MAY
        row.rules.append("tflm")
    row.tie = smallest_tie(product)
    if row.tie is not None:
        row.rules.append("tie")
    return row


def _one_type(product: Product) -> bool:
    """int8 by int8 in an integer operator, whose kernel adds up in 32 bits."""
    integer = product.integer_form or product.op.endswith("Integer")
    return integer and product.data.dtype == product.weight.dtype


# Pairs ------------------------------------------------------------------------------------------


def pair_sums(data: Array, weights: Array) -> Array:
    """Emulate vpmaddubsw and vpmaddwd: pairs of products saturate in 16 bits, then add up.

    Args:
        data: uint8 values, [..., K].
        weights: int8 values, [..., K], broadcast with data.
    """
    terms = np.asarray(data, np.int64) * np.asarray(weights, np.int64)
    if terms.shape[-1] % 2:
        terms = np.concatenate([terms, np.zeros((*terms.shape[:-1], 1), np.int64)], -1)
    pairs = np.clip(terms[..., 0::2] + terms[..., 1::2], -(2**15), 2**15 - 1)
    return np.asarray(pairs.sum(-1))


def _pairs(product: Product) -> Array | None:
    """Weights as [outputs, pairs, 2] in the order of the kernel; None for a depthwise one."""
    matrix = product.matrix()
    weights = product.weights
    if matrix is None or weights is None:
        return None
    convolution = "Conv" in product.op
    if convolution and weights.shape[1] == 1 and len(weights) == product.groups:
        return None
    return _paired(matrix)


def _paired(matrix: Array) -> Array:
    """Rows as pairs of neighbours."""
    width = matrix.shape[-1]
    rows = matrix.reshape(-1, width)
    return np.pad(rows, [(0, 0), (0, width % 2)]).reshape(len(rows), -1, 2)


_UNSIGNED: Final = (0, 255)
_SIGNED: Final = (-128, 127)
_SWAPPED: Final = ("ConvInteger", "int8", "uint8")


def _saturating_pair(pairs: Array | None, least: int, most: int) -> dict[str, Any] | None:
    """The pair of products that leaves 16 bits furthest, run through the emulation.

    Args:
        pairs: weights; None where they are computed, and may be any.
        least, most: ends of the data.
    """
    if pairs is None:
        pairs = np.full((1, 1, 2), 127 if most == 255 else 255)
    if not pairs.size:
        return None
    ends = pairs * least, pairs * most
    tops = np.maximum(*ends).sum(-1)
    lows = np.minimum(*ends).sum(-1)
    beyond = np.maximum(tops - (2**15 - 1), -(2**15) - lows)
    channel, place = np.unravel_index(int(beyond.argmax()), beyond.shape)
    if beyond[channel, place] <= 0:
        return None
    up = tops[channel, place] - (2**15 - 1) >= -(2**15) - lows[channel, place]
    pair = pairs[channel, place]
    data = np.where((pair > 0) == up, most, least)
    row = pairs[channel].reshape(-1)
    worst = np.where((row > 0) == up, most, least)
    return {
        "channel": int(channel),
        "place": int(place) * 2,
        "weights": pair.tolist(),
        "data": data.tolist(),
        "exact": int((pair * data).sum()),
        "saturated": int(pair_sums(data, pair)),
        "pairs": int((beyond > 0).sum()),
        "whole_exact": int((row * worst).sum()),
        "whole_saturated": int(pair_sums(worst, row)),
    }


_ROWS: Final = 1024
"""Rows of the data of one product, sample and group that are looked at."""


def _saturates(product: Product, pairs: Array | None, run: Evaluation) -> bool:
    """A sample makes a pair of products leave 16 bits."""
    if pairs is None or product.data_name not in run.values:
        return False
    data = run.values[product.data_name] + (128 if product.data.dtype == "int8" else 0)
    for part, rows in _rows(product, data):
        if not rows.size:
            continue
        mine = pairs[part].astype(np.float32)
        taken = rows[np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(int)]
        seen = _paired(taken).astype(np.float32)
        tops = np.maximum(mine, 0).max(0)
        lows = np.minimum(mine, 0).min(0)
        near = ((seen * tops).sum(-1) > 2**15 - 1) | ((seen * lows).sum(-1) < -(2**15))
        for place in np.nonzero(near.any(0))[0]:
            sums = seen[near[:, place], place] @ mine[:, place].T
            if sums.max() > 2**15 - 1 or sums.min() < -(2**15):
                return True
    return False


def _rows(product: Product, data: Array) -> Iterable[tuple[slice, Array]]:
    """Rows of uint8 data that outputs read, [rows, K], for each group of outputs."""
    if "Conv" not in product.op:
        turned = attribute(product.node, "transA", 0)
        data = data.T if turned else data
        yield slice(None), data.reshape(-1, data.shape[-1])
        return
    assert product.weights is not None
    if product.data.zero is None:
        zero = 0
    else:
        zero = int(product.data.zero.item())
    fill = zero + (128 if product.data.dtype == "int8" else 0)
    kernel = product.weights.shape[2:]
    seen = np.stack([s for _, s in windows(product.node, data, kernel, fill)])
    width = product.weights.shape[1]
    outputs = len(product.weights) // product.groups
    for group in range(product.groups):
        mine = seen[:, :, group * width : (group + 1) * width]
        rows = np.moveaxis(mine, (0, 2), (-2, -1)).reshape(-1, len(seen) * width)
        yield slice(group * outputs, (group + 1) * outputs), rows


# Padding ----------------------------------------------------------------------------------------


_NEVER_NEGATIVE: Final = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Abs", "Exp")


def padding_notes(model: onnx.ModelProto) -> tuple[str, ...]:
    """Name each MaxPool whose padding by zeros onnxruntime's Pad_Fusion loses; mostly none.

    The optimizer makes a Pad in front of a MaxPool padding of that, which no maximum sees: where
    all values of a window are negative, it is another one (1.31).
    """
    found = [pool for g in within(model, onnx.GraphProto) for pool in _pools_that_lose_zeros(g)]
    if not found:
        return ()
    told = (
        "onnxruntime computes something else from this file than it says: it takes the zeros of a "
        f"Pad in front of a MaxPool for padding ({abbreviated(found, 3)}); qsearch does not, nor "
        'does onnxruntime with InferenceSession(…, disabled_optimizers=["Pad_Fusion"])'
    )
    return (told,)


def _pools_that_lose_zeros(graph: onnx.GraphProto) -> Iterator[str]:
    writer = {name: node for node in graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    stored |= {node.output[0]: attribute(node, "value", None) for node in constants}
    for place, node in enumerate(graph.node):
        if node.op_type == "MaxPool":
            pad = writer.get(given(node, 0))
        else:
            pad = None
        if pad is None or pad.op_type != "Pad":
            continue
        if attribute(pad, "mode", b"constant") != b"constant":
            continue
        value = stored.get(given(pad, 2))
        unknown = given(pad, 2) and (value is None or value.data_location == value.EXTERNAL)
        filled = attribute(pad, "value", 0.0) if value is None else 0.0
        if unknown or filled or (value is not None and numpy_helper.to_array(value).any()):
            continue
        source = writer.get(given(pad, 0))
        if source is None or source.op_type not in _NEVER_NEGATIVE:
            yield node_name(node, place)


# Ties -------------------------------------------------------------------------------------------


_TRIED: Final = 64
"""Accumulators whose operands are looked for."""


def smallest_tie(product: Product) -> dict[str, Any] | None:
    """The accumulator nearest to 0 whose rescaled value stands between two integers, if reachable.

    The scale is m = sx sw / sy = P 2^e / Q with odd P and Q; an accumulator a meets a tie if
    a m = n + 1/2, so if a is an odd multiple of Q 2^(-e - 1).
    """
    weights = centred_weights(product)
    result = product.result
    if weights is None or result is None or result.zero is None or result.zero.size != 1:
        return None
    if product.bias is not None and not product.whole_bias:
        return None
    bias = biases(product, len(weights))
    lows, highs = (each.sum(1) + bias for each in terms_of(product, weights))
    ends = centred_data(product)
    zero = int(result.zero.item())
    only_positive = "Relu" in product.between
    found: dict[str, Any] | None = None
    scales = product.scales()
    if scales is None:
        return None
    unit = Fraction(scales[0]) / Fraction(scales[2])
    tried = 0
    for channel, each in enumerate(scales[1].tolist()):
        scale = unit * Fraction(each)
        # a P 2^e / Q = n + 1/2 needs e < 0: the step is half of an even denominator.
        step = 0 if scale.denominator % 2 else scale.denominator // 2
        for sum_ in (step, -step) if step else ():
            value = sum_ * scale
            inside = result.low - zero < value < result.high - zero
            reached = lows[channel] <= sum_ <= highs[channel] and inside
            if not reached or (sum_ < 0 and only_positive):
                continue
            tried += 1
            operands = operands_of(weights[channel], sum_ - int(bias[channel]), *ends)
            if found is None or operands is not None:
                found = {
                    "channel": channel,
                    "accumulator": sum_,
                    "value": float(value),
                    "operands": None if operands is None else operands.tolist(),
                }
            if operands is not None or tried == _TRIED:
                return found
    return found


def operands_of(weights: Array, wanted: int, least: int, most: int) -> Array | None:
    """Integers in [least, most] whose products with the weights add up to a number, if found."""
    made = np.zeros(len(weights), np.int64)
    left = wanted
    for place in np.argsort(-np.abs(weights), kind="stable"):
        weight = int(weights[place])
        if weight == 0 or left == 0:
            continue
        made[place] = min(max(int(left / weight), least), most)
        left -= int(made[place]) * weight
    if left == 0 and least <= 0 <= most:
        return made
    return None


def differs(rows: Iterable[Row]) -> bool:
    """True if some machine may give other integers."""
    return any(set(row.cells.values()) - {EXACT} or "batch" in row.rules for row in rows)


def reasons(rows: Iterable[Row]) -> Mapping[str, list[str]]:
    """Layers by the rule that some cell of theirs stands on, in the order of RULES."""
    found: dict[str, list[str]] = {key: [] for key in RULES}
    for row in rows:
        for key in row.rules:
            found[key].append(row.layer)
    return {key: layers for key, layers in found.items() if layers}
