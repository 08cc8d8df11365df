"""The grids of an int8 file against the float model: scales, axes and zero points that lose SQNR.

A weight or a quantization point is named where a grid of as many bits, with the range of the
float values and a scale for each output of a weight, keeps more than ``LOST_DB`` more of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import onnx

from compiler.errors import EvaluationError
from compiler.frontend.from_onnx.inlining import inline_functions
from compiler.frontend.from_onnx.model_file import read_model
from compiler.judgement.layers import PRODUCTS, Network, Product
from compiler.judgement.nodes import DEQUANTIZE, QUANTIZE, Grid
from compiler.ops.number_format import Array
from compiler.targets.ort.session import OrtExecutor, with_outputs

Shape = tuple[int, ...]

LOST_DB: Final = 6.0
"""A loss of this many dB, which is a bit, is named."""
_SHIFTED: Final = 8
"""Steps that are clipped at one end and unused at the other of a grid whose zero point is off."""
_SHRUNK: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True, slots=True)
class Loss:
    """A grid that loses what it need not.

    Attributes:
        layer: the product or the tensor.
        what: "weight" or "point".
        sqnr_db: of the float values on the given grid.
        best_db: on a grid of as many bits.
        cause: in words.
    """

    layer: str
    what: str
    sqnr_db: float
    best_db: float
    cause: str


def compare_grids(
    network: Network,
    float_model: str | os.PathLike[str] | bytes,
    inputs: Sequence[Mapping[str, Array]],
) -> list[Loss]:
    """Name the grids that lose more than LOST_DB against the float model.

    Args:
        inputs: samples, for the ranges of values.
    Raises:
        OnnxImportError: the float model cannot be read.
        CodegenError, EvaluationError: onnxruntime does not run it on the samples.
    """
    plain = Network(inline_functions(read_model(float_model)))
    partners = _partners(network, plain)
    found = [
        loss
        for product, node in partners
        if (loss := _weight_loss(product, plain.constants[node.input[1]])) is not None
    ]
    found += _unequal_points(network)
    wanted = _tensors(network, plain, partners)
    if not wanted or not inputs:
        return found
    values = _values(plain, sorted(set(wanted.values())), inputs)
    for point, tensor in wanted.items():
        grid = network.grid(network.writer[point], point)
        loss = _point_loss(point, grid, values[tensor])
        found += [] if loss is None else [loss]
    return found


def _partners(network: Network, plain: Network) -> list[tuple[Product, onnx.NodeProto]]:
    """Pair products with the float nodes of the nearest weights of the same shape."""
    nodes: dict[Shape, dict[str, onnx.NodeProto]] = {}
    for node in plain.nodes:
        if node.op_type in PRODUCTS and len(node.input) > 1 and node.input[1] in plain.constants:
            nodes.setdefault(_shape_of(plain.constants[node.input[1]]), {})[node.output[0]] = node
    found = []
    for product in network.products:
        weight = _dequantized(product)
        if weight is None:
            same = {}
        else:
            same = nodes.get(_shape_of(weight), {})
        if weight is None or not same:
            continue
        named = [n for n in same.values() if product.name in (n.name, f"{n.name}_quant")]
        likeness = partial(_likeness, product, weight, plain)
        if named:
            nearest = named[0]
        else:
            nearest = max(same.values(), key=likeness)
        del same[nearest.output[0]]
        found.append((product, nearest))
    return found


def _shape_of(weight: Array) -> Shape:
    """Return the shape; of a matrix and its transpose the same one."""
    if weight.ndim == 2:
        return tuple(sorted(weight.shape))
    return weight.shape


def _dequantized(product: Product) -> Array | None:
    grid = product.weight
    weights = product.weights
    if weights is None or grid.scale is None or grid.zero is None or grid.scale.ndim > 1:
        return None
    scale, zero = (grid.along(weights.ndim, v) for v in (grid.scale, grid.zero))
    try:
        return np.asarray((weights - zero) * scale)
    except ValueError:  # scales that do not fit
        return None


def _turned(product: Product, weight: Array) -> Array | None:
    """A float weight in the layout of the product; None where the shapes differ."""
    shape = () if product.weights is None else product.weights.shape
    if weight.shape == shape:
        return weight
    if weight.ndim == 2 and weight.shape[::-1] == shape:
        return weight.T
    return None


def _likeness(product: Product, weight: Array, plain: Network, node: onnx.NodeProto) -> float:
    other = _turned(product, plain.constants[node.input[1]])
    assert other is not None
    norms = float(np.linalg.norm(weight) * np.linalg.norm(other))
    if norms:
        return abs(float((weight * other).sum())) / norms
    return 0.0


def _weight_loss(product: Product, stored: Array) -> Loss | None:
    wanted = _turned(product, stored)
    weight = _dequantized(product)
    grid = product.weight
    if wanted is None or weight is None or product.weights is None:
        return None
    axis = product.output_axis(wanted.ndim)
    others = tuple(i for i in range(wanted.ndim) if i != axis)
    # Batch norms and the like are factors of outputs.
    square = (wanted * wanted).sum(others, keepdims=True)
    factor = (weight * wanted).sum(others, keepdims=True) / np.where(square > 0, square, 1)
    scaled = wanted * factor
    if _sqnr(scaled, weight) > _sqnr(wanted, weight) + 10:
        wanted = scaled
    ends = np.abs(wanted).max(others, keepdims=True)
    # One bit is left unused on purpose, for processors without VNNI.
    if weight.size:
        levels = int(product.weights.max() - product.weights.min()) + 1
    else:
        levels = 0
    top = 2 ** (grid.bits - 1 - (levels <= 2 ** (grid.bits - 1))) - 1
    step = np.where(ends > 0, ends / top, 1)
    best = _sqnr(wanted, np.clip(np.rint(wanted / step), -top - 1, top) * step)
    own = _sqnr(wanted, weight)
    if best - own < LOST_DB:
        return None
    return Loss(product.name, "weight", own, best, _cause(product, grid, wanted, weight, axis))


def _cause(product: Product, grid: Grid, wanted: Array, weight: Array, axis: int) -> str:
    assert grid.scale is not None
    assert grid.zero is not None
    assert product.weights is not None
    scale = grid.along(wanted.ndim, grid.scale)
    if grid.scale.size > 1 and grid.axis % wanted.ndim != axis:
        return f"its scales lie along axis {grid.axis}, its outputs along axis {axis}"
    steps = (wanted - weight) / scale
    shift = float(np.median(steps))
    if abs(shift) > 1:
        return f"its zero point is off by about {-shift:.0f}"
    levels = int(product.weights.max() - product.weights.min()) + 1
    if levels <= 2 ** (grid.bits - 2):
        return f"{levels} of {2**grid.bits} levels are used"
    low, high = (
        scale * (end - grid.along(wanted.ndim, grid.zero)) for end in (grid.low, grid.high)
    )
    clipped = float(((wanted < low - scale) | (wanted > high + scale)).mean())
    if clipped > 0:
        return f"{100 * clipped:.2g} % of its values are clipped"
    one = np.abs(wanted).max() / (2 ** (grid.bits - 1) - 1)
    if grid.scale.size == 1 and float(scale.item()) < 3 * one:
        return "it has one scale for all outputs"
    return "its integers are not those of the float weights on these scales"


def _sqnr(wanted: Array, given: Array) -> float:
    noise = float(((wanted - given) ** 2).sum())
    power = float((wanted * wanted).sum())
    return 10 * float(np.log10(max(power, 1e-300) / max(noise, 1e-20 * power, 1e-300)))


# Values -----------------------------------------------------------------------------------------


def _unequal_points(network: Network) -> list[Loss]:
    """A DequantizeLinear of another grid than the QuantizeLinear that wrote its integers."""
    found = []
    for node in network.nodes:
        if node.op_type == DEQUANTIZE:
            written = network.writer.get(node.input[0])
        else:
            written = None
        if written is None or written.op_type != QUANTIZE:
            continue
        ours = network.grid(node, node.input[0])
        theirs = network.grid(written, node.input[0])
        for name in ("scale", "zero"):
            a = getattr(ours, name)
            b = getattr(theirs, name)
            if a is not None and b is not None and not np.array_equal(a, b):
                told = f"written with {name} {_brief(b)}, read with {_brief(a)}"
                found.append(Loss(node.input[0], "point", 0.0, 0.0, told))
    return found


def _brief(values: Array) -> str:
    return f"{values.reshape(-1)[0]:.6g}"


def _tensors(
    network: Network, plain: Network, partners: Sequence[tuple[Product, onnx.NodeProto]]
) -> dict[str, str]:
    """Points of the file, by their integers, and the float tensors that they quantize."""
    known = {*plain.writer, *plain.inputs}
    by_product = {p.result_name: node.output[0] for p, node in partners if p.result_name}
    found = {}
    for node in network.nodes:
        if node.op_type != QUANTIZE or network.live.isdisjoint(node.output):
            continue
        point = node.output[0]
        names = (node.input[0], point.removesuffix("_quantized"), by_product.get(point, ""))
        name = next((n for n in names if n in known), None)
        if name is not None:
            found[point] = _behind_relu(plain, name, network.grid(node, point))
    return found


def _behind_relu(plain: Network, name: str, grid: Grid) -> str:
    """The tensor behind a Relu or Clip that a grid from its zero point on has taken in."""
    readers = plain.readers.get(name, [])
    unsigned = grid.zero is not None and bool((grid.zero == grid.low).all())
    clips = len(readers) == 1 and readers[0].op_type in ("Relu", "Clip")
    return readers[0].output[0] if unsigned and clips else name


def _values(
    plain: Network, names: Sequence[str], inputs: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    session = OrtExecutor(with_outputs(plain.model, names), limited=True)
    taken = [_fitting(session.input_names, values) for values in inputs]
    runs = [dict(zip(session.output_names, session.run(values))) | values for values in taken]
    return {name: np.concatenate([run[name].reshape(-1) for run in runs]) for name in names}


def _fitting(names: Sequence[str], values: Mapping[str, Array]) -> dict[str, Any]:
    """Inputs of the int8 file for the float model, whose names may be others."""
    if set(names) == set(values):
        return dict(values)
    if len(names) != len(values):
        raise EvaluationError(
            f"the float model takes {', '.join(names)}, the int8 file {', '.join(values)}",
            fix="give the model that the file was made of",
        )
    return dict(zip(names, values.values()))


def _point_loss(point: str, grid: Grid, values: Array) -> Loss | None:
    """The loss of float values on a grid with one scale."""
    if grid.scale is None or grid.zero is None or grid.scale.size != 1 or not values.size:
        return None
    values = values.astype(np.float64)
    step = float(grid.scale.item())
    zero = int(grid.zero.item())
    low, high = float(values.min()), float(values.max())
    if not np.isfinite((low, high)).all() or low == high:
        return None
    own = _sqnr(values, _rounded(values, step, zero, grid))
    grids = _minmax(min(low, 0.0), max(high, 0.0), grid)
    best = max(_sqnr(values, _rounded(values, s, z, grid)) for s, z in grids)
    under = (step * (grid.low - zero) - low) / step
    over = (high - step * (grid.high - zero)) / step
    if min(abs(under), abs(over)) >= _SHIFTED and under * over < 0:
        shift = (over - under) / 2
        return Loss(point, "point", own, best, f"its zero point is off by about {shift:.0f}")
    if best - own < LOST_DB:
        return None
    share = float(
        ((values < step * (grid.low - zero)) | (values > step * (grid.high - zero))).mean()
    )
    used = (high - low) / (step * (grid.high - grid.low))
    if share > 0:
        return Loss(point, "point", own, best, f"{100 * share:.2g} % of the values are clipped")
    unused = int(np.log2(1 / used)) if used > 0 else grid.bits
    return Loss(point, "point", own, best, f"{unused} of {grid.bits} bits are unused")


def _minmax(low: float, high: float, grid: Grid) -> Iterator[tuple[float, int]]:
    for share in _SHRUNK:
        step = max(share * (high - low) / (grid.high - grid.low), 1e-30)
        yield step, int(np.clip(np.rint(grid.low - share * low / step), grid.low, grid.high))


def _rounded(values: Array, step: float, zero: int, grid: Grid) -> Array:
    whole = np.clip(np.rint(values / step) + zero, grid.low, grid.high)
    return np.asarray((whole - zero) * step)
