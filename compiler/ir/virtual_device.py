"""VirtualDevice: where an expression is computed and stored, as far as known (SEScope)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_Fields = tuple[str | None, int, str | None, str]
_INTERNED: dict[_Fields, VirtualDevice] = {}


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
        return found if found is not None else _INTERNED.setdefault(key, object.__new__(cls))

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
        fields = (self.device_type, self.virtual_device_id, self.target, self.memory_scope)
        return (VirtualDevice, fields)

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
    if (
        (a.device_type is not None and b.device_type is not None and a.device_type != b.device_type)
        or (
            a.virtual_device_id >= 0 <= b.virtual_device_id
            and a.virtual_device_id != b.virtual_device_id
        )
        or (a.target is not None and b.target is not None and a.target != b.target)
        or (a.memory_scope and b.memory_scope and a.memory_scope != b.memory_scope)
    ):
        return None
    return default(a, b)


def default(a: VirtualDevice, b: VirtualDevice) -> VirtualDevice:
    """``a`` where it is constrained, else ``b``."""
    return VirtualDevice(
        a.device_type if a.device_type is not None else b.device_type,
        a.virtual_device_id if a.virtual_device_id >= 0 else b.virtual_device_id,
        a.target if a.target is not None else b.target,
        a.memory_scope or b.memory_scope,
    )
