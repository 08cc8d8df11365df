"""The numpy executor of loops against a plain interpreter that takes one point after the other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import EvaluationError
from compiler.lir import reference
from compiler.lir.nodes import Compute, PrimFunc
from compiler.lir.parser import parse_primfunc
from compiler.lir.reference import Tile, run
from compiler.lir.scalars import Axis, Scalar, literal
from compiler.lir.walk import rewrite
from tests.compiler.random_loops import random_loops
from tests.each import each


def point_value(root: Scalar, point: dict[str, int], buffers: Any, acc: Any) -> Any:
    """One expression at one point: loops become constants, so the tile has a single element."""

    def change(node: Scalar) -> Scalar | None:
        return literal(point[node.name], "int32") if isinstance(node, Axis) else None

    one = (Axis("once", 1),)
    held = None if acc is None else np.asarray(acc).reshape(1)
    return Tile(one, ((0, 1),), buffers, held).evaluate(rewrite(root, change)).reshape(-1)[0]


def points(axes: tuple[Axis, ...]) -> Any:
    return itertools.product(*(range(axis.extent) for axis in axes))


def interpreted(func: PrimFunc, args: list[Any]) -> list[Any]:
    """Loop by loop, as the meaning of Compute is written down."""
    buffers = dict(zip(func.params, args)) | dict(func.consts)
    for block in func.blocks:
        assert isinstance(block, Compute)
        out = np.empty(block.out.shape, block.out.dtype)
        for at in points(block.axes):
            point = dict(zip((axis.name for axis in block.axes), at))
            value = accumulated(block, point, buffers)
            if block.post is not None:
                value = point_value(block.post, point, buffers, value)
            place = tuple(int(point_value(i, point, buffers, None)) for i in block.out_index)
            with np.errstate(all="ignore"):
                out[place] = reference.intrinsics.require("cast")(
                    np.asarray(value), block.out.dtype
                )
        buffers[block.out] = out
    return [buffers[buffer] for buffer in func.outputs]


def accumulated(block: Compute, point: dict[str, int], buffers: Any) -> Any:
    if block.init is None:
        return point_value(block.expr, point, buffers, None)
    acc, best = point_value(block.init, {}, buffers, None), 0
    for number, r in enumerate(points(block.raxes)):
        inner = point | dict(zip((axis.name for axis in block.raxes), r))
        value = point_value(block.expr, inner, buffers, None)
        with np.errstate(all="ignore"):
            if block.combiner in ("argmax", "argmin"):
                better = value > acc if block.combiner == "argmax" else value < acc
                if better or (value != value and acc == acc):
                    acc, best = value, number
            else:
                names = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
                acc = names[str(block.combiner)](acc, value)
    return np.int32(best) if block.combiner in ("argmax", "argmin") else acc


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 30))
def test_whole_tiles_give_what_single_points_give(seed: int) -> None:
    func, args = random_loops(seed)
    for got, want in each(zip(run(func, args), interpreted(func, args))):
        if want.dtype.kind == "f":
            # Sums of a few float32 in another order.
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(got, want)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 40))
def test_small_tiles_give_the_same(seed: int, limit: int) -> None:
    func, args = random_loops(seed)
    whole = run(func, args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "TILE_POINTS", limit)
        for got, want in each(zip(run(func, args), whole)):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def summed(dtype: str, acc: str) -> PrimFunc:
    return parse_primfunc(
        f"@f = primfn(p0: {dtype}[2, 3], p1: {dtype}[3]) -> (o0: {acc}[2]) {{\n"
        f"  o0[i] for (i<2) = sum(0{'i64' if acc == 'int64' else ''}; k<3)"
        f" {acc}(p0[i, k]) * {acc}(p1[k])\n}}"
    )


def test_sums_wrap_like_the_accumulator() -> None:
    big = np.full((2, 3), 1 << 20, np.int32)
    got = run(summed("int32", "int32"), [big, np.full(3, 1 << 12, np.int32)])
    np.testing.assert_array_equal(got[0], np.int64(3 << 32).astype(np.int32))
    huge = np.full((2, 3), 1 << 40, np.int64)
    wide = run(summed("int64", "int64"), [huge, np.full(3, 1 << 23, np.int64)])[0]
    np.testing.assert_array_equal(wide, np.full(2, np.int64(-(1 << 63))))


def test_the_first_wrap_is_reported_on_request() -> None:
    func = summed("int32", "int32")
    fits = [np.full((2, 3), 1000, np.int32), np.full(3, 1000, np.int32)]
    np.testing.assert_array_equal(run(func, fits, check_overflow=True)[0], 3_000_000)
    with pytest.raises(EvaluationError, match="wraps in @f"):
        run(func, [np.full((2, 3), 1 << 20, np.int32), fits[1] * 100], check_overflow=True)
    # The whole sum fits, a partial one does not.
    turning = [np.array([[1 << 30, 1 << 30, -(1 << 30)]] * 2, np.int32), np.ones(3, np.int32)]
    np.testing.assert_array_equal(run(func, turning)[0], 1 << 30)
    with pytest.raises(EvaluationError):
        run(func, turning, check_overflow=True)


@pytest.mark.parametrize(
    ("body", "dtype", "wrapping", "fitting"),
    [
        ("p0[i] + p0[i]", "int8", 100, 60),
        ("p0[i] - 100i16", "int16", -32760, 0),
        ("p0[i] * p0[i]", "int32", 1 << 16, 46340),
        ("p0[i] * p0[i]", "int64", 1 << 32, 1 << 31),
        ("p0[i] + p0[i]", "int64", 1 << 62, (1 << 62) - 1),
        ("p0[i] - 1u8", "uint8", 0, 1),
        ("p0[i] << 1", "int32", 1 << 30, 1 << 29),
        ("neg(p0[i])", "int8", -128, -127),
        ("int32(int8(p0[i]))", "int32", 128, 127),
        ("select(p0[i] < 100i8, p0[i], p0[i] + p0[i])", "int8", 101, 99),
    ],
)
def test_every_kind_of_wrap_is_found(body: str, dtype: str, wrapping: int, fitting: int) -> None:
    func = parse_primfunc(
        f"@f = primfn(p0: {dtype}[3]) -> (o0: {dtype}[3]) {{\n  o0[i] for (i<3) = {body}\n}}"
    )
    run(func, [np.full(3, fitting, dtype)], check_overflow=True)
    with pytest.raises(EvaluationError):
        run(func, [np.array([fitting, fitting, wrapping], dtype)], check_overflow=True)


def test_what_a_select_leaves_out_may_wrap_and_may_lie_outside() -> None:
    func = parse_primfunc(
        "@f = primfn(p0: int8[3]) -> (o0: int8[3]) {\n"
        "  o0[i] for (i<3) = select(i < 2 && p0[i] < 64i8, p0[i] + p0[i], 1i8)\n}"
    )
    got = run(func, [np.array([60, 100, 100], np.int8)], check_overflow=True)
    np.testing.assert_array_equal(got[0], [120, 1, 1])


def test_arguments_have_to_fit() -> None:
    func = summed("int8", "int32")
    with pytest.raises(EvaluationError, match="takes 2 arrays, 1 are given"):
        run(func, [np.zeros((2, 3), np.int8)])
    with pytest.raises(EvaluationError, match=r"p1 is int8\[3\], the argument is int32\[3\]"):
        run(func, [np.zeros((2, 3), np.int8), np.zeros(3, np.int32)])


def test_an_accumulator_in_float64_rounds_once() -> None:
    text = (
        "@f = primfn(p0: float32[4097]) -> (o0: float32[]) {\n"
        "  o0[] for () acc64 = sum(0f; r<4097) p0[r] * p0[r]\n}"
    )
    values = np.full(4097, np.sqrt(1e-5), np.float32)
    values[0] = 1000.0
    got = run(parse_primfunc(text), [values])[0]
    assert got == np.float32(np.sum(values.astype(np.float64) ** 2))
