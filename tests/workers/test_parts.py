"""An evaluation in parts is the evaluation: sums, hash, collapse, whoever did which part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qsearch.search.scoring import merge, parts_of, split
from tests.workers.shards import evaluate_shard
from workers.errors import WorkerError
from workers.messages import EvaluationResult
from workers.metrics.registry import results

ALL = ("top1", "agreement", "sqnr")


@pytest.fixture(scope="module")
def baseline(study) -> EvaluationResult:
    return evaluate_shard(study.evaluation("float", return_outputs=True))


@pytest.mark.parametrize("samples", [48, 47])
@pytest.mark.parametrize("parts", [2, 5])
def test_parts_add_up_to_the_whole(study, baseline, samples: int, parts: int) -> None:
    request = study.evaluation(
        "float",
        metrics=ALL,
        samples=range(samples),
        reference=(baseline.outputs[0][:samples] * 1.01,),
    )
    whole = evaluate_shard(request)
    found = [evaluate_shard(part) for part in split(request, parts)]
    assert len(found) == parts
    found = [replace(one, peak_rss_bytes=place) for place, one in enumerate(found)]
    together = merge(found)
    assert together.peak_rss_bytes == parts - 1
    assert (together.samples, together.outputs_sha256) == (whole.samples, whole.outputs_sha256)
    for name, value in results(whole.sums).items():
        # Sums of floats in another order.
        assert results(together.sums)[name] == pytest.approx(value, rel=1e-12)


def test_the_first_part_sees_the_collapse_and_counts_alone(study, baseline) -> None:
    request = study.evaluation(
        "float",
        metrics=("agreement",),
        reference=(-baseline.outputs[0],),
        collapse_after=8,
    )
    first, *others = (evaluate_shard(part) for part in split(request, 4))
    assert (first.collapsed, first.samples) == (True, 8)
    assert not any(other.collapsed for other in others)


def test_how_many_parts_there_are_depends_on_the_samples_alone() -> None:
    assert [parts_of(n) for n in (1, 32, 63, 64, 300, 10_000)] == [1, 1, 1, 2, 9, 32]
    assert parts_of(300, run_samples=64) == 5


def test_parts_that_do_not_fit_are_refused(study) -> None:
    request = study.evaluation("float", samples=range(2))
    with pytest.raises(WorkerError, match="part 2 of 3 of 2 samples"):
        evaluate_shard(replace(request, part=(2, 3)))
    with pytest.raises(WorkerError, match="without their outputs"):
        merge([evaluate_shard(request)] * 2)
