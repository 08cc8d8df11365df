"""A small study through every pool: two shards of both calibration rounds, then candidates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest

from compiler.quantize import activation_scales
from compiler.quantize.calibration.measurement import Step
from compiler.quantize.calibration.stats import CalibrationStats
from workers.errors import DatasetError
from workers.messages import CalibrationRequest, DatasetRef, split_range
from workers.metrics.registry import merge_sums, results
from workers.pool.kinds import open_pool
from workers.pool.queued_pool import WorkerPool

RAY = pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])


@pytest.fixture(params=["inline", "process", RAY], scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    pool = open_pool(request.param, 2)
    yield pool
    pool.close()


def answers(pool: WorkerPool, requests: list[Any]) -> list[Any]:
    for number, request in enumerate(requests):
        pool.submit(number, request)
    ended = {}
    while pool.pending:
        finished = pool.next_finished(timeout_s=600)
        assert finished is not None, "no answer within ten minutes"
        if finished.error is not None:
            raise finished.error
        ended[finished.tag] = finished.result
    return [ended[number] for number in range(len(requests))]


def test_a_study_runs_the_same_in_every_pool(pool: WorkerPool, study) -> None:
    blob = pool.put(study.blob)
    halves = split_range(range(48), 2)

    def calibrate(step: Step, merged: Any = None) -> CalibrationStats:
        requests = [study.calibration(step, half, merged) for half in halves]
        shards = answers(pool, [with_blob(request, blob) for request in requests])
        found = [CalibrationStats.from_arrays(shard.arrays) for shard in shards]
        return reduce(CalibrationStats.merge, found)

    stats = calibrate("histograms", pool.put(calibrate("ranges").to_arrays()))
    for name, array in study.stats().to_arrays().items():
        np.testing.assert_array_equal(stats.to_arrays()[name], array, err_msg=name)

    floats = answers(
        pool,
        [study.evaluation("float", blob=blob, samples=h, return_outputs=True) for h in halves],
    )
    scales = tuple(float(s) for s in activation_scales(stats, study.qconfig))
    requests = [
        study.evaluation(
            "engine",
            blob=blob,
            samples=half,
            activation_scales=scales,
            metrics=("top1", "agreement", "sqnr"),
            reference=pool.put(tuple(float_half.outputs)),
        )
        for half, float_half in zip(halves, floats, strict=True)
    ]
    scores = results(merge_sums(answer.sums for answer in answers(pool, requests)))
    assert scores["agreement"] is not None
    assert scores["agreement"] > 0.9
    assert scores["sqnr"] is not None
    assert scores["sqnr"] > 15


@pytest.mark.slow
def test_errors_of_requests_keep_their_type(pool: WorkerPool, study) -> None:
    request = study.evaluation("float", dataset=DatasetRef("npz", {"path": "/nowhere.npz"}))
    with pytest.raises(DatasetError, match=r"no data file /nowhere\.npz") as caught:
        answers(pool, [request])
    assert caught.value.notes == ("in evaluation by float, samples 0 to 47",)


def with_blob(request: Any, blob: Any) -> Any:
    from dataclasses import replace

    if isinstance(request, CalibrationRequest):
        return replace(request, blob=blob)
    return replace(request, build=replace(request.build, blob=blob))
