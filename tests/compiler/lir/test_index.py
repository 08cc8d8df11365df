"""Index arithmetic: whatever is simplified keeps its value, whatever is bounded stays within."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.lir import index, ranges
from compiler.lir.scalars import Axis, Bin, IntImm, Scalar, Select, Un
from compiler.lir.walk import with_axes
from tests.each import each

LOOPS = (Axis("i", 3), Axis("j", 4), Axis("k", 2))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> tuple[Scalar, Scalar]:
    """The same arithmetic built plainly and built simplified."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from((*LOOPS, IntImm(draw(st.integers(-9, 9))))))
        return leaf, leaf
    op = draw(st.sampled_from(("+", "-", "*", "floordiv", "floormod", "min", "max")))
    plain, simple = draw(expressions(depth=depth - 1))
    if op in ("*", "floordiv", "floormod"):
        factor = IntImm(draw(st.integers(1, 12)))
        return Bin(op, plain, factor), index.binary(op, simple, factor)
    other, other_simple = draw(expressions(depth=depth - 1))
    return Bin(op, plain, other), index.binary(op, simple, other_simple)


def value(expr: Scalar, point: tuple[int, ...]) -> int:
    """Evaluated by folding constants: independent of the simplifier's rules on variables."""
    held = {axis.name: number for axis, number in zip(LOOPS, point)}
    done: dict[int, int] = {}
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if isinstance(node, IntImm):
            done[id(node)] = node.value
        elif isinstance(node, Axis):
            done[id(node)] = held[node.name]
        elif not ready:
            stack.append((node, True))
            stack.extend((part, False) for part in node.operands())
        else:
            assert isinstance(node, Bin)
            a, b = done[id(node.a)], done[id(node.b)]
            done[id(node)] = {
                "+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b),
                "floordiv": a // b if b else 0, "floormod": a % b if b else 0,
            }[node.op]  # fmt: skip
    return done[id(expr)]


@settings(max_examples=150, deadline=None)
@given(expressions())
def test_simplified_arithmetic_has_the_same_value_everywhere(pair: tuple[Scalar, Scalar]) -> None:
    plain, simple = pair
    for point in each(itertools.product(*(range(axis.extent) for axis in LOOPS))):
        assert value(simple, point) == value(plain, point)


@settings(max_examples=150, deadline=None)
@given(expressions())
def test_ranges_hold_every_value(pair: tuple[Scalar, Scalar]) -> None:
    for expr in each(pair):
        held = ranges.value_range(expr)
        if held is None:
            continue
        for point in each(itertools.product(*(range(axis.extent) for axis in LOOPS))):
            assert held[0] <= value(expr, point) <= held[1]


@settings(max_examples=80, deadline=None)
@given(expressions(), st.permutations(range(3)))
def test_replacing_loops_commutes_with_evaluation(
    pair: tuple[Scalar, Scalar], order: list[int]
) -> None:
    swapped = with_axes(pair[0], LOOPS, [LOOPS[k] for k in order])
    for point in itertools.product(range(2), repeat=3):
        assert value(swapped, point) == value(pair[0], tuple(point[k] for k in order))


def test_quotients_and_remainders_of_row_major_places_come_apart() -> None:
    i, j, _ = LOOPS
    place = index.plus(index.times(i, 4), j)
    assert index.floordiv(place, 4) is i
    assert index.floormod(place, 4) is j
    shifted = index.plus(place, -1)
    assert isinstance(shifted, Bin)
    assert shifted.op == "-"


def test_a_sum_that_may_wrap_is_not_divided_term_by_term() -> None:
    huge = index.times(LOOPS[1], 1 << 30)
    assert ranges.value_range(huge) is None
    divided = index.floordiv(huge, 4)
    assert isinstance(divided, Bin)
    assert divided.op == "floordiv"


def test_clamped_indices_of_any_dtype_are_inside() -> None:
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        held = ranges.value_range(index.clamped(IntImm(5, dtype), 3))
        assert held is not None
        assert held[0] >= 0
        assert held[1] <= 2


def test_ranges_see_through_absolute_values_and_choices() -> None:
    moved = index.plus(LOOPS[1], -2)
    assert ranges.value_range(Un("abs", moved)) == (0, 2)
    either = Select(Bin("<", moved, IntImm(0)), IntImm(7), moved)
    assert ranges.value_range(either) == (-2, 7)
