"""Configuration files: a flat mapping in YAML, TOML or JSON, told apart by the suffix."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import yaml

from qsearch.errors import SettingsError


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The mapping a file holds.

    Raises:
        SettingsError: missing, unreadable, of another format, or not a mapping at top level.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {".yaml", ".yml", ".toml", ".json"}:
        raise SettingsError(
            f"configuration files end in .yaml, .toml or .json, not {suffix or 'nothing'!r}",
            where=str(path),
            fix="rename the file after its format",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the configuration file cannot be read: {error}",
            where=str(path),
            fix="give the path of an existing text file",
        ) from error
    try:
        value = _parse(text, suffix)
    except (yaml.YAMLError, tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise SettingsError(
            f"not valid {suffix[1:]}: {str(error).splitlines()[0]}",
            where=str(path),
            fix="correct the file; it is one flat mapping of option names to values",
        ) from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise SettingsError(
            f"expected a mapping of option names to values, found {type(value).__name__}",
            where=str(path),
            fix="write one option a line, for example `trials: 32`",
        )
    return value


def _parse(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix == ".json":
        return json.loads(text)
    return yaml.safe_load(text)
