"""Every form gives the reference's integers of requantizations among what passes draw into them."""

from __future__ import annotations

import pytest

from tests.compiler.inner_limits import ENGINE, EXACT, IN_C, search
from tests.compiler.random_requantizations import requantized
from tests.needs import NEEDS_C

COUNT = 200


@pytest.mark.slow
@NEEDS_C
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_requantizations_are_the_same_in_every_form() -> None:
    found = search(7, range(COUNT), compiled=40, operators=(requantized,), only_proved=True)
    assert found.differ == []
    assert found.unforeseen == []
    counts = found.counts
    assert counts["modules"] > 0.95 * COUNT
    assert counts["proved"] > COUNT / 2
    assert min(counts[ENGINE], counts[EXACT], counts[IN_C]) > 0.95 * counts["proved"]
