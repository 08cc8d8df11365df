"""Hardware descriptions in files: TOML (or JSON with the same keys) to HDFG.

An error names the file, the key and the nearest legal name.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, Final

from compiler.errors import HDFGError, legal_names
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.limits import LIMIT_NAMES, Limits
from compiler.fusion.hardware.stage import Stage

UNBOUNDED = "unbounded"
Path = tuple[str | int, ...]
_REQUIRED: Final = object()

Keys = Mapping[str, tuple[type, Any]]
"""Key of a table → kind of its value, and what stands for it where it is not given."""

_TOP: Final[Keys] = {
    "name": (str, _REQUIRED),
    "root": (str, _REQUIRED),
    "stages": (list, _REQUIRED),
    "links": (list, []),
    "free_ops": (list, []),
    "absorb_unmapped": (bool, False),
    "bytes_per_cycle": (float, None),
}
_STAGE: Final[Keys] = {
    "name": (str, _REQUIRED),
    "accepts": (dict, _REQUIRED),
    "max_uses": (int, 1),
    "optional": (bool, True),
    "cycles_per_element": (float, 0.0),
    "limits": (dict, {}),
}
_LIMITS: Final[Keys] = dict.fromkeys(LIMIT_NAMES, (int, None))


def shipped_descriptions() -> tuple[str, ...]:
    """Names of the descriptions that come with the package, sorted."""
    folder = files("compiler.fusion.hardware") / "descriptions"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def load_hdfg(source: str | os.PathLike[str]) -> HDFG:
    """The description of this name (``opu``), or in this file (``eng.toml``, ``eng.json``).

    Raises:
        HDFGError: it is not there, is not TOML or JSON, or contradicts itself; the
            message names file and key.
    """
    text, name = read_description(source)
    return parse_hdfg(text, name)


def read_description(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Text of the description ``load_hdfg`` would find, and its file's name, for ``parse_hdfg``.

    Raises:
        HDFGError: it cannot be read.
    """
    if isinstance(source, str) and source in shipped_descriptions():
        entry = files("compiler.fusion.hardware") / "descriptions" / f"{source}.toml"
        return entry.read_text(encoding="utf-8"), f"{source}.toml"
    path = FilePath(source)
    try:
        return path.read_text(encoding="utf-8"), str(source)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is not UTF-8 text"
        shipped = shipped_descriptions()
        raise HDFGError(
            f"hardware description {os.fspath(source)!r} cannot be read: {reason}",
            where=str(path.absolute()),
            fix=f"give a .toml or .json file, or a shipped one; {legal_names(path.name, shipped)}",
        ) from error


def parse_hdfg(text: str, source_name: str = "<description>") -> HDFG:
    """The description in a text; JSON where the name ends in ``.json``, else TOML.

    Raises:
        HDFGError: as for ``load_hdfg``.
    """
    is_toml = not source_name.endswith(".json")
    try:
        values = tomllib.loads(text) if is_toml else json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, deep nesting
        language = "TOML" if is_toml else "JSON"
        raise HDFGError(
            f"this is not {language}: {error}", where=source_name, fix="see hardware/README.md"
        ) from error
    try:
        return hdfg_from(values)
    except HDFGError as error:
        place = f"{source_name}, {_shown(error.key)}"
        if error.where:
            error.where = f"{place}, {error.where}"
        else:
            error.where = place
        raise


def hdfg_from(values: Any) -> HDFG:
    """The description in plain values, as TOML or JSON gives them.

    Raises:
        HDFGError: something is missing, unknown or of another kind.
    """
    found = _read(values, _TOP, ())
    for place, link in enumerate(found["links"]):
        if not isinstance(link, list) or not all(isinstance(name, str) for name in link):
            raise _wrong(link, "a pair of unit names", ("links", place))
    for place, op_name in enumerate(found["free_ops"]):
        if not isinstance(op_name, str):
            raise _wrong(op_name, "the name of an operator", ("free_ops", place))
    stages = [_stage(stage, ("stages", place)) for place, stage in enumerate(found["stages"])]
    return HDFG(**{**found, "stages": stages})


def _stage(values: Any, path: Path) -> Stage:
    unbounded = isinstance(values, dict) and values.get("max_uses", 1) in (None, UNBOUNDED)
    if unbounded:
        values = {key: value for key, value in values.items() if key != "max_uses"}
    found = _read(values, _STAGE, path)
    for op_name, given in found["accepts"].items():
        if not isinstance(given, (list, str)) or not all(isinstance(text, str) for text in given):
            raise _wrong(given, "a list of conditions", (*path, "accepts", op_name))
    limits = _read(found["limits"], _LIMITS, (*path, "limits"))
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise _wrong(limit, "a whole number from 1 on", (*path, "limits", name))
    max_uses = None if unbounded else found["max_uses"]
    try:
        return Stage(**{**found, "max_uses": max_uses, "limits": Limits(**limits)})
    except HDFGError as error:
        if error.key[: len(path)] != path:
            error.key = (*path, *error.key)
        raise


_KINDS = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    float: "a number, 0 or more",
    list: "a list",
    dict: "a table",
}


def _read(table: Any, keys: Keys, path: Path) -> dict[str, Any]:
    """The values of a table by key, each of its kind."""
    if not isinstance(table, dict):
        raise _wrong(table, _KINDS[dict], path)
    for key in table:
        if key not in keys:
            raise HDFGError(f"unknown key {key!r}", key=(*path, key), fix=legal_names(key, keys))
    found = {}
    for name, (kind, default) in keys.items():
        if name not in table and default is _REQUIRED:
            raise HDFGError(f"{name!r} is missing", key=path, fix=f"add {name} = …")
        value = table.get(name, default)
        if name in table and not _is_a(value, kind):
            raise _wrong(value, _KINDS[kind], (*path, name))
        if kind is float:
            value = default if value is None else float(value)
        found[name] = value
    return found


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return value is None or (isinstance(value, (int, float)) and 0 <= value < 1e18)
    return isinstance(value, kind)


def _wrong(value: Any, wanted: str, path: Path) -> HDFGError:
    return HDFGError(
        f"{_shown(path)} must be {wanted}, got {value!r}", key=path, fix=f"write {wanted}"
    )


def _shown(path: Path) -> str:
    """``stages[2].limits.max_kernel``."""
    words = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    return words.lstrip(".") or "the description"
