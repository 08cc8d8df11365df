"""Attribute records of operators (base class) and of functions and modules (DictAttrs)."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from compiler.errors import AttrError, legal_names

if TYPE_CHECKING:
    from compiler.ir.expr import Call


@dataclass(frozen=True, eq=False)
class Attrs:
    """Base of operator attributes: a frozen dataclass per operator family.

    Equality and hash go by field value, floats by bit pattern; sequence fields are tuples.
    """

    type_key: ClassVar[str] = "Attrs"
    """Name of the class in messages and hashes; a subclass need not give one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "type_key" not in cls.__dict__:
            cls.type_key = cls.__name__

    def __post_init__(self) -> None:
        for name in _fields(type(self)):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, _as_tuple(value))

    @classmethod
    def declare(cls) -> None:
        """Make this class, and those it inherits from, frozen dataclasses if they do not say so."""
        for each in reversed(cls.__mro__):
            if issubclass(each, Attrs) and "__dataclass_fields__" not in each.__dict__:
                dataclass(frozen=True, eq=False)(each)

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Build from keywords.

        Raises:
            AttrError: an unknown name (the legal ones are listed) or a missing required one.
        """
        fields = _fields(cls)
        for name in values:
            if name not in fields:
                raise AttrError(
                    f"{cls.type_key}: unknown attribute {name!r}",
                    fix=legal_names(name, list(fields)),
                )
        for name, default in fields.items():
            if default is MISSING and name not in values:
                raise AttrError(f"{cls.type_key}: attribute {name!r} is required")
        return cls(**values)

    @classmethod
    def of(cls, call: Call) -> Self:
        """The attributes of a call, which are of this class.

        Raises:
            AttrError: the call has others.
        """
        found = call.attrs
        if not isinstance(found, cls):
            raise AttrError(
                f"a call was expected to have {cls.__name__}", where=f"{type(found).__name__}"
            )
        return found

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every field with its value, in declaration order."""
        for name in _fields(type(self)):
            yield name, getattr(self, name)

    def non_default_items(self) -> Iterator[tuple[str, Any]]:
        """Fields that differ from their declared default, in declaration order."""
        for name, default in _fields(type(self)).items():
            value = getattr(self, name)
            if not _same(value, default):
                yield name, value

    def with_values(self, **changed: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**{**dict(self.items()), **changed})

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and all(
                _same(getattr(self, name), getattr(other, name)) for name in _fields(type(self))
            )
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, *(_key(value) for _, value in self.items())))


_FIELDS: dict[type, dict[str, Any]] = {}


def _fields(cls: type[Attrs]) -> dict[str, Any]:
    """Name and default of every field, MISSING for what must be given."""
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = {f.name: f.default for f in dataclasses.fields(cls)}
    return found


def _as_tuple(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_as_tuple(v) for v in value)
    return value


def _key(value: Any) -> Any:
    """A hashable stand-in that tells 1 from 1.0 from True and compares floats by bits."""
    if isinstance(value, float):
        return ("f", struct.pack("<d", value))
    if isinstance(value, tuple):
        return ("t", tuple(_key(v) for v in value))
    return (type(value).__name__, value)


def _same(a: Any, b: Any) -> bool:
    """Return whether the keys of two values are equal; those of plain values are not made."""
    if a is b:
        return True
    kind = type(a)
    if kind is type(b):
        if kind is tuple:
            return len(a) == len(b) and all(map(_same, a, b))
        if kind in (int, str, bool):
            return bool(a == b)
    return bool(_key(a) == _key(b))


def value_text(value: object) -> str:
    """A value as Python writes it, for people; tuples in square brackets, as the text form has."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value)


class DictAttrs(Mapping[str, Any]):
    """Immutable ordered map of function or module attributes."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        self._items: dict[str, Any] = {k: _as_tuple(v) for k, v in (items or {}).items()}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def with_attr(self, key: str, value: Any) -> DictAttrs:
        """A copy with one value set."""
        return DictAttrs({**self._items, key: value})

    def without_attr(self, key: str) -> DictAttrs:
        """A copy without ``key``; itself when it is not there."""
        if key not in self._items:
            return self
        return DictAttrs({k: v for k, v in self._items.items() if k != key})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {k: _key(v) for k, v in self.items()} == {k: _key(v) for k, v in other.items()}

    def __hash__(self) -> int:
        return hash(frozenset((k, _key(v)) for k, v in self.items()))

    def __repr__(self) -> str:
        return f"DictAttrs({self._items!r})"


NO_ATTRS = DictAttrs()
