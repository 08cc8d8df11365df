"""Every rule of loops, broken one at a time."""

from __future__ import annotations

import pytest

from compiler.errors import LoweringError
from compiler.lir.nodes import Compute, Extern, PrimFunc
from compiler.lir.parser import parse_primfunc
from compiler.lir.scalars import Acc, Axis, Bin, Buffer, Cast, Intrin, Load, Select, Un, literal
from compiler.lir.verify import verify

P = Buffer("p0", (4,), "int32", "param")
O = Buffer("o0", (4,), "int32", "out")  # noqa: E741  (as in the text)
T = Buffer("t0", (4,), "int32", "temp")
I = Axis("i", 4)  # noqa: E741
COPY = Compute(O, (I,), Load(P, (I,)), (I,))


def function(*blocks: Compute | Extern, temps: tuple[Buffer, ...] = ()) -> PrimFunc:
    return PrimFunc("f", (P,), (O,), temps, (), blocks)


def refused(func: PrimFunc, problem: str) -> None:
    with pytest.raises(LoweringError) as caught:
        verify(func)
    assert problem in str(caught.value)


def test_a_copy_keeps_every_rule() -> None:
    verify(function(COPY))


def test_buffers_are_written_once_and_before_they_are_read() -> None:
    read_temp = Compute(O, (I,), Load(T, (I,)), (I,))
    refused(function(), "output o0 is not written")
    refused(function(COPY, COPY), "o0 is written twice")
    refused(function(read_temp, temps=(T,)), "temp t0 is read before it is written")
    refused(function(read_temp), "t0 is not declared")
    refused(function(Compute(O, (I,), Load(O, (I,)), (I,))), "output o0 is read")
    into_param = Compute(P, (I,), literal(0, "int32"), (I,))
    refused(function(into_param, COPY), "param p0 is written")
    other = Buffer("o0", (5,), "int32", "out")
    five = Axis("i", 5)
    longer = Compute(other, (five,), literal(0, "int32"), (five,))
    refused(function(longer), "is not declared as int32[5]")


def test_every_element_is_written_once() -> None:
    zero = literal(0, "int32")
    half = Axis("i", 2)
    for axes, where in (
        ((half,), (half,)),
        ((I,), (zero,)),
        ((Axis("i", 8),), (Axis("i", 8),)),
        ((half, Axis("j", 2)), (Bin("+", half, Axis("j", 2)),)),
    ):
        refused(function(Compute(O, axes, zero, where)), "is not written once everywhere")
    place = Bin("+", Bin("*", half, literal(2, "int32")), Axis("j", 2))
    verify(function(Compute(O, (half, Axis("j", 2)), zero, (place,))))


def test_loads_stay_inside_by_their_loops_or_their_guards() -> None:
    def reading(body: str) -> str:
        head = "@f = primfn(p0: int32[4], p1: int64[4]) -> (o0: int32[4]) {\n"
        return f"{head}  o0[i] for (i<4) = {body}\n}}"

    for body in (
        "select(i >= 1, p0[i-1], 0)",
        "select(i - 1 >= 0, p0[i-1], 0)",
        "select(i < 3, p0[i+1], 0)",
        "select(i < 2, 0, p0[i-2])",
        "select(i < 2 && i >= 1, p0[i*2], 0)",
        "p0[int32(min(max(p1[i], 0i64), 3i64))]",
        "p0[floormod(i*5, 4)]",
        "p0[abs(i-3)]",
    ):
        parse_primfunc(reading(body))
    for body in (
        "p0[i-1]",
        "p0[i*2]",
        "select(i >= 1, p0[i+1], 0)",
        "select(i >= 1 || i < 3, p0[i-1], 0)",
        "select(i >= 1, 0, p0[i-1])",
        "p0[int32(p1[i])]",
        "p0[int32(min(p1[i], 3i64))]",
    ):
        with pytest.raises(LoweringError, match="axis 0 of p0 has 4 elements"):
            parse_primfunc(reading(body))


@pytest.mark.parametrize(("ends", "problem"), [((2, 9), ""), ((2, 10), "its index is 0 to 4")])
def test_a_guard_of_a_sum_bounds_a_quotient_in_parts(ends: tuple[int, int], problem: str) -> None:
    """With y in front of it, floor((y + 2 i - 2) / 2) is i + floor(y / 2) - 1."""
    y, i, zero = Axis("y", 9), Axis("i", 2), literal(0, "int32")
    two, one = literal(2, "int32"), literal(1, "int32")
    place = Bin("-", Bin("+", i, Bin("floordiv", y, two)), one)
    total = Bin("+", y, Bin("*", i, two))
    low = Bin(">=", total, literal(ends[0], "int32"))
    guard = Bin("and", low, Bin("<=", total, literal(ends[1], "int32")))
    out = Buffer("o0", (9, 2), "int32", "out")
    loops = Compute(out, (y, i), Select(guard, Load(P, (place,)), zero), (y, i))
    func = PrimFunc("f", (P,), (out,), (), (), (loops,))
    if problem:
        refused(func, problem)
    else:
        verify(func)


def test_loads_have_an_index_per_axis_of_the_right_dtype() -> None:
    refused(function(Compute(O, (I,), Load(P, ()), (I,))), "has rank 1, 0 indices are given")
    wide = Load(P, (Cast("int64", I),))
    refused(function(Compute(O, (I,), wide, (I,))), "an index of dtype int64")


def test_reductions_have_a_combiner_a_constant_start_and_one_dtype() -> None:
    r = Axis("r", 2)
    zero, value = literal(0, "int32"), Load(P, (I,))

    def block(**changes: object) -> PrimFunc:
        fields = {"raxes": (r,), "combiner": "sum", "init": zero, "post": None} | changes
        return function(Compute(O, (I,), value, (I,), **fields))  # type: ignore[arg-type]

    verify(block())
    verify(block(post=Acc("int32")))
    refused(block(combiner=None), "raxes need combiner and init")
    refused(block(combiner="mean"), "raxes need combiner and init")
    refused(block(raxes=()), "combiner, init and post need raxes")
    refused(block(init=value), "init has to be a constant")
    refused(block(init=literal(0, "int64")), "sum of int32 into an accumulator of int64")
    refused(block(post=Acc("int64")), "no accumulator of int64")
    refused(block(post=Load(P, (r,))), "no loop over r")
    refused(block(raxes=(Axis("i", 2),)), "two loops of one name")
    refused(function(Compute(O, (I,), Acc("int32"), (I,))), "no accumulator of int32")
    refused(function(Compute(O, (I,), value, (I,), hints=("fast",))), "unknown hint 'fast'")


def test_routines_are_known() -> None:
    refused(function(Extern("sorted", (P,), (O,))), "unknown routine 'sorted'")


def test_scalars_refuse_dtypes_that_do_not_fit() -> None:
    one, half, yes = literal(1, "int32"), literal(0.5, "float32"), literal(True, "bool")
    for build in (
        lambda: Bin("+", one, half),
        lambda: Bin("/", one, one),
        lambda: Bin("truncdiv", half, half),
        lambda: Bin("&", half, half),
        lambda: Bin("and", one, one),
        lambda: Bin("plus", one, one),
        lambda: Un("not", half),
        lambda: Un("neg", yes),
        lambda: Select(one, one, one),
        lambda: Select(yes, one, half),
        lambda: Intrin("exp", (one,)),
        lambda: Intrin("exq", (half,)),
        lambda: Intrin("pow", (half,)),
        lambda: Intrin("fixed_point_multiply", (half, one, one)),
        lambda: literal(200, "int8"),
    ):
        with pytest.raises(LoweringError):
            build()  # type: ignore[no-untyped-call]


def test_what_stands_behind_an_impossible_guard_is_never_read() -> None:
    one, four = literal(1, "int32"), literal(4, "int32")
    for index in (Bin("floormod", I, four), Bin("+", I, four)):
        guarded = Select(Bin("<", one, one), Load(P, (index,)), literal(0, "int32"))
        verify(function(Compute(O, (I,), guarded, (I,))))


@pytest.mark.parametrize(("length", "problem"), [(3, ""), (5, "its index is 1 to 4")])
def test_an_index_may_choose_between_two_places(length: int, problem: str) -> None:
    """The first ``length`` elements back to front, the others as they are."""
    turned = Bin("-", literal(length - 1, "int32"), I)
    index = Select(Bin("<", I, literal(min(length, 4), "int32")), turned, I)
    func = function(Compute(O, (I,), Load(P, (index,)), (I,)))
    if problem:
        refused(func, problem)
    else:
        verify(func)
