"""How long a search goes on."""

from __future__ import annotations

import math

from qsearch.search.context import Budget


def test_a_timeout_counts_down_to_nothing() -> None:
    now = [100.0]
    budget = Budget(1, 10.0, clock=lambda: now[0])
    left = []
    for passed in (0.0, 4.0, 9.5, 10.0, 70.0):
        now[0] = 100.0 + passed
        left.append(budget.seconds_left)
    assert left == [10.0, 6.0, 0.5, 0.0, 0.0]


def test_a_search_without_a_timeout_is_never_out_of_time() -> None:
    now = [0.0]
    budget = Budget(1, clock=lambda: now[0])
    now[0] = 1e9
    assert budget.seconds_left == math.inf
