"""Numbers, names and strings of Relay text, in both directions."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A slash counts only before a letter or digit, so that it opens no comment and divides nothing.
# So many slashes at most, which are more than a name may have characters: a long one needs little
# memory for places to go back to.
IDENT_TEXT = r"[A-Za-z_][A-Za-z0-9_]*+(?:/[A-Za-z0-9_]++){0,65536}"
DOTTED_TEXT = rf"{IDENT_TEXT}(?:\.{IDENT_TEXT})*+"
IDENT = re.compile(IDENT_TEXT + r"\Z")
DOTTED = re.compile(DOTTED_TEXT + r"\Z")

_SUFFIX = {
    "int16": "i16",
    "int32": "",
    "int64": "i64",
    "float16": "f16",
    "float32": "f",
    "float64": "f64",
}
DTYPE_OF_SUFFIX = {suffix: dtype for dtype, suffix in _SUFFIX.items()} | {
    "i32": "int32",
    "f32": "float32",
}
_MAX_DIGITS = {"float16": 5, "float32": 9, "float64": 17}


def shortest(value: float, dtype: str = "float64") -> str:
    """C's ``%.<p>g`` with the smallest p that reads back to the same bits in ``dtype``."""
    if math.isinf(value):
        if value > 0:
            return "inf"
        return "-inf"
    if math.isnan(value):
        return "nan"
    to_dtype: Any = float if dtype == "float64" else np.dtype(dtype).type
    with np.errstate(over="ignore"):  # fewer digits of the largest value are too much
        for digits in range(1, _MAX_DIGITS[dtype]):
            text = f"{value:.{digits}g}"
            if to_dtype(float(text)) == value:
                return text
    return f"{value:.{_MAX_DIGITS[dtype]}g}"


def scalar_literal(data: NDArray[Any]) -> str | None:
    """Literal of a rank-0 array, or None where only metadata keeps its bits."""
    if data.ndim != 0:
        return None
    dtype = str(data.dtype)
    if dtype == "bool":
        return str(bool(data))
    suffix = _SUFFIX.get(dtype)
    if suffix is None:
        return None
    if dtype.startswith("int"):
        return f"{int(data)}{suffix}"
    value = float(data)
    if math.isnan(value) and data.tobytes() != np.array(np.nan, dtype).tobytes():
        return None
    return shortest(value, dtype) + suffix


def scalar_array(number: str, suffix: str) -> NDArray[Any]:
    """The rank-0 array of a literal, such as ("3", "f16").

    Raises:
        ValueError: the number does not fit the dtype of the suffix.
    """
    dtype = DTYPE_OF_SUFFIX[suffix]
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):
            data = np.array(float(number), dtype)
        if np.isinf(data) and "inf" not in number:
            raise ValueError(f"{number} does not fit {dtype}")
        return data
    value = int(number)
    info = np.iinfo(dtype)
    if not info.min <= value <= info.max:
        raise ValueError(f"{number} does not fit {dtype}")
    return np.array(value, dtype)


def string(value: str) -> str:
    """A JSON string."""
    return json.dumps(value, ensure_ascii=False)


def name(hint: str) -> str:
    """A name as it stands after ``%`` or ``@``: bare if it is an identifier, else quoted."""
    if IDENT.match(hint):
        return hint
    return string(hint)


def key(word: str) -> str:
    """An attribute name: bare where it is a dotted identifier, else quoted."""
    if DOTTED.match(word):
        return word
    return string(word)
