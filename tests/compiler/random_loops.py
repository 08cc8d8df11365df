"""Random functions of loops that keep every rule, for suites that print, read and run them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from compiler.lir.index import clamped
from compiler.lir.nodes import Block, Combiner, Compute, PrimFunc
from compiler.lir.scalars import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    LOGICAL,
    Acc,
    Axis,
    Bin,
    Buffer,
    Cast,
    Intrin,
    Load,
    Scalar,
    Scope,
    Select,
    Un,
    literal,
)
from compiler.ops.number_format import Array

DTYPES = ("int8", "uint8", "int16", "int32", "int64", "float32", "bool")
_COMBINERS: tuple[Combiner, ...] = ("sum", "prod", "max", "min", "argmax", "argmin")


def random_loops(seed: int) -> tuple[PrimFunc, list[Array]]:
    """A function of one to three blocks over small buffers, and arguments for it.

    Args:
        seed: the same seed gives the same function.
    """
    return _Drawing(seed).function()


class _Drawing:
    """Draws one function."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.readable: list[Buffer] = []

    def function(self) -> tuple[PrimFunc, list[Array]]:
        numbers = np.random.default_rng(self.rng.randrange(1000))
        params = tuple(self._buffer(f"p{k}", "param") for k in range(2))
        held = self._buffer("c0", "const")
        contents = _array(held, numbers)
        self.readable = [*params, held]
        blocks: list[Block] = []
        temps: list[Buffer] = []
        for k in range(self.rng.randrange(3)):
            temp = self._buffer(f"t{k}", "temp")
            blocks.append(self._block(temp))
            temps.append(temp)
            self.readable.append(temp)
        out = self._buffer("o0", "out")
        blocks.append(self._block(out))
        func = PrimFunc("f", params, (out,), tuple(temps), ((held, contents),), tuple(blocks))
        return func.with_attr("target", "c"), [_array(p, numbers) for p in params]

    def _buffer(self, name: str, scope: Scope) -> Buffer:
        shape = tuple(self.rng.randint(1, 4) for _ in range(self.rng.randrange(4)))
        return Buffer(name, shape, self.rng.choice(DTYPES), scope)

    def _block(self, out: Buffer) -> Compute:
        rng = self.rng
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(out.shape))
        if rng.random() < 0.5:
            return Compute(out, axes, self._cast_to(out, axes), axes)
        raxes = (Axis("r", 3), Axis("s", 2))
        combiner = rng.choice(_COMBINERS)
        dtype = rng.choice([d for d in DTYPES if d != "bool"])
        init = literal(rng.randrange(3), dtype)
        acc = Acc("int32" if combiner in ("argmax", "argmin") else dtype)
        expr = self._scalar(dtype, (*axes, *raxes), 2, None)
        post = self._scalar(rng.choice(DTYPES), axes, 2, acc) if rng.random() < 0.5 else None
        return Compute(out, axes, expr, axes, raxes, combiner, init, post)

    def _cast_to(self, out: Buffer, axes: tuple[Axis, ...]) -> Scalar:
        return self._scalar(self.rng.choice((out.dtype, *DTYPES)), axes, 3, None)

    def _scalar(self, dtype: str, axes: tuple[Axis, ...], depth: int, acc: Acc | None) -> Scalar:
        if depth == 0:
            return self._leaf(dtype, axes, acc)
        rng = self.rng

        def part(of: str) -> Scalar:
            return self._scalar(of, axes, depth - 1, acc)

        kind = rng.randrange(5)
        if kind == 0:
            return Cast(dtype, part(rng.choice(DTYPES)))
        if kind == 1:
            return Select(part("bool"), part(dtype), part(dtype))
        if dtype == "bool":
            op = rng.choice((*COMPARISONS, *LOGICAL))
            of = "bool" if op in LOGICAL else rng.choice(DTYPES)
            return Un("not", part("bool")) if kind == 2 else Bin(op, part(of), part(of))
        if dtype.startswith("float"):
            return self._float(dtype, kind, part)
        if kind == 2:
            wide = part(rng.choice(("int64", "float32")))
            return Intrin("saturating_cast", (wide,), dtype)
        if kind == 3:
            return Un(rng.choice(("neg", "abs", "not")), part(dtype))
        names = [op for op in (*ARITHMETIC, *BITWISE) if op != "/"]
        return Bin(rng.choice(names), part(dtype), part(dtype))

    def _float(self, dtype: str, kind: int, part: Any) -> Scalar:
        if kind == 2:
            name = self.rng.choice(("floor", "tanh", "sqrt", "round_away", "round_even"))
            return Intrin(name, (part(dtype),))
        if kind == 3:
            return Un(self.rng.choice(("neg", "abs")), part(dtype))
        names = [op for op in ARITHMETIC if op != "truncdiv"]
        return Bin(self.rng.choice(names), part(dtype), part(dtype))

    def _leaf(self, dtype: str, axes: tuple[Axis, ...], acc: Acc | None) -> Scalar:
        rng = self.rng
        if acc is not None and rng.random() < 0.4:
            return acc if acc.dtype == dtype else Cast(dtype, acc)
        if rng.random() < 0.3:
            return literal(rng.randrange(100) - (0 if dtype[0] == "u" else 50), dtype)
        if axes and rng.random() < 0.3:
            return Cast(dtype, rng.choice(axes))
        buffer = rng.choice(self.readable)
        loops: list[Scalar] = [*axes, literal(rng.randrange(4), "int32")]
        load = Load(buffer, tuple(clamped(rng.choice(loops), size) for size in buffer.shape))
        return load if load.dtype == dtype else Cast(dtype, load)


def _array(buffer: Buffer, numbers: np.random.Generator) -> Array:
    return np.asarray(numbers.integers(0, 100, buffer.shape)).astype(buffer.dtype)
