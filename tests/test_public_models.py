"""Data and scores of the benchmark of public models, which need no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.bench_public import interval, markdown, rows, split
from tests.benchmarks.public_models import (
    chords,
    edit_distance,
    lines,
    lines_found,
    pages,
    pictures,
    right_keys,
    turned_lines,
)
from tests.each import each

NOWHERE = Path()


@pytest.mark.parametrize(
    ("found", "wanted", "distance"),
    [("", "abc", 3), ("abc", "abc", 0), ("abd", "abc", 1), ("kitten", "sitting", 3), ("ab", "", 2)],
)
def test_edits_between_strings_are_counted(found: str, wanted: str, distance: int) -> None:
    assert edit_distance(found, wanted) == edit_distance(wanted, found) == distance


@pytest.mark.parametrize("make", [turned_lines, lines, pages, chords, pictures])
def test_data_are_those_of_their_seed(make: object) -> None:
    assert callable(make)
    first, again, other = make(4, 1, NOWHERE), make(4, 1, NOWHERE), make(4, 2, NOWHERE)
    for name, array in each(first.inputs.items()):
        assert array.dtype == np.float32
        assert len(array) == len(first.answers) == 4
        np.testing.assert_array_equal(array, again.inputs[name])
        assert (array != other.inputs[name]).any()


def test_no_sample_both_calibrates_and_is_scored() -> None:
    calibrating, scored = split(turned_lines(7, 3, NOWHERE))
    assert (len(calibrating.answers), len(scored.answers)) == (4, 3)
    one, *_ = rows(scored)
    assert one["x"].shape == (1, 3, 48, 192)
    assert (calibrating.inputs["x"][:3] != scored.inputs["x"]).any(axis=(1, 2, 3)).all()


def test_right_answers_score_1_and_silence_0() -> None:
    (page,) = pages(1, 5, NOWHERE).answers
    assert lines_found([page.astype(np.float32)], page, NOWHERE) == 1
    assert lines_found([np.zeros(page.shape)], page, NOWHERE) == 0
    (keys,) = chords(1, 5, NOWHERE).answers
    notes = np.broadcast_to(keys, (1, 172, 88)).astype(np.float32)
    contour = np.zeros((1, 172, 264))
    assert right_keys([0 * notes, notes, contour], keys, NOWHERE) == 1
    assert right_keys([notes, 0 * notes, contour], keys, NOWHERE) == 0


def test_the_table_has_a_row_for_each_way() -> None:
    assert interval([0.0, 1.0] * 50) == pytest.approx(0.0985, abs=1e-3)
    row = {"metric": 0.95, "interval": 0.02, "sqnr_db": None, "size": 586_000, "cpu_ms": 1.3}
    ways = {"float": row, "compile": {**row, "metric": None, "sqnr_db": 25.4}}
    told = markdown({"models": {"a": {"package": "b==1", "unit": "right", "rows": ways}}})
    assert "| a (b) | float | 95.0% ± 2.0% right | – | 586 | 1.30 |" in told
    assert "|  | compile | – | 25.4 | 586 | 1.30 |" in told
