from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler import evaluate
from compiler.errors import QuantizeError
from compiler.quantize import (
    ChannelStats,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    mark,
)
from compiler.quantize.weight_rounding.prefix_runs import PrefixRuns
from compiler.runtime.executor import Executor
from qsearch.search.pruner import LOOKS
from qsearch.search.scoring import merge, split
from tests.needs import NEEDS_C
from tests.workers.shards import NOTHING_STORED, evaluate_shard
from workers import candidates, evaluation
from workers.batching import model_batches
from workers.errors import DifferingOutputsError, MetricError, WorkerError
from workers.evaluation import EvaluationActor
from workers.messages import EvaluationRequest, EvaluationResult, Handle, split_range
from workers.metrics.registry import merge_sums, results
from workers.object_store import ObjectStore

ALL = ("top1", "agreement", "sqnr")


@pytest.fixture(scope="module")
def baseline(study) -> EvaluationResult:
    return evaluate_shard(study.evaluation("float", return_outputs=True))


@pytest.fixture(scope="module")
def scales(study) -> tuple[float, ...]:
    return study.scales()


def test_the_float_evaluator_runs_the_network_sample_by_sample(study, baseline) -> None:
    expected = [evaluate(study.mod, {"x": image[None]})[0] for image in study.images]
    assert baseline.outputs is not None
    # onnxruntime and the reference add in different orders
    np.testing.assert_allclose(baseline.outputs[0], np.concatenate(expected), rtol=1e-4, atol=1e-5)
    digest = hashlib.sha256()
    for row in baseline.outputs[0]:
        digest.update(row.astype("<f4").tobytes())
    assert baseline.outputs_sha256 == digest.hexdigest()
    assert baseline.samples == 48


def test_integer_evaluators_agree_with_the_reference_executor(study, baseline, scales) -> None:
    answers = {
        evaluator: evaluate_shard(
            study.evaluation(
                evaluator,
                activation_scales=scales,
                metrics=ALL,
                reference=baseline.outputs,
                return_outputs=True,
            )
        )
        for evaluator in ("engine", "reference", "simulated")
    }
    candidate = build_candidate(study.mod, study.qconfig, scales)
    expected = [evaluate(candidate.integer, {"x": x[None]})[0] for x in study.images]
    exact = answers["reference"]
    np.testing.assert_array_equal(exact.outputs[0], np.concatenate(expected))
    assert answers["engine"].outputs_sha256 == exact.outputs_sha256
    for answer in answers.values():
        scores = results(answer.sums)
        assert scores["agreement"] >= 0.9
        assert scores["sqnr"] >= 15
        assert answer.samples == 48


@pytest.mark.slow
@NEEDS_C
def test_a_part_times_what_ships_and_changes_no_score(study, baseline, scales) -> None:
    plain = study.evaluation(
        "engine", activation_scales=scales, metrics=ALL, reference=baseline.outputs
    )
    timed = replace(plain, asked=("latency", "c_latency"))
    both = {"latency_ms", "c_latency_ms"}
    actor, parts = EvaluationActor(ObjectStore(NOTHING_STORED)), LOOKS[0] + 1
    answers = [actor.run(one) for one in split(timed, parts)]
    times = [answer.cost for answer in answers]
    assert [len(both & set(cost)) for cost in times] == [2] * LOOKS[0] + [0]
    whole = merge(answers)
    assert all(cost[name] > 0 for cost in times[:2] for name in both)
    expected = merge([actor.run(one) for one in split(plain, parts)])
    assert (whole.sums, whole.outputs_sha256) == (expected.sums, expected.outputs_sha256)
    assert set(whole.cost) - set(expected.cost) == both
    of_float = replace(timed.build, evaluator="float")
    assert evaluate_shard(replace(timed, build=of_float)).cost == {}


def test_shards_of_one_candidate_merge_to_the_whole(study, baseline, scales) -> None:
    request = study.evaluation(
        "engine", activation_scales=scales, metrics=ALL, reference=baseline.outputs
    )
    whole = evaluate_shard(request)
    shards = []
    for part in split_range(range(48), 3):
        reference = tuple(out[part.start : part.stop] for out in baseline.outputs)
        shards.append(evaluate_shard(replace(request, samples=part, reference=reference)))
    merged = results(merge_sums(shard.sums for shard in shards))
    assert merged == pytest.approx(results(whole.sums), rel=1e-12)


@pytest.mark.slow
def test_a_worker_fits_ranges_and_runs_the_float_network_once_for_all_bits_of_weights(
    study, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [{"x": image[None]} for image in study.images]
    channels = channel_stats(study.mod, batches, sample=True).to_arrays()

    def request(bits: int) -> EvaluationRequest:
        config = study.qconfig.with_overrides(weight_rounding="sequential", nbit_weight=bits)
        stats = calibration_stats(
            mark(study.mod, config, ChannelStats.from_arrays(channels))[0], batches
        )
        scales = tuple(float(one) for one in activation_scales(stats, config))
        fields = {"qconfig": config.to_dict(), "channels": channels, "activation_scales": scales}
        return study.evaluation("engine", return_rounding=True, **fields)

    asked: list[int] = []
    float_values = PrefixRuns.float_values

    def counted(runs: PrefixRuns, node: Any) -> Any:
        asked.append(1)
        return float_values(runs, node)

    monkeypatch.setattr(PrefixRuns, "float_values", counted)
    together = EvaluationActor(ObjectStore(NOTHING_STORED))
    for bits in (4, 8, 3):
        asked.clear()
        ours = together.run(request(bits))
        assert bool(asked) is (bits != 3), "what the float network says is known by then"
        alone = evaluate_shard(request(bits))
        assert ours.outputs_sha256 == alone.outputs_sha256
        assert ours.rounding.keys() == alone.rounding.keys()
        for name, found in alone.rounding.items():
            np.testing.assert_array_equal(ours.rounding[name], found, err_msg=name)


def test_a_collapsed_candidate_stops_early(study, baseline, scales) -> None:
    tiny = tuple(s * 1e-4 for s in scales)
    request = study.evaluation(
        "engine",
        activation_scales=tiny,
        metrics=("agreement", "sqnr"),
        reference=baseline.outputs,
        collapse_after=12,
        collapse_below=0.9,
    )
    stopped = evaluate_shard(request)
    assert stopped.collapsed
    assert stopped.samples == 12
    assert results(stopped.sums)["agreement"] < 0.9
    full = evaluate_shard(replace(request, collapse_after=None))
    assert (full.collapsed, full.samples) == (False, 48)


def test_outputs_that_are_near_have_not_collapsed_where_the_highest_is_another(study) -> None:
    request = study.evaluation("float", metrics=("sqnr",), return_outputs=True)
    (wanted,) = evaluate_shard(replace(request, metrics=())).outputs
    second = np.argsort(wanted, axis=1)[:, -2:-1]
    np.put_along_axis(wanted, second, wanted.max(axis=1, keepdims=True) + 1e-3, 1)
    found = evaluate_shard(replace(request, reference=(wanted,), collapse_after=12))
    assert (found.collapsed, found.samples) == (False, 48)
    assert (results(found.sums)["sqnr"] or 0.0) > 3.0


def test_a_probe_for_collapse_does_not_change_the_result(study, baseline, scales) -> None:
    request = study.evaluation(
        "engine", activation_scales=scales, metrics=ALL, reference=baseline.outputs
    )
    plain = evaluate_shard(request)
    probed = evaluate_shard(replace(request, collapse_after=10, collapse_below=0.1))
    assert not probed.collapsed
    assert (probed.sums, probed.outputs_sha256) == (plain.sums, plain.outputs_sha256)


def test_a_candidate_is_compiled_once_for_many_shards(study, scales, monkeypatch) -> None:
    compiled = []
    executor = candidates._executor
    monkeypatch.setattr(
        candidates, "_executor", lambda made, name: compiled.append(made) or executor(made, name)
    )
    actor = EvaluationActor(ObjectStore(lambda handle: study.blob))
    request = study.evaluation("engine", activation_scales=scales, blob=Handle("blob"))
    for samples in split_range(range(4), 2):
        actor.run(replace(request, samples=samples))
    assert len(compiled) == 1


def test_a_candidate_without_integers_has_no_integers(study) -> None:
    config = {
        **study.qconfig.to_dict(),
        "do_simulation": True,
        "partition_conversions": "disabled",
        "calibrate_mode": "global_scale",
    }
    config["partition_conversions"] = "disabled"
    with pytest.raises(QuantizeError, match="no integers to evaluate"):
        evaluate_shard(study.evaluation("engine", qconfig=config))


def test_metrics_and_references_that_do_not_fit_are_refused(study, baseline) -> None:
    with pytest.raises(MetricError, match="outputs were not given"):
        evaluate_shard(study.evaluation("float", metrics=("agreement",)))
    with pytest.raises(WorkerError, match=r"\[48\] samples, 5 are scored"):
        evaluate_shard(
            study.evaluation("float", samples=range(5), reference=(baseline.outputs[0],))
        )


@pytest.mark.parametrize("evaluator", ["engine", "simulated"])
def test_a_check_by_the_reference_changes_no_result(study, scales, evaluator: str) -> None:
    request = study.evaluation(evaluator, activation_scales=scales, samples=range(4))
    plain, checked = (evaluate_shard(replace(request, spot_check=asked)) for asked in (False, True))
    assert checked.outputs_sha256 == plain.outputs_sha256


def test_an_evaluator_that_is_wrong_ends_with_an_error_that_names_both(
    study, scales, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = candidates._executor

    class Wrong:
        def __init__(self, right: Executor) -> None:
            self._executor = right
            self.input_names = right.input_names

        def run(self, inputs: Any) -> Any:
            (outputs,) = self._executor.run(inputs)
            outputs[0, 2] += 1
            return [outputs]

    monkeypatch.setattr(candidates, "_executor", lambda *asked: Wrong(right(*asked)))
    request = study.evaluation("engine", activation_scales=scales, samples=range(4))
    evaluate_shard(request)
    with pytest.raises(DifferingOutputsError, match="engine and reference differ: 1 of 5 values"):
        evaluate_shard(replace(request, spot_check=True))


def test_large_samples_are_read_a_few_at_a_time(study, monkeypatch) -> None:
    sample = study.images[0].nbytes
    monkeypatch.setattr(evaluation, "_SUMMED_BYTES", 5 * sample)
    read: list[int] = []

    def batches(dataset: Any, samples: range, inputs: Any, chunk: int) -> Any:
        read.append(chunk)
        return model_batches(dataset, samples, inputs, chunk)

    monkeypatch.setattr(evaluation, "model_batches", batches)
    evaluate_shard(study.evaluation("float"))
    assert read == [5]
