"""Training-time operators become arithmetic; fields that are still used keep the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay, transform
from compiler.errors import CompilerError
from compiler.ir.analysis import extract_calls
from compiler.ir.expr import Expr, Function, Var
from compiler.span import Span

op = relay.op
VECTORS = ("g", "b", "m", "v")


def simplify(expr: Expr) -> Function:
    main = transform.SimplifyInference()(relay.module(expr))["main"]
    assert isinstance(main, Function)
    return main


def assert_body(main: Function, expected: Expr, params: tuple[Var, ...]) -> None:
    """``main`` is the function of ``params`` with body ``expected``, names aside."""
    want = relay.module(relay.Function(params, expected))["main"]
    compiler.assert_structural_equal(main, want)


def vectors(channels: int, dtype: str = "float32") -> list[Var]:
    return [relay.var(name, (channels,), dtype) for name in VECTORS]


def batch_norm(shape: tuple[int, ...], axis: int, **attrs: Any) -> tuple[tuple[Var, ...], Expr]:
    x = relay.var("x", shape)
    params = (x, *vectors(shape[axis]))
    return params, op.nn.batch_norm(*params, axis=axis, **attrs)


def test_constants_have_the_dtype_of_the_data() -> None:
    x = relay.var("x", (1, 4, 5, 5), "float64")
    params = (x, *vectors(4, "float64"))
    main = simplify(
        relay.Function(params, relay.TupleGetItem(op.nn.batch_norm(*params, epsilon=0.001), 0))
    )
    eps = extract_calls(main, "sqrt")[0].args[0].args[1]  # type: ignore[attr-defined]
    assert eps.data.dtype == np.float64
    assert eps.data == np.float64(np.float32(0.001))


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_norm(axis: int) -> None:
    x = relay.var("x", (2, 6, 4))
    size, at = x.type_annotation.shape[axis], axis % 3  # type: ignore[union-attr]
    g, b = relay.var("g", (size,)), relay.var("b", (size,))
    mean = op.mean(x, axis=[at], keepdims=True)
    var = op.variance(x, mean, axis=[at], keepdims=True)
    y = (x - mean) / op.sqrt(var + relay.const(1e-5))

    def expand(vector: Expr) -> Expr:
        return op.expand_dims(vector, axis=1, num_newaxis=1) if at == 1 else vector

    main = simplify(relay.Function((x, g, b), op.nn.layer_norm(x, g, b, axis=axis)))
    assert_body(main, y * expand(g) + expand(b), (x, g, b))


@pytest.mark.parametrize(("shape", "axis"), [((4,), 0), ((3, 4), 1)])
def test_a_norm_over_no_axes_is_not_one_over_all(shape: tuple[int, ...], axis: int) -> None:
    x, g, b = (relay.var(n, s) for n, s in (("x", shape), ("g", (4,)), ("b", (4,))))
    mod = relay.module(relay.Function((x, g, b), op.nn.instance_norm(x, g, b, axis=axis)))
    rng = np.random.default_rng(0)
    values = [rng.normal(size=s).astype("float32") for s in (shape, (4,), (4,))]
    (expected,) = compiler.evaluate(mod, values)
    (found,) = compiler.evaluate(transform.SimplifyInference()(mod), values)
    np.testing.assert_array_equal(found, expected)


def test_group_norm_with_groups_that_do_not_divide_is_an_error() -> None:
    x, g, b = relay.var("x", (2, 6, 4, 5)), relay.var("g", (6,)), relay.var("b", (6,))
    with pytest.raises(CompilerError, match="group"):
        simplify(relay.Function((x, g, b), op.nn.group_norm(x, g, b, num_groups=4)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_l2_normalize_has_its_epsilon_in_the_dtype_of_the_data(dtype: str) -> None:
    x = relay.var("x", (2, 6), dtype)
    total = op.sum(x * x, axis=[1], keepdims=True)
    expected = x / op.sqrt(op.maximum(total, relay.const(1e-4, dtype)))
    main = simplify(relay.Function((x,), op.nn.l2_normalize(x, eps=1e-4, axis=[1])))
    assert_body(main, expected, (x,))


def test_new_nodes_take_the_span_of_the_call_they_replace() -> None:
    params, bn = batch_norm((1, 4, 5, 5), 1)
    bn = bn.with_fields(span=Span("onnx:bn"))
    main = simplify(relay.Function(params, relay.TupleGetItem(bn, 0)))
    spans = {c.span for name in ("add", "multiply", "sqrt") for c in extract_calls(main, name)}
    assert spans == {Span("onnx:bn")}


def norm_calls() -> dict[str, tuple[Expr, list[tuple[int, ...]]]]:
    x, g, b = relay.var("x", (2, 6, 4, 5)), relay.var("g", (6,)), relay.var("b", (6,))
    params, bn = batch_norm((2, 6, 4, 5), 1)
    last = relay.var("g", (5,)), relay.var("b", (5,))
    image = (2, 6, 4, 5)
    return {
        "batch": (relay.Function(params, relay.TupleGetItem(bn, 0)), [image] + [(6,)] * 4),
        "layer": (
            relay.Function((x, *last), op.nn.layer_norm(x, *last)),
            [image, (5,), (5,)],
        ),
        "instance": (
            relay.Function((x, g, b), op.nn.instance_norm(x, g, b)),
            [image, (6,), (6,)],
        ),
        "group": (
            relay.Function((x, g, b), op.nn.group_norm(x, g, b, num_groups=2)),
            [image, (6,), (6,)],
        ),
        "l2": (relay.Function((x,), op.nn.l2_normalize(x, eps=1e-4, axis=[1])), [image]),
    }


@pytest.mark.parametrize("kind", ["batch", "layer", "instance", "group", "l2"])
def test_values_stay_what_the_operator_gives(kind: str) -> None:
    expr, shapes = norm_calls()[kind]
    rng = np.random.default_rng(7)
    inputs = [rng.uniform(0.5, 2, shape).astype(np.float32) for shape in shapes]
    mod = relay.module(expr)
    (want,) = compiler.evaluate(mod, inputs)
    (got,) = compiler.evaluate(transform.SimplifyInference()(mod), inputs)
    # Both accumulate in float32, in different orders.
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_batch_norm_with_constant_statistics_folds_to_multiply_and_add() -> None:
    r = np.random.default_rng(41)
    gamma = r.uniform(0.5, 1.5, (3,)).astype(np.float32)
    beta = r.uniform(-1, 1, (3,)).astype(np.float32)
    mean = r.uniform(-1, 1, (3,)).astype(np.float32)
    var = r.uniform(0.1, 2, (3,)).astype(np.float32)
    for axis, shape, constant_shape in [
        (1, (1, 3, 4, 4), (3, 1, 1)),
        (0, (3, 4, 4, 4), (3, 1, 1, 1)),
        (-1, (1, 4, 4, 3), (3,)),
    ]:
        x = relay.var("x", shape)
        statistics = [relay.const(a) for a in (gamma, beta, mean, var)]
        bn = op.nn.batch_norm(x, *statistics, axis=axis)
        mod = transform.SimplifyInference()(relay.module(relay.TupleGetItem(bn, 0)))
        total: Any = transform.FoldConstant()(mod)["main"].body
        s, t = total.args[0].args[1].data, total.args[1].data
        assert s.shape == t.shape == constant_shape
        np.testing.assert_array_max_ulp(
            s.ravel(), np.float32([1.28457665, 1.03812754, 0.475082934]), 1
        )
        np.testing.assert_array_max_ulp(
            t.ravel(), np.float32([0.624664068, 0.485328197, -0.147301704]), 1
        )
