"""Buffers, blocks and functions of the loop-level form.

A PrimFunc runs its blocks one after another. A Compute is a perfect loop nest:

    for every point of axes:                      o0[n, o, y, x] for (n<1, o<4, y<8, x<8) =
        acc = init                                    sum(0f; c<3, i<3, j<3)
        for every point of raxes, row-major:
            acc = combiner(acc, expr)                 p0[n, c, y+i, x+j] * p1[o, c, i, j]
        out[out_index] = cast(post(acc))              |> max(acc, 0f)

Without raxes acc is expr. An Extern is a call of a library routine on whole buffers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.ir.lowered_function import Array, LoweredFunction
from compiler.ir.text import literals
from compiler.ir.ty import FuncType, TensorType, TupleType
from compiler.lir.affine import Affine, flat_index
from compiler.lir.scalars import INDEX_DTYPE, Acc, Axis, Buffer, Cast, Scalar
from compiler.lir.walk import loads

Combiner = Literal["sum", "prod", "max", "min", "argmax", "argmin"]

COMBINERS: tuple[Combiner, ...] = ("sum", "prod", "max", "min", "argmax", "argmin")
HINTS = ("acc64", "parallel")
"""``acc64``: a float32 sum accumulates in float64; ``parallel``: points of the outermost axis may
run at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """A perfect loop nest that writes one element of ``out`` at every point of ``axes``.

    Attributes:
        out: the buffer written; of scope "out" or "temp".
        axes: loops, outermost first.
        expr: the value, or what is combined at every point of ``raxes``.
        out_index: where the value goes, one index expression per axis of ``out``; one to one.
        raxes: reduction loops, outermost first; none: no reduction.
        combiner: sum, prod, max, min combine values; argmax and argmin remember the row-major
            number (dtype INDEX_DTYPE) of the first best point, a NaN being better than any number.
            max and min of bool are "any" and "all".
        init: the accumulator's first value, whose dtype is that of the accumulator; argmax and
            argmin start from it with number 0. Given exactly when there are ``raxes``.
        post: epilogue over ``Acc`` and ``axes``; None is the accumulator itself. The result is cast
            to the dtype of ``out``. Only with ``raxes``.
        hints: of HINTS.
    """

    out: Buffer
    axes: tuple[Axis, ...]
    expr: Scalar
    out_index: tuple[Scalar, ...]
    raxes: tuple[Axis, ...] = ()
    combiner: Combiner | None = None
    init: Scalar | None = None
    post: Scalar | None = None
    hints: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[Scalar, ...]:
        """``expr``, and ``post`` where there is one."""
        if self.post is None:
            return (self.expr,)
        return (self.expr, self.post)

    @property
    def value(self) -> Scalar:
        """Value that is stored, before it is cast to the dtype of ``out``."""
        if self.post is not None:
            return self.post
        if self.init is None:
            return self.expr
        return Acc(self.acc_dtype)

    @property
    def stored(self) -> Scalar:
        """``value`` in the dtype of ``out``."""
        value = self.value
        if value.dtype == self.out.dtype:
            return value
        return Cast(self.out.dtype, value)

    @property
    def position(self) -> Affine:
        """Row-major position in ``out`` of what a point writes: a sum of axes, see ``verify``."""
        found = flat_index(self.out, self.out_index)
        assert found is not None
        return found

    def mapped(self, change: Callable[[Scalar], Scalar]) -> Compute:
        """The block with each of its expressions changed."""
        return replace(
            self,
            expr=change(self.expr),
            out_index=tuple(map(change, self.out_index)),
            init=None if self.init is None else change(self.init),
            post=None if self.post is None else change(self.post),
        )

    @property
    def acc_dtype(self) -> str:
        """Dtype of ``acc`` in ``post``."""
        if self.init is None:
            return self.expr.dtype
        if self.combiner in ("argmax", "argmin"):
            return INDEX_DTYPE
        return self.init.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Extern:
    """A library routine on whole buffers: ``symbol`` of ``compiler.lir.routines``.

    ``attrs`` are numbers, strings, bools and tuples of them; temporary storage is the routine's.
    """

    symbol: str
    ins: tuple[Buffer, ...]
    outs: tuple[Buffer, ...]
    attrs: DictAttrs = NO_ATTRS


Block = Compute | Extern


def reads_of(block: Block) -> list[Buffer]:
    """The buffers a block reads, each once, in order of their first use."""
    if isinstance(block, Extern):
        return list(dict.fromkeys(block.ins))
    return list(dict.fromkeys(load.buffer for load in loads(*block.roots)))


def writes_of(block: Block) -> tuple[Buffer, ...]:
    """The buffers a block writes."""
    if isinstance(block, Extern):
        return block.outs
    return (block.out,)


@dataclass(frozen=True, slots=True, eq=False)
class PrimFunc(LoweredFunction):
    """A lowered function.

    Attributes:
        name: of the global it is, or will be; no part of its content.
        params: one per tensor argument, tuples flattened left to right; scope "param".
        outputs: one per tensor of the result; scope "out".
        temps: buffers that live during one call; scope "temp".
        consts: buffers with their (read-only) contents; scope "const".
        blocks: run in order.
        attrs: ``target``, canonical text of the Target; ``hash`` of the source.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temps: tuple[Buffer, ...]
    consts: tuple[tuple[Buffer, Array], ...]
    blocks: tuple[Block, ...]
    attrs: DictAttrs = field(default=NO_ATTRS)

    @property
    def func_type(self) -> FuncType:
        """Tensors in, a tensor or a tuple of tensors out."""
        outs = tuple(TensorType(b.shape, b.dtype) for b in self.outputs)
        params = tuple(TensorType(b.shape, b.dtype) for b in self.params)
        return FuncType(params, outs[0] if len(outs) == 1 else TupleType(outs))

    def with_attr(self, key: str, value: Any) -> Self:
        """A copy with one attribute set."""
        return replace(self, attrs=self.attrs.with_attr(key, value))

    def __str__(self) -> str:
        """The text of ``definition``, constants described, for people."""
        name = literals.name(self.name)
        return self.definition(name, lambda array: f"<{array.size} numbers>")

    def definition(self, name: str, constant: Callable[[Array], str]) -> str:
        """``@name = primfn(…)`` as text; see ``compiler.lir.printer``."""
        from compiler.lir.printer import definition

        return definition(self, name, constant)

    def evaluate(self, args: Sequence[Array]) -> list[Array]:
        """The outputs, computed with numpy; see ``compiler.lir.reference``."""
        from compiler.lir.reference import run

        return run(self, args)

    def digest(self) -> bytes:
        """16 bytes over the text and the constants, name left out."""
        digest = hashlib.blake2b(digest_size=16)

        def constant(array: Array) -> str:
            # Row-major bytes: two views of equal content are equal.
            digest.update(f"{array.dtype} {array.shape};".encode() + array.tobytes())
            return "const"

        digest.update(self.definition("f", constant).encode())
        return digest.digest()
