"""The integer grid against the reference executor: the same integers, bit for bit."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler import quantize, relay
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.grid import GRID_DISABLED_OPTIMIZERS, to_grid_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.ops.rules.fixed_point import TIES, scaled
from compiler.ops.rules.float_product import nearest_float_factors, same_as_float_product
from compiler.pipeline import evaluate
from compiler.targets.ort import narrow_kernels
from compiler.targets.ort.session import OrtExecutor

op = relay.op


def constant(values: Any, dtype: str = "int32") -> Expr:
    return relay.const(np.asarray(values, dtype))


def multiplier_and_shift(value: float) -> tuple[int, int]:
    fraction, exponent = np.frexp(np.float64(np.float32(value)))
    multiplier = int(np.floor(fraction * 2**31 + 0.5))
    return (multiplier, int(exponent)) if multiplier < 1 << 31 else (1 << 30, int(exponent) + 1)


def quantized(x: Expr, scale: float = 16.0) -> Expr:
    rounded = op.round(op.multiply(x, constant(scale, "float32")))
    return op.cast(op.clip(rounded, a_min=-127, a_max=127), dtype="int8")


def narrow(x: Expr, low: int = -127) -> Expr:
    return op.cast(op.clip(x, a_min=low, a_max=127), dtype="int8")


def requantized(x: Expr, factor: float) -> Expr:
    m, e = multiplier_and_shift(factor)
    return narrow(op.fixed_point_multiply(op.cast(x, dtype="int64"), multiplier=m, shift=e))


def requantized_per_axis(x: Expr, factors: np.ndarray, axis: int = 1) -> Expr:
    pairs = [multiplier_and_shift(f) for f in factors]
    wide = op.cast(x, dtype="int64")
    m, e = (constant([p[i] for p in pairs]) for i in (0, 1))
    return narrow(op.fixed_point_multiply_per_axis(wide, m, e, axis=axis))


def to_nearest(x: Expr, factor: float) -> Expr:
    """The TONEAREST chain of spec/quantize.md section 7.3."""
    m, e = multiplier_and_shift(factor)
    left, right = max(e, 0), max(-e, 0)
    wide = op.cast(x, dtype="int64")
    if left:
        wide = op.left_shift(wide, constant(left, "int64"))
    product = op.multiply(wide, constant(m, "int64"))
    half = 1 << (30 + right)
    choice = op.where(
        op.greater_equal(product, constant(0, "int64")),
        constant(half, "int64"),
        constant(half - 1, "int64"),
    )
    shifted = op.right_shift(op.add(product, choice), constant(31 + right, "int64"))
    return narrow(op.cast(shifted, dtype="int32"))


def dequantized(x: Expr, scale: float = 0.0625) -> Expr:
    return op.multiply(op.cast(x, dtype="float32"), constant(scale, "float32"))


def conv(x: Expr, rng: np.random.Generator, shape: tuple[int, ...], **attrs: Any) -> Expr:
    weight = constant(rng.integers(-127, 128, shape), "int8")
    return op.nn.conv2d(x, weight, out_dtype="int32", **attrs)


def module(x: Any, *results: Expr) -> IRModule:
    body = results[0] if len(results) == 1 else relay.Tuple(results)
    return relay.module(relay.Function((x,), body))


def grid(
    mod: IRModule, optimize: bool = True, function: str = "main", kernels: bool = False
) -> OrtExecutor:
    return OrtExecutor(
        to_grid_onnx(mod, function, kernels),
        disabled_optimizers=GRID_DISABLED_OPTIMIZERS,
        optimize=optimize,
    )


def assert_same_integers(mod: IRModule, inputs: dict[str, np.ndarray]) -> None:
    """With and without onnxruntime's optimizers, and its 8 bit kernels."""
    expected = evaluate(mod, inputs)
    for optimize, kernels in product((True, False), (False, narrow_kernels.are_exact())):
        found = grid(mod, optimize, kernels=kernels).run(inputs)
        for a, b in zip(expected, found, strict=True):
            assert a.dtype == b.dtype
            # Bits, not values: -0.0 would change the hash of the outputs.
            assert a.tobytes() == b.tobytes()


def op_types(mod: IRModule, kernels: bool = False) -> list[str]:
    return [n.op_type for n in to_grid_onnx(mod, narrow_kernels=kernels).graph.node]


def images(seed: int, *shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(0, 3, shape).astype("float32")}


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
    assert op_types(mod).count("Clip") <= 3
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
    assert "Where" not in types
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


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    ["digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_outlier", "efficientnet_lite0"],
)
def test_trained_models_give_the_same_bits(shared_data: Path, name: str) -> None:
    mod, params = load(shared_data / f"{name}.onnx")
    mod = quantize.prerequisite_optimize(mod, params, 3)
    shape = mod["main"].params[0].checked_type.shape
    rng = np.random.default_rng(0)
    batches = [{"input": rng.normal(0, 0.6, shape).astype("float32")} for _ in range(3)]
    config = quantize.QConfig.recommended()
    annotated, _ = quantize.mark(mod, config)
    scales = quantize.activation_scales(quantize.calibration_stats(annotated, batches), config)
    candidate = quantize.build_candidate(mod, config, scales)
    assert candidate.partitioned is not None
    for kernels in (False, narrow_kernels.are_exact()):
        executor = grid(candidate.partitioned, kernels=kernels)
        for batch in batches:
            (expected,) = evaluate(candidate.partitioned, batch)
            (found,) = executor.run(batch)
            assert found.tobytes() == expected.tobytes()
    types = op_types(candidate.partitioned, kernels=True)
    assert types.count("QLinearConv") >= 3
    assert types.count("Conv") == 0


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bounds=st.sampled_from([(0, 255), (-127, 127), (-128, 127), (0, 127), (-20, 235), (5, 90)]),
    channels=st.sampled_from([3, 16, 32, 40]),
    outputs=st.sampled_from([1, 16, 24]),
    window=st.sampled_from([(1, 0), (3, 1), (5, 2), (3, 0)]),
    stride=st.integers(1, 2),
    rounding=st.sampled_from(["UPWARD", "TONEAREST", "TONEAREST_EVEN"]),
)
def test_8_bit_kernels_agree(
    seed: int,
    bounds: tuple[int, int],
    channels: int,
    outputs: int,
    window: tuple[int, int],
    stride: int,
    rounding: str,
) -> None:
    """Depthwise and not, a pool between, what reads the result in float32, every range."""
    rng = np.random.default_rng(seed)
    low, high = bounds
    dtype = "int8" if low < 0 and high < 128 else "uint8" if low >= 0 else "int16"
    attrs = {"padding": (window[1],) * 4, "strides": (stride, stride)}
    x = relay.var("x", (1, channels, 9, 11))

    proven: list[np.bool_] = []

    def stepped(total: Expr, smallest: float) -> Expr:
        count = channels if total is first else outputs
        factors = np.exp2(rng.uniform(smallest, smallest + 3, count)).astype("float32")
        ties = TIES[rounding]
        reach = (-(1 << 22), 1 << 22)
        factors = nearest_float_factors(factors, ties, reach, bounds)
        # One factor in hundreds has no neighbour that will do: its layer stays in float32.
        fraction, exponent = np.frexp(factors)
        multiplier = np.ldexp(fraction, 24).astype(np.int64)
        shift = 24 - exponent.astype(np.int64)
        proven.append(same_as_float_product(multiplier, shift, ties, *reach, bounds).all())
        total = op.cast(total, dtype="int64")
        return op.cast(op.clip(scaled(total, factors, 2, 4, rounding), low, high), dtype=dtype)

    held = op.round(op.multiply(x, constant(40, "float32")))
    data = op.cast(op.clip(held, a_min=low, a_max=high), dtype=dtype)
    first = op.add(
        conv(data, rng, (channels, 1, 3, 3), groups=channels, padding=(1,) * 4),
        constant(rng.integers(-9000, 9000, (channels, 1, 1))),
    )
    middle = stepped(first, -11)
    middle = op.nn.max_pool2d(middle, pool_size=(3, 2), strides=(1, 1), padding=(1, 0, 2, 1))
    second = conv(middle, rng, (outputs, channels, window[0], window[0]), **attrs)
    result = stepped(second, -13)
    wide = op.add(op.cast(result, dtype="int32"), constant(7))
    mod = module(x, dequantized(result), dequantized(wide))
    inputs = {"x": rng.normal(1, 4, (1, channels, 9, 11)).astype("float32")}
    assert_same_integers(mod, inputs)
    assert op_types(mod, kernels=True).count("QLinearConv") >= sum(proven)


def test_bounds_that_bytes_do_not_hold_keep_to_float32() -> None:
    rng = np.random.default_rng(3)
    x = relay.var("x", (1, 4, 6, 6))
    held = op.round(op.multiply(x, constant(90, "float32")))
    data = op.cast(op.clip(held, a_min=-300, a_max=300), dtype="int16")
    mod = module(x, dequantized(requantized(conv(data, rng, (4, 4, 3, 3)), 0.003)))
    assert_same_integers(mod, images(11, 1, 4, 6, 6))
    assert "QLinearConv" not in op_types(mod, kernels=True)


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
