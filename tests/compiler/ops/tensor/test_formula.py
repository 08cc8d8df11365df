from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, parse, relay, text
from compiler.errors import AttrError, CompilerError
from compiler.ops.tensor.formula import MAX_WORDS, OPERATORS, varying_part, words
from compiler.ops.tensor.formula import evaluate as value_of

GELU = "x x 0.70710677 multiply erf 1.0 add multiply 0.5 multiply"


@pytest.mark.parametrize(
    ("formula", "function"),
    [
        (GELU, lambda x: x * (math.erf(x * 0.70710677) + 1) / 2),
        ("x x sigmoid multiply", lambda x: x / (1 + math.exp(-x))),
        (
            "x 3 add 6 minimum 0 maximum x multiply 6 divide",
            lambda x: x * min(max(x + 3, 0), 6) / 6,
        ),
        ("x 0 greater x x exp 1 subtract where", lambda x: x if x > 0 else math.exp(x) - 1),
        ("2.5", lambda x: 2.5),
        ("x", lambda x: x),
    ],
)
def test_a_formula_has_the_values_of_its_function(formula: str, function: object) -> None:
    x = np.linspace(-4, 4, 33)
    wanted = [function(v) for v in x]  # type: ignore[operator]
    np.testing.assert_allclose(value_of(formula, x), wanted, rtol=1e-13, atol=1e-15)


HARD_SWISH = "x 3 add 6 minimum 0 maximum x multiply 6 divide"


@pytest.mark.parametrize(
    ("formula", "part"),
    [
        (HARD_SWISH, (-3, math.inf)),
        ("x 3 add 6 minimum 0 maximum 6 divide", (-3, 3)),
        ("0 x subtract 3 add 6 minimum 0 maximum", (-3, 3)),
        ("x 0 maximum", (0, math.inf)),
        ("x 5 subtract 0 maximum", (0, math.inf)),
        ("x x multiply", (-math.inf, math.inf)),
        ("x sqrt", (-math.inf, math.inf)),
        ("2.5", (-math.inf, math.inf)),
        ("x 6.4e-06 multiply exp", (-math.inf, math.inf)),  # hardly changes near 0
        ("x 0.0001 multiply tanh", (-math.inf, math.inf)),
    ],
)
def test_beyond_its_varying_part_a_function_is_constant(
    formula: str, part: tuple[float, float]
) -> None:
    assert varying_part(formula) == part


@pytest.mark.parametrize("formula", [GELU, "x sigmoid", "x x sigmoid multiply", "x tanh"])
def test_beyond_its_varying_part_a_smooth_function_hardly_changes(formula: str) -> None:
    x = np.linspace(-60, 60, 4001)
    low, high = varying_part(formula)
    assert -12 < low < -3
    kept = value_of(formula, np.clip(x, low, high))
    np.testing.assert_allclose(value_of(formula, x), kept, rtol=0, atol=2.0**-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_formula_computes_in_the_dtype_of_its_data(dtype: str) -> None:
    x = np.linspace(-3, 3, 100).astype(dtype)
    got = value_of("x 0.1 multiply", x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, x * np.dtype(dtype).type(0.1))


@pytest.mark.parametrize(
    "formula",
    ["", "x x", "add", "x add", "x y add", "x 0 greater", "nan", "x x x where", "x(", "copy"],
)
def test_what_leaves_no_single_real_value_is_refused(formula: str) -> None:
    with pytest.raises(AttrError, match="formula"):
        words(formula)
    x = relay.var("x", (2,))
    with pytest.raises(CompilerError):
        evaluate(relay.module(relay.op.unary_formula(x, formula=formula)), [np.zeros(2, "float32")])


def test_the_operator_prints_and_parses_and_has_its_formulas_values() -> None:
    x = relay.var("x", (2, 3))
    mod = relay.module(relay.op.unary_formula(x, formula=GELU))
    assert f'formula="{GELU}"' in text(mod)
    data = np.linspace(-2, 2, 6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(evaluate(parse(text(mod)), [data])[0], value_of(GELU, data))


@given(st.lists(st.sampled_from(sorted(OPERATORS)), max_size=MAX_WORDS // 4), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_any_sequence_of_operators_is_a_formula_or_an_error(names: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = ["x"]
    for name in names:
        extra = ["x" if rng.integers(2) else "0.5" for _ in range(OPERATORS[name] - 1)]
        parts += [*extra, name]
    try:
        words(" ".join(parts))
    except AttrError:
        return
    got = value_of(" ".join(parts), np.array([-1.5, 0.0, 2.0]))
    assert got.shape == (3,)
    assert got.dtype == np.float64
