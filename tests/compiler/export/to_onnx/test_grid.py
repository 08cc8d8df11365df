"""The integer grid against the reference executor: the same integers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.grid import to_grid_onnx
from compiler.pipeline import evaluate
from compiler.proof.derive import derive_static
from compiler.runtime.artifact import QModule
from tests.compiler.export.to_onnx.grid_graphs import (
    assert_same_integers,
    constant,
    conv,
    dequantized,
    grid,
    images,
    module,
    multiplier_and_shift,
    narrow,
    op_types,
    quantized,
    requantized,
    requantized_per_axis,
    to_nearest,
)
from tests.compiler.inner_values import GRID

op = relay.op


def test_ties_and_extremes_of_the_input_are_rounded_as_the_reference_does() -> None:
    x = relay.var("x", (1, 1, 1, 4096))
    mod = module(x, dequantized(quantized(x)))
    ties = (np.arange(4096) - 2048) / 32
    for values in (ties, np.nextafter(ties.astype("float32"), np.float32(9e9)), ties * 1e30):
        inputs = {"x": values.astype("float32").reshape(1, 1, 1, 4096)}
        assert_same_integers(mod, inputs)


def test_power_of_two_scales_fold_into_the_weights() -> None:
    rng = np.random.default_rng(71)
    x = relay.var("x", (1, 3, 8, 8))
    total = op.add(
        conv(quantized(x), rng, (5, 3, 3, 3)), constant(rng.integers(-999, 999, (5, 1, 1)))
    )
    shifted = op.right_shift(op.add(op.nn.relu(total), constant(128)), constant(8))
    mod = module(x, dequantized(narrow(shifted)))
    assert_same_integers(mod, images(0, 1, 3, 8, 8))
    behind = op_types(mod)[op_types(mod).index("Conv") :]
    assert behind[:3] == ["Conv", "Floor", "Clip"]


def test_shifts_that_differ_by_channel_fold_as_well() -> None:
    rng = np.random.default_rng(5)
    x = relay.var("x", (1, 3, 6, 6))
    bits = np.array([4, 7, 0, 9]).reshape(4, 1, 1)
    half = np.where(bits > 0, 1 << np.maximum(bits - 1, 0), 0)
    total = op.add(conv(quantized(x), rng, (4, 3, 3, 3)), constant(half))
    mod = module(x, dequantized(narrow(op.right_shift(total, constant(bits)))))
    assert_same_integers(mod, images(1, 1, 3, 6, 6))


def test_a_limit_before_requantization_vanishes_in_the_clip_behind_it() -> None:
    rng = np.random.default_rng(72)
    x = relay.var("x", (1, 3, 8, 8))
    mod = module(
        x, dequantized(requantized(op.nn.relu(conv(quantized(x), rng, (5, 3, 3, 3))), 0.003))
    )
    assert_same_integers(mod, images(2, 1, 3, 8, 8))
    # One Clip binds nothing: it keeps the factor out of the weights.
    assert op_types(mod).count("Clip") <= 4
    assert "Relu" not in op_types(mod)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.integers(1, 5),
    outputs=st.sampled_from([1, 2, 5, 16, 32]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    factor=st.floats(1e-4, 1.9),
    limit=st.sampled_from(["none", "relu", "clip", "minimum"]),
)
def test_random_convolutions_agree(
    seed: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: int,
    factor: float,
    limit: str,
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (1, channels, 7, 6))
    first = conv(
        quantized(x),
        rng,
        (outputs, channels, kernel, kernel),
        strides=(stride, stride),
        padding=(padding,) * 4,
    )
    first = op.add(first, constant(rng.integers(-50_000, 50_000, (outputs, 1, 1))))
    if limit == "relu":
        first = op.nn.relu(first)
    elif limit == "clip":
        first = op.clip(first, a_min=-0.5, a_max=float(rng.integers(10, 90_000)) + 0.7)
    elif limit == "minimum":
        bound = constant(rng.integers(10, 90_000, (outputs, 1, 1)))
        first = op.minimum(op.nn.relu(first), bound)
    scalar = requantized(first, factor)
    vector = requantized_per_axis(first, factor * rng.uniform(0.5, 1.0, outputs))
    second = conv(vector, rng, (outputs, 1, 1, 1), groups=outputs)
    wide = requantized(op.add(second, op.cast(scalar, dtype="int32")), factor / 9)
    mod = module(
        x, dequantized(scalar), dequantized(vector), dequantized(second), dequantized(wide)
    )
    assert_same_integers(mod, images(seed, 1, channels, 7, 6))


@pytest.mark.parametrize("factor", [0.0004, 0.0017, 0.005, 0.03])
@pytest.mark.parametrize("limit", [0, -127])
def test_requantization_stays_in_the_blocked_layout(factor: float, limit: int) -> None:
    """Sixteen channels: scaling and rounding are convolutions, with one rounding or several."""
    rng = np.random.default_rng(int(factor * 1e4))
    x = relay.var("x", (1, 8, 20, 20))
    total = op.add(
        conv(quantized(x), rng, (16, 8, 3, 3)), constant(rng.integers(-999, 999, (16, 1, 1)))
    )
    wide = op.cast(op.nn.relu(total) if limit == 0 else total, dtype="int64")
    pairs = [multiplier_and_shift(f) for f in factor * rng.uniform(0.5, 1, 16)]
    m, e = (constant([p[i] for p in pairs]) for i in (0, 1))
    narrowed = narrow(op.fixed_point_multiply_per_axis(wide, m, e, axis=1), limit)
    mod = module(x, dequantized(narrowed))
    assert_same_integers(mod, images(9, 1, 8, 20, 20))
    if factor > 0.001:
        types = op_types(mod)
        assert types.count("Conv") >= 3
        assert not {"Round", "Floor"} & set(types)


@pytest.mark.parametrize("signs", [(-1, -1), (1, -1)])
def test_negative_multipliers_exchange_the_ends_of_the_bounds(signs: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    x = relay.var("x", (1, 3, 8, 8))
    total = op.cast(conv(quantized(x), rng, (2, 3, 3, 3)), dtype="int64")
    pairs = [multiplier_and_shift(0.004), multiplier_and_shift(0.009)]
    m = constant([sign * pair[0] for sign, pair in zip(signs, pairs, strict=True)])
    e = constant([pair[1] for pair in pairs])
    narrowed = narrow(op.fixed_point_multiply_per_axis(total, m, e, axis=1), -127)
    assert_same_integers(module(x, dequantized(narrowed)), images(4, 1, 3, 8, 8))


def test_ties_of_negative_multipliers_and_relus_before_them() -> None:
    x = relay.var("x", (1, 2, 400), "int16")
    m, e = constant([-(1 << 29) * 3, 1 << 30]), constant([-3, -7])
    clipped = op.clip(x, a_min=-200, a_max=200)
    values = np.tile(np.arange(-200, 200, dtype="int16"), (1, 2, 1))
    for operand in (clipped, op.nn.relu(clipped)):
        result = op.fixed_point_multiply_per_axis(operand, m, e, axis=1)
        assert_same_integers(module(x, dequantized(result)), {"x": values})


def test_a_float_factor_goes_no_further_than_the_definition() -> None:
    """-128 * 2^-8 rounds up to 0; a factor next to 2^-8 would round to -1, and no clip follows."""
    x = relay.var("x", (1, 2, 256), "int8")
    wide = op.cast(x, dtype="int32")
    both = op.concatenate((wide, op.add(wide, constant(1))), axis=2)
    m, e = constant([1 << 30, 1671603599]), constant([-7, -30])
    result = op.fixed_point_multiply_per_axis(both, m, e, axis=1)
    values = np.tile(np.arange(-128, 128, dtype="int8"), (1, 2, 1))
    assert_same_integers(module(x, dequantized(result)), {"x": values})


def test_shifts_of_the_only_sample_are_no_shifts_of_channels() -> None:
    x = relay.var("x", (1, 5), "int8")
    total = op.nn.dense(x, constant(np.ones((4, 5)), "int8"), out_dtype="int32")
    result = op.fixed_point_multiply_per_axis(total, constant([1 << 30]), constant([-8]), axis=0)
    inputs = {"x": np.array([[-128, 127, 3, 90, 127]], "int8")}
    assert_same_integers(module(x, dequantized(result)), inputs)


@pytest.mark.parametrize("what", GRID)
def test_what_the_grid_computed_otherwise_has_no_grid_form_and_runs(what: str) -> None:
    case = GRID[what]
    assert derive_static(case.mod).holds
    for function in ("main", "quantized_main"):
        with pytest.raises(OnnxExportError, match="--format onnx"):
            to_grid_onnx(case.mod, function)
    module = QModule(case.mod)
    (ours,), (exact,) = (module.run(case.given, name) for name in ("auto", "reference"))
    assert ours.tobytes() == exact.tobytes()


def test_limits_of_a_float16_clip_are_those_that_float16_holds() -> None:
    x = relay.var("x", (1, 5), "float16")
    values = np.array([[np.inf, 65504, 40000, -np.inf, np.nan]], "float16")
    for limit, dtype in ((1 << 20, "int32"), (32767, "int16"), (2049, "int16")):
        held = op.cast(op.clip(op.round(x), a_min=-limit, a_max=limit), dtype=dtype)
        assert_same_integers(module(x, dequantized(held)), {"x": values})


def test_a_dead_channel_does_not_cost_the_others_their_form() -> None:
    """Bounds are known per channel: one that hardly moves has few places where it steps."""
    rng = np.random.default_rng(1)
    x = relay.var("x", (1, 8, 10, 10))
    weight = rng.integers(-127, 128, (16, 8, 1, 1))
    weight[3] = 0
    bias = rng.integers(-999, 999, (16, 1, 1))
    bias[3] = 1 << 22
    total = op.nn.conv2d(quantized(x), constant(weight, "int8"), out_dtype="int32")
    factors = rng.uniform(0.004, 0.01, 16)
    factors[3] = 3e-6
    mod = module(x, dequantized(requantized_per_axis(op.add(total, constant(bias)), factors)))
    assert_same_integers(mod, images(10, 1, 8, 10, 10))
    casts = [n for n in to_grid_onnx(mod).graph.node if n.op_type == "Cast"]
    assert all(n.attribute[0].i != onnx.TensorProto.DOUBLE for n in casts)
    assert not {"Round", "Floor"} & set(op_types(mod))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(1e-4, 3.0))
def test_rounding_to_nearest_agrees(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (2, 6))
    weight = constant(rng.integers(-127, 128, (5, 6)), "int8")
    total = op.nn.dense(quantized(x), weight, out_dtype="int32")
    mod = module(x, dequantized(to_nearest(total, factor)))
    assert_same_integers(mod, images(seed, 2, 6))


def test_the_rounding_chain_is_recognised_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (2, 6))
    weight = constant(rng.integers(-127, 128, (5, 6)), "int8")
    total = op.nn.dense(quantized(x), weight, out_dtype="int32")
    types = op_types(module(x, dequantized(to_nearest(total, 0.01))))
    # The two Where of the input: NaN passes its clip and becomes 0.
    assert types.count("Where") == types.count("IsNaN") == 2
    assert "Mod" not in types


def test_ties_of_both_roundings_agree() -> None:
    x = relay.var("x", (1, 255), "int32")
    narrowed = op.clip(x, a_min=-127, a_max=127)
    for factor in (0.5, 0.75, 0.25, 1.5, 1.0, 2.0):
        results = [dequantized(r(narrowed, factor)) for r in (requantized, to_nearest)]
        inputs = {"x": np.arange(-127, 128, dtype="int32").reshape(1, 255)}
        assert_same_integers(module(x, *results), inputs)


def test_residual_additions_agree() -> None:
    rng = np.random.default_rng(74)
    x = relay.var("x", (1, 4, 6, 6))
    first = requantized(conv(quantized(x), rng, (4, 4, 3, 3), padding=(1, 1, 1, 1)), 0.004)
    second = requantized(conv(first, rng, (4, 4, 3, 3), padding=(1, 1, 1, 1)), 0.003)
    left = op.left_shift(op.cast(first, dtype="int32"), constant(8))
    m, e = multiplier_and_shift(1.37)
    right = op.fixed_point_multiply(op.cast(second, dtype="int32"), multiplier=m, shift=e)
    mod = module(x, dequantized(requantized(op.add(left, right), 0.01)), dequantized(second))
    assert_same_integers(mod, images(3, 1, 4, 6, 6))


@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("multiple", [1, 36])
def test_average_pools_truncate_as_the_reference_does(
    include_pad: bool, ceil_mode: bool, multiple: int
) -> None:
    x = relay.var("x", (1, 3, 7, 8))
    wide = op.cast(quantized(x), dtype="int32")
    if multiple > 1:
        wide = op.multiply(wide, constant(multiple))
    pooled = op.nn.avg_pool2d(
        wide,
        pool_size=(3, 3),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
        count_include_pad=include_pad,
        ceil_mode=ceil_mode,
    )
    whole = op.nn.global_avg_pool2d(wide)
    largest = op.nn.max_pool2d(
        quantized(x), pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1), ceil_mode=ceil_mode
    )
    mod = module(x, dequantized(pooled), dequantized(whole), dequantized(largest))
    assert_same_integers(mod, images(4, 1, 3, 7, 8))


def test_a_rounded_average_is_one_sum_and_one_factor() -> None:
    x = relay.var("x", (1, 3, 7, 7))
    wide = op.multiply(op.cast(quantized(x), dtype="int32"), constant(49))
    mod = module(x, dequantized(op.nn.global_avg_pool2d(wide)))
    types = op_types(mod)
    assert types.count("ReduceSum") == 1
    assert "Div" not in types


def test_sums_beyond_float32_are_computed_in_parts() -> None:
    """1152 inputs of a 3x3 kernel with full weights reach 127 * 127 * 10368 > 2^24."""
    x = relay.var("x", (1, 1152, 3, 3))
    weight = constant(np.full((2, 1152, 3, 3), 127), "int8")
    total = op.nn.conv2d(quantized(x, 127.0), weight, out_dtype="int32")
    mod = module(x, dequantized(total), dequantized(requantized(total, 1e-6)))
    inputs = {"x": np.random.default_rng(0).uniform(0.5, 1, (1, 1152, 3, 3)).astype("float32")}
    assert evaluate(mod, inputs)[0].max() > (1 << 24) * 0.0625
    assert_same_integers(mod, inputs)


def test_dense_sums_beyond_float32_are_computed_in_double() -> None:
    x = relay.var("x", (1, 4000))
    weight = constant(np.full((3, 4000), 127), "int8")
    total = op.nn.dense(quantized(x, 127.0), weight, out_dtype="int32")
    mod = module(x, dequantized(total), dequantized(requantized(total, 1.7e-6)))
    inputs = {"x": np.random.default_rng(0).uniform(0.5, 1, (1, 4000)).astype("float32")}
    assert_same_integers(mod, inputs)


def test_products_of_two_activations_agree() -> None:
    x = relay.var("x", (2, 5, 8))
    q = quantized(x)
    product = op.nn.batch_matmul(q, q, out_dtype="int32")
    mod = module(x, dequantized(product), dequantized(requantized(product, 0.004)))
    assert_same_integers(mod, images(6, 2, 5, 8))


def test_moving_integers_about_changes_none() -> None:
    x = relay.var("x", (1, 4, 6, 5))
    q = quantized(x)
    parts = op.split(q, indices_or_sections=2, axis=1)
    halves = [relay.TupleGetItem(parts, i) for i in (1, 0)]
    joined = op.concatenate(relay.Tuple(halves), axis=1)
    padded = op.nn.pad(joined, constant(-3, "int8"), pad_width=((0, 0), (0, 0), (1, 0), (0, 2)))
    turned = op.transpose(padded, axes=(0, 2, 3, 1))
    cut = op.strided_slice(turned, begin=(0, 1, 0, 0), end=(1, 7, 6, 4), strides=(1, 2, 1, 1))
    mod = module(x, dequantized(op.reshape(cut, newshape=(1, -1))), dequantized(op.negative(q)))
    assert_same_integers(mod, images(7, 1, 4, 6, 5))


def test_a_narrowing_cast_without_clip_wraps() -> None:
    x = relay.var("x", (1, 700), "int32")
    clipped = op.clip(x, a_min=-350, a_max=350)
    inputs = {"x": np.arange(-350, 350, dtype="int32").reshape(1, 700)}
    assert_same_integers(module(x, dequantized(op.cast(clipped, dtype="int8"))), inputs)


def test_a_float_cast_without_rounding_truncates_and_saturates() -> None:
    x = relay.var("x", (1, 6))
    mod = module(x, dequantized(op.cast(x, dtype="int8")))
    values = np.array([[-1e9, -3.7, -0.2, 2.9, 127.9, 1e9]], "float32")
    assert_same_integers(mod, {"x": values})


def test_sums_that_may_wrap_are_refused() -> None:
    x = relay.var("x", (1, 4), "int32")
    with pytest.raises(OnnxExportError, match="outside int32"):
        to_grid_onnx(module(x, dequantized(op.add(x, x))))


def test_an_integer_function_keeps_its_dtypes() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 3, 5, 5), "int8")
    mod = module(x, requantized(conv(x, rng, (4, 3, 3, 3)), 0.003))
    inputs = {"x": rng.integers(-127, 128, (1, 3, 5, 5)).astype("int8")}
    (found,) = grid(mod).run(inputs)
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, evaluate(mod, inputs)[0])


def test_float_parts_stay_float() -> None:
    x = relay.var("x", (2, 6))
    weight = constant(np.random.default_rng(0).integers(-127, 128, (5, 6)), "int8")
    logits = dequantized(op.nn.dense(quantized(x), weight, out_dtype="int32"), 1e-3)
    mod = module(x, op.nn.softmax(logits))
    inputs = images(8, 2, 6)
    (found,) = grid(mod).run(inputs)
    # exp of onnxruntime and numpy differ in the last bits.
    np.testing.assert_allclose(found, evaluate(mod, inputs)[0], rtol=1e-5)


def test_the_exported_model_passes_the_onnx_checker() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 3, 8, 8))
    mod = module(x, dequantized(requantized(conv(quantized(x), rng, (5, 3, 3, 3)), 0.003)))
    onnx.checker.check_model(to_grid_onnx(mod), full_check=True)


def test_limits_that_are_infinite_bind_nothing() -> None:
    x = relay.var("x", (1, 64), "int32")
    wide = op.cast(op.clip(x, a_min=-5000, a_max=5000), dtype="int64")
    open_ended = op.clip(wide, a_min=-3.0, a_max=float("inf"))
    mod = module(x, dequantized(requantized(open_ended, 0.013)))
    values = np.random.default_rng(0).integers(-9000, 9000, (1, 64)).astype("int32")
    assert_same_integers(mod, {"x": values})


@pytest.mark.parametrize("scaled_first", [False, True])
def test_no_optimizer_of_onnxruntime_moves_a_factor_into_the_weights(
    scaled_first: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    x = relay.var("x", (1, 3, 8, 8))
    sums = conv(quantized(x), rng, (5, 3, 3, 3))
    if scaled_first:
        # onnxruntime makes this factor and this sum part of the convolution.
        bias = relay.const(rng.integers(-99, 99, (5, 1, 1)).astype("int32"))
        sums = op.add(op.multiply(sums, relay.const(np.int32(2))), bias)
    mod = module(x, dequantized(requantized(sums, 0.003)))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    data = to_grid_onnx(mod).SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    # One Mul quantizes the input, one requantizes the sums, one dequantizes the output.
    assert kinds.count("Mul") >= 3
    inputs = {"x": rng.normal(0, 2, (1, 3, 8, 8)).astype("float32")}
    assert_same_integers(mod, inputs)


def test_a_factor_behind_a_rounding_in_the_blocked_layout_changes_no_bit() -> None:
    rng = np.random.default_rng(5)
    x = relay.var("x", (1, 3, 8, 8))
    narrow = requantized(conv(quantized(x), rng, (16, 3, 3, 3)), 0.0031)
    factor = relay.const(rng.integers(100, 125, (16, 1, 1)).astype("int32"))
    bias = relay.const(rng.integers(-999, 999, (16, 1, 1)).astype("int32"))
    sums = op.add(op.multiply(op.cast(narrow, dtype="int32"), factor), bias)
    mod = module(x, dequantized(requantized(sums, 0.0101)))
    inputs = {"x": rng.normal(0, 2, (1, 3, 8, 8)).astype("float32")}
    assert_same_integers(mod, inputs)
