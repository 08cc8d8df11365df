from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.passes.recover_layer_norm import RecoverLayerNorm
from compiler.transform import SimplifyInference

op = relay.op


def const(*values: float, shape: tuple[int, ...] | None = None) -> Expr:
    array = np.array(values, "float32")
    return relay.const(array if shape is None else array.reshape(shape))


def number(value: float) -> Expr:
    return relay.const(np.float32(value))


def centred(x: Expr) -> Expr:
    return op.subtract(x, op.mean(x, axis=(-1,), keepdims=True))


def by_power(x: Expr) -> Expr:
    c = centred(x)
    variance = op.mean(op.power(c, number(2)), axis=(2,), keepdims=True)
    return op.divide(c, op.sqrt(op.add(number(1e-3), variance)))


def by_square_and_rsqrt(x: Expr) -> Expr:
    c = centred(x)
    variance = op.mean(op.multiply(c, c), axis=(-1,), keepdims=True)
    return op.multiply(op.rsqrt(op.add(variance, number(1e-3))), c)


def by_square_and_reciprocal(x: Expr) -> Expr:
    """As PyTorch exports rsqrt."""
    c = centred(x)
    variance = op.mean(op.multiply(c, c), axis=(-1,), keepdims=True)
    return op.multiply(c, op.divide(number(1), op.sqrt(op.add(variance, number(1e-3)))))


def by_mean_of_squares(x: Expr) -> Expr:
    """As Flax writes it."""
    mean = op.mean(x, axis=(2,), keepdims=True)
    squares = op.mean(op.multiply(x, x), axis=(2,), keepdims=True)
    variance = op.maximum(op.subtract(squares, op.multiply(mean, mean)), number(0))
    return op.divide(op.subtract(x, mean), op.sqrt(op.add(variance, number(1e-3))))


def with_each_mean_computed_anew(x: Expr) -> Expr:
    """As torch.var beside torch.mean is exported."""
    squares = op.multiply(centred(x), op.subtract(x, op.mean(x, axis=(2,), keepdims=True)))
    variance = op.mean(squares, axis=(-1,), keepdims=True)
    return op.multiply(centred(x), op.rsqrt(op.add(variance, number(1e-3))))


def scaled(x: Expr) -> Expr:
    return op.multiply(const(1, -2, 0.5, 3), by_power(x))


def with_gamma_before_the_root(x: Expr) -> Expr:
    c = centred(x)
    variance = op.mean(op.multiply(c, c), axis=(2,), keepdims=True)
    quotient = op.divide(
        op.multiply(const(1, -2, 0.5, 3), c), op.sqrt(op.add(variance, number(1e-3)))
    )
    return op.add(quotient, const(1, 2, 3, 4))


def with_gamma_at_the_root(x: Expr) -> Expr:
    """As Keras writes it."""
    c = centred(x)
    variance = op.mean(op.multiply(c, c), axis=(2,), keepdims=True)
    root = op.rsqrt(op.add(variance, number(1e-3)))
    return op.multiply(op.multiply(c, op.multiply(root, const(1, -2, 0.5, 3))), number(2))


def moved(x: Expr) -> Expr:
    return op.add(scaled(x), const(1, 2, 3, 4, shape=(1, 1, 4)))


def with_one_gamma(x: Expr) -> Expr:
    return op.add(op.multiply(by_square_and_rsqrt(x), number(2)), number(-1))


def module(build: Callable[[Expr], Expr]) -> IRModule:
    x = relay.var("x", (2, 3, 4))
    return infer_module(IRModule.from_expr(relay.Function((x,), build(x))))


def norms(mod: IRModule) -> list[Call]:
    nodes = post_order(mod["main"].body)
    return [node for node in nodes if is_op_call(node, "nn.layer_norm")]  # type: ignore[misc]


@pytest.mark.parametrize(
    "build",
    [
        *(by_power, by_square_and_rsqrt, by_mean_of_squares, scaled, moved, with_one_gamma),
        *(by_square_and_reciprocal, with_gamma_before_the_root, with_gamma_at_the_root),
        with_each_mean_computed_anew,
    ],
    ids=lambda b: b.__name__,
)
def test_written_out_norms_are_one_operator_with_the_same_values(
    build: Callable[[Expr], Expr],
) -> None:
    mod = module(build)
    new = RecoverLayerNorm()(mod)
    (norm,) = norms(new)
    assert new["main"].body is norm
    data = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    wanted, got = evaluate(mod, [data])[0], evaluate(new, [data])[0]
    # The one operator sums in another order.
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_the_pass_undoes_simplify_inference() -> None:
    gamma, beta = const(1, 2, 3, 4), const(0, -1, 1, 0)
    mod = module(lambda x: op.nn.layer_norm(x, gamma, beta, epsilon=1e-4))
    new = RecoverLayerNorm()(SimplifyInference()(mod))
    (norm,) = norms(new)
    assert norm.attrs is not None
    assert norm.attrs.epsilon == np.float32(1e-4)  # type: ignore[attr-defined]
    data = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    np.testing.assert_allclose(
        evaluate(new, [data])[0], evaluate(mod, [data])[0], rtol=1e-5, atol=1e-6
    )


def along_another_axis(x: Expr) -> Expr:
    """Gamma varies along an axis that is not normalised."""
    return op.multiply(by_power(x), const(1, 2, 3, shape=(3, 1)))


def over_axes(x: Expr, *axes: int) -> Expr:
    c = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
    variance = op.mean(op.multiply(c, c), axis=axes, keepdims=True)
    return op.divide(c, op.sqrt(op.add(variance, number(1e-3))))


def over_the_first_axes(x: Expr) -> Expr:
    return over_axes(x, 0, 1)


def cubed(x: Expr) -> Expr:
    c = centred(x)
    third = op.mean(op.power(c, number(3)), axis=(2,), keepdims=True)
    return op.divide(c, op.sqrt(op.add(third, number(1e-3))))


def unbiased(x: Expr) -> Expr:
    mean = op.mean(x, axis=(2,), keepdims=True)
    variance = op.variance(x, mean, axis=(2,), keepdims=True, unbiased=True)
    return op.divide(op.subtract(x, mean), op.sqrt(op.add(variance, number(1e-3))))


def of_another_mean(x: Expr) -> Expr:
    c = op.subtract(x, op.mean(x, axis=(1,), keepdims=True))
    variance = op.mean(op.multiply(c, c), axis=(-1,), keepdims=True)
    return op.multiply(centred(x), op.rsqrt(op.add(variance, number(1e-3))))


@pytest.mark.parametrize(
    "build", [over_the_first_axes, cubed, unbiased, of_another_mean], ids=lambda b: b.__name__
)
def test_other_arithmetic_is_left_alone(build: Callable[[Expr], Expr]) -> None:
    mod = module(build)
    assert RecoverLayerNorm()(mod) is mod


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_norm_has_the_dtype_of_its_data(dtype: str) -> None:
    x = relay.var("x", (2, 3, 4), dtype)
    mean = op.mean(x, axis=(2,), keepdims=True)
    variance = op.variance(x, mean, axis=(2,), keepdims=True)
    small = relay.const(np.asarray(1e-3, dtype))
    divided = op.divide(op.subtract(x, mean), op.sqrt(op.add(variance, small)))
    mod = infer_module(IRModule.from_expr(relay.Function((x,), divided)))
    new = RecoverLayerNorm()(mod)
    assert len(norms(new)) == 1
    data = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(dtype)
    # float16 rounds after every step of one form, and once in the other.
    tolerance = 4e-3 if dtype == "float16" else 1e-9
    np.testing.assert_allclose(evaluate(new, [data]), evaluate(mod, [data]), atol=tolerance)


def test_gamma_along_another_axis_stays_a_product() -> None:
    new = RecoverLayerNorm()(module(along_another_axis))
    assert is_op_call(new["main"].body, "multiply")
    assert len(norms(new)) == 1


def test_the_last_axes_together_are_reshaped_to_one() -> None:
    mod = module(lambda x: op.multiply(over_axes(x, -1, 1), const(1, 2, 3, shape=(3, 1))))
    new = RecoverLayerNorm()(mod)
    (norm,) = norms(new)
    assert norm.tensor_type.concrete_shape == (2, 12)
    data = np.random.default_rng(0).normal(0, 3, (2, 3, 4)).astype("float32")
    np.testing.assert_allclose(
        evaluate(new, [data])[0], evaluate(mod, [data])[0], rtol=1e-5, atol=1e-6
    )
