"""Random loop-level functions: the C code gives the bits of the numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from compiler.lir.index import all_of, imm, plus, times, within
from compiler.lir.nodes import Combiner, Compute, PrimFunc
from compiler.lir.scalars import (
    Acc,
    Axis,
    Bin,
    BoolImm,
    Buffer,
    Cast,
    IntImm,
    Intrin,
    Load,
    Scalar,
    Select,
    Un,
)
from compiler.targets.c.kernel_library import KernelLibrary
from tests.needs import NEEDS_C

pytestmark = NEEDS_C

# Wrapping, shifting and dividing are what C leaves open: let the sanitizer watch.
CHECKED = ("-O1", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all")
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
# What only senseless expressions bring about: (x & 1) == 2; GCC takes the ~ of
# x <= ~(uint64_t)y for one of a promoted int.
SENSELESS = (
    "-Wno-tautological-compare",
    "-Wno-bool-compare",
    "-Wno-type-limits",
    "-Wno-sign-compare",
)
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FUNCTIONS = 16
SHAPE = (3, 5)


def interesting(dtype: str) -> st.SearchStrategy[int]:
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    edges = st.sampled_from([low, low + 1, max(low, -1), 0, 1, 2, high // 2 + 1, high - 1, high])
    return edges | st.integers(low, high)


@st.composite
def integers(draw: st.DrawFn, dtype: str, depth: int, leaves: list[Scalar]) -> Scalar:
    """An expression of an integer dtype."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        mine = [leaf for leaf in leaves if leaf.dtype == dtype]
        if mine and draw(st.booleans()):
            return draw(st.sampled_from(mine))
        if draw(st.booleans()):
            return Cast(dtype, draw(st.sampled_from(leaves)))
        return IntImm(draw(interesting(dtype)), dtype)

    def one(of: str = dtype) -> Scalar:
        return draw(integers(of, depth - 1, leaves))

    kind = draw(st.sampled_from(["bin", "bin", "un", "cast", "select", "fixed", "saturate"]))
    if kind == "bin":
        ops = ["+", "-", "*", "floordiv", "floormod", "truncdiv", "min", "max"]
        op = draw(st.sampled_from([*ops, "<<", ">>", "&", "|", "^"]))
        return Bin(op, one(), one())
    if kind == "un":
        return Un(draw(st.sampled_from(["neg", "not", "abs"])), one())
    if kind == "cast":
        return Cast(dtype, one(draw(st.sampled_from(INTS))))
    if kind == "select":
        return Select(draw(conditions(depth - 1, leaves)), one(), one())
    if kind == "fixed" and dtype in ("int32", "int64"):
        multiplier = draw(st.just(1 << 30) | st.integers(1 << 30, (1 << 31) - 1) | st.just(0))
        shift = IntImm(draw(st.integers(-40, 4)))
        small = Cast(dtype, one("int16"))
        return Intrin("fixed_point_multiply", (small, IntImm(multiplier), shift))
    return Intrin("saturating_cast", (one(draw(st.sampled_from(INTS))),), dtype)


@st.composite
def conditions(draw: st.DrawFn, depth: int, leaves: list[Scalar]) -> Scalar:
    """A bool expression."""
    if depth <= 0 and draw(st.integers(0, 9)) == 0:
        return BoolImm(draw(st.booleans()))
    if depth > 0 and draw(st.booleans()):
        op = draw(st.sampled_from(["and", "or", "xor"]))
        pair = (draw(conditions(depth - 1, leaves)), draw(conditions(depth - 1, leaves)))
        return Bin(op, *pair) if draw(st.booleans()) else Un("not", Bin(op, *pair))
    dtype = draw(st.sampled_from(INTS))
    op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
    sides = [draw(integers(dtype, max(depth - 1, 0), leaves)) for _ in range(2)]
    return Bin(op, *sides)


@st.composite
def pointwise(draw: st.DrawFn, name: str) -> PrimFunc:
    """out[i, j] = an integer expression of two parameters and the axes."""
    axes = (Axis("i", SHAPE[0]), Axis("j", SHAPE[1]))
    params = tuple(Buffer(f"p{n}", SHAPE, draw(st.sampled_from(INTS)), "param") for n in range(2))
    leaves: list[Scalar] = [Load(p, axes) for p in params]
    leaves.append(draw(st.sampled_from(axes)))
    dtype = draw(st.sampled_from(INTS))
    out = Buffer("o0", SHAPE, draw(st.sampled_from([*INTS, "float32"])), "out")
    block = Compute(out, axes, draw(integers(dtype, 4, leaves)), axes)
    return PrimFunc(name, params, (out,), (), (), (block,))


def random_arrays(func: PrimFunc, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer in func.params:
        info = np.iinfo(buffer.dtype)
        edges = np.array([info.min, info.max, 0, 1, info.max // 2 + 1], buffer.dtype)
        drawn = rng.integers(info.min, info.max, buffer.shape, buffer.dtype, endpoint=True)
        arrays.append(
            np.where(rng.random(buffer.shape) < 0.4, rng.choice(edges, buffer.shape), drawn)
        )
    return arrays


def agree(functions: list[PrimFunc], seed: int = 0) -> None:
    """Every function gives the same bits as the reference; one compilation for all."""
    library = KernelLibrary(functions, (*CHECKED, *STRICT, *SENSELESS))
    for func in functions:
        args = random_arrays(func, seed)
        for mine, reference in zip(library.run(func.name, args), func.evaluate(args), strict=True):
            assert mine.dtype == reference.dtype
            np.testing.assert_array_equal(mine, reference, err_msg=func.name)


# Not shrunk: every example is a compilation. The message names the function that differs.
COMPILED = settings(max_examples=3, deadline=None, phases=[Phase.generate])


@COMPILED
@given(st.data())
def test_integer_expressions_give_the_bits_of_the_reference(data: st.DataObject) -> None:
    agree([data.draw(pointwise(f"f{n}")) for n in range(FUNCTIONS)])


@st.composite
def windows(draw: st.DrawFn, name: str) -> PrimFunc:
    """A window that slides over a padded image and combines what it sees with weights."""
    channels, height, size = (draw(st.integers(1, n)) for n in (5, 5, 3))
    width = draw(st.sampled_from([1, 3, 6, 9, 30, 700, 1031]))
    step, pad = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    rows, columns = ((n + 2 * pad - size) // step + 1 for n in (height, width))
    if rows <= 0 or columns <= 0:
        size, pad, rows, columns = 1, 0, (height - 1) // step + 1, (width - 1) // step + 1
    dtype = draw(st.sampled_from(["int8", "uint8", "int16", "int32"]))
    wide = draw(st.sampled_from([dtype, "int32", "int64"]))
    p0 = Buffer("p0", (channels, height, width), dtype, "param")
    p1 = Buffer("p1", (2, channels, size, size), dtype, "param")
    o, y, x = Axis("o", 2), Axis("y", rows), Axis("x", columns)
    c, i, j = Axis("c", channels), Axis("i", size), Axis("j", size)
    at = [plus(plus(times(a, step), r), -pad) for a, r in ((y, i), (x, j))]
    combiner: Combiner = draw(st.sampled_from(["sum", "prod", "max", "min", "argmax", "argmin"]))
    info = np.iinfo(dtype)
    neutral = {"sum": 0, "prod": 1, "max": info.min, "min": info.max}.get(combiner, 0)
    outside = draw(st.just(neutral) | interesting(dtype))
    guard = all_of([within(at[0], height), within(at[1], width)])
    seen: Scalar = Load(p0, (c, *at))
    if guard is not None:
        seen = Select(guard, seen, IntImm(int(outside), dtype))
    term: Scalar = seen if draw(st.booleans()) else Cast(wide, seen)
    if draw(st.booleans()):
        term = Bin("*", term, Cast(term.dtype, Load(p1, (o, c, i, j))))
    start = neutral if draw(st.booleans()) else draw(interesting(dtype))
    if combiner.startswith("arg"):
        # What lowering starts from: no point is worse.
        start = np.iinfo(term.dtype).min if combiner == "argmax" else np.iinfo(term.dtype).max
    init = IntImm(int(start), term.dtype)
    acc = Acc("int32" if combiner.startswith("arg") else term.dtype)
    post = None
    if draw(st.booleans()):
        post = draw(integers(draw(st.sampled_from(INTS)), 2, [acc, y, x, o]))
    out = Buffer("o0", (2, rows, columns), draw(st.sampled_from(INTS)), "out")
    block = Compute(out, (o, y, x), term, (o, y, x), (c, i, j), combiner, init, post)
    return PrimFunc(name, (p0, p1), (out,), (), (), (block,))


@st.composite
def products(draw: st.DrawFn, name: str) -> PrimFunc:
    """A matrix product, either operand transposed, and its wrapping sum."""
    n, m, k = (draw(st.integers(1, 9)) for _ in range(3))
    dtype = draw(st.sampled_from(["int8", "int16", "int32", "uint8"]))
    turned = draw(st.tuples(st.booleans(), st.booleans()))
    p0 = Buffer("p0", (k, n) if turned[0] else (n, k), dtype, "param")
    p1 = Buffer("p1", (k, m) if turned[1] else (m, k), dtype, "param")
    # Names that C has other plans for.
    a, b, r = Axis("for", n), Axis("acc", m), Axis("p0", k)
    left = Load(p0, (r, a) if turned[0] else (a, r))
    right = Load(p1, (r, b) if turned[1] else (b, r))
    term = Bin("*", Cast("int32", left), Cast("int32", right))
    out = Buffer("o0", (n, m), "int32", "out")
    block = Compute(out, (a, b), term, (a, b), (r,), "sum", imm(0))
    return PrimFunc(name, (p0, p1), (out,), (), (), (block,))


@COMPILED
@given(st.data())
def test_reductions_give_the_bits_of_the_reference(data: st.DataObject) -> None:
    agree([data.draw(windows(f"w{n}")) for n in range(FUNCTIONS)])


@COMPILED
@given(st.data())
def test_matrix_products_give_the_bits_of_the_reference(data: st.DataObject) -> None:
    agree([data.draw(products(f"p{n}")) for n in range(FUNCTIONS)])
