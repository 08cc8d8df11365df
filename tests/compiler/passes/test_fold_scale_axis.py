"""Both halves of FoldScaleAxis: scales after and before a convolution or a dense layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay, transform
from compiler.ir.expr import Call, Expr, Function, Var, is_op_call
from compiler.ir.op import temp_op_attr
from compiler.ir.walk import nodes_of
from compiler.ops.rules.axes import elementwise_axes

op = relay.op
rng = np.random.default_rng(5)


def positive(*shape: int) -> relay.Constant:
    return relay.const(rng.uniform(0.5, 2, shape).astype(np.float32))


def signed(*shape: int) -> relay.Constant:
    return relay.const(rng.uniform(-2, -0.5, shape).astype(np.float32))


def weight(*shape: int) -> relay.Constant:
    return relay.const(rng.standard_normal(shape).astype(np.float32))


def run(expr: Expr, name: str = "FoldScaleAxis") -> tuple[Any, Any]:
    mod = relay.module(expr)
    with transform.PassContext(opt_level=3):
        return mod, transform.create_pass(name)(mod)


def check(expr: Expr, expected: Expr, name: str = "FoldScaleAxis") -> None:
    """The pass gives ``expected`` and the values stay."""
    mod, new = run(expr, name)
    compiler.assert_structural_equal(new, relay.module(expected))
    same_values(mod, new)


def stays(expr: Expr) -> None:
    mod, new = run(expr)
    assert new["main"] is mod["main"]


def same_values(mod: Any, new: Any) -> None:
    inputs = []
    for param in mod["main"].params:
        inputs.append(rng.uniform(0.5, 2, param.type_annotation.shape).astype(np.float32))
    (want,) = compiler.evaluate(mod, inputs)
    (got,) = compiler.evaluate(new, inputs)
    # Scaling weights instead of results rounds differently.
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


x = relay.var("x", (2, 4, 6, 6))
w = weight(3, 4, 3, 3)


def fn(body: Expr, *extra: Var) -> Function:
    return relay.Function((x, *extra), body)


def conv(data: Expr, kernel: Expr | None = None, **attrs: Any) -> Call:
    return op.nn.conv2d(data, w if kernel is None else kernel, **attrs)


def times(kernel: relay.Constant, scale: np.ndarray) -> relay.Constant:
    return relay.const(kernel.data * scale)


# --- the backward half


def test_a_gate_that_is_computed_of_the_input_stays() -> None:
    image = relay.var("x", (1, 4, 6, 6))
    gate = op.sigmoid(conv(op.nn.global_avg_pool2d(image), weight(3, 4, 1, 1)))
    stays(relay.Function((image,), conv(image) * gate))


def test_a_scale_behind_a_convolution_moves_into_output_channels() -> None:
    s = signed(3, 1, 1)
    check(fn(conv(x) * s), fn(conv(x, times(w, s.data.reshape(3, 1, 1, 1)))))


def test_the_scale_may_stand_on_the_left() -> None:
    s = signed(1, 3, 1, 1)
    check(fn(op.multiply(s, conv(x))), fn(conv(x, times(w, s.data.reshape(3, 1, 1, 1)))))


def test_c2_batch_norm_folds_only_at_level_3() -> None:
    r = np.random.default_rng(42)
    kernel = r.uniform(-1, 1, (3, 2, 1, 1)).astype(np.float32)
    statistics = [
        r.uniform(low, high, (3,)).astype(np.float32)
        for low, high in [(-1.5, 1.5), (-1, 1), (-1, 1), (0.1, 2)]
    ]
    data = relay.var("x", (1, 2, 5, 5))
    bn = op.nn.batch_norm(op.nn.conv2d(data, relay.const(kernel)), *map(relay.const, statistics))
    mod = relay.module(op.nn.relu(relay.TupleGetItem(bn, 0)))
    pipeline = transform.Sequential.from_text("SimplifyInference,FoldConstant,FoldScaleAxis")
    level_2 = pipeline(mod)["main"].body
    assert is_op_call(level_2.args[0].args[0], "multiply")
    with transform.PassContext(opt_level=3):
        total = pipeline(mod)["main"].body.args[0]
    assert is_op_call(total.args[0], "nn.conv2d")
    np.testing.assert_allclose(
        total.args[0].args[1].data.ravel(),
        [0.58863461, -0.131328598, 0.573023319, 0.315385193, 1.92505705, -2.25615835],
        rtol=2e-7,
    )
    np.testing.assert_allclose(
        total.args[1].data.ravel(), [-0.408343345, -0.774162471, 0.585110068], rtol=2e-7
    )


def test_behind_a_relu_only_a_scale_that_is_not_negative_moves() -> None:
    stays(fn(op.nn.relu(conv(x)) * signed(3, 1, 1)))
    s = positive(3, 1, 1)
    check(fn(op.nn.relu(conv(x)) * s), fn(op.nn.relu(conv(x, times(w, s.data[..., None])))))


def test_a_scale_that_is_a_parameter_moves_as_an_expression() -> None:
    s = relay.var("s", (3, 1, 1))
    vector = op.squeeze(s, axis=[1, 2])
    expected = conv(x, op.multiply(w, op.expand_dims(vector, axis=1, num_newaxis=3)))
    check(fn(conv(x) * s, s), fn(expected, s))
    stays(fn(op.nn.relu(conv(x)) * s, s))


def test_a_bias_is_scaled_along() -> None:
    s, b = signed(3, 1, 1), weight(3, 1, 1)
    kernel = times(w, s.data[..., None])
    check(fn((conv(x) + b) * s), fn(conv(x, kernel) + relay.const(b.data * s.data)))
    check(
        fn(op.subtract(b, conv(x)) * s),
        fn(op.subtract(relay.const(b.data * s.data), conv(x, kernel))),
    )


def test_bias_add_takes_the_scale_on_its_own_axis_unless_negative() -> None:
    s, b = signed(3, 1, 1), weight(3)
    expected = op.nn.bias_add(conv(x, times(w, s.data[..., None])), times(b, s.data.ravel()))
    check(fn(op.nn.bias_add(conv(x), b) * s), fn(expected))
    stays(fn(op.nn.bias_add(conv(x), b, axis=-3) * s))


def test_both_sides_of_a_sum_take_the_scale() -> None:
    s, other = signed(3, 1, 1), weight(3, 4, 3, 3)
    k = s.data[..., None]
    check(
        fn((conv(x) + conv(x, other)) * s),
        fn(conv(x, times(w, k)) + conv(x, times(other, k))),
    )


def test_a_negative_scale_does_not_enter_a_sum_with_a_relu_on_either_side() -> None:
    s, other = signed(3, 1, 1), weight(3, 4, 3, 3)
    stays(fn((conv(x) + op.nn.relu(conv(x, other))) * s))
    stays(fn((op.nn.relu(conv(x)) + conv(x, other)) * s))


def test_a_scale_along_another_axis_stays() -> None:
    stays(fn(conv(x) * signed(1, 1, 4)))
    stays(fn(conv(x) * relay.const(2.0)))
    stays(fn(conv(x) * signed(2, 3, 1, 1)))


def test_depthwise_convolutions_take_scales_grouped_ones_do_not() -> None:
    kernel, s = weight(4, 1, 3, 3), signed(4, 1, 1)
    check(
        fn(conv(x, kernel, groups=4) * s),
        fn(conv(x, times(kernel, s.data[..., None]), groups=4)),
    )
    stays(fn(conv(x, weight(4, 2, 3, 3), groups=2) * s))


def test_nhwc_scales_lie_on_the_last_axis() -> None:
    data = relay.var("x", (2, 6, 6, 4))
    kernel, s = weight(3, 3, 4, 5), signed(5)

    def nhwc(k: Expr) -> Call:
        return op.nn.conv2d(data, k, data_layout="NHWC", kernel_layout="HWIO")

    check(nhwc(kernel) * s, nhwc(times(kernel, s.data)))
    before = signed(4)
    expected = op.nn.conv2d(
        data,
        times(kernel, before.data.reshape(4, 1)),
        data_layout="NHWC",
        kernel_layout="HWIO",
    )
    scaled = op.nn.conv2d(data * before, kernel, data_layout="NHWC", kernel_layout="HWIO")
    check(scaled, expected)


def test_dense_takes_a_scale_on_its_units() -> None:
    data, kernel, s = relay.var("x", (2, 5)), weight(3, 5), signed(3)
    check(op.nn.dense(data, kernel) * s, op.nn.dense(data, times(kernel, s.data[:, None])))


def test_dense_on_more_than_two_axes_is_left_alone() -> None:
    data, kernel = relay.var("x", (2, 3, 5)), weight(3, 5)
    stays(op.nn.dense(data, kernel) * signed(3, 1))


# --- the forward half


def test_a_scale_before_a_convolution_moves_into_input_channels() -> None:
    s = signed(4, 1, 1)
    check(fn(conv(x * s)), fn(conv(x, times(w, s.data))))


def test_c3_a_scale_passes_add_and_relu_on_its_way_forward() -> None:
    r = np.random.default_rng(43)
    b = r.uniform(-1, 1, (4, 1, 1)).astype(np.float32)
    s = r.uniform(0.5, 2, (4, 1, 1)).astype(np.float32)
    kernel = r.uniform(-1, 1, (2, 4, 1, 1)).astype(np.float32)
    data = relay.var("x", (1, 4, 3, 3))

    def net(scale: Expr, bias: np.ndarray, k: np.ndarray) -> Expr:
        scaled = op.nn.relu(op.multiply(data, scale))
        return op.nn.conv2d(op.add(scaled, relay.const(bias)), relay.const(k))

    mod, new = run(net(relay.const(s), b, kernel))
    result = new["main"].body
    bias, k = result.args[0].args[1].data, result.args[1].data
    expected = op.nn.conv2d(op.add(op.nn.relu(data), relay.const(bias)), relay.const(k))
    compiler.assert_structural_equal(new, relay.module(expected))
    np.testing.assert_allclose(
        bias.ravel(), [0.220609352, -1.09006727, -0.589757144, 0.757561386], rtol=2e-7
    )
    np.testing.assert_allclose(
        k.ravel(),
        [
            -0.220975325,
            -0.0819791183,
            1.48222053,
            0.701925874,
            -0.611289203,
            -0.370759219,
            -0.253920794,
            -0.888234735,
        ],
        rtol=2e-7,
    )
    same_values(mod, new)
    stays(net(relay.const(-s), b, kernel))
    p = relay.var("s", (4, 1, 1))
    stays(net(p, b, kernel))


def test_a_parameter_moves_forward_as_an_expression_without_a_relu() -> None:
    s = relay.var("s", (4, 1, 1))
    vector = op.squeeze(s, axis=[1, 2])
    expected = conv(x, op.multiply(w, op.expand_dims(vector, axis=1, num_newaxis=2)))
    check(fn(conv(x * s), s), fn(expected, s))


def test_two_convolutions_that_agree_both_take_the_scale() -> None:
    s, other = signed(4, 1, 1), weight(3, 4, 3, 3)
    y = x * s
    check(
        fn(conv(y) + conv(y, other)),
        fn(conv(x, times(w, s.data)) + conv(x, times(other, s.data))),
    )


def test_depthwise_forward_scales_the_output_axis() -> None:
    kernel, s = weight(4, 1, 3, 3), signed(4, 1, 1)
    check(
        fn(conv(x * s, kernel, groups=4)),
        fn(conv(x, times(kernel, s.data[..., None]), groups=4)),
    )


def test_dense_takes_a_scale_on_its_features() -> None:
    data, kernel, s = relay.var("x", (2, 5)), weight(3, 5), signed(5)
    check(op.nn.dense(data * s, kernel), op.nn.dense(data, times(kernel, s.data)))


def test_a_zero_in_the_scale_does_not_divide_a_bias() -> None:
    s = relay.const(np.array([1, 0, 2, 3], np.float32).reshape(4, 1, 1))
    stays(fn(conv(op.add(x * s, weight(4, 1, 1)))))


def test_a_residual_of_one_row_is_no_bias_that_is_divided() -> None:
    row, kernel = relay.var("x", (1, 5)), weight(3, 5)
    residual = op.nn.relu(row)
    stays(op.nn.dense(op.add(row * signed(5), residual), kernel))
    stays(op.nn.dense(op.add(residual, row * signed(1, 5)), kernel))


def test_pooling_clip_and_bias_add_stop_a_scale() -> None:
    s = positive(4, 1, 1)
    stays(fn(conv(op.nn.max_pool2d(x * s, pool_size=(2, 2)))))
    stays(fn(conv(op.clip(x * s, 0.0, 6.0))))
    stays(fn(conv(op.nn.bias_add(x * s, weight(4)))))
    stays(fn(op.nn.max_pool2d(conv(x), pool_size=(2, 2)) * positive(3, 1, 1)))


def test_each_half_is_a_pass_of_its_own() -> None:
    s = signed(3, 1, 1)
    mod = relay.module(fn(conv(x) * s))
    assert transform.ForwardFoldScaleAxis()(mod)["main"] is mod["main"]
    assert transform.BackwardFoldScaleAxis()(mod)["main"] is not mod["main"]


def test_a_long_chain_of_activations_is_crossed() -> None:
    y: Expr = conv(x)
    for _ in range(5_000):
        y = op.nn.relu(y)
    mod = relay.module(fn(y * positive(3, 1, 1)))
    new = transform.BackwardFoldScaleAxis()(mod)
    assert is_op_call(new["main"].body, "nn.relu")


@pytest.mark.parametrize("seed", range(12))
def test_random_nets_keep_their_values(seed: int) -> None:
    r = np.random.default_rng(seed)
    y: Expr = x
    for _ in range(8):
        choice = r.integers(0, 7)
        vector = r.choice([-1.5, 0.5, 2.0], (4, 1, 1)).astype(np.float32)
        if choice == 0:
            y = op.nn.conv2d(y, relay.const(r.standard_normal((4, 4, 1, 1)).astype(np.float32)))
        elif choice == 1:
            y = op.nn.relu(y)
        elif choice == 2:
            y = op.add(y, relay.const(vector))
        elif choice == 3:
            y = op.subtract(relay.const(vector), y)
        elif choice == 4:
            y = op.add(y, op.nn.relu(op.nn.conv2d(y, weight(4, 4, 1, 1))))
        else:
            y = op.multiply(y, relay.const(np.abs(vector) if choice == 5 else vector))
    mod, new = run(fn(y))
    data = r.standard_normal((2, 4, 6, 6)).astype(np.float32)
    (want,), (got,) = compiler.evaluate(mod, [data]), compiler.evaluate(new, [data])
    # Scaling weights instead of results rounds differently, relative to the largest value.
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max() + 1))


def test_a_reshape_of_unknown_size_lets_no_scale_pass() -> None:
    rows = relay.var("rows", (relay.AnyDim(), 4))
    shaped = op.reshape(op.multiply(op.nn.dense(rows, weight(3, 4)), positive(3)), newshape=(-1, 1))
    _, new = run(shaped)
    assert not any(is_op_call(n, "multiply") for n in nodes_of(new["main"]))


def test_a_split_lets_no_scale_pass() -> None:
    halves = op.split(op.nn.relu(x), indices_or_sections=2, axis=1)
    stays(op.multiply(relay.TupleGetItem(halves, 0), positive(2, 1, 1)))


def test_one_line_of_axes_lets_scales_pass_an_operator() -> None:
    expr = op.multiply(op.copy(conv(x)), positive(3, 1, 1))
    stays(expr)
    with temp_op_attr("copy", "FAxes", elementwise_axes):
        mod, new = run(expr)
    assert not any(is_op_call(node, "multiply") for node in nodes_of(new["main"]))
    same_values(mod, new)
