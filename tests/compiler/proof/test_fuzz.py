"""No random module is proved that exact integers contradict; one class of change per case.

    python -m tests.compiler.proof.test_fuzz [--seed 0] [--count 1000]

prints what each class finds. On the first version of the proof every class finds something. With
``--chains`` it runs chains of operators instead in every form, with ``--compiled`` as C as well.
"""

from __future__ import annotations

import argparse

import pytest

from tests.compiler.proof import chains
from tests.compiler.proof.forged import CLASSES, search

SEED = 13
COUNT = 100


@pytest.mark.parametrize("name", CLASSES)
def test_no_forged_module_is_proved(name: str) -> None:
    typed, proved, missed = search(name, SEED, COUNT)
    assert missed == []
    # A class that is refused as a whole, or never proved, would show nothing.
    assert typed > COUNT // 3
    assert proved > 3


@pytest.mark.slow
def test_random_chains_are_exact_and_equal_in_every_form() -> None:
    found = chains.search(SEED, range(40), compiled=False)
    assert found.missed == []
    assert found.typed > 30
    assert found.exact > 15


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--chains", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    if given.chains:
        print(chains.search(given.seed, range(given.count), given.compiled))
        raise SystemExit
    for one in CLASSES:
        typed_, proved_, missed_ = search(one, given.seed, given.count)
        print(f"{one}: {typed_} typed, {proved_} proved, {len(missed_)} falsely", *missed_[:2])
