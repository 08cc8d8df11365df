"""Names that C accepts, made from names that the compiler uses."""

from __future__ import annotations

import re
from collections.abc import Iterable

_KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while asm typeof bool true false"
)
_RESERVED = frozenset(f"{_KEYWORDS} main memcpy".split())

LOCALS = ("acc", "best", "term")
"""Names that generated functions use for what they compute with."""


def c_name(name: str) -> str:
    """``name`` with what C does not allow replaced by ``_``; never a word of the language."""
    made = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not made or made[0].isdigit():
        made = f"_{made}"
    # Leading underscores and capitals belong to the implementation.
    made = re.sub(r"^_+", "n_", made)
    if made in _RESERVED:
        return f"{made}_"
    return made


class Names:
    """Gives every thing of one scope a name of its own.

    Args:
        taken: names that are in use already.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """``wanted`` made legal, with a number behind it where it is in use."""
        base = c_name(wanted)
        name = base
        number = 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name
