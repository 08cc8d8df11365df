"""Ranges and scales of quantize points: weights, biases, binding order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.errors import CalibrationError
from compiler.ir.expr import Call
from compiler.ir.inference import infer_type
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.quantize import (
    QConfig,
    QuantizeContext,
    activation_scales,
    bind_scales,
    build_candidate,
    calibrate,
    calibration_stats,
    collect_stats,
    mark,
    measured_points,
    prerequisite_optimize,
    qconfig,
    quantize,
    quantize_points,
)
from compiler.quantize.scales.weight_scale import weight_range
from tests.compiler.quantize.candidates import assert_same_integers, calibrated
from tests.each import each

Graph = Callable[..., IRModule]

B6 = [
    ([0.3, -0.2], 0.5, 0.00390625, 0.300000012, 0.00234375009),
    ([0.5, 0.1], 0.5, 0.00390625, 0.5, 0.00390625),
    ([-0.50001], 1, 0.0078125, 0.500010014, 0.00390632823),
    ([1.0], 1, 0.0078125, 1, 0.0078125),
    ([0.0, 0.0], 1, 0.0078125, 1, 0.0078125),
    ([3.0, -5.0], 8, 0.0625, 5, 0.0390625),
    ([9.5367431640625e-07], 9.53674316e-07, 7.4505806e-09, 9.53674316e-07, 7.4505806e-09),
    ([536870912.0], 536870912, 4194304, 536870912, 4194304),
    ([4e-15], 7.10542736e-15, 5.55111512e-17, 4e-15, 3.12500009e-17),
    ([1e-30], 1, 0.0078125, 1, 0.0078125),
]


@pytest.mark.parametrize(("values", "s_power2", "scale_power2", "s_max", "scale_max"), B6)
def test_weight_ranges_are_those_of_the_modes(
    values: list[float], s_power2: float, scale_power2: float, s_max: float, scale_max: float
) -> None:
    tensor = np.array(values, np.float32)
    for mode, range_s, scale in (
        ("power2", s_power2, scale_power2),
        ("max", s_max, scale_max),
    ):
        found = weight_range(tensor, mode, 8)
        assert found == np.float32(range_s)
        assert np.float32(found / 128) == np.float32(scale)


def test_a_range_per_channel_and_ones_for_dead_channels() -> None:
    tensor = np.array([[[0.5, -2.0]], [[0.0, 0.0]], [[0.3, 0.1]]], np.float32)
    assert weight_range(tensor, "max", 8, axis=0).tolist() == [2.0, 1.0, np.float32(0.3)]
    assert weight_range(tensor, "power2", 8, axis=0).tolist() == [2.0, 1.0, 0.5]
    assert weight_range(tensor, "max", 8, axis=2).tolist() == [0.5, 2.0]


@pytest.mark.parametrize("nbit", [3, 4, 8])
def test_the_mse_range_errs_no_more_than_the_maximum(nbit: int) -> None:
    rng = np.random.default_rng(5)
    tensor = rng.standard_t(4, (6, 500)).astype(np.float32)

    def error(ranges: Any) -> Any:
        scale = np.asarray(ranges)[:, None] / 2 ** (nbit - 1)
        top = 2 ** (nbit - 1) - 1
        return ((np.clip(np.rint(tensor / scale), -top, top) * scale - tensor) ** 2).sum(axis=1)

    by_error = weight_range(tensor, "mse", nbit, axis=0)
    by_max = weight_range(tensor, "max", nbit, axis=0)
    assert (error(by_error) <= error(by_max) * 1.0001).all()
    assert nbit == 8 or (by_error < 0.95 * by_max).all()


def test_weights_that_are_not_finite_are_refused() -> None:
    with pytest.raises(CalibrationError, match="my weight"):
        weight_range(np.array([1, np.inf], np.float32), "max", 8, name="my weight")


B7 = """
def @main(%x: (2,2,5,5) float32) {
  %0 = nn.conv2d(%x, const<W0 (3,2,3,3) float32>);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, const<W1 (2,3,1,1) float32>);
  %2
}
"""
GENERAL = {"skip_conv_layers": [], "calibrate_mode": "percentile", "weight_scale": "max"}


@pytest.fixture
def b7(graph: Graph) -> tuple[IRModule, list[dict[str, Any]]]:
    r = np.random.default_rng(31)
    W0 = r.uniform(-0.5, 0.5, (3, 2, 3, 3)).astype(np.float32)
    W1 = r.uniform(-0.7, 0.7, (2, 3, 1, 1)).astype(np.float32)
    batch0 = r.normal(0.0, 1, (2, 2, 5, 5)).astype(np.float32)
    batch1 = r.normal(0.0, 2, (2, 2, 5, 5)).astype(np.float32)
    return graph(B7, W0=W0, W1=W1), [{"x": batch0}, {"x": batch1}]


def test_statistics_are_those_of_the_float_network(b7: Any) -> None:
    mod, dataset = b7
    annotated, _ = mark(mod, QConfig(**GENERAL))
    arrays = list(collect_stats(annotated, dataset))
    assert [a.size for a in arrays] == [200, 108, 72]
    # Ranges of convolution outputs depend on the order of float summation.
    np.testing.assert_allclose(
        [np.abs(a).max() for a in arrays], [3.96258116, 6.40966129, 3.24460602], rtol=1e-6
    )


def test_scales_in_binding_order(b7: Any) -> None:
    mod, dataset = b7
    context = QuantizeContext(QConfig(**GENERAL))
    quantize(mod, dataset=dataset, context=context)
    expected = [
        ("input", 3.96258116, 0.0309576653),
        ("weight", 0.494408995, 0.00386257027),
        ("input", 6.40966129, 0.0500754789),
        ("weight", 0.509990871, 0.00398430368),
        ("input", 3.24460602, 0.0253484845),
    ]
    found = [(p.kind, p.range_s, p.dom_scale) for p in context.report.points]
    assert [k for k, _, _ in found] == [k for k, _, _ in expected]
    np.testing.assert_allclose(
        [pair for _, *pair in found], [pair for _, *pair in expected], rtol=1e-6
    )


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_chunks_change_no_bit(b7: Any, chunk: int) -> None:
    mod, dataset = b7
    base = QuantizeContext(QConfig(**GENERAL))
    chunked = QuantizeContext(QConfig(**GENERAL, calibrate_chunk_by=chunk))
    quantize(mod, dataset=dataset, context=base)
    quantize(mod, dataset=dataset, context=chunked)
    assert base.report.points == chunked.report.points


def test_passes_one_by_one_are_the_flow(b7: Any) -> None:
    from compiler import assert_structural_equal
    from compiler.quantize import annotate, partition, realize
    from compiler.transform import FoldConstant, InferType, PassContext, Sequential

    mod, dataset = b7
    with qconfig(**GENERAL):
        steps = [partition(), annotate(), calibrate(dataset), InferType(), realize()]
        with PassContext(opt_level=3):
            by_hand = Sequential([*steps, FoldConstant()])(mod)
        assert_structural_equal(by_hand, quantize(mod, dataset=dataset))


def test_a_mode_that_measures_needs_data(b7: Any) -> None:
    with qconfig(**GENERAL), pytest.raises(ValueError, match="needs a dataset"):
        quantize(b7[0])


def test_ranges_of_another_module_are_refused(b7: Any) -> None:
    annotated, run = mark(b7[0], QConfig(**GENERAL))
    assert (len(quantize_points(annotated)), len(measured_points(annotated))) == (5, 3)
    with pytest.raises(CalibrationError, match="2 ranges were given for 3"):
        bind_scales(annotated, run, [1.0, 2.0])
    with pytest.raises(CalibrationError, match="nan"):
        bind_scales(annotated, run, [1.0, float("nan"), 1.0])


def test_candidates_of_given_ranges_are_what_quantize_returns(b7: Any) -> None:
    from compiler import assert_structural_equal

    mod, dataset = b7
    config = QConfig(**GENERAL)
    annotated, _ = mark(mod, config)
    ranges = activation_scales(calibration_stats(annotated, dataset), config)
    candidate = build_candidate(mod, config, ranges)
    context = QuantizeContext(config)
    assert candidate.integer is not None
    assert_structural_equal(candidate.integer, quantize(mod, dataset=dataset, context=context))
    assert candidate.report.points == context.report.points
    assert candidate.partitioned is None


BIASED = """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>);
  %1 = add(%0, const<b (3,1,1) float32>);
  %2 = nn.relu(%1);
  %2
}
"""


def biased(graph: Graph, bias: Any, scale: float = 1.0, **config: Any) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    W = rng.uniform(-0.5, 0.5, (3, 2, 3, 3)).astype(np.float32)
    W[1] *= np.float32(scale)
    mod = graph(BIASED, W=W, b=np.array(bias, np.float32).reshape(3, 1, 1))
    x = rng.normal(0, 2, (1, 2, 4, 4)).astype(np.float32)
    candidate = build_candidate(mod, QConfig(**{"skip_conv_layers": [], **config}), None)
    return candidate, mod, {"x": x}


ACCUMULATOR = {"bias_mode": "accumulator", "keep_output_wide": True, "weight_scale": "max"}


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_a_bias_at_the_accumulators_scale_loses_nothing(graph: Graph, granularity: str) -> None:
    bias = [0.0123, -1.7, 0.4]
    candidate, _, inputs = biased(graph, bias, **ACCUMULATOR, weight_granularity=granularity)
    (input_point, weight, bias_point) = candidate.report.points
    product = np.float32(input_point.dom_scale) * np.asarray(weight.dom_scale, np.float32)
    assert np.array_equal(np.asarray(bias_point.dom_scale, np.float32), product)
    simulated = evaluate(candidate.simulated, inputs)[0]
    integer = evaluate(candidate.integer, inputs)[0]
    # Sums of products are exact in both; the last multiplication rounds to float32.
    np.testing.assert_allclose(integer, simulated, rtol=1e-5, atol=1e-5)


def test_an_eight_bit_bias_is_coarser(graph: Graph) -> None:
    config = {**ACCUMULATOR, "bias_mode": "weight"}
    bias = [0.0123, -1.7, 0.4]
    fine, mod, inputs = biased(graph, bias, **ACCUMULATOR)
    coarse, *_ = biased(graph, bias, **config)
    nothing = {"x": np.zeros_like(inputs["x"])}
    exact = evaluate(mod, nothing)[0]
    errors = [np.abs(evaluate(c.integer, nothing)[0] - exact).max() for c in (fine, coarse)]
    assert errors[0] < errors[1]
    assert coarse.report.points[2].dom_scale == np.float32(np.float32(1.7) / 128)


@pytest.mark.parametrize("shape", [(5, 8), (5, 8, 3, 3), (5, 6, 4), (5, 1, 3, 3), (5, 7)])
def test_no_pair_of_weights_leaves_16_bits_as_products_with_bytes(shape: tuple[int, ...]) -> None:
    """Kernels of AVX2 add the products of two neighbours in 16 bits, channels before places."""
    weight = np.random.default_rng(0).standard_t(3, (*shape, 50)).astype(np.float32)
    for one in each(np.moveaxis(weight, -1, 0)):
        scale = weight_range(one, "pairs", 8, axis=0).reshape(-1, *(1,) * (one.ndim - 1)) / 128
        levels = np.clip(np.rint(one / scale), -127, 127)
        for signed in (levels, -levels):
            rows = np.moveaxis(np.maximum(signed, 0), 1, -1).reshape(len(one), -1)
            rows = np.pad(rows, [(0, 0), (0, rows.shape[1] % 2)])
            assert (rows[:, ::2] + rows[:, 1::2]).max() <= 128
        narrow = weight_range(one, "pairs", 4, axis=0)
        np.testing.assert_array_equal(narrow, weight_range(one, "mse", 4, axis=0))


@pytest.mark.parametrize("mode", ["max", "power2", "mse", "pairs"])
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_a_dead_channel_leaves_room_for_its_bias(graph: Graph, mode: str, granularity: str) -> None:
    config = {**ACCUMULATOR, "weight_scale": mode, "weight_granularity": granularity}
    candidate, mod, inputs = biased(graph, [0.1, 3.0, -0.2], scale=1e-12, **config)
    exact = evaluate(mod, inputs)[0]
    integer = evaluate(candidate.integer, inputs)[0]
    assert np.abs(integer[:, 1] - exact[:, 1]).max() < 1e-3
    assert np.abs(integer - exact).max() < 0.3


def test_one_bias_of_two_accumulators_gets_two_scales(graph: Graph) -> None:
    rng = np.random.default_rng(2)
    mod = graph(
        """
def @main(%x: (1,4) float32) {
  %0 = nn.dense(%x, const<A (3,4) float32>);
  %1 = add(%0, const<b (3,) float32>);
  %2 = nn.dense(%x, const<B (3,4) float32>);
  %3 = add(%2, const<b (3,) float32>);
  (%1, %3)
}
""",
        A=rng.uniform(-1, 1, (3, 4)).astype(np.float32),
        B=rng.uniform(-0.01, 0.01, (3, 4)).astype(np.float32),
        b=np.array([0.5, -0.25, 0.1], np.float32),
    )
    config = QConfig.recommended(calibrate_mode="global_scale")
    candidate = build_candidate(mod, config, None)
    inputs = {"x": rng.normal(0, 1, (1, 4)).astype(np.float32)}
    for found, exact in each(zip(evaluate(candidate.integer, inputs), evaluate(mod, inputs))):
        assert np.abs(found - exact).max() < 0.1


def test_a_scalar_bias_is_spread_over_the_channels(graph: Graph) -> None:
    rng = np.random.default_rng(3)
    mod = graph(
        """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>);
  %1 = add(%0, 0.75f);
  %1
}
""",
        W=rng.uniform(-0.5, 0.5, (3, 2, 3, 3)).astype(np.float32),
    )
    candidate = build_candidate(mod, QConfig.recommended(calibrate_mode="global_scale"), None)
    inputs = {"x": rng.normal(0, 2, (1, 2, 4, 4)).astype(np.float32)}
    exact = evaluate(mod, inputs)[0]
    assert np.abs(evaluate(candidate.integer, inputs)[0] - exact).max() < 0.2


def test_a_bias_in_the_accumulator_is_not_clipped_to_fewer_bits(graph: Graph) -> None:
    few = {**ACCUMULATOR, "nbit_activation": 12}
    candidate, mod, inputs = biased(graph, [3.0, -1.7, 0.4], **few)
    exact = evaluate(mod, inputs)[0]
    assert np.abs(evaluate(candidate.integer, inputs)[0] - exact).max() < 0.2


def test_a_shared_weight_leaves_room_for_the_larger_of_two_biases(graph: Graph) -> None:
    mod = graph(
        """
def @main(%x: (1,4) float32) {
  %0 = nn.dense(%x, const<A (3,4) float32>);
  %1 = add(%0, const<b (3,) float32>);
  %2 = nn.relu(%1);
  %3 = nn.dense(%x, const<A (3,4) float32>);
  %4 = add(%3, const<c (3,) float32>);
  (%2, %4)
}
""",
        A=np.full((3, 4), 1e-12, np.float32),
        b=np.array([5.0, -5.0, 5.0], np.float32),
        c=np.array([1e-3, 1e-3, 1e-3], np.float32),
    )
    candidate = build_candidate(mod, QConfig.recommended(calibrate_mode="global_scale"), None)
    inputs = {"x": np.ones((1, 4), np.float32)}
    for found, exact in each(zip(evaluate(candidate.integer, inputs), evaluate(mod, inputs))):
        np.testing.assert_allclose(found, exact, atol=1e-4)


def pyramid(offset: float, small: float) -> IRModule:
    """A head with one weight and one bias on two levels, of which the second is small."""
    op, nn = relay.op, relay.op.nn
    rng = np.random.default_rng(2)
    x = relay.var("x", (1, 3, 6, 6))
    weight = relay.const(rng.normal(0, 0.4, (5, 3, 1, 1)).astype("f4"))
    bias = relay.const((rng.normal(0, 0.3, (5, 1, 1)) + offset).astype("f4"))
    levels = (x, op.multiply(x, relay.const(np.float32(small))))
    heads = [op.add(nn.conv2d(level, weight), bias) for level in levels]
    return prerequisite_optimize(relay.module(relay.Function([x], relay.Tuple(heads))), None, 3)


@pytest.mark.parametrize(("offset", "small"), [(0.0, 0.1), (-4.6, 1e-2), (-4.6, 1e-5)])
def test_a_bias_that_two_products_share_has_the_scale_of_each(offset: float, small: float) -> None:
    """Where a level is next to nothing beside its bias, the weight's scale is coarse for all."""
    mod = pyramid(offset, small)
    rng = np.random.default_rng(3)
    data = [{"x": rng.normal(0, 1, (1, 3, 6, 6)).astype("f4")} for _ in range(4)]
    made = calibrated(mod, QConfig.recommended(calibrate_mode="max"), data)
    assert_same_integers(made.partitioned, data)
    assert made.partitioned is not None
    for batch in data:
        both = zip(evaluate(mod, batch), evaluate(made.partitioned, batch), strict=True)
        for wanted, found in both:
            lost = np.square(found - wanted).sum() / np.square(wanted).sum()
            assert small == 1e-5 or lost < 1e-3


def test_marking_and_binding_keep_the_types_that_are_known(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    mod = graph(
        B7,
        W0=rng.standard_normal((3, 2, 3, 3)).astype(np.float32),
        W1=rng.standard_normal((2, 3, 1, 1)).astype(np.float32),
    )
    mod = prerequisite_optimize(mod)
    inferred: list[object] = []
    known = infer_type._infer

    def counted(*args: Any) -> Any:
        inferred.append(args)
        return known(*args)

    monkeypatch.setattr(infer_type, "_infer", counted)
    annotated, run = mark(mod, QConfig.recommended(calibrate_mode="global_scale"))
    bound = bind_scales(annotated, run, None)
    assert not inferred
    main = bound["main"]
    types = [node.checked_type for node in nodes_of(main)]
    for node in nodes_of(main):
        if isinstance(node, Call):
            node.set_checked_type(None)
    infer_module(bound.with_function("main", main.fresh_copy()))
    assert inferred
    assert [node.checked_type for node in nodes_of(main)] == types
