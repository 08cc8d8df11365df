"""Which trial is best, and what --max-drop promises."""

from __future__ import annotations

import pytest

from qsearch.search.objectives import (
    FIRST_DB,
    Objective,
    Score,
    comparisons,
    keeps_accuracy,
    top1_step,
    weighs_accuracy,
)
from qsearch.settings.launch_settings import MaxDrop
from workers.metrics.library import LIBRARY
from workers.metrics.size import WIDE_SHARE

SAMPLES = 480
FLOAT: Score = {"top1": 430 / SAMPLES, "agreement": 1.0}


def scored(right: int, sqnr_db: float, max_drop: MaxDrop | None = None) -> Score:
    """A trial with so many right answers of 480; the float model has 430."""
    score = {"top1": right / SAMPLES, "agreement": 0.99, "sqnr_db": sqnr_db}
    return {**score, **comparisons(score, FLOAT, SAMPLES, max_drop)}


def test_right_answers_that_luck_explains_do_not_decide_against_sqnr() -> None:
    objective = Objective("top1")
    ranked = [
        objective.rank(scored(426, 36.0), 4),
        objective.rank(scored(430, 35.0), 3),
        objective.rank(scored(438, 31.0), 2),  # above the float model: counts as equal to it
        objective.rank(scored(425, 40.0), 1),  # five of five changed answers lost: 3 %
        objective.rank(scored(421, 50.0), 0),
    ]
    assert ranked == sorted(ranked, reverse=True)


def test_the_order_of_trials_is_total_and_keeps_what_is_better_in_both() -> None:
    objective = Objective("top1")
    trials = [(right, db) for right in range(410, 436) for db in (20.0, 33.0, 35.0)]
    ranks = [objective.rank(scored(*trial), n) for n, trial in enumerate(trials)]
    assert len(set(ranks)) == len(ranks)
    for one, rank in zip(trials, ranks, strict=True):
        for other, behind in zip(trials, ranks, strict=True):
            assert rank > behind or not (one[0] >= other[0] and one[1] > other[1])


def test_luck_explains_four_answers_or_two_deviations_of_a_paired_comparison() -> None:
    assert top1_step(100) == 0.04
    assert top1_step(480) == pytest.approx(4.38 / 480, rel=1e-3)
    assert top1_step(10_000) == 0.002


def test_the_sampler_sees_the_order_that_chooses_the_winner() -> None:
    objective = Objective("top1")
    values = [objective.ranking(scored(*one)) for one in ((426, 36.0), (438, 31.0), (425, 40.0))]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(430 / SAMPLES, abs=1e-4)
    with_costs = Objective("top1", ("size",))
    assert with_costs.ranking(scored(426, 36.0)) == with_costs.ranking(scored(438, 31.0))


def test_top1_within_max_drop_goes_before_sqnr() -> None:
    objective, drop = Objective("top1"), MaxDrop(0.005)
    kept, lost = scored(428, 31.0, drop), scored(427, 36.0, drop)
    assert objective.rank(kept, 1) > objective.rank(lost, 0)
    assert not objective.feasible(lost)


def test_a_trial_that_lost_no_top1_is_only_beaten_in_sqnr() -> None:
    objective = Objective("top1")
    assert objective.decides(scored(427, 30.0)) == "sqnr"
    assert objective.decides(scored(420, 30.0)) == "top1"
    assert Objective("agreement").decides(scored(430, 30.0)) == "agreement"


def test_ties_go_to_sqnr_then_agreement_then_the_earlier_trial() -> None:
    objective = Objective("top1")
    base = {"top1": 0.85, "agreement": 0.97, "sqnr_db": 20.0}
    ranked = [
        objective.rank({**base, "sqnr_db": 21.0}, 8),
        objective.rank({**base, "agreement": 0.98}, 9),
        objective.rank(base, 1),
        objective.rank(base, 2),
        objective.rank({**base, "top1": 0.84, "agreement": 1.0}, 0),
    ]
    assert ranked == sorted(ranked, reverse=True)


def test_a_score_that_is_not_known_is_behind_every_other() -> None:
    objective = Objective(LIBRARY["perplexity"])
    known: Score = {"perplexity": -9.0, "sqnr_db": 3.0}
    unknown: Score = {"perplexity": None, "sqnr_db": 30.0}
    assert objective.rank(known, 1) > objective.rank(unknown, 0)
    assert objective.values(known) > objective.values(unknown)


def test_more_than_the_float_model_has_is_luck_and_sqnr_decides() -> None:
    objective = Objective(LIBRARY["cer"])
    given = ((-0.13, 15.9), (-0.16, 22.0), (-0.17, 30.0))
    scores = [{"cer": cer, "sqnr_db": sqnr} for cer, sqnr in given]
    compared = [s | comparisons(s, {"cer": -0.16}, 48, None) for s in scores]
    ranks = [objective.rank(score, 0) for score in compared]
    assert sorted(ranks, reverse=True) == [ranks[1], ranks[0], ranks[2]]


def test_an_infinite_sqnr_beats_every_finite_one() -> None:
    objective = Objective("sqnr")
    assert objective.ranking({"sqnr_db": None}) > objective.ranking({"sqnr_db": 150.0})


@pytest.mark.parametrize(
    ("top1", "drop", "kept"),
    [
        (0.84, MaxDrop(0.01), True),
        (0.8399, MaxDrop(0.01), False),
        (0.8415, MaxDrop(0.01, relative=True), True),
        (0.8414, MaxDrop(0.01, relative=True), False),
        (0.85, MaxDrop(0.0), True),
    ],
)
def test_max_drop_is_absolute_or_relative_to_the_baseline(
    top1: float, drop: MaxDrop, kept: bool
) -> None:
    assert keeps_accuracy({"top1": top1}, {"top1": 0.85, "agreement": 1.0}, drop) is kept


def test_without_labels_max_drop_looks_at_agreement() -> None:
    baseline = {"top1": None, "agreement": 1.0, "sqnr_db": None}
    assert keeps_accuracy({"top1": None, "agreement": 0.99}, baseline, MaxDrop(0.01))
    far = {"top1": None, "agreement": 0.98, "sqnr_db": 15.0}
    assert not keeps_accuracy(far, baseline, MaxDrop(0.01))


def test_of_a_lone_number_the_noise_may_be_so_large_a_share_of_the_signal() -> None:
    for drop in (MaxDrop(0.01), MaxDrop(0.01, relative=True)):
        assert keeps_accuracy({"agreement": None, "sqnr_db": 20.1}, {}, drop)
        assert not keeps_accuracy({"agreement": None, "sqnr_db": 19.9}, {}, drop)
    ranking = Objective("size").ranking
    bad, worse = ({"model_bytes": 10.0, "sqnr_db": sqnr_db} for sqnr_db in (15.0, 12.0))
    kept = {"model_bytes": 1e9, "sqnr_db": 30.0, "keeps_accuracy": 1.0}
    assert ranking(kept) > ranking(bad) > ranking(worse)


def test_a_cost_on_hardware_is_minimised_among_what_keeps_its_accuracy() -> None:
    objective = Objective("hw_traffic")
    base = {"top1": 0.85, "agreement": 0.97, "sqnr_db": 20.0, "keeps_accuracy": 1.0}
    lost = {**base, "top1": 0.6, "keeps_accuracy": 0.0, "hw_traffic": 1.0}
    ranked = [
        objective.rank({**base, "hw_traffic": 1e6}, 3),
        objective.rank({**base, "hw_traffic": 1e9}, 2),
        objective.rank({**lost, "top1": 0.7}, 1),
        objective.rank(lost, 0),
    ]
    assert ranked == sorted(ranked, reverse=True)


def test_a_cost_is_shown_as_it_is_and_not_as_its_negative() -> None:
    score = {"hw_traffic": 15580.0, "keeps_accuracy": 1.0, "sqnr_db": 31.256}
    assert Objective("hw_traffic").described(score) == "hw_traffic 15,580"
    both = Objective("sqnr", ("hw_traffic",))
    assert both.described(score) == "sqnr 31.26 dB, hw_traffic 15,580"
    assert both.values(score) == (31.256, 15580.0)
    library = Objective(LIBRARY["f1"])
    assert library.described({"f1": 0.9838}) == "f1 0.9838"
    assert both.rankings(score) == (31.256, -15580.0)


def test_of_equal_accuracy_the_smaller_is_best_so_the_best_lies_on_the_front() -> None:
    objective = Objective("top1", ("size",))
    small = {"top1": 0.9, "agreement": 0.97, "sqnr_db": 20.0, "model_bytes": 900.0}
    ranked = [
        objective.rank(small, 4),
        objective.rank({**small, "agreement": 0.99, "model_bytes": 1000.0}, 3),
        objective.rank({**small, "agreement": 0.98, "model_bytes": 1000.0}, 2),
    ]
    assert ranked == sorted(ranked, reverse=True)


def test_a_few_bytes_are_not_worth_decibels() -> None:
    objective = Objective("top1", ("size",))
    score = {"top1": 0.9, "agreement": 0.97, "sqnr_db": 20.0, "model_bytes": 11_511.0}
    better = {**score, "sqnr_db": 40.0, "model_bytes": 11_516.0}
    smaller = {**score, "model_bytes": 11_300.0}
    assert objective.rank(better, 1) > objective.rank(score, 0)
    assert objective.rank(smaller, 2) > objective.rank(better, 1)


def test_trials_that_break_a_limit_rank_behind_those_that_keep_all() -> None:
    objective = Objective("sqnr", max_size=1000.0)
    fits = {"sqnr_db": 20.0, "model_bytes": 1000.0, "keeps_accuracy": 1.0}
    ranked = [
        objective.rank(fits, 3),
        objective.rank({**fits, "sqnr_db": 40.0, "model_bytes": 1100.0}, 2),
        objective.rank({**fits, "sqnr_db": 50.0, "model_bytes": 1500.0}, 1),
        objective.rank({**fits, "sqnr_db": 60.0, "keeps_accuracy": 0.0}, 0),
    ]
    assert ranked == sorted(ranked, reverse=True)
    assert [objective.feasible(fits), objective.feasible({**fits, "model_bytes": 1e6})] == [
        True,
        False,
    ]
    assert objective.violations(fits) == {"max_drop": 0.0, "max_size": 0.0}


@pytest.mark.parametrize(
    ("groups", "latency", "fits"),
    [(39.0, 5.0, True), (40.0, 5.0, False), (39.0, 5.5, False), (None, 5.0, False)],
)
def test_every_limit_of_a_cost_counts(groups: float | None, latency: float, fits: bool) -> None:
    limits = {"hw_groups": 39.0, "latency": 5.0, "hw_host_calls": 0.0}
    objective = Objective.of({"metric": "sqnr", "at_most": limits})
    score = {"sqnr_db": 30.0, "hw_groups": groups, "latency_ms": latency, "hw_host_calls": 0.0}
    assert (objective.feasible(score), objective.fits(score)) == (fits, fits)
    assert objective.fits({**score, "keeps_accuracy": 0.0}) == fits
    assert not objective.fits({**score, "hw_host_calls": 1.0})
    assert objective.limits == [
        "--max-drop",
        "--at-most hw_groups",
        "--at-most hw_host_calls",
        "--at-most latency",
    ]


def test_max_drop_decides_where_accuracy_alone_does_not() -> None:
    assert weighs_accuracy("sqnr", (), has_labels=True)
    assert not weighs_accuracy("sqnr", (), has_labels=False)
    assert weighs_accuracy("top1", (), has_labels=True)
    assert not weighs_accuracy("agreement", (), has_labels=True)
    assert weighs_accuracy("top1", ("size",), has_labels=True)
    assert weighs_accuracy("hw_cycles", (), has_labels=False)
    assert weighs_accuracy("size", (), has_labels=False)


def test_a_spec_gives_its_objective_back() -> None:
    spec = {"metric": "sqnr", "minimize": ["size"], "max_size": 5000}
    assert Objective.of(spec) == Objective("sqnr", ("size",), 5000.0)
    assert Objective.of({"metric": "top1"}).names == ("top1",)


def test_without_labels_outputs_near_the_float_model_are_within_the_limit() -> None:
    base, most = {"agreement": 1.0, "sqnr_db": None}, MaxDrop(0.01)
    moved = {"agreement": 0.925, "sqnr_db": 23.4}  # the highest of twelve motors, or a CTC step
    assert keeps_accuracy(moved, base, most)
    assert not keeps_accuracy({**moved, "sqnr_db": 15.0}, base, most)
    assert keeps_accuracy({"agreement": 0.995, "sqnr_db": 15.0}, base, most)
    assert not keeps_accuracy({**moved, "top1": 0.9}, {**base, "top1": 0.95}, most)
    error = {"mae": -0.1, "agreement": None, "sqnr_db": 30.0}  # against the float model
    assert keeps_accuracy(error, {"sqnr_db": None}, most)
    assert not keeps_accuracy({**error, "sqnr_db": 10.0}, {"sqnr_db": None}, most)


def timed(right: int, sqnr_db: float, wide_share: float, first_db: float | None = 42.0) -> Score:
    first = {} if first_db is None else {FIRST_DB: first_db}
    return {**scored(right, sqnr_db), WIDE_SHARE: wide_share, **first}


def test_of_modules_that_keep_top1_the_faster_one_is_best_unless_it_loses_decibels() -> None:
    objective = Objective("top1")
    ranked = [
        timed(427, 41.0, 0.0),
        timed(430, 40.5, 0.004),  # takes no longer than without
        timed(430, 47.9, 0.5),
        timed(430, 47.9, 1.0),
        timed(430, 38.9, 0.0),  # more than 3 dB below trial 0
        timed(430, 29.0, 0.0, 31.0),  # below 30 dB
        timed(430, 28.0, 0.0, None),
        timed(420, 60.0, 0.0),
    ]
    ranks = [objective.rank(score, 0) for score in ranked]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)
    assert objective.rival_costs(ranked[2]) > objective.rival_costs(ranked[0])


@pytest.mark.parametrize(
    "objective",
    [
        Objective("sqnr"),
        Objective("top1", ("size",)),
        Objective("top1", max_size=1e6),
        Objective("top1", at_most=(("latency", 9.0),)),
    ],
)
def test_time_does_not_count_where_something_else_was_asked_for(objective: Objective) -> None:
    sizes = {"model_bytes": 1000.0, "latency_ms": 1.0}
    wide, narrow = ({**timed(430, db, share), **sizes} for db, share in ((47.9, 1.0), (41.0, 0.0)))
    assert objective.rank(wide, 0) > objective.rank(narrow, 0)
