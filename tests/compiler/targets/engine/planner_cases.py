"""Graphs that no quantizer writes, for the engine beside the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler import relay
from compiler.ir.expr import Expr

Array = np.ndarray[Any, Any]
op = relay.op
TERA = 1 << 40


def const(value: Any, dtype: str = "int32") -> Expr:
    return relay.const(np.asarray(value, dtype))


def anything(shape: tuple[int, ...], dtype: str = "int8") -> Array:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(list(shape))
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def dense(x: Expr, dtype: str = "int32") -> Expr:
    return op.nn.dense(x, relay.const(anything((3, 40))), out_dtype=dtype)


def wide(x: Expr) -> Expr:
    return op.cast(x, dtype="int64")


def to_even(x: Expr, bits: int = 2) -> Expr:
    """x / 2^bits, halves to the even neighbour, in words."""
    below, odd = (1 << bits - 1) - 1, op.bitwise_and(op.right_shift(x, const(bits)), const(1))
    return op.right_shift(op.add(op.add(x, const(below)), odd), const(bits))


def to_int8(x: Expr) -> Expr:
    return op.cast(op.clip(x, a_min=-128, a_max=127), dtype="int8")


def scaled(x: Expr, multiplier: int, shift: int) -> Expr:
    return op.fixed_point_multiply(x, multiplier=multiplier, shift=shift)


def stored(x: Expr) -> Expr:
    return op.sum(op.cast(x, dtype="int32"), axis=[0])


def largest(x: Expr, **attrs: Any) -> Expr:
    return op.nn.max_pool2d(x, pool_size=(1, 1), **attrs)


RESULTS: dict[str, tuple[Callable[[Expr], Expr], tuple[int, ...], str]] = {
    # A result that wraps in its dtype wraps before it is read again.
    "sums wrap": (lambda x: op.nn.relu(op.add(x, x)), (1, 64), "int8"),
    "differences wrap": (lambda x: op.nn.relu(op.subtract(const(9, "uint8"), x)), (9,), "uint8"),
    "products wrap": (lambda x: op.nn.relu(op.multiply(x, x)), (1, 64), "int16"),
    "left shifts wrap": (lambda x: op.nn.relu(op.left_shift(x, const(5, "int8"))), (64,), "int8"),
    "accumulators wrap": (lambda x: op.nn.relu(dense(x, "int16")), (1, 40), "int8"),
    "totals wrap": (lambda x: op.nn.relu(op.sum(x, axis=[1])), (3, 40), "int8"),
    "factors before an average wrap": (
        lambda x: op.nn.global_avg_pool2d(op.multiply(x, const(100, "int8"))),
        (1, 4, 4, 4),
        "int8",
    ),
    "a border of what was copied for another reader": (
        lambda x: op.add(
            op.nn.conv2d(
                x,
                const(31 * np.ones((1, 1, 3, 1)), "int8"),
                padding=(3, 2, 1, 3),
                strides=(1, 2),
                out_dtype="int32",
            ),
            op.sum(
                op.cast(op.maximum(x, const([[-127], [-16], [32], [1]], "int8")), "int32"),
                axis=[0, 1, 2],
                keepdims=True,
            ),
        ),
        (3, 1, 4, 1),
        "int8",
    ),
    "halves of a number go to the even one": (
        lambda x: to_even(
            op.cast(op.mean(op.minimum(x, const(TERA >> 11, "uint32")), axis=[0, 1]), dtype="int32")
        ),
        (1, 5),
        "uint32",
    ),
    "factors wrap": (lambda x: op.nn.relu(scaled(x, (1 << 31) - 1, 3)), (1, 400), "int8"),
    "half of the last place wraps, int8": (lambda x: scaled(x, 1 << 30, -5), (400,), "int8"),
    "half of the last place wraps, uint8": (lambda x: scaled(x, 1 << 30, -6), (400,), "uint8"),
    # A result that a kernel reads from memory, which holds no more than its bounds.
    "a choice of two ranges": (
        lambda x: stored(
            op.where(
                op.less(x, const(0, "int16")),
                op.clip(x, a_min=0, a_max=3),
                op.clip(x, a_min=0, a_max=999),
            )
        ),
        (1, 64),
        "int16",
    ),
    "the larger of two ranges": (
        lambda x: stored(op.maximum(op.clip(x, a_min=0, a_max=999), op.clip(x, a_min=0, a_max=3))),
        (1, 64),
        "int16",
    ),
    "bits of either of two ranges": (
        lambda x: stored(
            op.bitwise_or(op.clip(x, a_min=0, a_max=999), op.clip(op.negative(x), a_min=0, a_max=3))
        ),
        (1, 256),
        "int16",
    ),
    "averages of positive numbers whose sum leaves int32": (
        lambda x: op.mean(op.clip(wide(x), a_min=0, a_max=1 << 20), axis=[2, 3]),
        (1, 1, 64, 80),
        "int32",
    ),
    "some factors are powers of two": (
        lambda x: op.fixed_point_multiply_per_axis(
            op.clip(x, a_min=-99, a_max=99),
            const([1 << 30, 3 << 29, 1 << 30]),
            const([-9, 2, -20]),
            axis=1,
        ),
        (1, 3),
        "int16",
    ),
    "sums of positive numbers wrap": (
        lambda x: op.nn.relu(op.add(op.clip(x, a_min=0, a_max=127), op.clip(x, a_min=0, a_max=9))),
        (1, 64),
        "int8",
    ),
    "limits of a product, one for each channel": (
        lambda x: op.maximum(
            op.nn.dense(x, relay.const(np.ones((3, 4), "int8")), out_dtype="int32"),
            relay.const(np.array([[1, -200, 300]], "int32")),
        ),
        (2, 4),
        "int8",
    ),
    "limits of a product, one at a time": (
        lambda x: to_int8(op.minimum(op.maximum(dense(x), const(-9)), const(900))),
        (9, 40),
        "int8",
    ),
    # More operators, and more operands at a time, than one program holds.
    "a dozen comparisons": (
        lambda x: functools.reduce(
            op.add, [op.cast(op.equal(x, const(n, "int8")), dtype="int32") for n in range(12)]
        ),
        (1, 256),
        "int8",
    ),
    "eight operands wait": (
        lambda x: functools.reduce(
            lambda inner, n: op.subtract(
                op.maximum(op.clip(x, a_min=-n, a_max=n), const(1 - n)),
                op.maximum(inner, const(-n)),
            ),
            range(2, 10),
            op.clip(x, a_min=-9, a_max=9),
        ),
        (1, 64),
        "int32",
    ),
    "shifts between integers of 64 bits": (
        lambda x: to_int8(
            op.subtract(
                op.add(
                    wide(op.right_shift(op.cast(x, dtype="int32"), const(3))), const(TERA, "int64")
                ),
                const(TERA, "int64"),
            )
        ),
        (1, 64),
        "int16",
    ),
    "results that lie apart": (
        lambda x: op.concatenate([op.clip(x, a_min=0, a_max=9), x], axis=1),
        (64, 1),
        "int16",
    ),
    "factors of an axis that is not the last": (
        lambda x: op.fixed_point_multiply_per_axis(
            op.clip(x, a_min=-(1 << 20), a_max=1 << 20),
            const([5 << 28, 3 << 29, 7 << 28]),
            const([-3, 2, -1]),
            axis=1,
        ),
        (2, 3, 4, 5),
        "int32",
    ),
    "factors of large numbers": (
        lambda x: scaled(op.clip(x, a_min=-(1 << 30), a_max=1 << 30), 3 << 29, 0),
        (1, 64),
        "int32",
    ),
    "products of fifteen bits": (
        lambda x: op.nn.batch_matmul(
            op.clip(x, a_min=-(1 << 14), a_max=(1 << 14) - 1),
            op.clip(x, a_min=-(1 << 14), a_max=(1 << 14) - 1),
            out_dtype="int32",
        ),
        (1, 3, 20),
        "int16",
    ),
    "products of sixteen bits, positive": (
        lambda x: op.nn.batch_matmul(
            op.clip(x, a_min=0, a_max=(1 << 15) - 1),
            op.clip(x, a_min=0, a_max=(1 << 15) - 1),
            out_dtype="int32",
        ),
        (1, 3, 20),
        "int16",
    ),
    "products of sixteen bits, negative": (
        lambda x: op.nn.batch_matmul(
            op.clip(x, a_min=-(1 << 15), a_max=0),
            op.clip(x, a_min=-(1 << 15), a_max=0),
            out_dtype="int32",
        ),
        (1, 3, 20),
        "int16",
    ),
    "less of equal ends": (
        lambda x: op.cast(op.less(op.minimum(x, const(5, "int8")), const(5, "int8")), dtype="int8"),
        (1, 256),
        "int8",
    ),
    "a table of a constant": (
        lambda x: op.lookup(op.clip(x, a_min=3, a_max=3), const(np.arange(256) - 300)),
        (1, 8),
        "int8",
    ),
    "numbers of 32 bits beside those of 64": (
        lambda x: op.concatenate(
            [wide(op.clip(x, a_min=0, a_max=9)), op.multiply(wide(x), const(TERA, "int64"))], axis=1
        ),
        (2, 40),
        "int8",
    ),
    "a small number around those of 64 bits": (
        lambda x: op.nn.pad(
            op.multiply(wide(x), const(TERA, "int64")),
            const(1, "int64"),
            pad_width=[[1, 0], [0, 2]],
        ),
        (2, 40),
        "int8",
    ),
    # Limits, addends and halves that int32 or int64 does not hold.
    "limits above int32": (
        lambda x: op.clip(wide(x), a_min=float(1 << 40), a_max=float(1 << 41)),
        (1, 40),
        "int8",
    ),
    "limits below int32": (
        lambda x: op.clip(wide(x), a_min=-float(1 << 41), a_max=-float(1 << 40)),
        (1, 40),
        "int8",
    ),
    "crossed limits of a sum that wraps": (
        lambda x: op.clip(op.add(x, x), a_min=9, a_max=-3),
        (1, 64),
        "int8",
    ),
    "addends beyond 64 bits when shifted": (
        lambda x: op.add(
            scaled(op.add(wide(dense(x)), const(1 << 29, "int64")), (1 << 31) - 3, -22),
            const(4096, "int64"),
        ),
        (1, 40),
        "int8",
    ),
    "addends beside a factor that gives 0": (
        lambda x: op.add(scaled(wide(dense(x)), (1 << 31) - 3, -40), const(-(1 << 31), "int64")),
        (1, 40),
        "int8",
    ),
    "shifts by 25": (lambda x: to_int8(op.right_shift(dense(x), const(25))), (1, 40), "int8"),
    "shifts by 31": (lambda x: to_int8(op.right_shift(dense(x), const(31))), (1, 40), "int8"),
    "shifts of a sum near the end of int32": (
        lambda x: to_int8(op.right_shift(op.add(dense(x), const((1 << 31) - (1 << 20))), const(7))),
        (1, 40),
        "int8",
    ),
    "clips of a sum near the end of int32": (
        lambda x: to_int8(
            op.add(op.clip(dense(x), a_min=-9, a_max=20), const((1 << 31) - (1 << 5)))
        ),
        (1, 40),
        "int8",
    ),
    "negative factors behind a relu": (
        lambda x: op.fixed_point_multiply_per_axis(
            wide(op.nn.relu(dense(x))),
            const([-(1 << 30) - 5, 1 << 30, -(1 << 31)]),
            const([-3, -4, -5]),
            axis=1,
        ),
        (4, 40),
        "int8",
    ),
    "negative factors behind a relu, int32": (
        lambda x: op.fixed_point_multiply_per_axis(
            op.nn.relu(dense(x)),
            const([-(1 << 30) - 5, (1 << 30) + 3, -(1 << 30) - 77]),
            const([-3, -4, -5]),
            axis=1,
        ),
        (4, 40),
        "int8",
    ),
    # Windows, axes, and tensors without elements.
    "windows of padding only": (
        lambda x: largest(op.nn.relu(x), padding=(2, 2, 2, 2)),
        (1, 2, 3, 3),
        "int8",
    ),
    "windows of padding only, wide": (
        lambda x: largest(op.cast(x, dtype="int32"), padding=(0, 0, 3, 0)),
        (1, 2, 3, 3),
        "uint8",
    ),
    "windows of a constant": (
        lambda x: largest(op.clip(x, a_min=3, a_max=3)),
        (1, 2, 3, 3),
        "int8",
    ),
    "windows beside narrow data": (
        lambda x: op.nn.max_pool2d(
            op.nn.relu(x), pool_size=(2, 1), dilation=(3, 1), padding=(1, 0, 2, 0)
        ),
        (1, 2, 1, 3),
        "int8",
    ),
    "eight axes": (
        lambda x: op.reshape(op.transpose(x, axes=[7, 6, 5, 4, 3, 2, 1, 0]), newshape=(256,)),
        (2,) * 8,
        "int8",
    ),
    "no elements": (lambda x: op.add(x, x), (0, 5), "int8"),
    "no images": (
        lambda x: op.nn.conv2d(x, relay.const(anything((3, 4, 3, 3))), out_dtype="int32"),
        (0, 4, 5, 5),
        "int8",
    ),
}
