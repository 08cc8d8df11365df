"""Settings of ``qsearch launch``: flags over environment over ``-c`` file over defaults.

One record holds the values, another where each came from. Every value is checked here, once, so
that the rest of the service never meets an option it does not know.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from compiler.errors import legal_names
from qsearch.choices import COSTS, JUDGES, METRICS, POOLS, SAMPLERS
from qsearch.config_file import read_config_file
from qsearch.errors import SettingsError
from qsearch.import_path import is_import_path

ENVIRONMENT_PREFIX: Final = "QSEARCH_"
_MISSPELLED: Final = 0.9
"""Likeness, as difflib measures it, from which a variable of the environment is a setting's."""
_PASSWORD: Final = re.compile(r"(://[^/:@]*:)[^/]*@")


@dataclass(frozen=True, slots=True)
class MaxDrop:
    """How much accuracy may be lost: ``amount`` absolute (0..1), or a fraction of the baseline."""

    amount: float
    relative: bool = False

    def floor(self, baseline: float) -> float:
        """Least score that still counts as kept, both as fractions 0..1."""
        return baseline - self.amount * (baseline if self.relative else 1.0)

    def __str__(self) -> str:
        return f"{self.amount * 100:g}%" if self.relative else f"{self.amount:g}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything ``qsearch launch`` can be told; the names are those of the flags.

    Attributes:
        model: path of an ONNX file, or the name of a model shipped inside the package.
        calib: calibration inputs (.npz, .npy or a folder of images); None makes synthetic ones.
        eval: evaluation data of the same kinds; None scores on the calibration inputs.
        out: run folder; None means ``runs/<model>``.
        trials: how many trials the study has in total, over all runs.
        timeout: seconds after which no trial is started any more.
        storage: database URL; None means ``study.db`` in the run folder.
        artifacts: where drivers on several machines share files, as fsspec spells it (s3://…);
            None keeps them in the run folder.
        study: name in the storage; None means the run folder's name.
        workers: processes that evaluate; None means one per usable core.
        pool: "ray", "process" or "inline".
        address: Ray cluster to join; None starts one on this machine.
        seed: of the sampler and of synthetic data.
        metric: what the search maximises; None means top1 with labels and sqnr without. A cost is
            minimised among what keeps its accuracy.
        minimize: costs beside the metric, for a Pareto front: size, bit_operations, latency (of the
            module as C, measured), hw_….
        max_size: most bytes (or "2M") of packed weights; modules that have more do not win.
        at_most: most that other costs may be, as pairs: (("hw_groups", 39.0), ("latency", 5.0)).
        space: file that says what is searched, or the mapping it would hold; None is what
            ``doctor --space-out`` writes.
        patience: trials in a row without a better one that end the search; None never ends it.
        prune: chance that a trial as good as the best so far is stopped early as worse; 0 stops
            none; None is 0.05, and 0 for samplers that look at no history.
        hw: hardware description (opu_q, npu, a file) whose cost every trial is scored with.
        max_drop: accuracy that may be lost before the command ends with exit code 1.
        judge: "grid" (the integers that ship) or "simulated" (the float simulation).
        allow_float: let partition_conversions be searched too.
        preprocess: file that says how an image becomes the model's input.
        dim: sizes of symbolic dimensions of the model's inputs.
        sampler: name in ``qsearch.search.optuna_study``.
        batch: trials proposed at a time, on the knowledge of all earlier ones; None means 4, or
            one per worker where there are more.
        passes: own compiler passes on the float model: names, or ``module:Class``.
        worker_cpus: cores, and threads of numeric libraries, of a worker.
        worker_gpus: GPUs that a Ray cluster sets aside for a worker.
        worker_memory: bytes (or "2G") that Ray sets aside for a worker, or that a process may use.
        trial_timeout: seconds after which a worker that does not answer counts as dead.
    """

    model: str = ""
    calib: str | None = None
    eval: str | None = None
    out: str | None = None
    trials: int = 32
    timeout: float | None = None
    storage: str | None = None
    artifacts: str | None = None
    study: str | None = None
    workers: int | None = None
    pool: str = "ray"
    address: str | None = None
    seed: int = 0
    metric: str | None = None
    minimize: tuple[str, ...] = ()
    max_size: int | None = None
    at_most: tuple[tuple[str, float], ...] = ()
    space: str | Mapping[str, Any] | None = None
    patience: int | None = None
    prune: float | None = None
    hw: str | None = None
    max_drop: MaxDrop = MaxDrop(0.01)
    judge: str = "grid"
    allow_float: bool = False
    preprocess: str | None = None
    dim: tuple[tuple[str, int], ...] = ()
    sampler: str = "auto"
    batch: int | None = None
    passes: tuple[str, ...] = ()
    worker_cpus: float = 1.0
    worker_gpus: float = 0.0
    worker_memory: int | None = None
    trial_timeout: float = 3600.0
    dry_run: bool = False
    fresh: bool = False
    json: bool = False
    verbosity: int = 0

    @property
    def worker_count(self) -> int:
        """Workers: as told, or one per core this process may use."""
        if self.pool == "inline":
            return 1
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def batch_size(self) -> int:
        """Trials proposed at a time: as told, or enough for all workers."""
        return self.batch or max(4, self.worker_count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as reports and ``config.resolved.yaml`` hold them; passwords are hidden."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["max_drop"] = str(self.max_drop)
        values["dim"] = dict(self.dim)
        values["passes"] = list(self.passes)
        values["minimize"] = list(self.minimize)
        values["at_most"] = dict(self.at_most)
        if self.storage is not None:
            values["storage"] = _PASSWORD.sub(r"\1***@", self.storage)
        return values


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the source of each value: "flag", "environment", "file" or "default"."""

    settings: Settings
    sources: Mapping[str, str]


def resolve(
    flags: Mapping[str, Any],
    *,
    config_file: str | Path | None = None,
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
    names = {field.name for field in fields(Settings)}
    values: dict[str, Any] = {}
    sources = dict.fromkeys(names, "default")
    layers = (
        ("file", read_config_file(config_file) if config_file is not None else {}),
        ("environment", _from_environment(environment, names)),
        ("flag", {key: value for key, value in flags.items() if value is not None}),
    )
    for source, layer in layers:
        for raw_key, raw in layer.items():
            key = raw_key.replace("-", "_")
            where = _PLACES[source](raw_key, config_file)
            if key not in names:
                raise SettingsError(
                    f"unknown setting {raw_key!r}", where=where, fix=legal_names(key, names)
                )
            if raw is None:
                continue
            values[key] = _convert(key, raw, where)
            sources[key] = source
    settings = Settings(**values)
    _check_together(settings)
    return Resolved(settings, sources)


def _check_together(settings: Settings) -> None:
    """Refuse values that are legal alone.

    Raises:
        SettingsError: two of them exclude each other.
    """
    if settings.address is not None and settings.pool != "ray":
        raise SettingsError(
            f"the pool {settings.pool} joins no cluster",
            where=f"--address {settings.address}",
            fix="--pool ray, or leave --address out",
        )
    if settings.worker_gpus and settings.pool != "ray":
        raise SettingsError(
            f"the pool {settings.pool} sets no GPU aside",
            where="--worker-gpus",
            fix="--pool ray, or leave --worker-gpus out",
        )
    if settings.metric in settings.minimize:
        raise SettingsError(
            f"{settings.metric} is the metric already",
            where="--minimize",
            fix="leave it out there, or choose another --metric",
        )


_PLACES: Final[Mapping[str, Callable[[str, Any], str]]] = {
    "file": lambda _, config_file: str(config_file),
    "environment": lambda key, _: ENVIRONMENT_PREFIX + key.upper(),
    "flag": lambda key, _: "--" + key.replace("_", "-"),
}


def _from_environment(
    environment: Mapping[str, str] | None, names: set[str]
) -> dict[str, str | None]:
    variables = os.environ if environment is None else environment
    known = {ENVIRONMENT_PREFIX + name.upper() for name in names}
    for variable in sorted(v for v in variables if v.startswith(ENVIRONMENT_PREFIX)):
        # Others may have variables of this prefix; one that nearly is a setting is misspelled.
        nearest = difflib.get_close_matches(variable, known, n=1, cutoff=_MISSPELLED)
        if variable not in known and nearest:
            raise SettingsError(
                f"unknown variable {variable}",
                where="environment",
                fix=f"did you mean {nearest[0]}? Else unset it",
            )
    return {
        name: variables[ENVIRONMENT_PREFIX + name.upper()]
        for name in sorted(names)
        if variables.get(ENVIRONMENT_PREFIX + name.upper())
    }


def _convert(key: str, raw: Any, where: str) -> Any:
    try:
        return _CONVERTERS[key](raw)
    except SettingsError:
        raise
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{key} cannot be {raw!r}: {error}",
            where=where,
            fix=f"see --{key.replace('_', '-')} in qsearch launch --help",
        ) from error


def _text(raw: Any) -> str:
    if isinstance(raw, str | os.PathLike):
        text = os.fspath(raw)
        if isinstance(text, str) and text:
            return text
    raise ValueError("expected a text that is not empty")


def _space(raw: Any) -> str | dict[str, Any]:
    if not isinstance(raw, Mapping):
        return _text(raw)
    plain: dict[str, Any] = json.loads(json.dumps(dict(raw), allow_nan=False))
    return plain


def _number_from(low: int) -> Callable[[Any], int]:
    def convert(raw: Any) -> int:
        expected = ValueError(f"expected a whole number >= {low}")
        if isinstance(raw, bool) or (isinstance(raw, float) and raw != int(raw)):
            raise expected
        try:
            number = int(raw)
        except (TypeError, ValueError) as error:
            raise expected from error
        if number < low:
            raise expected
        return number

    return convert


def _number(raw: Any, expected: str) -> float:
    """A finite number.

    Raises:
        ValueError: it is none; ``expected`` says what would be right.
    """
    try:
        number = float(raw)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected {expected}") from error
    if isinstance(raw, bool) or not math.isfinite(number):
        raise ValueError(f"expected {expected}")
    return number


def _seconds(raw: Any) -> float:
    seconds = _number(raw, "seconds > 0")
    if not seconds > 0:
        raise ValueError("expected seconds > 0")
    return seconds


def _truth(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    word = str(raw).strip().lower()
    if word not in words:
        raise ValueError("expected true or false")
    return words[word]


def _choice(key: str, legal: tuple[str, ...]) -> Callable[[Any], str]:
    def convert(raw: Any) -> str:
        if raw not in legal:
            raise SettingsError(
                f"{key} cannot be {raw!r}", where=key, fix=legal_names(str(raw), legal)
            )
        return str(raw)

    return convert


def _choice_or_path(key: str, legal: tuple[str, ...]) -> Callable[[Any], str]:
    choose = _choice(key, legal)
    return lambda raw: raw if isinstance(raw, str) and is_import_path(raw) else choose(raw)


def _from_zero(raw: Any) -> float:
    number = _number(raw, "a number >= 0")
    if not number >= 0:
        raise ValueError("expected a number >= 0")
    return number


def _rate(raw: Any) -> float:
    number = _from_zero(raw)
    if number >= 1:
        raise ValueError("expected a chance from 0 to below 1, such as 0.05")
    return number


def _costs(raw: Any) -> tuple[str, ...]:
    words = raw.replace(",", " ").split() if isinstance(raw, str) else list(raw)
    choose = _choice("minimize", COSTS)
    return tuple(dict.fromkeys(choose(word) for word in words))


def _limits(raw: Any) -> tuple[tuple[str, float], ...]:
    legal = tuple(name for name in COSTS if name != "size")
    found = {}
    for name, value in _pairs(raw):
        if name == "size":
            raise ValueError("size has a limit of its own, --max-size")
        cost = _choice("at_most", legal)(name)
        found[cost] = _number(value, f"a number for {name}, such as 39")
        if found[cost] < 0:
            raise ValueError(f"no module has a {name} below 0")
    return tuple(sorted(found.items()))


def parse_bytes(raw: Any) -> int:
    """A number of bytes, or one with K, M, G or T behind it (powers of 1024)."""
    text = str(raw).strip().upper().removesuffix("B").removesuffix("I")
    power = "KMGT".find(text[-1:]) + 1 if text else 0
    number = _number(text[:-1] if power else text, "a size > 0, such as 2G")
    if not number > 0:
        raise ValueError("expected a size > 0, such as 2G")
    return int(number * 1024**power)


def _words(raw: Any) -> tuple[str, ...]:
    words = raw.split(";") if isinstance(raw, str) else list(raw)
    return tuple(_text(word.strip()) for word in words)


def parse_max_drop(raw: Any) -> MaxDrop:
    """``0.01`` is absolute, ``1%`` relative to the baseline."""
    if isinstance(raw, MaxDrop):
        return raw
    text = str(raw).strip()
    relative = text.endswith("%")
    expected = "a drop of 0..1 (0.01) or 0..100% (1%)"
    amount = _number(text.removesuffix("%"), expected) / (100 if relative else 1)
    if not 0 <= amount <= 1:
        raise ValueError(f"expected {expected}")
    return MaxDrop(amount, relative)


def parse_dims(raw: Any) -> tuple[tuple[str, int], ...]:
    """``NAME=N`` words, or a mapping, as sorted pairs."""
    return tuple(sorted((name, _number_from(1)(size)) for name, size in _pairs(raw)))


def _pairs(raw: Any) -> list[tuple[str, Any]]:
    """``NAME=N`` words, pairs or a mapping as pairs."""
    if isinstance(raw, Mapping):
        return [(str(name), value) for name, value in raw.items()]
    words = raw.split(",") if isinstance(raw, str) else list(raw)
    pairs = []
    for word in words:
        if not isinstance(word, str):
            name, value = word
        else:
            name, equals, value = word.partition("=")
            if not equals:
                raise ValueError(f"expected NAME=N, got {word!r}")
        pairs.append((str(name).strip(), value))
    return pairs


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "model": _text,
    "calib": _text,
    "eval": _text,
    "out": _text,
    "trials": _number_from(1),
    "timeout": _seconds,
    "storage": _text,
    "artifacts": _text,
    "study": _text,
    "workers": _number_from(1),
    "pool": _choice("pool", POOLS),
    "address": _text,
    "seed": _number_from(0),
    "metric": _choice_or_path("metric", METRICS),
    "minimize": _costs,
    "max_size": parse_bytes,
    "at_most": _limits,
    "space": _space,
    "patience": _number_from(1),
    "prune": _rate,
    "hw": _text,
    "max_drop": parse_max_drop,
    "judge": _choice("judge", JUDGES),
    "allow_float": _truth,
    "preprocess": _text,
    "dim": parse_dims,
    "sampler": _choice_or_path("sampler", SAMPLERS),
    "passes": _words,
    "worker_cpus": _from_zero,
    "worker_gpus": _from_zero,
    "worker_memory": parse_bytes,
    "trial_timeout": _seconds,
    "batch": _number_from(1),
    "dry_run": _truth,
    "fresh": _truth,
    "json": _truth,
    "verbosity": int,
}
