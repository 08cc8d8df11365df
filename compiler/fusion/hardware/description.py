"""Hardware descriptions in files: TOML (or JSON with the same keys) to HDFG.

Every mistake is told with file, line and the nearest legal name.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

from compiler.errors import HDFGError, legal_names
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.limits import LIMIT_NAMES, Limits
from compiler.fusion.hardware.positions import Path, lines_of
from compiler.fusion.hardware.stage import Stage

UNBOUNDED = "unbounded"
_TOP_KEYS = ("name", "root", "free_ops", "links", "stages", "absorb_unmapped", "bytes_per_cycle")
_STAGE_KEYS = ("name", "accepts", "max_uses", "optional", "cycles_per_element", "limits")


def shipped_descriptions() -> tuple[str, ...]:
    """Names of the descriptions that come with the package, sorted."""
    folder = files("compiler.fusion.hardware") / "descriptions"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def load_hdfg(source: str | os.PathLike[str]) -> HDFG:
    """The description of this name (``opu``), or in this file (``eng.toml``, ``eng.json``).

    Raises:
        HDFGError: it is not there, is not TOML or JSON, or contradicts itself; the
            message names file and line.
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
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
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
        lines = lines_of(text, is_toml=is_toml)
        key: Path = error.key
        while key not in lines:
            key = key[:-1]
        place = f"{source_name}, line {lines[key]}"
        error.where = f"{place}, {error.where}" if error.where else place
        raise


def hdfg_from(values: Any) -> HDFG:
    """The description in plain values, as TOML or JSON gives them.

    Raises:
        HDFGError: something is missing, unknown or of another kind.
    """
    table = _table(values, ())
    _known_keys(table, _TOP_KEYS, ())
    stages = _get(table, "stages", list, (), required=True)
    links = []
    for place, link in enumerate(_get(table, "links", list, (), default=[])):
        if not isinstance(link, list) or not all(isinstance(name, str) for name in link):
            raise _wrong(link, "a pair of unit names", ("links", place))
        links.append(tuple(link))
    free_ops = _get(table, "free_ops", list, (), default=[])
    for place, op_name in enumerate(free_ops):
        if not isinstance(op_name, str):
            raise _wrong(op_name, "the name of an operator", ("free_ops", place))
    return HDFG(
        name=_get(table, "name", str, (), required=True),
        root=_get(table, "root", str, (), required=True),
        stages=[_stage(stage, ("stages", place)) for place, stage in enumerate(stages)],
        links=links,
        free_ops=free_ops,
        absorb_unmapped=_get(table, "absorb_unmapped", bool, (), default=False),
        bytes_per_cycle=_number(table, "bytes_per_cycle", (), None),
    )


def _stage(values: Any, path: Path) -> Stage:
    table = _table(values, path)
    _known_keys(table, _STAGE_KEYS, path)
    accepts = _get(table, "accepts", dict, path, required=True)
    for op_name, given in accepts.items():
        if not isinstance(given, (list, str)) or not all(isinstance(text, str) for text in given):
            raise _wrong(given, "a list of conditions", (*path, "accepts", op_name))
    max_uses = table.get("max_uses", 1)
    if max_uses is not None and max_uses != UNBOUNDED:
        max_uses = _get(table, "max_uses", int, path, default=1)
    limits = _table(table.get("limits", {}), (*path, "limits"))
    _known_keys(limits, LIMIT_NAMES, (*path, "limits"))
    for name in limits:
        if _get(limits, name, int, (*path, "limits")) < 1:
            raise _wrong(limits[name], "a whole number from 1 on", (*path, "limits", name))
    try:
        return Stage(
            name=_get(table, "name", str, path, required=True),
            accepts=accepts,
            max_uses=None if max_uses == UNBOUNDED else max_uses,
            optional=_get(table, "optional", bool, path, default=True),
            cycles_per_element=_number(table, "cycles_per_element", path, 0.0) or 0.0,
            limits=Limits(**limits),
        )
    except HDFGError as error:
        if error.key[: len(path)] != path:
            error.key = (*path, *error.key)
        raise


_KINDS = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def _get(
    table: Mapping[str, Any],
    name: str,
    kind: type,
    path: Path,
    *,
    required: bool = False,
    default: Any = None,
) -> Any:
    if name not in table:
        if required:
            raise HDFGError(
                f"{name!r} is missing", key=path, where=_shown(path), fix=f"add {name} = …"
            )
        return default
    value = table[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(value, _KINDS[kind], (*path, name))
    return value


def _number(table: Mapping[str, Any], name: str, path: Path, default: float | None) -> float | None:
    value = table.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise _wrong(value, "a number, 0 or more", (*path, name))
    return float(value)


def _table(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, "a table", path)
    return value


def _known_keys(table: Mapping[str, Any], legal: tuple[str, ...], path: Path) -> None:
    for key in table:
        if key not in legal:
            raise HDFGError(f"unknown key {key!r}", key=(*path, key), fix=legal_names(key, legal))


def _wrong(value: Any, wanted: str, path: Path) -> HDFGError:
    return HDFGError(
        f"{_shown(path)} must be {wanted}, got {value!r}", key=path, fix=f"write {wanted}"
    )


def _shown(path: Path) -> str:
    """``stages[2].limits.max_kernel``."""
    words = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    return words.lstrip(".") or "the description"
