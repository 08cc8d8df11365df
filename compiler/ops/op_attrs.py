"""OpAttrs: attribute records that bring every value to its declared kind when they are built."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, dataclass_transform

import numpy as np

from compiler.errors import AttrError
from compiler.ir.attrs import Attrs
from compiler.ir.ty import DTYPES, MAX_ELEMENTS, MAX_TYPE_PARTS

Axes = int | tuple[int, ...] | None
Count = int
"""The number of axes or pieces that an operator makes: a list of so many is built."""
Size = int
"""Makes a shape: a size, a stride, a padding, a number of repetitions, signed."""
Sizes = tuple[Size, ...]

_MAX_SHOWN = 200


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False)
class OpAttrs(Attrs):
    """Base of operator attributes, which are the fields of a class that inherits from it.

    The class becomes a frozen dataclass where an operator is registered with it. Values are plain
    Python ints, floats, bools, strings and tuples. Numpy scalars, lists, ints standing for floats
    and single ints standing for lists are converted after the field's annotation; a field named
    ``dtype`` or ``…_dtype`` must hold a dtype or "". What makes shapes is bounded here, before a
    type or an array is made of it: a ``Size`` by MAX_ELEMENTS, a ``Count`` by MAX_TYPE_PARTS.

    Raises:
        AttrError: a value of another kind; the message names record, field and value.
    """

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, convert in _converters(cls):
            value = getattr(self, name)
            try:
                wanted = convert(value)
            except (TypeError, ValueError) as error:
                raise AttrError(
                    f"{self.type_key}: attribute {name}={_shown(value)} is not {error}"
                ) from None
            if wanted is not value:
                object.__setattr__(self, name, wanted)


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}…"


def _int(value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_, float)):
        raise TypeError("an int")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError("an int") from None


def _bounded(value: Any, most: int) -> Any:
    for each in value if isinstance(value, tuple) else (value,):
        if abs(each) > most:
            raise ValueError(f"within ±{most}")
    return value


def _count(value: Any) -> Any:
    return _bounded(_int(value), MAX_TYPE_PARTS)


def _size(value: Any) -> Any:
    return _bounded(_int(value), MAX_ELEMENTS)


def _sizes(value: Any) -> Any:
    return _bounded(_ints(value), MAX_ELEMENTS)


def _sections(value: Any) -> Any:
    made = _axes(value)
    if isinstance(made, tuple):
        return _sizes(made)
    return _count(made)


def _float(value: Any) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        return float(value)
    raise TypeError("a number")


def _bool(value: Any) -> Any:
    if type(value) is bool:
        return value
    if isinstance(value, (np.bool_, int)) and value in (0, 1):
        return bool(value)
    raise TypeError("True or False")


def _str(value: Any) -> Any:
    if type(value) is str:
        return value
    raise TypeError("a string")


def _dtype(value: Any) -> Any:
    if value == "" or value in DTYPES:
        return value
    raise TypeError(f"a dtype; legal: {', '.join(DTYPES)}")


def _ints(value: Any) -> Any:
    if type(value) is tuple and all(type(v) is int for v in value):
        return value
    if isinstance(value, (tuple, list, np.ndarray)):
        return tuple(_int(v) for v in value)
    if isinstance(value, (int, np.integer)):
        return (_int(value),)
    raise TypeError("a list of ints")


def _int_pairs(value: Any) -> Any:
    if isinstance(value, (tuple, list, np.ndarray)):
        return tuple(_ints(v) for v in value)
    raise TypeError("a list of lists of ints")


def _axes(value: Any) -> Any:
    if isinstance(value, (tuple, list, np.ndarray)):
        return _ints(value)
    return _int(value)


_BY_ANNOTATION: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "Count": _count,
    "Size": _size,
    "Sizes": _sizes,
    "Count | Sizes": _sections,
    "tuple[Sizes, ...]": lambda value: tuple(map(_sizes, _int_pairs(value))),
    "float": _float,
    "bool": _bool,
    "str": _str,
    "tuple[int, ...]": _ints,
    "Axes": lambda value: None if value is None else _axes(value),
}


@cache
def _converters(cls: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    found: list[tuple[str, Callable[[Any], Any]]] = []
    for f in dataclasses.fields(cls):
        annotation = str(f.type)
        if f.name == "dtype" or f.name.endswith("_dtype"):
            found.append((f.name, _dtype))
        elif annotation in _BY_ANNOTATION:
            found.append((f.name, _BY_ANNOTATION[annotation]))
        elif annotation.removesuffix(" | None") in _BY_ANNOTATION:
            found.append((f.name, _optional(_BY_ANNOTATION[annotation.removesuffix(" | None")])))
    return tuple(found)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)
