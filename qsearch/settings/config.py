"""Resolve settings: flags over QSEARCH_ variables over a ``-c`` file over defaults."""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from compiler.errors import check_known, raised_as
from qsearch.errors import SettingsError
from qsearch.masking import HIDDEN
from qsearch.settings.launch_settings import (
    ENVIRONMENT_PREFIX,
    POOLS,
    Flag,
    Settings,
    UnknownWordError,
    names_of_keys,
)

IMPORT: Final = "import"
RESOLVED: Final = "config.resolved.yaml"
"""The file of a run folder that holds its settings."""
_MISSPELLED: Final = 0.9
"""Likeness, as difflib measures it, from which a variable of the environment is a setting's."""


MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 50
MAX_NUMBER: Final = 1e18
"""Bounds of a configuration file; no setting needs more."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the source of each value: "flag", "environment", "file" or "default"."""

    settings: Settings
    sources: Mapping[str, str]


def resolve(
    flags: Mapping[str, Any],
    *,
    config_file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge the four sources and check every value.

    Args:
        flags: what was said on the command line or in the call; None means not said.
        config_file: YAML, TOML or JSON file whose keys are the names of the flags.
        environment: variables; ``QSEARCH_TRIALS=8`` sets ``trials``. None means ``os.environ``.
    Raises:
        SettingsError: unknown key, or a value that does not fit its key or another value.
    """
    names = names_of_keys()
    values: dict[str, Any] = {}
    sources = dict.fromkeys(names, "default")
    variables = os.environ if environment is None else environment
    _refuse_misspelled(variables, names)
    told_by = {name.upper(): value for name, value in variables.items() if value}
    keys = {ENVIRONMENT_PREFIX + key.upper(): key for key in names}
    layers: tuple[tuple[str, Mapping[str, Any], Callable[[str], str]], ...] = (
        (
            "file",
            read_config_file(config_file) if config_file is not None else {},
            lambda _: str(config_file),
        ),
        (
            "environment",
            {key: told_by[name] for name, key in keys.items() if name in told_by},
            lambda key: ENVIRONMENT_PREFIX + key.upper(),
        ),
        ("flag", flags, lambda key: "--" + key.replace("_", "-")),
    )
    _import_first(layers)
    for source, layer, place in layers:
        told = {}
        for raw_key, raw in layer.items():
            key = raw_key.replace("-", "_")
            what = f"unknown setting {raw_key!r}"
            check_known(key, names, what, SettingsError, place(raw_key))
            if raw is not None:
                told[key] = raw
        try:
            checked = Settings(**told)
        except ValidationError as error:
            raise _wrong_value(error, place) from error
        values |= {key: getattr(checked, names[key]) for key in told}
        sources |= dict.fromkeys(told, source)
    settings = Settings(**values)
    _check_together(settings)
    return Resolved(settings, sources)


def _import_first(
    layers: Sequence[tuple[str, Mapping[str, Any], Callable[[str], str]]],
) -> None:
    """Import the user's modules: they register what other settings may name.

    Raises:
        SettingsError: the settings that a run folder holds name modules. Whoever runs a study of
            somebody else gives its modules on the command line, or does not run them.
        UserCodeError: a module cannot be imported.
    """
    told = [(layer[IMPORT], place(IMPORT)) for _, layer, place in layers if layer.get(IMPORT)]
    if not told:
        return
    raw, place = told[-1]
    if Path(place).name == RESOLVED:
        raise SettingsError(
            "the settings of a run folder cannot name modules to import",
            where=place,
            fix="give --import on the command line, if you trust these modules",
        )
    try:
        words = Settings(**{IMPORT: raw}).imports
    except ValidationError as error:
        raise _wrong_value(error, lambda _: place) from error
    from workers.user_code import import_user_code

    import_user_code(words)


def _wrong_value(error: ValidationError, place: Callable[[str], str]) -> SettingsError:
    """The first value that does not fit, with what would."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    cause = first.get("ctx", {}).get("error")
    given = first["input"]
    if isinstance(given, tuple) and len(given) == 1:  # of an option that may be repeated
        (given,) = given
    what = f"{key} cannot be {given!r}"
    flag = f"--{key.replace('_', '-')}"
    if isinstance(cause, UnknownWordError):
        what = f"{key} cannot be {cause.word!r}"
        return SettingsError(what, where=place(key), fix=cause.fix)
    field = Settings.model_fields[names_of_keys()[key]]
    why = cause or f"expected {_expected(field)}"
    fix = f"{flag}: {' '.join((field.description or '').split())}"
    if key == "workers" and given in POOLS:
        fix = f"--pool {given}; {fix}"
    return SettingsError(f"{what}: {why}", where=place(key), fix=fix)


def _expected(field: FieldInfo) -> str:
    """Describe the legal values of a field: its kind and its bounds."""
    kinds = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    named = next((kind for kind in kinds if kind in str(field.annotation)), "")
    told = next((f.expected for f in field.metadata if isinstance(f, Flag) and f.expected), "")
    signs = {"ge": ">=", "gt": ">", "lt": "<"}
    bounds = [
        f"{sign} {getattr(held, name)}"
        for name, sign in signs.items()
        for held in field.metadata
        if hasattr(held, name)
    ]
    return " ".join([told or kinds.get(named, "another value"), " and ".join(bounds)]).strip()


def _check_together(settings: Settings) -> None:
    """Refuse values that are legal alone.

    Raises:
        SettingsError: two of them exclude each other.
    """
    if settings.address is not None and settings.pool_kind != "ray":
        raise SettingsError(
            f"the pool {settings.pool} joins no cluster",
            where=f"--address {settings.address}",
            fix="--pool ray, or leave --address out",
        )
    for name in ("storage", "artifacts"):
        if f"{HIDDEN}@" in (getattr(settings, name) or ""):
            raise SettingsError(
                f"the password of --{name} is not kept in files",
                where=f"--{name} {getattr(settings, name)}",
                fix=f"give --{name} again, or set {ENVIRONMENT_PREFIX}{name.upper()}",
            )
    if settings.metric in settings.minimize:
        raise SettingsError(
            f"{settings.metric} is the metric already",
            where="--minimize",
            fix="leave it out there, or choose another --metric",
        )


def _refuse_misspelled(variables: Mapping[str, str], names: Iterable[str]) -> None:
    """Others may have variables of our prefix; one that nearly is a setting's is misspelled.

    Raises:
        SettingsError: there is one.
    """
    known = {ENVIRONMENT_PREFIX + name.upper() for name in names}
    for variable in sorted(v for v in variables if v.startswith(ENVIRONMENT_PREFIX)):
        nearest = difflib.get_close_matches(variable, known, n=1, cutoff=_MISSPELLED)
        if variable not in known and nearest:
            raise SettingsError(
                f"unknown variable {variable}",
                where="environment",
                fix=f"did you mean {nearest[0]}? Else unset it",
            )


# Files ------------------------------------------------------------------------------------------


def read_config_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping a file holds.

    Raises:
        SettingsError: missing, unreadable, of another format, or not a mapping at top level.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _PARSERS:
        raise SettingsError(
            f"configuration files end in .yaml, .toml or .json, not {suffix or 'nothing'!r}",
            where=str(path),
            fix="rename the file after its format",
        )
    what = "the configuration file cannot be read"
    fix = "give the path of an existing text file"
    with (
        raised_as(SettingsError, what, OSError, UnicodeDecodeError, where=str(path), fix=fix),
        path.open("rb") as stream,
    ):
        data = stream.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it holds more than {MAX_BYTES >> 20} MiB")
        value = _PARSERS[suffix](text)
        check_plain(value)
    # A number of 5,000 digits or a date that is none is a ValueError, deep nesting the other.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"not valid {suffix[1:]}: {_problem(error)[:200]}",
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


def _problem(error: Exception) -> str:
    """Return the cause that a parser gives, with the line where YAML tells it."""
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
        return f"line {mark.line + 1}: {error.problem or error.context}"
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]


def check_plain(value: Any) -> None:
    """Refuse values that are small in a file and large when they are used.

    YAML's aliases let a kilobyte stand for 10^9 values, or for one that holds itself.

    Raises:
        ValueError: nested more than ``MAX_DEPTH`` deep, more than ``MAX_VALUES`` of them, or a
            number beyond ``MAX_NUMBER``.
    """
    seen = 0
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for each in level:
            if isinstance(each, int | float) and not -MAX_NUMBER <= each <= MAX_NUMBER:
                if isinstance(each, int) or math.isfinite(each):
                    raise ValueError(f"the number {str(each)[:30]} is too large")
            elif isinstance(each, dict):
                below += [*each, *each.values()]
            elif isinstance(each, list | tuple | set):
                below += each
            if seen + len(below) > MAX_VALUES:
                raise ValueError(f"it stands for more than {MAX_VALUES} values")
        seen += len(below)
        if not below:
            return
        level = below
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


class _OneValueAKey(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which the last would count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping.

        Raises:
            yaml.constructor.ConstructorError: a key stands twice.
        """
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(problem=f"{twice!r} is given twice")
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def _yaml(text: str) -> Any:
    return yaml.load(text, _OneValueAKey)


_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": tomllib.loads,
    ".json": json.loads,
}
