"""VirtualDevice: where an expression is computed and stored, as far as known (SEScope)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

_Fields = tuple[str | None, int, str | None, str]
_INTERNED: dict[_Fields, VirtualDevice] = {}

_fields = attrgetter("device_type", "virtual_device_id", "target", "memory_scope")


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """Four independent fields, each possibly unconstrained; equal devices are one object.

    ``target`` is the canonical string of a Target, such as "c -mcpu=native".

    Raises:
        ValueError: the target is of another kind than ``device_type``.
        TypeError: the target is no text.
    """

    device_type: str | None = None
    virtual_device_id: int = -1
    target: str | None = None
    memory_scope: str = ""

    def __new__(
        cls,
        device_type: str | None = None,
        virtual_device_id: int = -1,
        target: str | None = None,
        memory_scope: str = "",
    ) -> VirtualDevice:
        key = (device_type, virtual_device_id, target, memory_scope)
        found = _INTERNED.get(key)
        if found is not None:
            return found
        return _INTERNED.setdefault(key, object.__new__(cls))

    def __post_init__(self) -> None:
        if self.target is not None and not isinstance(self.target, str):
            raise TypeError(f"target {self.target!r} is no text: give str(target)")
        if self.target is not None and self.device_type is not None:
            kind = self.target.split(" ", 1)[0]
            if self.device_type != kind:
                raise ValueError(
                    f"device_type {self.device_type!r} does not fit target {self.target!r}"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies go through __new__ with their fields, or they would fill the unconstrained device.
        return (VirtualDevice, _fields(self))

    @property
    def is_fully_unconstrained(self) -> bool:
        """True when nothing is known."""
        return self is UNCONSTRAINED

    @property
    def is_fully_constrained(self) -> bool:
        """True when target, id and scope are all known."""
        return self.target is not None and self.virtual_device_id >= 0 and bool(self.memory_scope)


UNCONSTRAINED = VirtualDevice()


def join(a: VirtualDevice, b: VirtualDevice) -> VirtualDevice | None:
    """Field by field the constrained one; None when both are constrained and differ."""
    if any(x != y and free not in (x, y) for x, y, free in _field_pairs(a, b)):
        return None
    return default(a, b)


def default(a: VirtualDevice, b: VirtualDevice) -> VirtualDevice:
    """``a`` where it is constrained, else ``b``."""
    return VirtualDevice(*[y if x == free else x for x, y, free in _field_pairs(a, b)])


def _field_pairs(a: VirtualDevice, b: VirtualDevice) -> Iterator[tuple[Any, Any, Any]]:
    """Each field of both, with the value that says it is unconstrained."""
    return zip(_fields(a), _fields(b), _fields(UNCONSTRAINED))
