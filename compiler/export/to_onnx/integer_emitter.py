"""What an integer rule sees: tensors in their own dtypes, and wider ones to compute in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.core.legalize import forget, words_of
from compiler.export.to_onnx.emitter import Emitter, emit_step
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpRule
from compiler.ir.ty import is_integer
from compiler.ops.number_format import Array

# onnxruntime computes reliably in these; values are brought back by a wrapping Cast.
_WORKING = {
    "bool": "int32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int32": "int32",
    "uint32": "int64",
    "int64": "int64",
}


class IntegerEmitter(Emitter):
    """Emitter with casts. Sums, differences and products modulo 2^64 or 2^32 stay right modulo any
    smaller power of two, so computing wide and casting back wraps exactly as the reference does."""

    def working_dtype(self, step: Step) -> str:
        """int32, or int64 where an operand or result needs it.

        Raises:
            OnnxExportError: uint64, which neither of them orders rightly.
        """
        found = "int32"
        for value in (*step.args, *step.results):
            dtype = value.type.dtype
            if is_integer(dtype) and dtype not in _WORKING:
                raise self.refuse(step, f"dtype {dtype} has no exact integer form")
            if _WORKING.get(dtype) == "int64":
                found = "int64"
        return found

    def widened(self, value: Value, dtype: str) -> str:
        """The tensor in another dtype; constants are converted here and now."""
        if value.data is not None:
            return self.writer.constant(value.data.astype(dtype))
        return self.cast(self.name(value), value.type.dtype, dtype)

    def cast(self, name: str, source: str, dtype: str) -> str:
        """A wrapping Cast, or nothing where the dtype is right already."""
        return name if source == dtype else self.writer.cast(name, dtype)

    def emit_words(self, step: Step) -> None:
        """Write an operator word by word, by their integer rules; a float one by its plain rule.

        Raises:
            OnnxExportError: an operator or dtype without an exact integer form.
        """
        words, results = words_of(step)
        for word in words:
            self._emit_word(word)
        for value, made in zip(step.results, results):
            self.bind(value, self.name(made))
        forget(words, step)

    def _emit_word(self, word: Step) -> None:
        whole = [v for v in (*word.args, *word.results) if is_integer(v.type.dtype)]
        rule = FToInteger.get(word.op) if whole else None
        if rule is not None:
            names = rule(word, self)
            names = [names] if isinstance(names, str) else names
            for value, name in zip(word.results, names, strict=True):
                self.bind(value, name)
            return
        if word.args and any(is_integer(v.type.dtype) for v in word.results):
            raise self.refuse(
                word,
                "it has no exact integer rule",
                "write one in compiler/export/to_onnx/integer_rules",
            )
        emit_step(word, self)

    def scalar(self, number: int, dtype: str) -> str:
        """A rank-0 constant."""
        return self.writer.constant(np.asarray(number, dtype))

    def array(self, values: Array, dtype: str) -> str:
        """A constant."""
        return self.writer.constant(np.asarray(values).astype(dtype))


ToInteger = Callable[[Step, IntegerEmitter], str | Sequence[str]]
"""``rule(step, emitter)`` writes an integer step and gives one tensor, of the result's own dtype,
per result."""

FToInteger: OpRule[ToInteger] = OpRule(
    "FToInteger",
    asked_by="export.to_onnx.integer",
    defined_in="compiler/export/to_onnx/integer_rules",
)
