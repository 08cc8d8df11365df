"""What expressions evaluate to, besides arrays and tuples of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.ir.adt import Constructor
    from compiler.targets.reference.plan import Plan


@dataclass(slots=True, eq=False)
class Closure:
    """A function with the values it captured, in the order of ``plan.captures``."""

    plan: Plan
    captured: list[Any]


@dataclass(slots=True, eq=False)
class Cell:
    """A mutable reference."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class AdtValue:
    """A value of an algebraic data type."""

    constructor: Constructor
    fields: tuple[Any, ...]
