"""What a person may do with what a command wrote, as command lines to copy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qsearch.exit_codes import EXIT_INTERRUPTED, EXIT_TARGET_MISSED

_INTEGERS = "fully_integral"


def after_launch(
    folder: Path, summary: Mapping[str, Any], exit_code: int, own_storage: bool = True
) -> str:
    """Two lines in the columns of ``SearchResult.text``.

    Args:
        folder: the run folder.
        summary: of the result.
        exit_code: a missed target asks for a look at the layers, an interrupt for going on.
        own_storage: the study lies in the folder; else where --storage says.
    """
    place = shlex.quote(str(folder))
    steps = []
    if exit_code == EXIT_INTERRUPTED:
        steps.append("the same command goes on from here")
    elif summary["module"]:
        steps.append(f"qsearch verify {place}")
        if exit_code == EXIT_TARGET_MISSED:
            module = shlex.quote(str(summary["module"]))
            steps.append(f"qsearch insight {module}  (which layers lose accuracy)")
        else:
            steps.append(_export(place, summary["best"]["qconfig"]["partition_conversions"]))
    steps.append(f"qsearch dashboard {place if own_storage else '--storage URL'}")
    first, rest = steps[0], "; ".join(steps[1:])
    return f"next      {first}" + (f"\n          {rest}" if rest else "")


def after_compile(path: Path, conversions: str) -> str:
    """One line; ``conversions`` is the configuration's ``partition_conversions``."""
    place = shlex.quote(str(path))
    return f"next: qsearch verify {place}; {_export(place, conversions)}"


def _export(place: str, conversions: str) -> str:
    return f"qsearch export {place} --format {'c' if conversions == _INTEGERS else 'float'} -o DIR"
