"""Constants as C arrays: each content once, however many functions read it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.targets.c.c_types import C_TYPES, c_type, int_literal
from compiler.targets.c.names import Names

Array = NDArray[Any]

_WIDTH = 100


class ConstantPool:
    """The constant arrays of a file.

    Args:
        names: of the file's scope.
    """

    def __init__(self, names: Names | None = None) -> None:
        self._names = names if names is not None else Names()
        self._held: dict[tuple[str, bytes], str] = {}
        self._arrays: list[tuple[str, Array]] = []

    def name_of(self, array: Array, wanted: str) -> str:
        """C name of an array with this content; ``wanted`` when it is new."""
        content = np.ascontiguousarray(array)
        key = str(content.dtype), content.tobytes()
        if key not in self._held:
            self._held[key] = self._names.fresh(wanted)
            self._arrays.append((self._held[key], content))
        return self._held[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for _, array in self._arrays)

    @property
    def uses_math_macros(self) -> bool:
        """Whether a value is infinite or NaN, which <math.h> has names for."""
        floats = [array for _, array in self._arrays if array.dtype.kind == "f"]
        return any(not np.isfinite(array).all() for array in floats)

    def definitions(self) -> list[str]:
        """``static const`` definitions, in the order the arrays were asked for."""
        return [array_text(name, array) for name, array in self._arrays]


def array_text(name: str, array: Array) -> str:
    """``static const T name[size] = {…};``; the shape stands in a comment."""
    dtype = str(array.dtype)
    values = elements(array)
    shape = "x".join(map(str, array.shape)) or "scalar"
    lines: list[str] = []
    line = ""
    for value in values:
        if len(line) + len(value) + 1 > _WIDTH:
            lines.append(line)
            line = ""
        line += f"{value},"
    lines.append(line.rstrip(","))
    head = f"static const {c_type(dtype)} {name}[{max(array.size, 1)}] = {{ /* {shape} */"
    return "\n".join([head, *lines, "};"]) + "\n"


def elements(array: Array) -> list[str]:
    """C constants of the elements, row-major; one 0 for an empty array, which C has not."""
    flat = np.ascontiguousarray(array).reshape(-1)
    dtype = str(array.dtype)
    if flat.size == 0:
        return ["0"]
    if dtype == "bool":
        return [str(int(value)) for value in flat]
    if dtype.startswith("float"):
        return [_float_text(value, dtype) for value in flat]
    assert dtype in C_TYPES
    if dtype in ("int8", "int16", "uint8", "uint16", "int32"):
        lowest = -(1 << 31)
        return [str(v) if v != lowest else int_literal(v, dtype) for v in flat.tolist()]
    return [int_literal(value, dtype) for value in flat.tolist()]


def _float_text(value: Any, dtype: str) -> str:
    """The shortest decimal that reads back as the value; infinity and NaN by their macros."""
    end = "f" if dtype == "float32" else ""
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return f"{'-' if value < 0 else ''}INFINITY"
    shown = str(value)
    return f"{shown if any(c in shown for c in '.e') else shown + '.0'}{end}"
