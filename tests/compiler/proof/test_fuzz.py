"""No random module is proved that exact integers contradict; one class of change per case.

    python -m tests.compiler.proof.test_fuzz [--seed 0] [--count 1000]

prints what each class finds. On the first version of the proof every class finds something.
"""

from __future__ import annotations

import argparse

import pytest

from tests.compiler.proof.forged import CLASSES, search

SEED = 13
COUNT = 150


@pytest.mark.parametrize("name", CLASSES)
def test_no_forged_module_is_proved(name: str) -> None:
    typed, proved, missed = search(name, SEED, COUNT)
    assert missed == []
    # A class that is refused as a whole, or never proved, would show nothing.
    assert typed > COUNT // 3
    assert proved > 3


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    given = parser.parse_args()
    for one in CLASSES:
        typed_, proved_, missed_ = search(one, given.seed, given.count)
        print(f"{one}: {typed_} typed, {proved_} proved, {len(missed_)} falsely", *missed_[:2])
