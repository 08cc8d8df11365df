"""Loops of random bodies: states that are read, passed on, exchanged and written where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from tests.compiler.targets.engine.kernel_cases import agree

Array = np.ndarray[Any, Any]
op = relay.op
STEPS = 5
MOST = {"int8": 127, "int16": 2047, "int32": 30_000}


def const(value: Any) -> Expr:
    return relay.const(np.asarray(value, "int32"))


def clipped(x: Expr, dtype: str) -> Expr:
    most = float(MOST[dtype])
    return op.cast(op.clip(x, a_min=-most, a_max=most), dtype=dtype)


def turned(x: Expr, width: int) -> Expr:
    """Its columns, the second half first."""
    half = width // 2
    return op.concatenate(
        [
            op.strided_slice(x, begin=[half], end=[width], axes=[1]),
            op.strided_slice(x, begin=[0], end=[half], axes=[1]),
        ],
        axis=1,
    )


def looked_up(rng: np.random.Generator, x: Expr, dtype: str) -> Expr:
    """A table of int8 or int16 entries."""
    narrow = clipped(x, dtype)
    entries = rng.integers(-3000, 3000, 256 if dtype == "int8" else 1 << 16)
    return op.cast(op.lookup(narrow, const(entries)), dtype="int32")


def scaled(rng: np.random.Generator, x: Expr, width: int) -> Expr:
    """By a factor, of all or of each column."""
    wide = op.cast(x, dtype="int64")
    if rng.random() < 0.5:
        multiplier = int(rng.integers(1 << 30, (1 << 31) - 1))
        made = op.fixed_point_multiply(wide, multiplier=multiplier, shift=int(rng.integers(-3, 1)))
    else:
        factors = const(rng.integers(1 << 30, (1 << 31) - 1, width))
        shifts = const(rng.integers(-3, 1, width))
        made = op.fixed_point_multiply_per_axis(wide, factors, shifts, axis=-1)
    return op.cast(op.clip(made, a_min=-100_000, a_max=100_000), dtype="int32")


def drawn_body(
    rng: np.random.Generator, given: list[Expr], width: int, dtypes: list[str]
) -> list[Expr]:
    """Results of these dtypes, of the states and inputs of a turn."""
    values = [op.cast(one, dtype="int32") for one in given]
    for _ in range(int(rng.integers(2, 14))):
        a, b = (values[int(i)] for i in rng.integers(0, len(values), 2))
        if rng.random() < 0.3:  # one column, or one row, for all
            axis = int(rng.integers(0, 2))
            b = op.strided_slice(b, begin=[1 - axis], end=[2 - axis], axes=[axis])
            b = op.add(b, op.subtract(a, a))
        kind = int(rng.integers(0, 8))
        if kind == 0:
            weight = relay.const(rng.integers(-128, 128, (width, width)).astype("int8"))
            made = op.nn.dense(clipped(a, "int8"), weight, out_dtype="int32")
        elif kind == 1:
            made = looked_up(rng, a, str(rng.choice(["int8", "int16"])))
        elif kind == 2:
            made = turned(a, width)
        elif kind == 3:
            made = op.multiply(op.cast(clipped(a, "int8"), dtype="int32"), b)
        else:
            made = op.maximum(a, b) if kind == 4 else op.add(a, b) if kind == 5 else a
        values.append(scaled(rng, made, width) if kind in (0, 3, 5, 6) else made)
    results = []
    for dtype in dtypes:
        alike = [one for one in given if one.type_annotation.dtype == dtype]
        if alike and rng.random() < 0.3:  # a state as it was, or another one
            results.append(alike[int(rng.integers(0, len(alike)))])
        elif results and dtype == dtypes[len(results) - 1] and rng.random() < 0.2:
            results.append(results[-1])
        else:
            newest = min(len(values), 6)
            results.append(clipped(values[-int(rng.integers(1, newest + 1))], dtype))
    return results


def drawn_loop(rng: np.random.Generator, width: int, rows: int) -> tuple[IRModule, list[Array]]:
    names = ["int8", "int16", "int32"]
    states = [str(rng.choice(names)) for _ in range(int(rng.integers(1, 4)))]
    inputs = [str(rng.choice(names[:2])) for _ in range(int(rng.integers(1, 3)))]
    outputs = [str(rng.choice(names)) for _ in range(int(rng.integers(1, 3)))]
    shape = (rows, width)
    given = [relay.var(f"v{i}", shape, dtype) for i, dtype in enumerate(states + inputs)]
    body = relay.Function(given, relay.Tuple(drawn_body(rng, given, width, states + outputs)))
    begun = [relay.var(f"h{i}", shape, dtype) for i, dtype in enumerate(states)]
    moving = [relay.var(f"x{i}", (STEPS, *shape), dtype) for i, dtype in enumerate(inputs)]
    loop = op.scan(
        body,
        relay.Tuple(begun),
        relay.Tuple(moving),
        relay.Tuple([]),
        length=STEPS,
        reverse_inputs=[int(rng.integers(0, 2)) for _ in inputs],
        reverse_outputs=[int(rng.integers(0, 2)) for _ in outputs],
    )
    arrays = [
        rng.integers(-MOST[dtype], MOST[dtype] + 1, one.type_annotation.concrete_shape, dtype=dtype)
        for one, dtype in zip(begun + moving, states + inputs)
    ]
    count = len(states) + len(outputs)
    result = relay.Tuple([relay.TupleGetItem(loop, i) for i in range(count)])
    return relay.module(relay.Function([*begun, *moving], result)), arrays


@pytest.mark.parametrize("seed", range(50))
def test_random_loops_agree_with_the_reference(seed: int) -> None:
    rng = np.random.default_rng([seed, 11])
    width = int(rng.choice([2, 6, 16, 34, 130]))
    rows = int(rng.choice([2, 3, 70])) if width < 7 else 2
    mod, arrays = drawn_loop(rng, width, rows)
    agree(mod, *arrays)


def test_a_loop_over_what_bounds_make_constant_agrees() -> None:
    shape = (2, 3)
    state, read = relay.var("s", shape, "int8"), relay.var("r", shape, "int8")
    total = op.add(op.cast(state, dtype="int32"), op.cast(read, dtype="int32"))
    body = relay.Function([state, read], relay.Tuple([clipped(total, "int8")]))
    x = relay.var("x", (STEPS, *shape), "int8")
    loop = op.scan(
        body,
        relay.Tuple([relay.const(np.ones(shape, "int8"))]),
        relay.Tuple([op.clip(x, a_min=2.0, a_max=2.0)]),
        relay.Tuple([]),
        length=STEPS,
        reverse_inputs=[0],
        reverse_outputs=[],
    )
    mod = relay.module(relay.Function([x], relay.TupleGetItem(loop, 0)))
    agree(mod, np.arange(STEPS * 6, dtype="int8").reshape(STEPS, *shape))
