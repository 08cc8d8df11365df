"""allocate_bits against every combination, and what it refuses."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsearch.errors import SearchError
from qsearch.search.layer_space import allocate_bits

BITS = (4, 5, 6, 8)
numbers = st.integers(1, 2000)
tables = st.dictionaries(
    st.sampled_from("abcd"),
    st.fixed_dictionaries({b: st.tuples(numbers, numbers) for b in BITS}),
    min_size=1,
)


def totals(table: Any, choice: Any) -> tuple[float, float]:
    pairs = [table[layer][bits] for layer, bits in choice.items()]
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


@settings(max_examples=60, deadline=None)
@given(tables, st.floats(0, 1))
def test_no_combination_within_the_budget_does_less_damage(table: Any, share: float) -> None:
    every = [dict(zip(table, picked)) for picked in product(BITS, repeat=len(table))]
    sizes = [totals(table, choice)[1] for choice in every]
    budget = min(sizes) + share * (max(sizes) - min(sizes))
    found = allocate_bits(
        {layer: {b: row[b][0] for b in BITS} for layer, row in table.items()},
        {layer: {b: row[b][1] for b in BITS} for layer, row in table.items()},
        budget,
    )
    damage, size = totals(table, found)
    assert list(found) == list(table)
    assert size <= budget
    assert damage == min(
        totals(table, choice)[0] for choice, size in zip(every, sizes) if size <= budget
    )


def test_a_sensitive_layer_keeps_its_bits() -> None:
    damage = {"first": {4: 90.0, 8: 0.1}, "last": {4: 1.0, 8: 0.1}}
    size = {"first": {4: 100, 8: 200}, "last": {4: 100, 8: 200}}
    assert allocate_bits(damage, size, 300) == {"first": 8, "last": 4}
    assert allocate_bits(damage, size, 400) == {"first": 8, "last": 8}
    assert allocate_bits({}, {}, 0) == {}


def test_a_hundred_layers_with_sizes_in_the_millions_stay_within_the_budget() -> None:
    rng = np.random.default_rng(3)
    elements = {f"layer_{k}": int(n) for k, n in enumerate(rng.integers(1e3, 1e7, 100))}
    size = {name: {b: n * b // 8 for b in BITS} for name, n in elements.items()}
    damage = {name: {b: float(rng.random()) * 4.0**-b for b in BITS} for name in elements}
    budget = sum(n * 5 // 8 for n in elements.values())
    found = allocate_bits(damage, size, budget)
    assert sum(size[name][bits] for name, bits in found.items()) <= budget
    assert set(found) == set(elements)


@pytest.mark.parametrize(
    ("damage", "size", "says"),
    [
        ({"a": {4: 1.0}}, {"a": {4: 9}}, "was not solved"),
        ({"a": {4: float("nan")}}, {"a": {4: 1}}, "not finite"),
    ],
)
def test_problems_without_an_answer_are_refused(damage: Any, size: Any, says: str) -> None:
    with pytest.raises(SearchError, match=says):
        allocate_bits(damage, size, 8)
