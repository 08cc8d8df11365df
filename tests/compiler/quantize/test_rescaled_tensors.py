"""Statistics of rescaled networks come from the passes over the network that is not rescaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.module import IRModule
from compiler.qtypes.layer_choices import SUMS
from compiler.quantize import Calibration, QConfig, channel_stats, prerequisite_optimize
from compiler.quantize.calibration.collect_stats import ExecutorFactory, float_executor
from compiler.quantize.calibration.measurement import LocalData, Measurement, Statistics
from compiler.quantize.calibration.profile_function import profile_function
from compiler.quantize.calibration.statistics_store import STATISTICS, statistics_fields
from compiler.quantize.candidate import mark
from compiler.quantize.smoothing import rescaled_tensors as module
from compiler.quantize.smoothing.channel_groups import ChannelGroups, Factors, find_groups
from compiler.quantize.smoothing.rescaled_tensors import (
    CommonReading,
    CountedTensor,
    rescaled_tensors,
)
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.test_smoothing import SHAPE, C, chain, network, weight
from tests.each import each

RESCALINGS = ({"smooth_alpha": None}, {"smooth_alpha": 0.5}, {"smooth_alpha": 0.9})
PLAIN = QConfig.recommended(calibrate_mode="mse")


def powers_of_two(groups: ChannelGroups, *_: Any) -> list[Factors]:
    """Factors that are exact in float32, the same whenever the groups are the same."""
    rng = np.random.default_rng(len(groups.sizes))
    return [np.exp2(rng.integers(-4, 5, size).astype(np.float64)) for size in groups.sizes]


def profile(mod: IRModule) -> IRModule:
    """Without tables: an activation function that is one hides how factors pass it."""
    return profile_function(mark(mod, PLAIN.with_overrides(integer_tables=False))[0], whole=True)[0]


def batches(rng: np.random.Generator, count: int = 3) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, SHAPE).astype(np.float32)} for _ in range(count)]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_with_powers_of_two_every_value_is_that_of_the_rescaled_network(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod = network(rng)
    groups = find_groups(mod["main"])
    plain = profile(mod)
    rescaled = profile(groups.rescaled(mod, powers_of_two(groups)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "smoothing_factors", powers_of_two)
        ranges = channel_stats(mod, batches(rng, 1), executor=ReferenceExecutor).ranges()
        found = rescaled_tensors(plain, rescaled, 0.5, ranges)

    assert found is not None
    (data,) = batches(rng, 1)
    _, *own = ReferenceExecutor(plain).run(data)
    _, *theirs = ReferenceExecutor(rescaled).run(data)
    for output, expected in each(zip(found, theirs, strict=True)):
        # Subnormal numbers have fewer bits than their multiples.
        normal = np.abs(expected) >= np.finfo(np.float32).tiny
        np.testing.assert_array_equal(output.of(own)[normal], expected[normal])


class Counting(LocalData):
    """Local data that note what was read."""

    def __init__(
        self, mod: IRModule, data: Sequence[Any], executor: ExecutorFactory = ReferenceExecutor
    ) -> None:
        super().__init__(mod, data, executor)
        self.read: list[str] = []

    def collect(self, measurement: Measurement) -> Sequence[Statistics]:
        self.read.append(measurement.step)
        return super().collect(measurement)


def test_one_calibration_serves_all_rescalings() -> None:
    rng = np.random.default_rng(11)
    mod = chain(rng)
    data = batches(rng)
    counting = Counting(mod, data)
    together = Calibration(mod, counting, variants=RESCALINGS)

    scales = [together.scales_for(PLAIN.with_overrides(**one)) for one in RESCALINGS]

    assert sorted(counting.read) == ["channels", "histograms", "ranges"]
    assert len(set(scales)) == len(RESCALINGS)


def test_a_norm_that_is_recognized_as_a_whole_hides_no_factors() -> None:
    rng = np.random.default_rng(15)
    x = relay.var("x", SHAPE)
    tokens = relay.op.nn.dense(x, weight(rng, C, SHAPE[-1]))
    norm = relay.op.nn.layer_norm(tokens, weight(rng, C), weight(rng, C))
    both = [relay.op.nn.dense(norm, weight(rng, C, C)) for _ in range(2)]
    mod = prerequisite_optimize(relay.module(relay.Function([x], relay.op.add(*both))), None, 3)
    counting = Counting(mod, batches(rng))
    together = Calibration(mod, counting, variants=RESCALINGS)
    scales = [together.scales_for(PLAIN.with_overrides(**one)) for one in RESCALINGS]
    assert sorted(counting.read) == ["channels", "histograms", "ranges"]
    assert len(set(scales)) == len(RESCALINGS)


@pytest.mark.parametrize("rescaling", RESCALINGS)
def test_statistics_do_not_depend_on_what_is_measured_with_them(rescaling: dict[str, Any]) -> None:
    rng = np.random.default_rng(12)
    mod = chain(rng)
    data = batches(rng)
    config = PLAIN.with_overrides(**rescaling)
    ours = Calibration(mod, Counting(mod, data), variants=RESCALINGS).stats_for(config)
    alone = Calibration(mod, Counting(mod, data)).stats_for(config)
    for name, array in each(alone.to_arrays().items()):
        np.testing.assert_array_equal(ours.to_arrays()[name], array, err_msg=name)


@pytest.mark.parametrize("rescaling", RESCALINGS[1:])
def test_rescaled_statistics_are_those_of_the_rescaled_network_but_for_rounding(
    rescaling: dict[str, Any],
) -> None:
    rng = np.random.default_rng(13)
    mod = chain(rng)
    data = batches(rng)
    config = PLAIN.with_overrides(**rescaling)
    calibration = Calibration(mod, Counting(mod, data))
    ours = calibration.stats_for(config)
    # A mark of one's own rescales where nobody can see it: the network itself is measured.
    theirs = Calibration(
        mod, LocalData(mod, data, ReferenceExecutor), mark=lambda *given: mark(*given)
    ).stats_for(config)
    for mine, measured in each(zip(ours.tensors, theirs.tensors, strict=True)):
        np.testing.assert_allclose(mine.minimum, measured.minimum, rtol=1e-5)
        np.testing.assert_allclose(mine.maximum, measured.maximum, rtol=1e-5)
        assert mine.count == measured.count
        hist, other = mine.hist, measured.hist
        assert hist is not None
        assert other is not None
        assert np.abs(hist - other).sum() <= 0.01 * hist.sum()


def residual(rng: np.random.Generator) -> IRModule:
    """Two blocks whose results are added to what they read."""
    value: Any = relay.var("x", SHAPE)
    for _ in range(2):
        inner = relay.op.nn.relu(relay.op.nn.conv2d(value, weight(rng, C, C, 1, 1)))
        value = relay.op.add(value, relay.op.nn.conv2d(inner, weight(rng, C, C, 1, 1)))
    return relay.module(relay.op.nn.conv2d(value, weight(rng, C, C, 1, 1)))


WIDE = {SUMS: {"nbit_input": 16}}
VARIANTS = tuple({**one, "layers": layers} for one in RESCALINGS for layers in ({}, WIDE))


@pytest.mark.parametrize("executor", [ReferenceExecutor, float_executor])
def test_sums_of_16_bits_are_measured_with_those_of_8(executor: ExecutorFactory) -> None:
    rng = np.random.default_rng(16)
    mod = residual(rng)
    data = batches(rng)
    counting = Counting(mod, data, executor)
    together = Calibration(mod, counting, variants=VARIANTS)
    for one in VARIANTS:
        config = PLAIN.with_overrides(**one)
        alone = Calibration(mod, Counting(mod, data, executor)).stats_for(config).to_arrays()
        for name, array in together.stats_for(config).to_arrays().items():
            np.testing.assert_array_equal(array, alone[name], err_msg=f"{name} of {one}")
    assert sorted(counting.read) == ["channels", "histograms", "ranges"]
    first, second = (together.stats_for(PLAIN.with_overrides(**one)) for one in VARIANTS[:2])
    memos = ({id(one.memo) for one in stats.tensors} for stats in (first, second))
    assert next(memos) >= next(memos)


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_statistics_of_16_bit_sums_are_those_of_their_own_network(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod = network(rng)
    data = batches(rng, 1)
    config = PLAIN.with_overrides(layers=WIDE)
    ours = (
        Calibration(mod, Counting(mod, data), variants=VARIANTS[:2]).stats_for(config).to_arrays()
    )
    local = LocalData(mod, data, ReferenceExecutor)
    theirs = Calibration(mod, local, mark=lambda *given: mark(*given)).stats_for(config).to_arrays()
    for name, array in each(theirs.items()):
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


def test_values_that_the_network_does_not_measure_are_not_found_in_it() -> None:
    rng = np.random.default_rng(17)
    mod = residual(rng)
    few, many = (
        profile_function(mark(mod, PLAIN.with_overrides(layers=layers))[0], whole=True)[0]
        for layers in (WIDE, {})
    )
    tensors = [CountedTensor(number) for number in range(len(few["main"].body.fields) - 1)]
    assert CommonReading(many).places_of(few, tensors) == list(range(len(tensors)))
    assert CommonReading(few).places_of(many, tensors) is None
    other = profile_function(mark(residual(rng), PLAIN)[0], whole=True)[0]
    assert CommonReading(many).places_of(other, tensors) is None


def test_a_network_that_differs_in_more_than_factors_is_not_taken_for_a_rescaled_one() -> None:
    rng = np.random.default_rng(14)
    one, other = profile(chain(rng)), profile(chain(rng))
    assert rescaled_tensors(one, one, None, []) is not None
    assert rescaled_tensors(one, other, None, []) is None


def test_what_is_stored_is_not_measured_again() -> None:
    rng = np.random.default_rng(15)
    mod = chain(rng)

    class Kept(dict[str, Any]):
        def load(self, kind: str, fields: Any) -> Any:
            return self.get(repr((kind, fields)))

        def save(self, kind: str, fields: Any, arrays: Any) -> None:
            self[repr((kind, fields))] = arrays

    kept = Kept()
    Calibration(mod, Counting(mod, batches(rng)), store=kept, variants=RESCALINGS).stats_for(PLAIN)
    for one in RESCALINGS:
        fields = statistics_fields(PLAIN.with_overrides(**one))
        assert kept.load(STATISTICS, fields) is not None
    silent = Counting(mod, [])
    later = Calibration(mod, silent, store=kept, variants=RESCALINGS)
    later.stats_for(PLAIN.with_overrides(smooth_alpha=0.9))
    assert silent.read == []


def test_factors_go_to_the_channels_of_a_tensor() -> None:
    values = np.ones((1, 2, 3), np.float32)
    found = CountedTensor(1, np.asarray([2, 4], np.float32), trailing=1).of([values, values])
    assert found[0].tolist() == [[2, 2, 2], [4, 4, 4]]
