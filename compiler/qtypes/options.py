"""Declaration of a field of QConfig, with its values and its help.

    weight_scale: str = option(
        "power2", one_of("power2", "max", "mse"), recommended="max", searched=("max", "mse")
    )

The checks of QConfig, ``QConfig.recommended()``, the keys of statistics, the default space of a
search and the canonical form of a configuration are read from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final

Check = Callable[[str, Any], Any]
"""``check(name, value)``: the value in its canonical form; it refuses illegal ones."""
_KEY: Final = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """A field of QConfig.

    Attributes:
        default: its value in ``QConfig()``.
        check: what values it takes.
        recommended: its value in ``QConfig.recommended()``.
        measured: whether it decides which tensors calibration measures.
        ranged: whether it decides the ranges of activations beside what is measured.
        searched: its values in the default space, the first choice of a grid first.
        when: a field, and the values of that field with which this one has an effect; none of
            them for a field that changes nothing that a module computes.
    """

    default: Any
    check: Check
    recommended: Any
    measured: bool = False
    ranged: bool = False
    searched: tuple[Any, ...] = ()
    when: tuple[str, tuple[Any, ...]] | None = None


def option(default: Any, check: Check, **said: Any) -> Any:
    """A field of a dataclass; ``said`` are other attributes of its ``Option``, which recommends the
    default where it does not say."""
    one = Option(default, check, **{"recommended": default, **said})
    return field(default=default, metadata={_KEY: one})


def options_of(config: Any) -> Mapping[str, Option]:
    """The options of a class of configurations by name, in the order of its fields."""
    return _declared(config)


@cache
def _declared(config: Any) -> Mapping[str, Option]:
    return MappingProxyType({each.name: each.metadata[_KEY] for each in fields(config)})
