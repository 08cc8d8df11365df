"""The emitter of integer ONNX: values as tensors of a dtype that computes them exactly.

    int8, bounds [-128, 127]          float32, in which onnxruntime is fastest
    int32, bounds up to 2^40          float64
    int64, anything                   int64, or int32, whose results are cut by a Cast

A float32 holds every whole number up to 2^24 and a float64 up to 2^53, and sums of whole numbers
that stay below are exact in any order. Bounds are those of ``compiler.ranges``. Where they leave a
dtype the reference wraps; such words are computed in integers, which wrap likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from compiler.core.legalize import forget, is_integral, words_of
from compiler.core.words import MOVES
from compiler.export.to_onnx.emitter import Emitter, FToOnnx, emit_loop, emit_step
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpRule
from compiler.ir.ty import NARROW_DTYPES, is_float, is_integer
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import OP as REQUANTIZE
from compiler.ops.rules.float_product import EXACT
from compiler.ops.tensor.fixed_point_multiply import PRODUCTS
from compiler.ranges.analysis import RangeContext, analyse_step, analyse_word

SINGLE: Final = (EXACT + 1) // 2
"""Integers below are computed in float32. Half of what it holds: onnxruntime adds what follows a
product into the product's own sums."""
DOUBLE: Final = 1 << 52
"""Integers below are computed in float64, one half more or less included."""

_LONG: Final = ("uint32", "int64")
"""onnxruntime computes reliably in int64 and int32; values are brought back by a wrapping Cast."""
_UNORDERED: Final = ("uint64", *NARROW_DTYPES)
_PRODUCTS: Final = ("nn.conv2d", "nn.matmul", "nn.batch_matmul")
_KEPT: Final = (REQUANTIZE, *PRODUCTS)
_PASSED: Final = (*MOVES, "cast", "nn.pad", "add", "subtract", "left_shift")
"""onnxruntime moves factors past some of them, others become part of the product themselves."""


class Held(NamedTuple):
    """A tensor with the integers of a value, in whatever dtype."""

    name: str
    dtype: str


class IntegerEmitter(Emitter):
    """Emitter of words, whose values may lie in tensors of other dtypes than their own.

    Args:
        writer: receives the nodes.
        ranges: bounds of what the words read; those of their results are added.
    """

    def __init__(self, writer: GraphWriter, ranges: RangeContext) -> None:
        super().__init__(writer)
        self._ranges = ranges
        self._held: dict[Value, Held] = {}
        self._casts: dict[tuple[str, str], str] = {}
        self.transposed: dict[str, tuple[Held, list[int]]] = {}
        """Results of a Transpose: what it reads, and its axes."""
        self._sums: set[Value] = set()
        """Sums of products, and values that ``_PASSED`` makes of them."""
        self._exact = False
        """The word at hand wraps nowhere."""
        self.loops: list[IntegerEmitter] = []
        """Emitters of the bodies of loops, in the order of the loops."""

    def within(self, writer: GraphWriter) -> IntegerEmitter:
        """An emitter of the same kind for a graph in this one."""
        self.loops.append(IntegerEmitter(writer, self._ranges))
        return self.loops[-1]

    # ---- values ------------------------------------------------------------------------------

    def bind(self, value: Value, name: str) -> None:
        """The tensor that holds a value in its own dtype."""
        self._held[value] = Held(name, value.type.dtype)

    def is_bound(self, value: Value) -> bool:
        """Return whether a tensor holds the value already."""
        return value in self._held

    def held(self, value: Value) -> Held:
        """The tensor of a value, in the dtype that it was computed in."""
        found = self._held.get(value)
        if found is None:
            assert value.data is not None, "a step was emitted before the step it reads"
            found = self._held[value] = Held(self.writer.constant(value.data), value.type.dtype)
        return found

    def name(self, value: Value) -> str:
        """The tensor of a value in its own dtype."""
        return self.widened(value, value.type.dtype)

    def tensors(self) -> dict[Value, Held]:
        """The tensor of every value that has one, once the model is finished."""
        renamed = self.writer.renamed
        return {
            value: Held(renamed.get(held.name, held.name), held.dtype)
            for value, held in self._held.items()
        }

    def widened(self, value: Value, dtype: str) -> str:
        """The tensor in another dtype; constants are converted here and now."""
        if value.data is not None:
            return self.writer.constant(value.data.astype(dtype))
        return self.cast(*self.held(value), dtype)

    def cast(self, name: str, source: str, dtype: str) -> str:
        """A wrapping Cast, or nothing where the dtype is right already; equal ones are shared."""
        if source == dtype:
            return name
        if (name, dtype) not in self._casts:
            self._casts[name, dtype] = self.writer.cast(name, dtype)
        return self._casts[name, dtype]

    def ends(self, value: Value) -> tuple[int, int]:
        """Smallest and largest integer of a value."""
        bounds = self._ranges.of(value)
        return bounds.lowest, bounds.highest

    def ends_along(self, value: Value, axis: int, size: int) -> tuple[Array, Array]:
        """``ends`` for each of ``size`` indices of an axis; of one for all of them."""
        if size == 1:
            low, high = self.ends(value)
            return np.asarray([low]), np.asarray([high])
        lows, highs = self._ranges.of(value).per(axis, size)
        return lows.astype(np.int64), highs.astype(np.int64)

    # ---- dtypes to compute in ----------------------------------------------------------------

    def working_dtype(self, step: Step) -> str:
        """int32, or int64 where an operand or result needs it.

        Raises:
            OnnxExportError: uint64, which neither of them orders rightly.
        """
        found = "int32"
        for value in (*step.args, *step.results):
            dtype = value.type.dtype
            if dtype in _UNORDERED:
                raise self.refuse(step, f"dtype {dtype} has no exact integer form")
            if dtype in _LONG:
                found = "int64"
        return found

    def exact_dtype(self, reach: int) -> str | None:
        """float32 or float64, which hold every integer up to ``reach``; None where neither does, or
        where the word at hand wraps."""
        if not self._exact or reach >= DOUBLE:
            return None
        if reach < SINGLE:
            return "float32"
        return "float64"

    def reach(self, values: Iterable[Value]) -> int:
        """The largest magnitude of the integers among values."""
        whole = [v for v in values if is_integer(v.type.dtype)]
        return max((max(map(abs, self.ends(v))) for v in whole), default=0)

    def accumulated(self) -> int:
        """The largest magnitude of a partial sum, in any order, of the product at hand."""
        found = self._ranges.intermediates[-1]  # what its range rule checks last
        return max(-found.low, found.high)

    def dtype_for(self, step: Step) -> str:
        """The dtype in which a word is computed whose results are no larger on the way."""
        reach = self.reach((*step.args, *step.results))
        return self.exact_dtype(reach) or self.working_dtype(step)

    # ---- nodes -------------------------------------------------------------------------------

    def emit(self, step: Step) -> None:
        """Write an operator word by word, by their integer rules; a float one by its plain rule.

        Raises:
            OnnxExportError: an operator or dtype without an exact integer form.
        """
        if not is_integral(step):
            analyse_step(step, self._ranges)
            self._exact = True
            self._emit_word(step)
            return
        self.emit_words(step, _KEPT)

    def emit_words(self, step: Step, kept: Container[str] = ()) -> None:
        """Write the words of an operator; ``kept`` are those whose own rules bound what they write.

        Raises:
            OnnxExportError: a word without an exact integer form.
        """
        words, results = words_of(step, kept)
        for word in words:
            if word.name not in kept:
                self._exact = analyse_word(word, self._ranges)
            self._emit_word(word)
        for value, made in zip(step.results, results):
            self.alias(value, made)
        forget(words, step)

    def alias(self, value: Value, made: Value) -> None:
        """Say that a value is another one."""
        self._held[value] = self.held(made)
        if made in self._sums:
            self._sums.add(value)
        self._ranges.set(value, self._ranges.of(made))

    def skip(self, step: Step, held: Held | None = None) -> bool:
        """Bound what a step computes without a node; ``held`` is its result. False where a word
        of it may wrap."""
        words, (made,) = words_of(step)
        exact = [analyse_word(word, self._ranges) for word in words]  # all of them: no word waits
        self._exact = all(exact)
        self._ranges.set(step.result, self._ranges.of(made))
        if held is not None:
            self._held[step.result] = held
        forget(words, step)
        return self._exact

    def _emit_word(self, word: Step) -> None:
        if word.body is not None:
            emit_loop(word, word.body, self)
            return
        whole = [v for v in (*word.args, *word.results) if is_integer(v.type.dtype)]
        rule = FToInteger.get(word.op) if whole else None
        passed = word.name in _PASSED and any(arg in self._sums for arg in word.args)
        if passed or word.name in _PRODUCTS:
            self._sums.add(word.result)
        if rule is not None:
            made = rule(word, self)
            if isinstance(made, Held):
                held = made
            else:
                held = Held(made, word.result.type.dtype)
            self._held[word.result] = held
            return
        if word.args and any(is_integer(v.type.dtype) for v in word.results):
            raise self.refuse(
                word,
                "it has no exact integer rule",
                "write one in compiler/export/to_onnx/integer/rules",
            )
        emit_step(word, self)

    def inner(self, step: Step, dtype: str, held: Container[Value] | None = None) -> Emitter:
        """An emitter that has the integer operands of a word in a dtype, or those of ``held``."""
        inner = Emitter(self.writer)
        for value in step.args:
            if held is None:
                whole = is_integer(value.type.dtype)
            else:
                whole = value in held
            inner.bind(value, self.widened(value, dtype) if whole else self.name(value))
        return inner

    def plain(self, step: Step, dtype: str, held: Container[Value] | None = None) -> str:
        """The plain form of a word of one result, of operands as of ``inner``."""
        name = FToOnnx.require(step.op)(step, self.inner(step, dtype, held))
        assert isinstance(name, str)
        return name

    def result(self, step: Step, name: str, dtype: str) -> Held:
        """A result computed in float32, float64, or a wider integer dtype, which wraps."""
        if dtype in ("float32", "float64"):
            return Held(name, dtype)
        own = step.result.type.dtype
        return Held(self.cast(name, dtype, own), own)

    def apart(self, value: Value, dtype: str, always: bool = False) -> str:
        """``widened``; sums of products in floats, or everything, behind a Clip that binds nothing
        where no Cast stands there.

        Where a product meets a factor onnxruntime moves it into the weights, whose sums may then
        leave the dtype on the way, or into FusedMatMul, which holds it as a float32.
        """
        name = self.widened(value, dtype)
        meets = is_float(dtype) and (always or value in self._sums)
        if not meets or value.data is not None or self.held(value).dtype != dtype:
            return name
        return self.node("Clip", [name, *(self.constant(end, dtype) for end in self.ends(value))])

    def constant(self, values: ArrayLike, dtype: str) -> str:
        """A constant of a dtype."""
        return self.writer.constant(values, dtype)


ToInteger = Callable[[Step, IntegerEmitter], Held | str]
"""``rule(step, emitter)`` writes a word and gives its result: in its own dtype, or held in one that
is exact."""

FToInteger: OpRule[ToInteger] = OpRule(
    "FToInteger",
    asked_by="export.to_onnx.integer",
    defined_in="compiler/export/to_onnx/integer/rules",
)
