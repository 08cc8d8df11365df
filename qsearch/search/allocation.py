"""Which bits each layer gets: the least damage that fits into a budget of bytes.

    minimise    sum over layers l of damage[l, bits(l)]
    such that   sum over layers l of size[l, bits(l)] <= budget

An integer linear programme with one binary variable for every layer and choice of bits; damages
are taken to add up. Source: Yao et al., "HAWQ-V3: dyadic neural network quantization", 2021,
section 4, with measured damages in place of Hessian traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from qsearch.errors import SearchError
from qsearch.search.native_stdout import native_stdout_dropped

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
        SearchError: the tables do not fit each other, or not even the smallest choices fit.
    """
    choices = [(layer, bits) for layer, row in damage.items() for bits in sorted(row)]
    _check(damage, size, budget)
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
    one_each = coo_array(entries, (len(rows), len(layers))).tocsc()
    unit = max(float(sizes.max()), 1.0)
    with native_stdout_dropped():
        solved = milp(
            costs,
            integrality=np.ones(len(layers)),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(one_each, 1, 1),
                LinearConstraint(sizes[None, :] / unit, -np.inf, budget / unit),
            ],
            options={"mip_rel_gap": 0.0},
        )
    if solved.x is None:
        raise SearchError("the integer programme was not solved", where=str(solved.message))
    return np.flatnonzero(solved.x > 0.5)


def _check(damage: Table, size: Table, budget: float) -> None:
    for layer, row in damage.items():
        missing = sorted(set(row) - set(size.get(layer, {})))
        if not row or missing:
            raise SearchError(
                f"no choice of bits for layer {layer!r}"
                if not row
                else f"sizes of layer {layer!r} lack {missing} bits",
                fix="give damage and size for the same layers and bits",
            )
        if not np.isfinite([*row.values(), *(size[layer][bits] for bits in row)]).all():
            raise SearchError(f"damage or size of layer {layer!r} is not finite")
    least = sum(min(size[layer][bits] for bits in row) for layer, row in damage.items())
    if least > budget:
        raise SearchError(
            f"not even the fewest bits everywhere fit: {least:g} bytes, budget {budget:g}",
            fix="raise the budget, or allow fewer bits",
        )
