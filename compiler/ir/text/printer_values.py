"""Text of types and attribute values."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_letters
from typing import Any

import numpy as np

from compiler.errors import CompilerError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Constant, GlobalVar, by_name
from compiler.ir.text import literals
from compiler.ir.text.metadata import MetadataWriter
from compiler.ir.ty import (
    GlobalTypeVar,
    IncompleteType,
    Nested,
    Shape,
    TensorType,
    Type,
    TypeVar,
)
from compiler.ir.virtual_device import VirtualDevice

_LETTERS = frozenset(ascii_letters)


class TypeText:
    """Prints types; type variables get distinct names in one definition."""

    def __init__(self) -> None:
        self._names: dict[TypeVar, str] = {}
        self._table = NameTable()
        self._tensors: dict[tuple[Shape, str], str] = {}

    def text(self, ty: Type) -> str:
        """Relay text of a type; a scalar is its dtype. Recurses over the nesting of the type."""
        if isinstance(ty, TensorType):
            key = ty.shape, ty.dtype
            held = self._tensors.get(key)
            if held is None:
                held = self._tensors[key] = str(ty) if ty.shape else ty.dtype
            return held
        if isinstance(ty, TypeVar):
            return self.variable(ty)
        if isinstance(ty, Nested):
            return ty.text(self.text)
        if isinstance(ty, GlobalTypeVar):
            return literals.name(ty.name_hint)
        if isinstance(ty, IncompleteType):
            return "_"
        raise CompilerError(f"{type(ty).__name__} has no text as a type")

    def variable(self, var: TypeVar) -> str:
        """Name of a type variable, made unique at first use."""
        held = self._names.get(var)
        if held is None:
            hint = var.name_hint
            hint = hint if hint[:1] in _LETTERS else "v" + hint
            held = self._names[var] = self._table.unique(hint)
        return held

    def parameters(self, params: tuple[TypeVar, ...]) -> str:
        """``[A, B]``, or "" for none."""
        return f"[{', '.join(self.variable(p) for p in params)}]" if params else ""


class NameTable:
    """Distinct names in one definition."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """``hint``, or ``hint1``, ``hint2`` … when it is taken; "v" where there is none."""
        hint = hint or "v"
        numbers, known = self._numbers, len(self._numbers)
        number = numbers.setdefault(hint, 0)
        if len(numbers) > known:
            return hint
        found = hint
        while found in numbers:  # and so are the names up to this number
            number += 1
            found = f"{hint}{number}"
        numbers[hint] = number
        numbers[found] = 0
        return found


def value_text(value: Any, meta: MetadataWriter) -> str:
    """Text of an attribute value; recurses over the nesting of the value.

    Raises:
        CompilerError: a kind of value that has no text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        # A double with suffix f; the parser reads it as a double again.
        return literals.shortest(value) + "f"
    if isinstance(value, str):
        return literals.string(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(value_text(v, meta) for v in value)}]"
    if isinstance(value, Mapping):
        by_name(value)  # refuses keys that are neither strings nor names of functions
        items = (f"{value_text(k, meta)}={value_text(v, meta)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, GlobalVar):
        return f"@{literals.name(value.name_hint)}"
    if isinstance(value, Constant):
        return meta.constant(value)
    if isinstance(value, VirtualDevice):
        return meta.device(value)
    if isinstance(value, Attrs):
        fields = {name: value_text(field, meta) for name, field in value.items()}
        return meta.attrs(value, fields)
    raise CompilerError(f"an attribute value of type {type(value).__name__} has no text: {value!r}")
