"""C types and constants of dtypes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from compiler.errors import CodegenError

C_TYPES = {
    "bool": "uint8_t",
    "int4": "int8_t",
    "uint4": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
}


def c_type(dtype: str) -> str:
    """C type that stores a dtype.

    Raises:
        CodegenError: C99 has none (float16).
    """
    if dtype not in C_TYPES:
        raise CodegenError(f"C has no type for {dtype}", fix="keep such values in float32")
    return C_TYPES[dtype]


def suffix(dtype: str) -> str:
    """``int32`` → ``i32``, ``uint8`` → ``u8``, ``float32`` → ``f32``; bool is u8."""
    if dtype == "bool":
        return "u8"
    return dtype.replace("uint", "u").replace("int", "i").replace("float", "f")


def bits_of(dtype: str) -> int:
    """Width in memory: 8, 16, 32 or 64."""
    if dtype in ("bool", "int4", "uint4"):
        return 8
    return int(dtype.lstrip("uintfloa"))


def unsigned_of(dtype: str) -> str:
    """Unsigned C type in which arithmetic of ``dtype`` is done: 32 bits at least."""
    if bits_of(dtype) == 64:
        return "uint64_t"
    return "uint32_t"


def int_literal(value: int, dtype: str) -> str:
    """A C constant of (at least) this dtype."""
    bits = bits_of(dtype)
    if dtype.startswith("u") and bits >= 32:
        if bits == 64:
            return f"UINT64_C({value})"
        return f"{value}u"
    if bits == 64:
        if value == -(1 << 63):
            return f"(-INT64_C({-value - 1}) - 1)"
        return f"INT64_C({value})"
    if value == -(1 << 31):
        return f"(-{-value - 1} - 1)"
    return str(value)


def float_literal(value: Any, dtype: str) -> str:
    """The shortest decimal that reads back as the value; infinity and NaN by their macros."""
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return f"{'-' if value < 0 else ''}INFINITY"
    shown = str(np.dtype(dtype).type(value))
    end = "f" if dtype == "float32" else ""
    return f"{shown if any(c in shown for c in '.e') else shown + '.0'}{end}"


APART: Final = "NO_INLINE"
INLINED: Final = "INLINED"
"""In front of functions that compilers do not write, or always write, where they are called."""


def function_text(kind: str, head: str, body: str, note: str = "", how: str = "") -> str:
    """A static function of a file, under a comment if there is a note.

    Without ``how``, one that returns nothing has loops: compilers write its call, and not all of it
    at each place.
    """
    comment = f"/* {note} */\n" if note else ""
    how = how or (APART if kind == "void" else "inline")
    return f"{comment}static {how} {kind} {head}\n{{\n    {body}\n}}\n"
