"""Ranges fitted on the way through the quantized network, and sums of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.insight.network import Network
from compiler.ir.analysis import post_order
from compiler.ir.expr import Constant
from compiler.ir.module import IRModule
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.layer_choices import SUMS
from compiler.quantize import (
    QConfig,
    QuantizeContext,
    activation_scales,
    build_candidate,
    calibration_stats,
    channel_stats,
    mark,
    prerequisite_optimize,
    quantize,
    quantize_points,
)
from compiler.quantize.bits.wide_inputs import wide_inputs
from compiler.quantize.calibration.collect_stats import float_executor
from tests.benchmarks import unseen_networks
from tests.compiler.frontend.from_onnx.test_load import imported
from tests.compiler.frontend.from_onnx.test_recurrent import weights, whole
from tests.compiler.quantize.candidates import assert_same_integers, calibrated, const, sqnr_db

WIDE = {SUMS: {"nbit_input": 16}}
SEQUENTIAL = QConfig.recommended(
    weight_rounding="sequential", calibrate_mode="max", weight_scale="mse"
)
FITTING = "compiler.quantize.scales.range_fitting"
Batches = list[dict[str, Any]]


def blocks(rng: np.random.Generator, count: int = 3, c: int = 6) -> IRModule:
    """A convolution, a pool, residual blocks, a dense layer."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (4, 1, 12, 12))
    first = nn.conv2d(x, const(rng, c, 1, 3, 3), padding=(1, 1, 1, 1))
    held = nn.max_pool2d(nn.relu(op.add(first, const(rng, c, 1, 1))), (2, 2), (2, 2))
    for _ in range(count):
        a = nn.conv2d(held, const(rng, c, c, 3, 3), padding=(1, 1, 1, 1))
        b = nn.conv2d(nn.relu(op.add(a, const(rng, c, 1, 1))), const(rng, c, c, 1, 1))
        held = nn.relu(op.add(op.add(b, const(rng, c, 1, 1)), held))
    pooled = nn.batch_flatten(nn.global_avg_pool2d(held))
    result = op.add(nn.dense(pooled, const(rng, 5, c)), const(rng, 5))
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)


def pictures(rng: np.random.Generator, count: int) -> Batches:
    """Spots on a background that is the same everywhere."""
    found = []
    for _ in range(count):
        spots = rng.normal(0.5, 0.5, (4, 1, 12, 12)) * (rng.random((4, 1, 12, 12)) < 0.3)
        found.append({"x": (spots - 0.83).astype(np.float32)})
    return found


def one_layer(rng: np.random.Generator) -> IRModule:
    """A convolution whose result leaves as it is."""
    x = relay.var("x", (4, 1, 12, 12))
    return relay.module(relay.op.nn.conv2d(x, const(rng, 6, 1, 3, 3), padding=(1, 1, 1, 1)))


def without_fitting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("compiler.quantize.candidate.RangeFitting", lambda *_: None)


def lost(make: Callable[[np.random.Generator], IRModule], seed: int, **overrides: Any) -> float:
    """Squared error over that without the overrides, or without fitting where there are none, on
    pictures that calibration has not seen."""
    rng = np.random.default_rng(seed)
    mod, data = make(rng), pictures(rng, 12)
    channels = channel_stats(mod, data[:8], sample=True)
    errors = []
    for config in (SEQUENTIAL, SEQUENTIAL.with_overrides(**overrides)):
        with pytest.MonkeyPatch.context() as patch:
            if not overrides and not errors:
                without_fitting(patch)
            changed = calibrated(mod, config, data[:8], channels).simulated
        both = [(evaluate(changed, b)[0], evaluate(mod, b)[0]) for b in data[8:]]
        errors.append(float(sum(np.square(got - wanted).sum() for got, wanted in both)))
    return errors[1] / errors[0]


def test_fitted_ranges_err_less_on_a_background() -> None:
    rows = [lost(one_layer, seed) for seed in range(6)]
    assert np.exp(np.mean(np.log(rows))) < 0.9, rows
    assert min(rows) < 0.7, rows


class Counting:
    """A float executor that writes down how many values it is given."""

    def __init__(self, mod: IRModule, given: list[int]) -> None:
        self._executor, self._given = float_executor(mod), given

    def run(self, arrays: list[Any]) -> Any:
        self._given.append(arrays[0].size)
        return self._executor.run(arrays)


@pytest.mark.parametrize("flat", [False, True])
def test_large_samples_are_tried_in_strips(flat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, op, nn = np.random.default_rng(1), relay.op, relay.op.nn
    x = relay.var("x", (1, 1, 1040, 1040))
    whole = nn.conv2d(x, const(rng, 3, 1, 5, 5), strides=(8, 8), padding=(2, 2, 2, 2))
    rows = op.reshape(x, (1040, 1040))
    mod = relay.module(nn.dense(rows, const(rng, 3, 1040)) if flat else whole)
    spots = rng.normal(0.5, 0.5, (3, 1, 1, 1040, 1040)) * (rng.random((3, 1, 1, 1040, 1040)) < 0.3)
    data: Batches = [{"x": (one - 0.83).astype(np.float32)} for one in spots]
    channels = channel_stats(mod, data[:2], sample=True)
    errors: list[float] = []
    given: list[int] = []
    for fitted in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(f"{FITTING}.float_executor", lambda mod: Counting(mod, given))
            if not fitted:
                without_fitting(patch)
            made = calibrated(mod, SEQUENTIAL, data[:2], channels).simulated
        errors.append(np.square(evaluate(made, data[2])[0] - evaluate(mod, data[2])[0]).sum())
    assert errors[1] < 0.9 * errors[0]
    # A reader that mixes rows sees whole samples only.
    size = 1040 * 1040
    assert sum(given) > 20 * size if flat else sum(given) < 20 * size


def lost_on_unseen_tails(seed: int) -> float:
    """Squared error by fitted ranges over that by given ones, where channels have long tails and
    smoothing ends each of them at the largest value that calibration has seen."""
    op, nn, rng = relay.op, relay.op.nn, np.random.default_rng(seed)
    x = relay.var("x", (4, 8, 6, 6))
    first = nn.relu(op.add(nn.conv2d(x, const(rng, 16, 8, 1, 1)), const(rng, 16, 1, 1)))
    second = nn.conv2d(first, const(rng, 6, 16, 1, 1))
    mod = prerequisite_optimize(relay.module(relay.Function([x], second)), None, 3)
    data = [{"x": rng.exponential(1.0, (4, 8, 6, 6)).astype(np.float32)} for _ in range(40)]
    channels = channel_stats(mod, data[:8], sample=True)
    errors = []
    for fitted in (False, True):
        config = SEQUENTIAL.with_overrides(smooth_alpha=1.0)
        with pytest.MonkeyPatch.context() as patch:
            if not fitted:
                without_fitting(patch)
            changed = calibrated(mod, config, data[:8], channels).simulated
        both = [(evaluate(changed, b)[0], evaluate(mod, b)[0]) for b in data[8:]]
        errors.append(float(sum(np.square(got - wanted).sum() for got, wanted in both)))
    return errors[1] / errors[0]


def test_fitted_ranges_leave_room_for_values_that_were_not_seen() -> None:
    found = [lost_on_unseen_tails(seed) for seed in range(4)]
    assert np.exp(np.mean(np.log(found))) < 0.7


def test_a_tensor_that_is_compared_is_fitted_by_its_own_values() -> None:
    rng = np.random.default_rng(2)
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (4, 1, 12, 12))
    held = nn.relu(nn.conv2d(x, const(rng, 6, 1, 3, 3)))
    zero = op.equal(held, relay.const(np.float32(0)))
    chosen = op.where(zero, nn.conv2d(held, const(rng, 6, 6, 1, 1)), held)
    mod = relay.module(relay.Function([x], chosen))
    data = pictures(rng, 4)
    config = SEQUENTIAL.with_overrides(partition_conversions="enabled")
    simulated = calibrated(mod, config, data, channel_stats(mod, data, sample=True)).simulated
    got, wanted = evaluate(simulated, data[0])[0], evaluate(mod, data[0])[0]
    assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()


@pytest.mark.slow
def test_sums_of_16_bits_err_less() -> None:
    rows = [lost(blocks, seed, layers=WIDE) for seed in range(3)]
    assert np.exp(np.mean(np.log(rows))) < 0.8, rows


def test_every_form_of_a_fitted_module_agrees_bit_for_bit() -> None:
    rng = np.random.default_rng(7)
    mod, data = blocks(rng, 2), pictures(rng, 4)
    config = SEQUENTIAL.with_overrides(layers=WIDE)
    made = calibrated(mod, config, data, channel_stats(mod, data, sample=True))
    assert_same_integers(made.partitioned, data)


def test_parts_of_a_fitted_network_have_its_ranges_and_the_float_weights() -> None:
    rng = np.random.default_rng(5)
    mod, data = blocks(rng, 1), pictures(rng, 6)
    config = SEQUENTIAL
    channels = channel_stats(mod, data, sample=True)
    stats = calibration_stats(mark(mod, config, channels)[0], data, (config.percentile,))
    scales = activation_scales(stats, config)
    run = QuantizeContext(config, corrects_biases=False)
    made = build_candidate(mod, config, scales, channels, run)
    network = Network.of(mod, config, scales, channels)
    for ours, theirs in zip(quantize_points(made.simulated), network.points, strict=True):
        for held, same in zip(ours.args[1:], theirs.args[1:], strict=True):
            assert isinstance(held, Constant)
            assert isinstance(same, Constant)
            np.testing.assert_array_equal(held.data, same.data)
    constants = [node.data for node in post_order(mod["main"].body) if isinstance(node, Constant)]
    weights = {np.sort(data, axis=None).tobytes() for data in constants}
    assert len(network.floats) >= 4
    for one in network.floats.values():
        assert np.sort(one.data, axis=None).tobytes() in weights


def test_bits_of_weights_do_not_change_ranges() -> None:
    rng = np.random.default_rng(5)
    mod, data = blocks(rng, 1), pictures(rng, 6)
    channels = channel_stats(mod, data, sample=True)
    found = []
    for config in (
        SEQUENTIAL,
        SEQUENTIAL.with_overrides(nbit_weight=3),
        SEQUENTIAL.with_overrides(layers={"conv2d_1": {"nbit_weight": 2}}),
    ):
        ranges = calibrated(mod, config, data, channels).context.rounded.ranges
        assert ranges is not None
        found.append(ranges.tobytes())
    assert len(set(found)) == 1


def test_what_loops_read_is_cut_no_further() -> None:
    """Cut values last for many steps, and the state adds up what they lack; roundings average."""
    mod = prerequisite_optimize(*imported(whole("GRU", weights("GRU"), steps=50)), 3)
    time = np.arange(50, dtype=np.float32).reshape(-1, 1, 1)
    rng, data = np.random.default_rng(3), []
    for _ in range(20):
        pace, phase = rng.uniform(0.1, 0.5, (2, 1, 2, 3)).astype(np.float32)
        noise = rng.laplace(0, 0.3, (50, 2, 3)).astype(np.float32)
        data.append({"x": np.sin(pace * time + 12 * phase) + noise})
    channels = channel_stats(mod, data, sample=True)
    annotated, _ = mark(mod, SEQUENTIAL, channels)
    stats = calibration_stats(annotated, data, (SEQUENTIAL.percentile,))
    given = np.float32(activation_scales(stats, SEQUENTIAL))
    fitted = build_candidate(mod, SEQUENTIAL, given, channels).context.rounded.ranges
    assert fitted is not None
    measured = given > 0  # no range where nothing is quantized
    assert measured.any()
    assert (fitted[measured] >= given[measured]).all()


def test_only_sums_of_computed_values_count_as_residual() -> None:
    assert wide_inputs(blocks(np.random.default_rng(0), 1)).searched == {SUMS: 16}
    assert wide_inputs(blocks(np.random.default_rng(0), 0)).searched == {}


def test_residual_sums_have_no_other_bits_than_16() -> None:
    with pytest.raises(ConfigValueError, match="cannot be 12"):
        QConfig.recommended(layers={SUMS: {"nbit_input": 12}})


def test_ranges_of_few_values_have_room_for_those_to_come() -> None:
    found = []
    for seed in range(4):
        graph, rng = unseen_networks.Network(seed), np.random.default_rng(seed)
        x = graph.input(1, 6)
        gain = graph.shaped(graph.dense(x, 6, 4), 1, 2, 2)
        state = graph.shaped(graph.dense(x, 6, 2), 1, 2, 1)
        for _ in range(3):
            step = graph("MatMul", graph("Mul", gain, graph.weight(0.4)), state)
            state = graph("Sub", state, step)
        mod = prerequisite_optimize(*imported(graph.model(state)), 3)
        data = [{"x": rng.normal(size=(1, 6)).astype(np.float32)} for _ in range(40)]
        made = quantize(mod, dataset=data[:8], qconfig="auto")
        found.append(sqnr_db(mod, made, data[8:]))
    assert np.mean(found) > 15
