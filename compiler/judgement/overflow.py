"""Accumulators and biases of an int8 file: proved within int32, refuted with operands, or open.

An accumulator is the sum of (x - zx)(w - zw) and the bias. Kernels may add up in any order, so it
is proved if every partial sum is within int32; refuted if the whole sum of some output is not, for
operands within their grids; open in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from compiler.errors import EvaluationError
from compiler.judgement.exact import evaluate
from compiler.judgement.layers import Network, Product
from compiler.judgement.nodes import DEQUANTIZE, QUANTIZE, given, windows
from compiler.ops.number_format import Array

PROVED: Final = "proved"
REFUTED: Final = "refuted"
AT_THE_LAYER: Final = "refuted at the layer"
OPEN: Final = "open"
Verdict = Literal["proved", "refuted", "refuted at the layer", "open"]

_LOW = -(2**31)
_HIGH = 2**31 - 1
_LEAST_SCALE: Final = float(np.finfo(np.float32).tiny)
SCALE: Final = "scale"
_TRIED: Final = 1000.0
"""Inputs of this size, in units of a sample, saturate the points in front of a layer."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A judgement of one accumulator or bias.

    Attributes:
        layer: the product, or the node of a scale.
        what: "accumulator", "bias" or "scale".
        verdict: see above.
        low, high: of the value in integers, over all channels; for an accumulator of partial sums.
        channel: where it is largest.
        detail: the operands or the value in words.
        witness: inputs of the network that refute it.
        inside: the layer is in a branch or a loop; its operands are judged, no witness is sought.
    """

    layer: str
    what: str
    verdict: Verdict
    low: int
    high: int
    channel: int
    detail: str = ""
    witness: Mapping[str, Array] | None = None
    inside: bool = False

    @property
    def refuted(self) -> bool:
        """Refuted by an input or at the layer."""
        return self.verdict in (REFUTED, AT_THE_LAYER)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; small witnesses whole, others by their ends."""
        if self.witness is None:
            shown = None
        else:
            shown = {n: _shown(v) for n, v in self.witness.items()}
        return {**{name: getattr(self, name) for name in self.__slots__}, "witness": shown}


def _shown(value: Array) -> dict[str, Any]:
    facts = {"shape": list(value.shape), "dtype": str(value.dtype)}
    if value.size:
        ends = {"min": float(value.min()), "max": float(value.max())}
    else:
        ends = {}
    return facts | ends | ({"values": value.tolist()} if value.size <= 1024 else {})


def centred_data(product: Product) -> tuple[int, int]:
    """Lowest and highest x - zx of the data of a product."""
    grid = product.data
    if grid.zero is None:
        return grid.low - grid.high, grid.high - grid.low
    return grid.low - int(grid.zero.max(initial=0)), grid.high - int(grid.zero.min(initial=0))


def centred_weights(product: Product) -> Array | None:
    """w - zw as ``Product.matrix``; None where the weight is computed."""
    matrix = product.matrix()
    if matrix is None or product.weight.zero is None:
        return None
    return matrix - product.by_output(product.weight.zero)[:, None]


def terms_of(product: Product, weights: Array) -> tuple[Array, Array]:
    """The least and the largest (x - zx)(w - zw) of each of ``centred_weights``."""
    least, most = centred_data(product)
    ends = weights * least, weights * most
    return np.minimum(*ends), np.maximum(*ends)


def biases(product: Product, rows: int) -> Array:
    """The bias of each row of ``matrix`` in units of the accumulator; zeros where there is none."""
    if product.bias is None or product.bias.size not in (1, rows):
        return np.zeros(rows)
    return np.asarray(np.nan_to_num(np.resize(product.bias.reshape(-1), rows)))


def overflow(network: Network, terms: Mapping[str, int]) -> list[Claim]:
    """Judge every accumulator and bias, those in branches and loops behind the others.

    Args:
        terms: length of the sums of products whose operands are both computed.
    """
    claims = list(_ill_scales(network))
    pending = [network]
    inside = False
    while pending:
        network = pending.pop()
        pending += network.branches()
        for product in network.products:
            found = [_accumulator(product, None if inside else terms.get(product.name))]
            if product.bias is not None and product.sums_int32:
                found.insert(0, _bias(product, product.bias))
            claims += [replace(claim, inside=inside) for claim in found]
        inside = True
    return claims


def _ill_scales(network: Network) -> Iterator[Claim]:
    """Refute scales that are no unit: zero, negative, denormal, infinite or NaN."""
    seen: set[str] = set()
    for node in network.nodes:
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            name = given(node, 1)
        else:
            name = ""
        scales = network.constants.get(name)
        if scales is None or name in seen:
            continue
        seen.add(name)
        flat = np.asarray(scales, np.float64).reshape(-1)
        ill = ~(np.isfinite(flat) & (flat >= _LEAST_SCALE))
        if ill.any():
            channel = int(ill.argmax())
            told = f"{name} of channel {channel} is {flat[channel]:g}; a scale is a finite number "
            told += f"of at least {_LEAST_SCALE:.3g}"
            yield Claim(node.name or node.output[0], SCALE, AT_THE_LAYER, 0, 0, channel, told)


def _bias(product: Product, bias: Array) -> Claim:
    flat = np.nan_to_num(bias.reshape(-1))
    channel = int(np.abs(flat).argmax()) if flat.size else 0
    worst = float(flat[channel]) if flat.size else 0.0
    ends = int(np.rint(flat.min(initial=0))), int(np.rint(flat.max(initial=0)))
    claim = Claim(product.name, "bias", PROVED, *ends, channel)
    if not _LOW <= round(worst) <= _HIGH:
        told = f"the bias of channel {channel} is {worst:.0f} in the scale of the accumulator"
        return replace(claim, verdict=AT_THE_LAYER, detail=f"{told}; int32 ends at {_HIGH}")
    if product.whole_bias and (worst in (_LOW, _HIGH) or worst == -_HIGH):
        told = f"the bias of channel {channel} is {worst:.0f}, where int32 ends: it was clipped"
        return replace(claim, verdict=AT_THE_LAYER, detail=told)
    return claim


def _accumulator(product: Product, terms: int | None) -> Claim:
    name = product.name
    sums = "accumulator"
    if not product.sums_int32:
        wide = (
            f"{product.data.dtype} by {product.weight.dtype}: kernels add up in int64 or in float"
        )
        return Claim(name, sums, PROVED, 0, 0, 0, wide)
    least, most = centred_data(product)
    weights = centred_weights(product)
    if weights is None:
        ends = product.weight.low - product.weight.high, product.weight.high - product.weight.low
        reach = max(-least, most) * max(-ends[0], ends[1])
        known = terms or 0
        verdict: Verdict = PROVED if known and known * reach <= _HIGH else OPEN
        told = f"sums of {known or 'an unknown number of'} products of two computed operands"
        return Claim(name, sums, verdict, -known * reach, known * reach, 0, told)
    bias = biases(product, len(weights))
    down, up = terms_of(product, weights)
    whole = np.stack([down.sum(1) + bias, up.sum(1) + bias])
    part_low = np.minimum(down, 0).sum(1) + np.minimum(bias, 0)
    part_high = np.maximum(up, 0).sum(1) + np.maximum(bias, 0)
    low = int(part_low.min(initial=0))
    high = int(part_high.max(initial=0))
    if whole.size:
        channel = int(np.abs(whole).max(0).argmax())
    else:
        channel = 0
    claim = Claim(name, sums, PROVED, low, high, channel)
    if low >= _LOW and high <= _HIGH:
        return claim
    if whole.min() >= _LOW and whole.max() <= _HIGH:
        told = "every whole sum fits, some partial sums do not"
        return replace(claim, verdict=OPEN, detail=told)
    at_top = whole[1, channel] > _HIGH
    reached = whole[1 if at_top else 0, channel]
    if at_top:
        higher = (weights[channel] > 0).sum()
    else:
        higher = (weights[channel] < 0).sum()
    told = (
        f"channel {channel} adds up to {reached:.0f}: its bias {bias[channel]:.0f} and "
        f"{weights.shape[1]} products, x = {product.data.high} for {higher} "
        f"{'positive' if at_top else 'negative'} weights, {product.data.low} for the others"
    )
    return replace(claim, verdict=AT_THE_LAYER, detail=told)


# Inputs of the network --------------------------------------------------------------------------


def with_witnesses(
    network: Network, claims: Sequence[Claim], samples: Sequence[Mapping[str, Array]]
) -> list[Claim]:
    """Claims refuted at the layer, by an input of the network where one is found.

    Args:
        samples: inputs; the first tells shapes and dtypes.
    """
    products = {product.name: product for product in network.products}
    found = []
    for claim in claims:
        no_witness = claim.verdict != AT_THE_LAYER or claim.what == SCALE or claim.inside
        if no_witness or not samples:
            found.append(claim)
            continue
        made = _witness(network, products[claim.layer], claim, samples)
        found.append(claim if made is None else made)
    return found


def _witness(
    network: Network, product: Product, claim: Claim, samples: Sequence[Mapping[str, Array]]
) -> Claim | None:
    if claim.what == "bias":
        return None  # no input decides it
    for inputs in _candidates(network, product, claim.channel, samples):
        try:
            sums = evaluate(network, inputs).sums.get(product.name)
        except EvaluationError:
            return None
        if sums is None or not sums.size:
            return None
        worst = float(sums.reshape(-1)[np.abs(sums).argmax()])
        if not _LOW <= worst <= _HIGH:
            told = f"an input of the network makes the accumulator {worst:.0f}; {claim.detail}"
            return replace(claim, verdict=REFUTED, detail=told, witness=inputs)
    return None


def _candidates(
    network: Network, product: Product, channel: int, samples: Sequence[Mapping[str, Array]]
) -> Iterable[Mapping[str, Array]]:
    """Inputs that put the worst operands in front of a first layer; loud samples and noise."""
    sample = samples[0]
    weights = centred_weights(product)
    writer = network.writer.get(product.data_name)
    if writer is None:
        source = product.data_name
    else:
        source = given(writer, 0)
    direct = writer is None or writer.op_type == QUANTIZE
    if direct and source in sample and weights is not None:
        for sign in (1, -1):
            worst = np.where(sign * weights[channel] > 0, product.data.high, product.data.low)
            placed = _placed(product, sample[source], worst, channel, len(weights))
            if placed is not None:
                values = placed.astype(np.float64)
                if writer is not None:
                    grid = product.data
                    if grid.zero is None or grid.scale is None:
                        continue
                    values = (values - grid.zero) * grid.scale
                yield {**sample, source: values.astype(sample[source].dtype)}
    rng = np.random.default_rng(0)
    for inputs in samples[:2]:
        for loud in (1.0, _TRIED, -_TRIED):
            yield {n: _times(v, loud) for n, v in inputs.items()}
    for _ in range(4):
        yield {
            n: _times(rng.choice([-1.0, 1.0], v.shape), _TRIED).astype(v.dtype)
            if v.dtype.kind == "f"
            else v
            for n, v in sample.items()
        }


def _times(value: Array, factor: float) -> Array:
    if value.dtype.kind == "f":
        return (value * factor).astype(value.dtype)
    return value


def _placed(product: Product, like: Array, row: Array, channel: int, rows: int) -> Array | None:
    """Integers of the input of a first layer, with a row of operands where one output reads it."""
    made = np.full(like.shape, product.data.low, np.int64)
    if "Conv" not in product.op:
        if like.ndim < 1 or like.shape[-1] != len(row):
            return None
        made[...] = row
        return made
    weights = product.weights
    if weights is None or product.op == "ConvTranspose":
        return None
    kernel = weights.shape[2:]
    size = weights.shape[1]
    first = channel // max(rows // product.groups, 1) * size
    values = row.reshape(*kernel, size)
    places = np.arange(made.size).reshape(made.shape)
    for place, seen in windows(product.node, places, kernel, -1):
        middle = tuple(n // 2 for n in seen.shape[2:])
        for c in range(size):
            index = int(seen[(0, first + c, *middle)])
            if index >= 0:
                made.reshape(-1)[index] = values[(*place, c)]
    return made
