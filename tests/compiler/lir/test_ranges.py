"""Ranges hold every value of an expression; sums of loop variables have its value."""

from __future__ import annotations

import itertools
from itertools import product

import numpy as np
import pytest

from compiler.lir.affine import affine_of, sum_key
from compiler.lir.ranges import ValueRanges, value_range
from compiler.lir.scalars import Acc, Axis, Bin, Buffer, Cast, FloatImm, IntImm, Load, Scalar, Un
from tests.each import each

ROW, COLUMN, ONE = Axis("i", 5), Axis("j", 7), Axis("one", 1)


def value_of(expr: Scalar, at: dict[str, int]) -> int:
    if isinstance(expr, IntImm):
        return expr.value
    if isinstance(expr, Axis):
        return at[expr.name]
    if isinstance(expr, Un):
        inner = value_of(expr.a, at)
        return -inner if expr.op == "neg" else abs(inner)
    if isinstance(expr, Cast):
        return value_of(expr.a, at)
    assert isinstance(expr, Bin)
    a, b = value_of(expr.a, at), value_of(expr.b, at)
    made = {"+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b)}
    if expr.op in made:
        return made[expr.op]
    return {"floordiv": lambda: a // b, "floormod": lambda: a % b, ">>": lambda: a >> b}[expr.op]()


def everywhere() -> list[dict[str, int]]:
    return [{"i": i, "j": j, "one": 0} for i, j in product(range(5), range(7))]


def random_expression(rng: np.random.Generator, depth: int) -> Scalar:
    if depth == 0:
        leaves = (ROW, COLUMN, ONE, IntImm(int(rng.integers(-9, 10))))
        return leaves[int(rng.integers(len(leaves)))]
    kind = int(rng.integers(9))
    a = random_expression(rng, depth - 1)
    if kind == 0:
        return Un("neg", a)
    if kind == 1:
        return Un("abs", a)
    if kind == 2:
        op = ("floordiv", "floormod", ">>")[int(rng.integers(3))]
        return Bin(op, a, IntImm(int(rng.integers(1, 6))))
    op = ("+", "-", "*", "min", "max", "+")[kind - 3]
    return Bin(op, a, random_expression(rng, depth - 1))


@pytest.mark.parametrize("seed", range(60))
def test_a_range_holds_every_value(seed: int) -> None:
    expr = random_expression(np.random.default_rng(seed), 4)
    values = [value_of(expr, at) for at in everywhere()]
    held = ValueRanges().of(expr)
    assert held[0] <= min(values)
    assert max(values) <= held[1]
    index = value_range(expr)
    assert index is None or (index[0] <= min(values) and max(values) <= index[1])


def test_sums_of_loop_variables_have_the_values_of_their_expressions() -> None:
    drawn = [random_expression(np.random.default_rng(seed), 3) for seed in range(1000, 1060)]
    affine = [(expr, form) for expr in drawn if (form := affine_of(expr)) is not None]
    for (expr, form), at in each(itertools.product(affine, everywhere())):
        terms = sum(factor * at[name] for name, factor in form.terms.items())
        assert form.constant + terms == value_of(expr, at)


def test_sums_are_seen_through_casts_negations_and_products_with_single_axes() -> None:
    single = Bin("+", ONE, IntImm(3))
    expr = Bin("-", Bin("*", single, Cast("int32", ROW)), Un("neg", Bin("*", COLUMN, IntImm(2))))
    found = affine_of(expr)
    assert found is not None
    assert (found.constant, dict(found.terms)) == (0, {"i": 3, "j": 2})
    assert affine_of(Bin("*", ROW, COLUMN)) is None
    assert affine_of(Bin("floordiv", ROW, IntImm(2))) is None


def test_what_may_wrap_has_no_exact_range_and_all_values_of_its_dtype() -> None:
    data = Load(Buffer("p0", (5,), "int8", "param"), (ROW,))
    doubled = Bin("+", data, data)
    assert value_range(data) == (-128, 127)
    shifted = Bin(">>", Cast("int32", data), IntImm(4))
    assert ValueRanges().of(shifted) == (-8, 7)
    assert value_range(shifted) is None  # a clip of it stays where loops are built
    assert value_range(doubled) is None
    assert ValueRanges().of(doubled) == (-128, 127)
    wide = Bin("+", Cast("int32", data), Cast("int32", data))
    assert value_range(wide) == (-256, 254)
    assert ValueRanges(acc=(-3, 4)).of(Acc("int8")) == (-3, 4)


def test_sums_with_other_constants_inside_have_other_names() -> None:
    """What a guard says of one index is not said of another."""
    buffer = Buffer("p0", (5,), "float32", "param")

    def scaled(factor: float) -> Scalar:
        return Cast("int32", Bin("*", Load(buffer, (ROW,)), FloatImm(factor)))

    assert sum_key(scaled(2.0)) == sum_key(scaled(2.0)) != sum_key(scaled(3.0))
