"""What single layers may choose, and a few parameters that stand for it.

Hundreds of raw choices, one per layer, drown a sampler. So a search is offered a budget of bytes,
which an integer programme over measured damages turns into bits of every layer (``allocation``),
and two layers to be moved one choice up or down from there. Source of the programme: Yao et al.,
"HAWQ-V3", 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import FLOAT_BITS, mark, module_cost
from qsearch.search.allocation import Table, allocate_bits
from qsearch.search.space import FLOAT_LAYER, Parameter, Params, Space, Value, layer_parameter

BUDGET: Final = "weight_budget"
"""Parameter: the budget as a fraction of the way from the smallest to the largest module."""
FLIPS: Final = ("first_flip", "second_flip")
"""Parameters: a layer that is moved from what the programme gave it, as "conv_0+" or "conv_0-"."""
BUDGETS: Final = 32
_FLIPPED: Final = 6
"""Layers that may be moved: those whose bits cost or gain the most."""
NO_FLIP: Final = "none"
PLAN_NAMES: Final = frozenset({BUDGET, *FLIPS})


@dataclass(frozen=True)
class LayerSpace:
    """Layers whose weights may have other bits.

    Attributes:
        elements: number of weights by layer, in visiting order.
        bits: choices, rising; ``FLOAT_BITS`` leaves a layer in float.
    """

    elements: Mapping[str, int]
    bits: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the study's row."""
        return {"elements": dict(self.elements), "bits": list(self.bits)}

    @cached_property
    def sizes(self) -> dict[str, dict[int, float]]:
        """Bytes of each layer's packed weight by its bits."""
        return {
            name: {bits: float(-(-count * bits // 8)) for bits in self.bits}
            for name, count in self.elements.items()
        }

    def raw(self) -> tuple[Parameter, ...]:
        """One parameter per layer, most bits first; for samplers that know no stages."""
        choices = tuple(choice_of(bits) for bits in reversed(self.bits))
        return tuple(Parameter(layer_parameter(name), choices) for name in self.elements)


def choice_of(bits: int) -> Value:
    """What a layer's parameter says for these bits."""
    return FLOAT_LAYER if bits == FLOAT_BITS else bits


def weight_elements(module: IRModule, start: QConfig) -> dict[str, int]:
    """Number of weights by layer, in visiting order; layers without weights are left out."""
    annotated, _ = mark(module, start.with_overrides(smooth_alpha=None, bias_correction=False))
    layers = module_cost(annotated, start).layers
    return {layer.name: layer.weight_elements for layer in layers if layer.weight_elements}


@dataclass(frozen=True)
class LayerPlan:
    """Points of a few parameters, each of which gives every layer its bits.

    Args:
        layers: what may be chosen.
        damage: squared error that each choice adds, by layer and bits.
        most: bytes that all these weights may have; None is any number.
    """

    layers: LayerSpace
    damage: Table
    most: float | None = None

    @cached_property
    def space(self) -> Space:
        """The parameters."""
        ranked = sorted(self.layers.elements, key=self._weight_of, reverse=True)[:_FLIPPED]
        flips: tuple[Value, ...] = (NO_FLIP, *(f"{name}{sign}" for name in ranked for sign in "+-"))
        fractions = tuple((place + 1) / BUDGETS for place in range(BUDGETS))
        return Space((Parameter(BUDGET, fractions), *(Parameter(name, flips) for name in FLIPS)))

    def first_points(self) -> list[Params]:
        """Budgets, each halving the widest gap that is left: largest, half, quarters, …"""
        order = sorted(range(1, BUDGETS + 1), key=lambda place: (-_twos(place), place != BUDGETS))
        if self.most is not None:
            order = list(range(BUDGETS, 0, -1))  # the largest that fits is the best
        return [{BUDGET: place / BUDGETS, **dict.fromkeys(FLIPS, NO_FLIP)} for place in order]

    def bits_of(self, point: Mapping[str, Value]) -> dict[str, int]:
        """Bits of every layer at a point."""
        fraction = float(point[BUDGET] or 0.0)
        if fraction not in self._solved:
            self._solved[fraction] = self._allocated(fraction)
        bits = dict(self._solved[fraction])
        for name in FLIPS:
            flip = str(point.get(name, NO_FLIP))
            if flip != NO_FLIP:
                layer, step = flip[:-1], 1 if flip[-1] == "+" else -1
                choices = self.layers.bits
                place = choices.index(bits[layer]) + step
                bits[layer] = choices[min(max(place, 0), len(choices) - 1)]
        return bits

    @cached_property
    def _solved(self) -> dict[float, dict[str, int]]:
        """Programmes solved so far: looking for an unseen point asks for all of them."""
        return {}

    def _allocated(self, fraction: float) -> dict[str, int]:
        sizes = self.layers.sizes
        least = sum(min(row.values()) for row in sizes.values())
        largest = sum(max(row.values()) for row in sizes.values())
        if self.most is not None:
            largest = max(least, min(largest, self.most))
        return allocate_bits(self.damage, sizes, least + fraction * (largest - least))

    def params_of(self, point: Mapping[str, Value]) -> Params:
        """The point as values of the raw parameters; choices equal to no choice are kept too."""
        bits = self.bits_of(point)
        return {layer_parameter(name): choice_of(chosen) for name, chosen in bits.items()}

    def _weight_of(self, layer: str) -> float:
        row = self.damage[layer]
        return max(row.values()) - min(row.values())


def _twos(number: int) -> int:
    """How often two divides a number."""
    return (number & -number).bit_length() - 1
