"""Are ``compiler`` and ``workers`` ours? The names are common, a clash would be silent."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_OURS = ("compiler", "workers")


class ForeignPackageError(Exception):
    """``compiler`` or ``workers`` belong to another distribution; says what, where and fix.

    Not one of the service's errors: those need the packages that are not ours here.
    """

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what}\n  where: {where}\n  fix: {fix}")


def check_own_packages() -> None:
    """Refuse to run beside a foreign ``compiler`` or ``workers``.

    Raises:
        ForeignPackageError: one of them is missing or lies elsewhere than ``qsearch``.
    """
    home = Path(__file__).resolve().parent.parent
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        found = _location(spec.submodule_search_locations, spec.origin) if spec else None
        if found is not None and found.resolve() == home / name:
            continue
        if found is None:
            raise ForeignPackageError(
                f"the package {name!r} of qsearch is missing",
                where=str(home),
                fix="install the distribution again: pip install --force-reinstall qsearch",
            )
        raise ForeignPackageError(
            f"the package {name!r} that Python finds is not the one of qsearch",
            where=f"found {found}, expected {home / name}",
            fix=(
                f"another distribution or a folder on PYTHONPATH is also called {name!r}: "
                "remove it, or run qsearch in a virtual environment of its own"
            ),
        )


def _location(search_locations: list[str] | None, origin: str | None) -> Path | None:
    if search_locations:
        return Path(next(iter(search_locations)))
    return Path(origin) if origin else None
