"""Sequential rounding: a layer makes up for the layers in front, in every form of a module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from compiler import assert_structural_equal, evaluate, relay
from compiler.errors import CalibrationError
from compiler.ir.module import IRModule
from compiler.qtypes.input_sample import InputSample
from compiler.qtypes.layer_choices import LayerChoices
from compiler.quantize import (
    Candidate,
    ChannelStats,
    QConfig,
    QuantizeContext,
    build_candidate,
    channel_stats,
    prerequisite_optimize,
    quantize,
)
from compiler.quantize.calibration.input_sample import sample_inputs
from compiler.quantize.weight_rounding import prefix_runs
from compiler.quantize.weight_rounding.sequential_rounding import _most_runs, _Seen
from tests.compiler.quantize.candidates import assert_same_integers, calibrated, const, sqnr_db

SEQUENTIAL = QConfig.recommended(
    weight_rounding="sequential", calibrate_mode="max", weight_granularity="channel"
)

Batches = list[dict[str, Any]]


def network(rng: np.random.Generator, c: int = 4, d: int = 6) -> IRModule:
    """Groups, strides, a branch through split and concatenate, a residual, a dense layer."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (2, c, 8, 8))
    a = nn.conv2d(x, const(rng, d, c, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2))
    a = nn.relu(op.add(a, const(rng, d, 1, 1)))
    parts = op.split(a, indices_or_sections=2, axis=1)
    left, right = relay.TupleGetItem(parts, 0), relay.TupleGetItem(parts, 1)
    left = nn.relu(nn.conv2d(left, const(rng, d // 2, d // 2, 1, 1)))
    b = op.concatenate((left, right), axis=1)
    b = nn.conv2d(b, const(rng, d, 1, 3, 3), padding=(1, 1, 1, 1), groups=d)
    b = nn.relu(op.add(op.add(b, const(rng, d, 1, 1)), a))
    pooled = nn.batch_flatten(nn.global_avg_pool2d(b))
    result = op.add(nn.dense(pooled, const(rng, 5, d)), const(rng, 5))
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)


def batches(rng: np.random.Generator, c: int = 4, count: int = 6) -> Batches:
    mix = np.eye(c) + 0.7 * rng.normal(0, 1, (c, c))
    flat = [rng.normal(0.5, 1, (2, c, 8, 8)) for _ in range(count)]
    return [{"x": np.einsum("kc,ncyx->nkyx", mix, x).astype(np.float32)} for x in flat]


def candidate_of(mod: IRModule, config: QConfig, data: Batches) -> Candidate:
    return calibrated(mod, config, data, channel_stats(mod, data, sample=True))


def test_the_sample_does_not_depend_on_the_shards() -> None:
    rng = np.random.default_rng(0)
    mod, data = network(rng), batches(rng, count=7)
    whole = sample_inputs(mod, data)
    parts = [sample_inputs(mod, part) for part in (data[4:], data[:1], data[1:4])]
    merged = parts[0].merge(parts[2]).merge(parts[1])
    again = InputSample.from_arrays(merged.to_arrays())
    assert again is not None
    for one in (merged, again):
        assert (one.most, one.digests) == (whole.most, whole.digests)
        for run, same in zip(one.runs, whole.runs, strict=True):
            np.testing.assert_array_equal(run[0], same[0])


@pytest.mark.parametrize(("images", "runs"), [(64, 4), (1, 256)])
def test_the_sample_of_many_images_is_bounded(images: int, runs: int) -> None:
    x = relay.var("x", (images, 1))
    mod = relay.module(
        relay.Function([x], relay.op.nn.dense(x, relay.const(np.ones((2, 1), "f4"))))
    )
    data = ({"x": np.full((images, 1), value, np.float32)} for value in range(300))
    sample = sample_inputs(mod, data)
    assert sample.most == len(sample.runs) == runs


@pytest.mark.parametrize("seed", range(3))
def test_outputs_err_less_than_with_the_nearest_levels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng), batches(rng, count=60)
    plain = [evaluate(mod, batch)[0] for batch in data]

    def error(config: QConfig) -> float:
        changed = candidate_of(mod, config, data[:40]).simulated
        both = zip(data[40:], plain[40:], strict=True)
        return float(sum(np.square(evaluate(changed, b)[0] - p).sum() for b, p in both))

    coarse = SEQUENTIAL.with_overrides(nbit_weight=4)
    assert error(coarse) < error(coarse.with_overrides(weight_rounding="corrected"))


@pytest.mark.parametrize("seed", range(2))
def test_few_images_do_not_decide_about_many_taps(seed: int) -> None:
    rng, taps = np.random.default_rng(seed), 256
    x = relay.var("x", (2, taps))
    bias = const(rng, 8)
    dense = relay.op.add(relay.op.nn.dense(x, const(rng, 8, taps)), bias)
    mod = prerequisite_optimize(relay.module(relay.Function([x], dense)), None, 3)
    data = [{"x": rng.normal(0.5, 1, (2, taps)).astype(np.float32)} for _ in range(100)]

    def error(rounding: str) -> float:
        config = SEQUENTIAL.with_overrides(nbit_weight=4, weight_rounding=rounding)
        changed = candidate_of(mod, config, data[:20]).simulated
        return sum(
            float(np.square(evaluate(changed, b)[0] - evaluate(mod, b)[0]).sum()) for b in data[20:]
        )

    # Fitted to 40 images, taps that have nothing to do with each other made up for each other.
    assert error("sequential") < 1.03 * error("nearest")


@pytest.mark.parametrize("nbit", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_rows_are_codes_of_their_bits_up_to_a_sign(nbit: int, granularity: str) -> None:
    rng = np.random.default_rng(5)
    mod, data = network(rng, 8, 16), batches(rng, 8, count=10)
    asked = {"nbit_weight": nbit, "weight_granularity": granularity, "weight_scale": "mse"}
    made = candidate_of(mod, SEQUENTIAL.with_overrides(**asked), data)
    whole = 2 ** (nbit - 1)
    least, most = [], []
    for one in made.context.rounded.weights.values():
        least.append(one.levels.min(axis=2).ravel())
        most.append(one.levels.max(axis=2).ravel())
    low, high = np.concatenate(least), np.concatenate(most)
    signed = granularity == "channel" and nbit < 8
    assert max(high.max(), -low.min()) == (whole if signed else whole - 1)
    # No row has both ends: negated, it is a row of two's complement.
    assert ((low > -whole) | (high < whole)).all()
    assert not signed or ((low == -whole).any() and (high == whole).any())
    assert_same_integers(made.partitioned, data[:2])


def test_few_bits_use_the_whole_sample_and_eight_bits_a_part_of_it() -> None:
    x = relay.var("x", (1, 1 << 19))
    dense = relay.op.nn.dense(x, relay.const(np.ones((1, 1 << 19), "f4")))
    images = [{"x": np.full((1, 1 << 19), value, np.float32)} for value in range(40)]
    whole_module = relay.module(relay.Function([x], dense))
    whole = sample_inputs(whole_module, images)
    main = whole_module["main"]
    eight, few = (whole.first(_most_runs(main, all_of_it)) for all_of_it in (False, True))
    assert (len(whole.runs), len(eight.runs), len(few.runs)) == (32, 16, 32)
    assert eight.digests == whole.digests[:16]


@pytest.mark.slow
def test_one_number_more_in_each_row_errs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def errors(seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        mod, data = network(rng, 8, 16), batches(rng, 8, count=30)
        plain = [evaluate(mod, batch)[0] for batch in data[20:]]
        found = []
        for nbit in (3, 4, 8):
            asked = {"nbit_weight": nbit, "weight_scale": "mse"}
            changed = candidate_of(mod, SEQUENTIAL.with_overrides(**asked), data[:20]).simulated
            both = zip(data[20:], plain, strict=True)
            found.append(sum(np.square(evaluate(changed, b)[0] - p).sum() for b, p in both))
        return found

    signed = np.array([errors(seed) for seed in range(6, 8)])
    monkeypatch.setattr("compiler.quantize.weight_rounding.sequential_rounding._FEW_LEVELS", 0)
    three, four, eight = (signed / [errors(seed) for seed in range(6, 8)]).T
    assert np.exp(np.log(three).mean()) < 0.85
    assert np.exp(np.log(four).mean()) < 1.0
    assert (eight == 1.0).all()


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 5), st.sampled_from([2, 4, 6])),
    st.sampled_from([3, 8]),
    st.booleans(),
    st.sampled_from([None, 0.5]),
)
def test_all_forms_of_the_module_agree_bit_for_bit(
    seed: int,
    sizes: tuple[int, int],
    nbit: int,
    wide: bool,
    alpha: float | None,
) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng, *sizes), batches(rng, sizes[0], 2)
    layers = LayerChoices().with_sums(wide)
    config = SEQUENTIAL.with_overrides(nbit_weight=nbit, smooth_alpha=alpha, layers=layers)
    assert_same_integers(candidate_of(mod, config, data).partitioned, data)


def test_little_memory_fits_to_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    mod, data = network(rng), batches(rng, count=30)
    counts: list[int] = []
    float_values = prefix_runs.PrefixRuns.float_values

    def counted(runs: prefix_runs.PrefixRuns, node: Any) -> Any:
        found = float_values(runs, node)
        assert len(found) == len(runs.values(node))
        counts.append(len(found))
        return found

    monkeypatch.setattr(prefix_runs.PrefixRuns, "float_values", counted)
    few = candidate_of(mod, SEQUENTIAL, data[:8]).simulated
    monkeypatch.setattr(prefix_runs, "_HELD_ELEMENTS", 16 * 6 * 2 * 4 * 4)
    grown = candidate_of(mod, SEQUENTIAL, data).simulated
    assert set(counts[:4]) == {8}
    assert counts[4] == 8
    assert counts[4:] == sorted(counts[4:])
    assert counts[-1] == 30  # what the dense layer reads is small
    assert few is not grown


def test_layers_that_read_one_tensor_share_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    x = relay.var("x", (1, 5, 6))
    query, key, value = (relay.op.nn.dense(x, const(rng, 6, 6)) for _ in range(3))
    narrow = relay.op.nn.dense(relay.op.add(relay.op.add(query, key), value), const(rng, 4, 6))
    mod = prerequisite_optimize(relay.module(relay.Function([x], narrow)), None, 3)
    data = [{"x": rng.normal(1, 1, (1, 5, 6)).astype(np.float32)} for _ in range(4)]
    measured: list[Any] = []
    of = _Seen.of

    def counted(*args: Any) -> Any:
        measured.append(args[1])
        return of(*args)

    monkeypatch.setattr(_Seen, "of", staticmethod(counted))
    made = candidate_of(mod, SEQUENTIAL, data)
    assert len(made.context.rounded.weights) == 4
    assert len(measured) == 2


def test_a_chain_of_many_layers_takes_one_walk() -> None:
    rng = np.random.default_rng(8)
    x = relay.var("x", (2, 2, 2, 2))
    value: Any = x
    for _ in range(80):
        value = relay.op.nn.relu(relay.op.nn.conv2d(value, const(rng, 2, 2, 1, 1)))
    mod = prerequisite_optimize(relay.module(relay.Function([x], value)), None, 3)
    data = [{"x": rng.normal(1, 1, (2, 2, 2, 2)).astype(np.float32)}]
    assert candidate_of(mod, SEQUENTIAL, data).partitioned is not None


def test_the_flow_in_one_call_gives_the_module_of_the_pieces() -> None:
    rng = np.random.default_rng(4)
    mod, data = network(rng), batches(rng)
    whole = quantize(mod, dataset=data, context=QuantizeContext(SEQUENTIAL))
    again = ChannelStats.from_arrays(channel_stats(mod, data, sample=True).to_arrays())
    pieces = calibrated(mod, SEQUENTIAL, data, again).partitioned
    assert pieces is not None
    assert_structural_equal(whole, pieces)


def test_matrices_are_solved_in_one_thread_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    mod, data = network(rng), batches(rng)
    threads: set[int] = set()

    def looked(*args: Any, **options: Any) -> Any:
        libraries = threadpool_info()
        threads.update(one["num_threads"] for one in libraries if one["user_api"] == "blas")
        return functions(*args, **options)

    functions = scipy.linalg.get_lapack_funcs
    monkeypatch.setattr(scipy.linalg, "get_lapack_funcs", looked)
    with threadpool_limits(2, user_api="blas"):
        candidate_of(mod, SEQUENTIAL, data)
    assert threads == {1}


def test_rows_of_zeros_are_normalized_to_zeros() -> None:
    """The least divisor is rounded to zero: zero over zero is no number in the simulated form."""
    rng, op = np.random.default_rng(8), relay.op
    x = relay.var("x", (6, 8))
    length = op.sum(op.abs(x), axis=-1, keepdims=True)
    unit = op.divide(x, op.maximum(length, relay.const(np.float32(1e-3))))
    body = op.nn.dense(unit, const(rng, 8, 8))
    mod = prerequisite_optimize(relay.module(relay.Function([x], body)), None, 3)
    data = [{"x": rng.normal(size=(6, 8)).astype(np.float32)} for _ in range(8)]
    for batch in data:
        batch["x"][0] = 0
    made = candidate_of(mod, SEQUENTIAL, data)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 30


def test_a_missing_sample_is_named() -> None:
    rng = np.random.default_rng(5)
    mod, data = network(rng), batches(rng, count=1)
    with pytest.raises(CalibrationError, match=r"sample=True"):
        build_candidate(mod, SEQUENTIAL, None, channel_stats(mod, data))
    with pytest.raises(CalibrationError, match="need a dataset"):
        quantize(mod, context=QuantizeContext(SEQUENTIAL))
    with pytest.raises(CalibrationError, match="lacks the input 'x'"):
        sample_inputs(mod, [{"y": data[0]["x"]}])
