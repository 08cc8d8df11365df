from __future__ import annotations

import math

import numpy as np
import pytest

from workers.errors import MetricError
from workers.metrics.registry import MetricSums, measure, merge_sums, results
from workers.metrics.sqnr import FLOOR_DB

RNG = np.random.default_rng(3)
REFERENCE = RNG.standard_normal((50, 10)).astype(np.float32)
OUTPUTS = REFERENCE + RNG.standard_normal((50, 10)).astype(np.float32) * np.float32(0.3)
LABELS = np.where(RNG.random(50) < 0.7, REFERENCE.argmax(1), 0).astype(np.int64)
NAMES = ("top1", "agreement", "sqnr")


def sums_over(part: slice) -> MetricSums:
    sums = MetricSums(NAMES, has_labels=True, has_reference=True)
    for i in range(50)[part]:
        sums.add((OUTPUTS[i : i + 1],), (REFERENCE[i : i + 1],), LABELS[i : i + 1])
    return sums


def test_scores_are_those_of_the_definitions() -> None:
    scores = sums_over(slice(None)).results()
    assert scores["top1"] == np.mean(OUTPUTS.argmax(1) == LABELS)
    assert scores["agreement"] == np.mean(OUTPUTS.argmax(1) == REFERENCE.argmax(1))
    noise = (OUTPUTS.astype(np.float64) - REFERENCE) ** 2
    expected = 10 * math.log10(float((REFERENCE.astype(np.float64) ** 2).sum() / noise.sum()))
    assert scores["sqnr"] == pytest.approx(expected, rel=1e-12)


def test_answers_are_counted_that_only_one_of_the_two_has_right() -> None:
    state = sums_over(slice(None)).sums["top1"]
    ours, before = OUTPUTS.argmax(1) == LABELS, REFERENCE.argmax(1) == LABELS
    assert (state["lost"], state["won"]) == (np.sum(before & ~ours), np.sum(ours & ~before))
    alone = MetricSums(("top1",), has_labels=True, has_reference=False)
    alone.add((OUTPUTS,), None, LABELS)
    assert alone.sums["top1"] == {"right": state["right"], "total": 50.0}


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_a_model_that_ends_in_argmax_scores_as_its_logits_do(dtype: str) -> None:
    sums = MetricSums(("top1", "agreement"), has_labels=True, has_reference=True)
    sums.add((OUTPUTS.argmax(1).astype(dtype),), (REFERENCE.argmax(1).astype(dtype),), LABELS)
    scores = sums_over(slice(None)).results()
    assert sums.results() == {name: scores[name] for name in ("top1", "agreement")}


def test_merged_shards_score_as_the_whole() -> None:
    shards = [
        sums_over(slice(0, 7)).sums,
        sums_over(slice(7, 8)).sums,
        sums_over(slice(8, 50)).sums,
    ]
    whole = sums_over(slice(None))
    merged = results(merge_sums(shards))
    assert merged["top1"] == whole.results()["top1"]
    assert merged["agreement"] == whole.results()["agreement"]
    assert merged["sqnr"] == pytest.approx(whole.results()["sqnr"], rel=1e-12)


def test_equal_outputs_have_no_finite_sqnr() -> None:
    sums = MetricSums(("sqnr",), has_labels=False, has_reference=True)
    sums.add((REFERENCE,), (REFERENCE,), None)
    assert sums.results() == {"sqnr": None}


def test_outputs_that_are_not_finite_never_look_equal() -> None:
    sums = MetricSums(("sqnr",), has_labels=False, has_reference=True)
    sums.add((np.full_like(REFERENCE, np.nan),), (REFERENCE,), None)
    assert sums.results() == {"sqnr": FLOOR_DB}


def test_positions_of_a_dense_output_count_each() -> None:
    reference = RNG.standard_normal((2, 4, 3, 3)).astype(np.float32)
    outputs = reference.copy()
    outputs[0, :, 1, 1] = -outputs[0, :, 1, 1]
    sums = MetricSums(("agreement",), has_labels=False, has_reference=True)
    sums.add((outputs,), (reference,), None)
    assert sums.results() == {"agreement": 17 / 18}


def test_no_sample_has_no_score() -> None:
    assert MetricSums(("top1",), has_labels=True, has_reference=False).results() == {"top1": None}


def test_metrics_that_lack_something_are_refused_at_once() -> None:
    with pytest.raises(MetricError, match="'top1' needs labels"):
        MetricSums(("top1",), has_labels=False, has_reference=True)
    with pytest.raises(MetricError, match="'sqnr' compares with the float model"):
        MetricSums(("sqnr",), has_labels=True, has_reference=False)
    with pytest.raises(MetricError, match="unknown metric 'top5'") as caught:
        MetricSums(("top5",), has_labels=True, has_reference=True)
    assert "did you mean 'top1'" in str(caught.value)


def test_labels_that_do_not_fit_the_output_are_refused() -> None:
    sums = MetricSums(("top1",), has_labels=True, has_reference=False)
    with pytest.raises(MetricError, match=r"labels of shape \(1, 2\)"):
        sums.add((REFERENCE[:1],), None, np.zeros((1, 2), np.int64))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3, 1), (6, 1, 4, 4)])
def test_a_lone_number_is_no_answer_that_could_agree(shape: tuple[int, ...]) -> None:
    sums = MetricSums(("agreement",), has_labels=False, has_reference=True)
    sums.add((np.zeros(shape, np.float32),), (np.ones(shape, np.float32),), None)
    assert sums.results() == {"agreement": None}


def test_numbers_are_shown_with_four_digits_or_whole_from_a_thousand() -> None:
    shown = [measure("no measure").formatted(value) for value in (0.98765, -12.0, 1e3, -1234567.8)]
    assert shown == ["0.9877", "-12", "1,000", "-1,234,568"]
