from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from compiler.errors import CalibrationError
from compiler.quantize import (
    ChannelStats,
    calibration_stats,
    channel_stats,
    mark,
)
from compiler.quantize.calibration.measurement import Measurement
from compiler.quantize.calibration.stats import CalibrationStats
from tests.each import each
from tests.workers.shards import calibrate_shard
from workers.calibration import CalibrationActor
from workers.errors import DatasetError
from workers.messages import CalibrationResult, DatasetRef, Handle, split_range
from workers.object_store import ObjectStore


def merged_arrays(results: list[CalibrationResult]) -> dict[str, np.ndarray]:
    shards = [CalibrationStats.from_arrays(r.arrays) for r in results]
    return reduce(CalibrationStats.merge, shards).to_arrays()


def test_shards_of_both_rounds_merge_to_the_statistics_of_one_process(study) -> None:
    parts = split_range(range(48), 3)
    ranges = merged_arrays([calibrate_shard(study.calibration("ranges", p)) for p in parts[::-1]])
    found = merged_arrays(
        [calibrate_shard(study.calibration("histograms", p, ranges)) for p in parts]
    )

    annotated, _ = mark(study.mod, study.qconfig)
    batches = [{"x": image[None]} for image in study.images]
    expected = calibration_stats(annotated, batches, (0.999, 0.99999)).to_arrays()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_shards_of_channel_statistics_merge_to_those_of_one_process(study) -> None:
    parts = split_range(range(48), 3)
    shards = [
        ChannelStats.from_arrays(calibrate_shard(study.calibration("channels", part)).arrays)
        for part in parts[::-1]
    ]
    found = shards[0].merge(shards[1]).merge(shards[2]).to_arrays()
    whole = channel_stats(study.mod, [{"x": image[None]} for image in study.images]).to_arrays()
    for name, array in each(whole.items()):
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_smoothed_network_is_measured_with_its_channels(study) -> None:
    samples = range(48)
    channels = calibrate_shard(study.calibration("channels", samples)).arrays
    smooth = Measurement("ranges", study.qconfig.with_overrides(smooth_alpha=0.5))
    request = replace(study.calibration("ranges", samples), measurement=smooth, channels=channels)
    with pytest.raises(CalibrationError, match="need statistics of single channels"):
        calibrate_shard(replace(request, channels=None))

    found = CalibrationStats.from_arrays(calibrate_shard(request).arrays)
    plain = CalibrationStats.from_arrays(
        calibrate_shard(study.calibration("ranges", samples)).arrays
    )
    assert found.labels == plain.labels
    assert not np.array_equal(found.to_arrays()["maximum"], plain.to_arrays()["maximum"])


def test_results_tell_what_they_cost(study) -> None:
    result = calibrate_shard(study.calibration("ranges", range(4)))
    assert result.samples == 4
    assert 0 < result.cpu_s < 60


def test_handles_are_fetched_once_for_many_shards(study) -> None:
    fetched: list[str] = []

    def fetch(handle: Handle) -> bytes:
        fetched.append(handle.key)
        return study.blob

    actor = CalibrationActor(ObjectStore(fetch))
    for part in split_range(range(8), 4):
        actor.run(replace(study.calibration("ranges", part), blob=Handle("k")))
    assert fetched == ["k"]


def test_histograms_without_merged_ranges_are_refused(study) -> None:
    with pytest.raises(CalibrationError, match="need the merged ranges of all shards"):
        calibrate_shard(study.calibration("histograms", range(4)))


def test_no_sample_and_data_that_does_not_fit_are_refused(study, tmp_path) -> None:
    with pytest.raises(DatasetError, match="no sample to calibrate on"):
        calibrate_shard(study.calibration("ranges", range(3, 3)))
    np.savez(tmp_path / "other.npz", x=np.zeros((2, 3, 9, 9), np.float32))
    other = DatasetRef("npz", {"path": str(tmp_path / "other.npz")})
    with pytest.raises(DatasetError, match=r"\[2, 3, 9, 9\] in the data and \[1, 3, 8, 8\]"):
        calibrate_shard(replace(study.calibration("ranges", range(2)), dataset=other))
