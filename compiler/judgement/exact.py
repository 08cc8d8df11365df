"""Evaluation of a network by ONNX's definition: exact sums, rescale in float64, half to even.

Integers are int64, everything else float64. A product of integers adds up in float64, which is
exact below 2^53, and is scaled once; other nodes are evaluated one by one (``nodes``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from compiler.at_work import at_work
from compiler.errors import EvaluationError
from compiler.judgement.layers import Network, Product
from compiler.judgement.nodes import (
    Grid,
    Values,
    evaluate_node,
    given,
    multiply,
    product_of,
    widened,
    with_bias,
)
from compiler.ops.number_format import Array
from compiler.targets.ort.session import MOST_S


@dataclass(slots=True)
class Evaluation:
    """Values of one run.

    Attributes:
        values: by name; integers of quantization points as int64.
        sums: accumulators with bias of integer products, by the name of the product.
        ties: results of a QuantizeLinear that stood exactly between two integers, by its output.
    """

    values: dict[str, Array]
    sums: dict[str, Array] = field(default_factory=dict)
    ties: dict[str, int] = field(default_factory=dict)


def evaluate(network: Network, inputs: Mapping[str, Array], whole: bool = False) -> Evaluation:
    """Run the network once.

    Args:
        whole: keep all values; else those that no quantization point holds are dropped once read.
    Raises:
        EvaluationError: an operator has no exact evaluation, or a run takes more than MOST_S.
    """
    found = Evaluation(dict(network.constants))
    begun = time.monotonic()
    for name, value in inputs.items():
        found.values[name] = widened(np.asarray(value))
    products = {product.name: product for product in network.products}
    last = {name: place for place, node in enumerate(network.nodes) for name in node.input}
    for place, node in enumerate(network.nodes):
        if node.output and node.output[0] in network.constants:
            continue
        at_work(lambda n: f"{n.op_type} {n.name!r}", node)
        taken = [found.values.get(name) if name else None for name in node.input]
        product = products.get(node.name)
        if product is not None:
            made = [_product(product, found, taken)]
        else:
            made = evaluate_node(network, node, taken, found.ties)
        for name, value in zip(node.output, made):
            if name:
                found.values[name] = value
        for name in node.input:
            held = whole or network.kept(name) or name in network.constants
            if last[name] == place and not held and name in found.values:
                del found.values[name]
        if time.monotonic() - begun > MOST_S:
            raise EvaluationError(f"exact evaluation takes more than {MOST_S} s a sample")
    for name, value in found.values.items():
        if value.dtype == np.int64 and name not in network.constants and network.kept(name):
            found.values[name] = value.astype(np.int32)
    return found


# Products ---------------------------------------------------------------------------------------


def _product(product: Product, found: Evaluation, taken: Values) -> Array:
    """Sums of integers times their scale; dequantized operands where the sums have none."""
    node = product.node
    data = product.data
    weight = product.weight
    whole = product.op.endswith("Integer")
    one = data.scale is None or data.scale.size == 1
    if not (whole or (product.by_channel and one)):
        return multiply(node, taken)
    operands: list[Array] = []
    for grid, name, place in ((data, product.data_name, 0), (weight, product.weight_name, 1)):
        values = found.values[name].astype(np.float64)
        if whole and given(node, 2 + place):
            reads = node.input[2 + place]
        else:
            reads = ""
        zero = found.values[reads] if reads else grid.zero
        if zero is None:
            return multiply(node, taken)
        operands.append(values - grid.along(values.ndim, zero))
    sums = product_of(node, *operands)
    bias = product.bias
    out_axis = 1 if "Conv" in product.op else -1
    if whole:
        found.sums[product.name] = sums
        return sums.astype(np.int64)
    spread = Grid("", None, None, out_axis, 0, 0)
    if bias is not None and bias.size == (bias.shape[-1] if bias.ndim else 1):
        sums = sums + spread.along(sums.ndim, bias.reshape(-1))
    found.sums[product.name] = sums
    if data.scale is None or weight.scale is None:
        return multiply(node, taken)
    channels = sums.shape[out_axis] if sums.ndim else 1
    if weight.scale.size > 1:
        vector = np.resize(weight.scale.reshape(-1), channels)
    else:
        vector = weight.scale
    result: Array = sums * (data.scale.reshape(()) * spread.along(sums.ndim, vector))
    return with_bias(node, result, taken[2] if bias is None and len(taken) > 2 else None)
