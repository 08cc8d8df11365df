"""Adaptive rounding: exact products of columns, integers chosen by them, and every form of it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import assert_structural_equal, evaluate, relay
from compiler.errors import CalibrationError
from compiler.export.to_onnx.integer import to_integer_onnx
from compiler.ir.expr import Call
from compiler.ir.module import IRModule
from compiler.ops.annotation.quantized_constant import quantized_constant
from compiler.ops.rules.input_columns import FQInputColumns, InputColumns
from compiler.proof.derive import derive_static
from compiler.qtypes.channel_ranges import Rounding
from compiler.quantize import (
    Calibration,
    Candidate,
    ChannelStats,
    QConfig,
    QuantizeContext,
    build_candidate,
    channel_stats,
    prerequisite_optimize,
    quantize,
)
from compiler.quantize._reconstruction import reconstructed
from compiler.quantize.calibration.input_grams import GramCollector
from compiler.quantize.calibration.weighted_calls import weighted_calls
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.candidates import calibrated, const

ADAPTIVE = QConfig.recommended(weight_rounding="adaptive", calibrate_mode="max")


def network(rng: np.random.Generator, c: int = 4, d: int = 6) -> IRModule:
    """Strides, padding, dilation, groups and a dense layer."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (2, c, 9, 9))
    a = nn.conv2d(x, const(rng, d, c, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2))
    a = nn.relu(op.add(a, const(rng, d, 1, 1)))
    b = nn.conv2d(a, const(rng, d, 1, 3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=d)
    b = nn.relu(op.add(b, const(rng, d, 1, 1)))
    e = nn.relu(op.add(nn.conv2d(b, const(rng, 8, d // 2, 1, 1), groups=2), const(rng, 8, 1, 1)))
    pooled = nn.batch_flatten(nn.global_avg_pool2d(e))
    result = op.add(nn.dense(pooled, const(rng, 5, 8)), const(rng, 5))
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)


def batches(rng: np.random.Generator, c: int = 4, count: int = 6) -> list[dict[str, Any]]:
    """Neighbouring channels move together, so that there is something to make up for."""
    mix = np.eye(c) + 0.7 * rng.normal(0, 1, (c, c))
    flat = [rng.normal(0.5, 1, (2, c, 9, 9)) for _ in range(count)]
    return [{"x": np.einsum("kc,ncyx->nkyx", mix, x).astype(np.float32)} for x in flat]


def measured(mod: IRModule, data: list[dict[str, Any]]) -> ChannelStats:
    return channel_stats(mod, data, executor=ReferenceExecutor, grams=True)


def candidate_of(mod: IRModule, config: QConfig, data: list[dict[str, Any]]) -> Candidate:
    channels = measured(mod, data) if config.needs_channels else None
    return calibrated(mod, config, data, channels, executor=ReferenceExecutor)


def rule_of(call: Call) -> InputColumns:
    rule = FQInputColumns.require(call.op)(call)  # type: ignore[arg-type]
    assert rule is not None
    return rule


def test_rows_times_columns_are_the_operator_itself() -> None:
    rng = np.random.default_rng(0)
    mod = network(rng)
    for call, _ in weighted_calls(mod["main"]):
        rule = rule_of(call)
        shape = call.args[0].tensor_type.concrete_shape
        data = rng.integers(-8, 9, shape).astype(np.float32)
        x = relay.var("x", shape)
        body = call.with_fields(args=(x, call.args[1]))
        alone = prerequisite_optimize(relay.module(relay.Function([x], body)), None, 0)
        (wanted,) = evaluate(alone, {"x": data})
        weight = call.args[1].data  # type: ignore[attr-defined]
        rows = rule.rows(weight)
        np.testing.assert_array_equal(rule.weight(rows), weight)
        parts: dict[int, list[Any]] = {}
        for first, piece in rule.columns(data):
            parts.setdefault(first, []).append(rows[first : first + len(piece)] @ piece)
        merged = [np.concatenate(some, axis=2) for _, some in sorted(parts.items())]
        found = np.concatenate(merged).reshape(wanted.shape[1], -1)
        np.testing.assert_allclose(
            found, np.moveaxis(wanted, 1, 0).reshape(found.shape), rtol=1e-4, atol=1e-4
        )


def test_shards_in_any_order_and_of_any_size_give_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    mod = network(rng)
    data = batches(rng)
    whole = measured(mod, data)
    assert whole.grams is not None
    shards = []
    for part in (data[3:], data[:1], data[1:3]):
        collector = GramCollector(mod, whole.ranges())
        for batch in part:
            collector.update(ReferenceExecutor(collector.profile).run(batch))
        shards.append(collector.result())
    merged = shards[1].merge(shards[0]).merge(shards[2])
    for name, array in merged.to_arrays().items():
        np.testing.assert_array_equal(array, whole.grams.to_arrays()[name], err_msg=name)
    again = ChannelStats.from_arrays(whole.to_arrays())
    assert again.grams is not None
    for one, other in zip(again.grams.products, whole.grams.products, strict=True):
        np.testing.assert_array_equal(one, other)


def test_products_of_many_taps_are_the_blocks_on_the_diagonal_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of convolutions, depthwise ones and dense layers alike."""
    rng = np.random.default_rng(4)
    mod, data = network(rng), batches(rng, count=1)
    whole = measured(mod, data).grams
    monkeypatch.setattr("compiler.quantize.calibration.input_grams.MAX_TAPS", 4)
    cut = measured(mod, data).grams
    assert whole is not None
    assert cut is not None
    for one, all_taps in zip(cut.products, whole.products, strict=True):
        taps = one.shape[1]
        assert taps <= 4
        blocks = all_taps.shape[1] // taps
        for group, block in enumerate(one):
            at = slice(group % blocks * taps, (group % blocks + 1) * taps)
            np.testing.assert_array_equal(block, all_taps[group // blocks, at, at])


def test_candidates_that_share_weights_and_data_share_their_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    mod, data, fitted = network(rng), batches(rng), []
    channels = measured(mod, data)

    def counted(*args: Any) -> Any:
        fitted.append(args)
        return reconstructed(*args)

    monkeypatch.setattr("compiler.quantize._weight_rounding.reconstructed", counted)
    first = ADAPTIVE.with_overrides(calibrate_mode="global_scale", global_scale=4.0)
    others = [
        first.with_overrides(**change)
        for change in ({"global_scale": 8.0}, {"bias_correction": True}, {"nbit_weight": 6})
    ]
    build_candidate(mod, first, None, channels)
    counts = [len(fitted)]
    for config in [*others, first]:
        shared = build_candidate(mod, config, None, channels)
        counts.append(len(fitted) - sum(counts))
        alone = build_candidate(mod, config, None, measured(mod, data))
        del fitted[sum(counts) :]
        assert shared.integer is not None
        assert alone.integer is not None
        assert_structural_equal(shared.integer, alone.integer)
    assert counts == [4, 0, 4, 4, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"weight_rounding": "adaptive"},
        {"weight_rounding": "sequential"},
        {"weight_rounding": "sequential", "fit_ranges": True},
    ],
    ids=str,
)
def test_what_rounding_found_travels_as_arrays_and_nothing_is_fitted_again(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(9)
    calibration = Calibration(network(rng), batches(rng))
    config = ADAPTIVE.with_overrides(**fields, bias_correction=True)
    made = calibration.candidate(config)
    arrays = made.context.rounded.to_arrays()
    assert all(levels.dtype == np.int8 for name, levels in arrays.items() if "levels" in name)
    for module in ("_weight_rounding", "_sequential_rounding"):
        monkeypatch.delattr(f"compiler.quantize.{module}.reconstructed")
    monkeypatch.delattr("compiler.quantize._range_fitting.RangeFitting.fit")
    run = QuantizeContext(config, rounded=Rounding.from_arrays(arrays))
    again = calibration.candidate(config, run)
    assert made.partitioned is not None
    assert again.partitioned is not None
    assert_structural_equal(made.partitioned, again.partitioned)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.sampled_from([1, 3, 7]))
def test_no_row_errs_more_than_with_the_nearest_levels(seed: int, taps: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.normal(0, 1, (2, 20, taps)) @ rng.normal(0, 1, (2, taps, taps))
    gram = np.swapaxes(columns, 1, 2) @ columns / 20
    rows = rng.uniform(-limit, limit, (2, 3, taps))
    found = reconstructed(rows, gram, (-limit, limit))
    assert (found == np.rint(found)).all()
    assert np.abs(found).max() <= limit
    damped = gram + 0.01 * np.einsum("gkk->g", gram)[:, None, None] / taps * np.eye(taps)

    def error(levels: Any) -> Any:
        return np.einsum("gok,gkl,gol->go", rows - levels, damped, rows - levels)

    assert (error(found) <= error(np.rint(rows)) + 1e-9).all()
    every = np.array(list(product(range(-limit, limit + 1), repeat=taps)), float)
    if len(every) <= 400:
        best = np.min([error(levels) for levels in every], axis=0)
        # Deciding column by column is no search over all combinations.
        assert error(found).sum() <= 3 * best.sum() + 1e-9


def test_products_that_are_zero_leave_the_nearest_levels() -> None:
    rows = np.array([[[0.5, -0.5, 1.49, 9.0]]])
    found = reconstructed(rows, np.zeros((1, 4, 4)), (-7, 7))
    np.testing.assert_array_equal(found, [[[1.0, -1.0, 1.0, 7.0]]])


@pytest.mark.parametrize("seed", range(3))
def test_outputs_err_less_than_with_the_nearest_levels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng), batches(rng, count=12)
    plain = [evaluate(mod, batch)[0] for batch in data]

    def error(config: QConfig) -> float:
        changed = candidate_of(mod, config, data).simulated
        return float(sum(np.square(evaluate(changed, b)[0] - p).sum() for b, p in zip(data, plain)))

    coarse = ADAPTIVE.with_overrides(nbit_weight=3, nbit_input=16, dtype_input="int16")
    nearest = coarse.with_overrides(weight_rounding="nearest")
    assert error(coarse) < 0.7 * error(nearest)


widths = st.tuples(st.integers(1, 5), st.sampled_from([2, 4, 6]))


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    widths,
    st.integers(2, 8),
    st.booleans(),
    st.sampled_from([None, 0.5]),
)
def test_all_forms_of_the_module_agree_bit_for_bit(
    seed: int, sizes: tuple[int, int], nbit: int, corrected: bool, alpha: float | None
) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng, *sizes), batches(rng, sizes[0], 2)
    config = ADAPTIVE.with_overrides(
        nbit_weight=nbit, bias_correction=corrected, smooth_alpha=alpha, equalize=alpha is None
    )
    candidate = candidate_of(mod, config, data)
    module = candidate.partitioned
    assert module is not None
    assert derive_static(module).holds
    simulated = {
        int(np.abs(held).max())
        for call, _ in weighted_calls(candidate.simulated["main"])
        if (held := quantized_constant(call.args[1])) is not None
    }
    assert max(simulated) <= 2 ** (nbit - 1) - 1
    reference = ReferenceExecutor(module)
    form = OrtExecutor(to_integer_onnx(module))
    for batch in data:
        np.testing.assert_array_equal(form.run(batch)[0], reference.run(batch)[0])


def test_the_flow_in_one_call_gives_the_module_of_the_pieces() -> None:
    rng = np.random.default_rng(4)
    mod, data = network(rng), batches(rng)
    config = ADAPTIVE.with_overrides(nbit_weight=4, bias_correction=True)
    whole = quantize(mod, dataset=data, context=QuantizeContext(config))
    channels = channel_stats(mod, data, grams=True)
    pieces = calibrated(mod, config, data, channels).partitioned
    for batch in data:
        np.testing.assert_array_equal(evaluate(whole, batch)[0], evaluate(pieces, batch)[0])


def test_data_beyond_the_ranges_are_refused() -> None:
    rng = np.random.default_rng(6)
    mod, data = network(rng), batches(rng, count=1)
    collector = GramCollector(mod, channel_stats(mod, data).ranges())
    with pytest.raises(CalibrationError, match="leave the range"):
        collector.update(ReferenceExecutor(collector.profile).run({"x": 9 * data[0]["x"]}))


def test_missing_products_are_named() -> None:
    rng = np.random.default_rng(5)
    mod, data = network(rng), batches(rng, count=1)
    with pytest.raises(CalibrationError, match=r"grams=True"):
        build_candidate(mod, ADAPTIVE, None, channel_stats(mod, data))
    with pytest.raises(CalibrationError, match="need a dataset"):
        quantize(mod, context=QuantizeContext(ADAPTIVE))
    with pytest.raises(TypeError, match="only once"):
        channel_stats(mod, iter(data), grams=True)
    with pytest.raises(TypeError, match="only once"):
        quantize(mod, dataset=iter(data), qconfig="auto")
