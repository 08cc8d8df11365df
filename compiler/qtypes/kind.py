"""QAnnotateKind: what a simulated_quantize node quantizes, which decides its bits and its scale."""

from __future__ import annotations

from enum import IntEnum


class QAnnotateKind(IntEnum):
    """The ``kind`` attribute of simulated_quantize; the numbers are Relay's."""

    IDENTITY = 0
    INPUT = 1
    WEIGHT = 2
    ACTIVATION = 3


def kind2str(kind: int) -> str:
    """Name of a kind as texts and reports show it, such as "input".

    Raises:
        ValueError: not a kind.
    """
    return QAnnotateKind(kind).name.lower()
