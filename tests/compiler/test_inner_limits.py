"""Every form gives the reference's integers where limits inside dtypes make bounds narrow."""

from __future__ import annotations

import pytest

from tests.compiler.inner_limits import ENGINE, EXACT, IN_C, search
from tests.needs import NEEDS_C

SEED = 1
COUNT = 230


@pytest.mark.slow
@NEEDS_C
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_limits_inside_dtypes_are_kept_in_every_form() -> None:
    """An hour of it: ``python -m tests.benchmarks.bench_engine_bits --minutes 60``."""
    found = search(SEED, range(COUNT), compiled=40)
    assert found.differ == []
    assert found.unforeseen == []
    counts = found.counts
    assert counts["modules"] > 0.95 * COUNT
    assert counts[ENGINE] > 0.95 * counts["modules"]
    # What is not proved may have no exact form, and what has none shows nothing.
    assert counts["proved"] > COUNT / 2
    assert min(counts[EXACT], counts[IN_C]) > 0.95 * counts["proved"]
