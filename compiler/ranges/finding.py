"""Finding: one reason why a module is not proved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding: the fault, and its place.

    Attributes:
        check: "hashes", "types", "dtypes", "wiring", "ranges", "record", "samples", "executors",
            "steps", "eval" or "certificate".
        node: the value, function, sample or member it is about.
        what: with the numbers that show it.
        bound: the value that may be reached, where there is one.
    """

    check: str
    node: str
    what: str
    bound: int | None = None

    def __str__(self) -> str:
        return f"{self.node}: {self.what}"
