"""Bits of single layers: a few parameters that stand for hundreds of choices.

One choice per layer is too much for a sampler. So a search is offered a budget of bytes, which an
integer linear programme over measured damages turns into bits of every layer, and two layers to be
moved one choice up or down from there. Under a limit of bytes the programme is solved again around
a layer that is moved: the others pay for it.

    minimise    sum over layers l of damage[l, bits(l)]
    such that   sum over layers l of size[l, bits(l)] <= budget

Damages are taken to add up. Source: Yao et al., "HAWQ-V3: dyadic neural network quantization",
2021, section 4, with measured damages in place of Hessian traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import scipy  # loads its parts when they are first used
from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import FLOAT_BITS, LayerCost, module_cost
from compiler.quantize.candidate import recommended_mark
from qsearch.errors import SearchError
from qsearch.process import native_stdout_dropped
from qsearch.search.space import (
    FLOAT_LAYER,
    Parameter,
    Params,
    Space,
    Value,
    layer_parameter,
    to_qconfig,
)

BUDGET: Final = "weight_budget"
"""Parameter: the budget as a fraction of the way from the smallest to the largest module."""
FLIPS: Final = ("first_flip", "second_flip")
"""Parameters: a layer that is moved from what the programme gave it, as "conv_0+" or "conv_0-"."""
BUDGETS: Final = 64
_FRACTIONS: Final = tuple((place + 1) / BUDGETS for place in range(BUDGETS))
_PROGRAMMES: Final = 16
"""Budgets under a limit of bytes that are tried before a sampler proposes."""
_FLIPPED: Final = 6
"""Layers that may be moved: those whose bits cost or gain the most."""
NO_FLIP: Final = "none"
PLAN_NAMES: Final = frozenset({BUDGET, *FLIPS})
_WHOLE: Final[Params] = {BUDGET: 1.0, **dict.fromkeys(FLIPS, NO_FLIP)}


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

    def packed(self, qconfig: QConfig) -> float:
        """Bytes of all packed weights of a configuration."""
        chosen = {name: one.nbit_weight for name, one in qconfig.layers.items()}
        chosen |= dict.fromkeys(qconfig.layers.float_layers, FLOAT_BITS)
        everywhere = qconfig.nbit_weight
        return float(
            sum(-(-n * (chosen.get(name) or everywhere) // 8) for name, n in self.elements.items())
        )

    @cached_property
    def weights(self) -> int:
        """Number of weights."""
        return sum(self.elements.values())

    @cached_property
    def least(self) -> float:
        """Bytes with the fewest bits everywhere."""
        return sum(min(row.values()) for row in self.sizes.values())

    def doubt(self, most: float | None) -> tuple[str, ...]:
        """A warning of a limit of bytes that no module keeps."""
        if most is None or most >= self.least:
            return ()
        everywhere = f"with {min(self.bits)} bits everywhere they take {self.least:,.0f} bytes"
        return (f"no module's weights keep --max-size {most:g}: {everywhere}",)

    def within(self, qconfig: QConfig) -> QConfig:
        """A configuration whose tables have no more bits than may be chosen."""
        most = max(self.bits)
        given = {
            name: replace(choice, nbit_weight=most) if (choice.nbit_weight or 0) > most else choice
            for name, choice in qconfig.layers.items()
        }
        return qconfig.with_overrides(layers=given)

    def raw(self) -> tuple[Parameter, ...]:
        """One parameter per layer, most bits first; for samplers that know no stages."""
        choices = tuple(choice_of(bits) for bits in reversed(self.bits))
        return tuple(Parameter(layer_parameter(name), choices) for name in self.elements)


def choice_of(bits: int) -> Value:
    """The value of a layer's parameter for these bits."""
    if bits == FLOAT_BITS:
        return FLOAT_LAYER
    return bits


def weighted_layers(module: IRModule) -> dict[str, LayerCost]:
    """Layers and tables that have weights, in visiting order."""
    layers = module_cost(module.view(recommended_mark)[0], QConfig.recommended()).layers
    return {layer.name: layer for layer in layers if layer.weight_elements}


@dataclass(frozen=True)
class LayerPlan:
    """Points of a few parameters, each of which gives every layer its bits.

    Args:
        layers: what may be chosen.
        damage: squared error that each choice adds, by layer and bits.
        most: bytes that all these weights may have; None is any number.
        full: bits of a layer that nothing is said of.
    """

    layers: LayerSpace
    damage: Table
    most: float | None = None
    full: int = 8

    @cached_property
    def breaks(self) -> bool:
        """Return whether ``full`` bits everywhere break the limit."""
        sizes = self.layers.sizes.values()
        whole = sum(row.get(self.full, max(row.values())) for row in sizes)
        return self.most is not None and self.most < whole

    @cached_property
    def binding(self) -> bool:
        """Return whether the limit can be kept, but not with ``full`` bits everywhere."""
        return self.breaks and self.layers.least <= (self.most or 0.0)

    @cached_property
    def space(self) -> Space:
        """The parameters."""
        ranked = sorted(self.layers.elements, key=self._weight_of, reverse=True)[:_FLIPPED]
        flips: tuple[Value, ...] = (NO_FLIP, *(f"{name}{sign}" for name in ranked for sign in "+-"))
        return Space((Parameter(BUDGET, _FRACTIONS), *(Parameter(name, flips) for name in FLIPS)))

    def largest(self) -> list[Params]:
        """Return the points that come first where bytes are no objective, or have a limit.

        The largest budgets; if the limit binds, one layer is moved in each but the first.
        """
        points = [{**_WHOLE, BUDGET: fraction} for fraction in reversed(_FRACTIONS)]
        if self.binding:
            flips = self.space.parameters[1].choices[1:]
            points[1:1] = [{**_WHOLE, FLIPS[0]: flip} for flip in flips]
        return points[:_PROGRAMMES]

    def halved(self, kept: Mapping[float, bool | None]) -> Iterator[Params]:
        """Yield budgets that halve the gap between the smallest that keeps all limits and the next
        below it.

        Args:
            kept: whether budgets that were tried keep the limits.
        """
        known: dict[float, bool | None] = {**dict.fromkeys((0.0, 1.0)), **kept}
        smallest = min((f for f, fits in kept.items() if fits), default=1.0)
        below = max(f for f, fits in known.items() if not fits and f < smallest)
        while True:
            between = [f for f in _FRACTIONS if below < f < smallest and f not in known]
            if not between:
                break
            middle = max(
                between, key=lambda f: min(abs(self._log(f) - self._log(k)) for k in known)
            )
            known[middle] = None
            yield {**_WHOLE, BUDGET: middle}

    def fewer(self, budget: float) -> Iterator[Params]:
        """Yield points of a budget in which a single layer loses a choice."""
        for flip in self.space.parameters[1].choices[1:]:
            if str(flip).endswith("-"):
                yield {**_WHOLE, BUDGET: budget, FLIPS[0]: flip}

    def above(self, size: float) -> dict[float, bool | None]:
        """Return the budgets of at least this many bytes, as if they kept all limits."""
        return {f: True for f in _FRACTIONS if self._budget(f) >= size}

    def _log(self, fraction: float) -> float:
        """Return the logarithm of a share of a budget: a tenth less is worth the same
        everywhere."""
        return math.log(self._budget(fraction))

    def _budget(self, fraction: float) -> float:
        """Bytes of the weights."""
        sizes = self.layers.sizes.values()
        least = self.layers.least
        largest = sum(max(row.values()) for row in sizes)
        if self.most is not None:
            largest = max(least, min(largest, self.most))
        return least + fraction * (largest - least)

    def within(self, start: QConfig) -> QConfig:
        """``start`` with the bits of the largest budget, where the limit binds."""
        if self.binding:
            return to_qconfig(self.params_of(_WHOLE), start)
        return start

    def bits_of(self, point: Mapping[str, Value]) -> dict[str, int]:
        """Bits of every layer at a point."""
        fraction = float(point[BUDGET] or 0.0)
        bits = self._allocated(fraction)
        moved: dict[str, int] = {}
        for name in FLIPS:
            flip = str(point.get(name, NO_FLIP))
            if flip != NO_FLIP:
                layer = flip[:-1]
                step = 1 if flip[-1] == "+" else -1
                choices = self.layers.bits
                place = choices.index(moved.get(layer, bits[layer])) + step
                moved[layer] = choices[min(max(place, 0), len(choices) - 1)]
        if self.binding and moved:
            return self._allocated(fraction, *sorted(moved.items()))
        return {**bits, **moved}

    @cached_property
    def _allocated(self) -> Callable[..., dict[str, int]]:
        """``_programme``, kept: the search for an unseen point needs all that were solved."""
        return cache(self._programme)

    def _programme(self, fraction: float, *layers: tuple[str, int]) -> dict[str, int]:
        """Bits of all layers where some are given; those that exceed the budget are dropped."""
        given = dict(layers)
        sizes = self.layers.sizes
        budget = self._budget(fraction)
        kept = {
            n: {given[n]: row[given[n]]} if n in given else row for n, row in self.damage.items()
        }
        room = budget - sum(min(sizes[name][bits] for bits in row) for name, row in kept.items())
        return allocate_bits(kept if room >= 0 else self.damage, sizes, budget)

    def params_of(self, point: Mapping[str, Value]) -> Params:
        """The point as values of the raw parameters; choices equal to no choice are kept too."""
        bits = self.bits_of(point)
        return {layer_parameter(name): choice_of(chosen) for name, chosen in bits.items()}

    def _weight_of(self, layer: str) -> float:
        row = self.damage[layer]
        return max(row.values()) - min(row.values())


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Table = Mapping[str, Mapping[int, float]]
"""Layer → bits → a number."""


def allocate_bits(damage: Table, size: Table, budget: float) -> dict[str, int]:
    """Bits of every layer with the least total damage whose sizes stay within the budget.

    Args:
        damage: what is lost when only this layer has these bits, in any unit that adds up (squared
            error of the outputs, say); finite. Its keys are the choices.
        size: bytes (or bit operations) of the same choices.
        budget: in the unit of ``size``.
    Returns:
        layer → bits, in the order of ``damage``; equal problems give equal answers.
    Raises:
        SearchError: a damage is not finite, or not even the smallest choices fit.
    """
    choices = [(layer, bits) for layer, row in damage.items() for bits in sorted(row)]
    for layer, row in damage.items():
        if not np.isfinite([*row.values()]).all():
            raise SearchError(f"damage of layer {layer!r} is not finite")
    if not choices:
        return {}
    sizes = np.asarray([float(size[layer][bits]) for layer, bits in choices])
    room = float(budget)
    while True:
        taken = _solved([layer for layer, _ in choices], _costs(damage, choices), sizes, room)
        excess = float(sizes[taken].sum()) - budget
        if excess <= 0:
            return {choices[place][0]: choices[place][1] for place in taken}
        # The solver takes a millionth of the largest size for nothing.
        room -= 2 * excess


def _costs(damage: Table, choices: Sequence[tuple[str, int]]) -> Floats:
    """Damages over their largest: the solver's tolerances are absolute."""
    costs = np.asarray([float(damage[layer][bits]) for layer, bits in choices])
    return costs / max(float(np.abs(costs).max()), float(np.finfo(np.float64).tiny))


def _solved(layers: Sequence[str], costs: Floats, sizes: Floats, budget: float) -> Ints:
    """Places of the choices taken, one of each layer."""
    rows = {layer: row for row, layer in enumerate(dict.fromkeys(layers))}
    owner = np.asarray([rows[layer] for layer in layers])
    entries = np.ones(len(layers)), (owner, np.arange(len(layers)))
    one_each = scipy.sparse.coo_array(entries, (len(rows), len(layers))).tocsc()
    unit = max(float(sizes.max()), 1.0)
    with native_stdout_dropped():
        solved = scipy.optimize.milp(
            costs,
            integrality=np.ones(len(layers)),
            bounds=scipy.optimize.Bounds(0, 1),
            constraints=[
                scipy.optimize.LinearConstraint(one_each, 1, 1),
                scipy.optimize.LinearConstraint(sizes[None, :] / unit, -np.inf, budget / unit),
            ],
            options={"mip_rel_gap": 0.0},
        )
    if solved.x is None:
        raise SearchError("the integer programme was not solved", where=str(solved.message))
    return np.flatnonzero(solved.x > 0.5)
