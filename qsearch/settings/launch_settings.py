"""Settings of ``qsearch launch``: one field says type, bounds, help, flag, variable and key.

``config.resolve`` reads them from flags, QSEARCH_ variables and ``-c`` files; the command line
makes the options of launch from the fields.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from compiler.errors import legal_names, raised_as
from qsearch.errors import SettingsError
from qsearch.masking import masked_values
from workers.metrics.library import LIBRARY
from workers.metrics.registry import (
    by_option,
    cost_options,
    metric_options,
    option_named,
    spellings,
)
from workers.metrics.size import DEFAULT_FORM, FORMS

COSTS: Final = cost_options()
"""Costs that ``--minimize`` may name, and ``--metric`` with less being better."""
METRICS: Final = (*metric_options(), *LIBRARY)
EVALUATORS: Final = ("auto", "engine", "simulated")
DASHBOARD_PORT: Final = 8090
POOLS: Final = ("auto", "process", "ray", "inline")
TRACKERS: Final = ("mlflow", "wandb")
AUTO_PATIENCE: Final = "auto"
SAMPLERS: Final = ("auto", "tpe", "random", "grid")

ENVIRONMENT_PREFIX: Final = "QSEARCH_"
_IMPORT_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

MODEL: Final = "Model and data"
OBJECTIVE: Final = "Objective and limits"
SEARCH: Final = "Search"
WORKERS: Final = "Workers"
STUDY: Final = "Study and files"
OUTPUT: Final = "Output"


@dataclass(frozen=True, slots=True)
class CutAt:
    """Cut of a model by hand, and inputs that are constants.

    Attributes:
        until: nodes or tensors that the core ends with.
        from_: nodes that the core begins with, or tensors that it takes.
        set_input: ``NAME=VALUE`` words, or values by name.
    """

    until: Sequence[str] = ()
    from_: Sequence[str] = ()
    set_input: Sequence[str] | Mapping[str, Any] = ()

    @property
    def constants(self) -> dict[str, Any]:
        """Values by input.

        Raises:
            SettingsError: a word of another form.
        """
        found = {}
        for word in _words(self.set_input):
            name, equals, value = word.partition("=")
            what = f"--set-input needs NAME=VALUE, got {word!r}"
            fix = "give a number, true, false or a list, for example sr=16000"
            with raised_as(SettingsError, what, ValueError, where="set-input", fix=fix):
                found[name] = json.loads(value.lower() if equals else "")
        return found


NO_CUT: Final = CutAt()


@dataclass(frozen=True, slots=True)
class Flag:
    """Form of a setting on the command line; a field without one has no flag of its own.

    Attributes:
        panel: heading in ``--help``.
        metavar: what stands for the value; legal words are separated by ``|``. "" is a switch.
        words: legal words, where the metavar does not name them.
        also: further spellings.
        repeatable: each use adds a value.
        expected: what the value is, for messages; the bounds of the field are added.
        everyday: shown by ``--help``; others by ``--help-all`` only.
    """

    panel: str
    metavar: str = ""
    words: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    repeatable: bool = False
    expected: str = ""
    everyday: bool = False


class UnknownWordError(ValueError):
    """A word that is none of the legal ones; ``fix`` names them, the nearest first."""

    def __init__(self, word: object, legal: Collection[str]) -> None:
        super().__init__(f"{word!r} is unknown")
        printed = [name for name in spellings() if option_named(name) in legal]
        self.word = str(word)
        self.fix = legal_names(str(word), legal, printed)


def one_of(raw: Any, legal: Collection[str], or_import_path: bool = False) -> str:
    """Return one of these words, given in any case, or an import path of the user's own code.

    Measures may be called as they are printed: ``model_bytes`` is ``size``.

    Raises:
        UnknownWordError: another word.
    """
    if isinstance(raw, str) and or_import_path and is_import_path(raw):
        return raw
    words = {word.lower(): word for word in legal}
    for word in (str(raw).lower(), option_named(str(raw)).lower()):
        if word in words:
            return words[word]
    raise UnknownWordError(raw, legal)


def is_import_path(text: str) -> bool:
    """Return whether ``text`` looks like ``module:name``."""
    return _IMPORT_PATH.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class MaxDrop:
    """Accuracy that may be lost: ``amount`` absolute (0..1), or a fraction of the baseline."""

    amount: float
    relative: bool = False

    def floor(self, baseline: float) -> float:
        """Least score that still counts as kept, both as fractions 0..1."""
        return baseline - self.amount * (baseline if self.relative else 1.0)

    def __str__(self) -> str:
        if self.relative:
            return f"{self.amount * 100:g}%"
        return f"{self.amount:g}"


# Values as flags, variables and files spell them --------------------------------------------------


def _text(raw: Any) -> str:
    if isinstance(raw, str | os.PathLike):
        text = os.fspath(raw)
        if isinstance(text, str) and text:
            return text
    raise ValueError("expected a text that is not empty")


def _number(raw: Any) -> Any:
    """Leave a number or its text to pydantic; True is no number here."""
    if isinstance(raw, bool):
        return None
    return raw


def metric_named(raw: Any) -> str:
    """An option, a word of the library as where it is, or an import path."""
    word = one_of(raw, (*metric_options(), *LIBRARY), or_import_path=True)
    return LIBRARY.get(word, word)


def _finite(raw: Any, expected: str, fits: Callable[[float], bool] = math.isfinite) -> float:
    with contextlib.suppress(TypeError, ValueError):
        number = float(_number(raw))
        if math.isfinite(number) and fits(number):
            return number
    raise ValueError(f"expected {expected}")


def _count(raw: Any, expected: str) -> int:
    return int(_finite(raw, expected, lambda number: number >= 1 and number.is_integer()))


def parse_bytes(raw: Any) -> int:
    """A number of bytes, or one with K, M, G or T behind it (powers of 1024)."""
    text = str(raw).strip().upper().removesuffix("B").removesuffix("I")
    power = "KMGT".find(text[-1:]) + 1 if text else 0
    text = text[:-1] if power else text
    return int(_finite(text, "a size > 0, such as 2G", lambda size: size > 0) * 1024**power)


def parse_max_drop(raw: Any) -> MaxDrop:
    """``0.01`` is absolute, ``1%`` relative to the baseline."""
    if isinstance(raw, MaxDrop):
        return raw
    text = str(raw).strip()
    relative = text.endswith("%")
    whole = 100 if relative else 1
    expected = "a drop of 0..1 (0.01) or 0..100% (1%)"
    drop = _finite(text.removesuffix("%"), expected, lambda drop: 0 <= drop <= whole)
    return MaxDrop(drop / whole, relative)


def parse_dims(raw: Any) -> tuple[tuple[str, int], ...]:
    """``NAME=N`` words, or a mapping, as sorted pairs."""
    return tuple(sorted((name, _count(size, "a whole number >= 1")) for name, size in _pairs(raw)))


def _pairs(raw: Any) -> list[tuple[str, Any]]:
    """``NAME=N`` words, pairs or a mapping as pairs."""
    if isinstance(raw, Mapping):
        return [(str(name), value) for name, value in raw.items()]
    if isinstance(raw, str):
        words = raw.split(",")
    else:
        words = _list_of(raw)
    pairs = []
    for word in words:
        pair = word.split("=", 1) if isinstance(word, str) else word
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"expected NAME=N, got {word!r}")
        pairs.append((str(pair[0]).strip(), pair[1]))
    return pairs


def _list_of(raw: Any) -> list[Any]:
    if not isinstance(raw, list | tuple | set | frozenset):
        raise ValueError("expected a list")
    return list(raw)


def _costs(raw: Any) -> tuple[str, ...]:
    if isinstance(raw, str):
        words = raw.replace(",", " ").split()
    else:
        words = _list_of(raw)
    return tuple(dict.fromkeys(one_of(word, cost_options()) for word in words))


def _limits(raw: Any) -> tuple[tuple[str, float], ...]:
    legal = [name for name in cost_options() if name != "size"]
    found: dict[str, float] = {}
    for name, value in _pairs(raw):
        if option_named(name) == "size":
            raise ValueError("size has a limit of its own, --max-size")
        cost = one_of(name, legal)
        if by_option(cost).unit == "bytes":
            found[cost] = parse_bytes(value)
        else:
            found[cost] = _finite(value, f"a number for {name}, such as 39")
        if found[cost] < 0:
            raise ValueError(f"no module has a {name} below 0")
    return tuple(sorted(found.items()))


def _space(raw: Any) -> str | dict[str, Any]:
    if not isinstance(raw, Mapping):
        return _text(raw)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(raw), allow_nan=False))
    except TypeError as error:  # a date, a set, or a key that is no text
        raise ValueError(f"expected plain values: {error}") from error
    return plain


def _words(raw: Any) -> tuple[str, ...]:
    if isinstance(raw, Mapping):
        raw = [f"{name}={value}" for name, value in raw.items()]
    if isinstance(raw, str):
        words = raw.split(";")
    else:
        words = _list_of(raw)
    return tuple(_text(word.strip() if isinstance(word, str) else word) for word in words)


def _patience(raw: Any) -> int | str:
    if str(raw).strip().lower() == AUTO_PATIENCE:
        return AUTO_PATIENCE
    return _count(raw, "a whole number >= 1, or auto")


def _trackers(raw: Any) -> tuple[str, ...]:
    words = _words(raw)
    for word in words:
        one_of(word.partition(":")[0], TRACKERS)
    return tuple(dict.fromkeys(words))


Text = Annotated[str, BeforeValidator(_text)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Drop = Annotated[MaxDrop, BeforeValidator(parse_max_drop)]
Dims = Annotated[tuple[tuple[str, int], ...], BeforeValidator(parse_dims)]
Metric = Annotated[str, BeforeValidator(metric_named)]
Costs = Annotated[tuple[str, ...], BeforeValidator(_costs)]
Form = Annotated[str, BeforeValidator(partial(one_of, legal=FORMS))]
Limits = Annotated[tuple[tuple[str, float], ...], BeforeValidator(_limits)]
Evaluator = Annotated[str, BeforeValidator(partial(one_of, legal=EVALUATORS))]
Patience = Annotated[int | Literal["auto"] | None, BeforeValidator(_patience)]
Sampler = Annotated[str, BeforeValidator(partial(one_of, legal=SAMPLERS, or_import_path=True))]
Space = Annotated[str | Mapping[str, Any] | None, BeforeValidator(_space)]
Pool = Annotated[str, BeforeValidator(partial(one_of, legal=POOLS))]
Trackers = Annotated[tuple[str, ...], BeforeValidator(_trackers)]


class Settings(BaseModel):
    """All settings of ``qsearch launch``; names are those of the flags, docstrings their help.

    Constructing one reads no environment and no file: ``config.resolve`` does.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )

    model: Text = ""
    """an .onnx file, or `digits`, which ships with the package"""
    calib: Annotated[Text | None, Flag(MODEL, "C", everyday=True)] = None
    """calibration data: .npz, images, sounds, texts or a table (synthetic)"""
    eval: Annotated[Text | None, Flag(MODEL, "E", everyday=True)] = None
    """evaluation data of the same kinds, best with labels (as --calib)"""
    preprocess: Annotated[Text | None, Flag(MODEL, "FILE", everyday=True)] = None
    """how the data become the input: resize, crop, mean, std; tokenizer, states, …"""
    dim: Dims = ()
    """sizes of dimensions that the model leaves open"""
    until: Annotated[Words, Flag(MODEL, "NODE", repeatable=True)] = ()
    """node or tensor that the quantized part ends with; what follows stays in float (chosen where a
    node has no integer form); repeatable"""
    from_: Annotated[Words, Flag(MODEL, "NODE", repeatable=True)] = Field((), alias="from")
    """node that the quantized part begins with, or tensor that it takes; repeatable"""
    set_input: Annotated[Words, Flag(MODEL, "NAME=VALUE", repeatable=True)] = ()
    """an input that is always this value, such as sr=16000; repeatable"""
    passes: Annotated[Words, Flag(MODEL, "P", repeatable=True)] = ()
    """your own pass on the float model, module:Class; repeatable"""
    imports: Annotated[Words, Flag(MODEL, "MODULE", repeatable=True)] = Field((), alias="import")
    """your code, run first: a .py file or a dotted module"""
    metric: Annotated[Metric | None, Flag(OBJECTIVE, "METRIC", METRICS, everyday=True)] = None
    """metric: top1, agreement, sqnr, f1, auc, mae, rmse, r2, map, miou, perplexity, bits, wer, cer,
    psnr, ssim, si_sdr, a cost, or your own, module:name (top1 with labels, else sqnr)"""
    minimize: Annotated[Costs, Flag(OBJECTIVE, "COSTS", COSTS, everyday=True)] = Field(
        (), description=f"costs to minimise, too, for a Pareto front: {', '.join(COSTS)}"
    )
    max_drop: Annotated[Drop, Flag(OBJECTIVE, "D", everyday=True)] = MaxDrop(0.01)
    """accuracy the winner may lose: 0.01, or 1% of the baseline"""
    max_size: Annotated[Bytes | None, Flag(OBJECTIVE, "B", everyday=True)] = None
    """largest size of the winner's constants in bytes: 300k, 2M"""
    for_: Annotated[Form, Flag(OBJECTIVE, "FORM", FORMS, everyday=True)] = Field(
        DEFAULT_FORM,
        alias="for",
        description=f"target format, which sizes and limits refer to: {', '.join(FORMS)}; a core "
        "adds RAM, flash and instruction counts",
    )
    assume_vnni: Annotated[bool, Flag(OBJECTIVE)] = False
    """with --for qdq: only processors with VNNI run the file, whose kernels saturate no sums"""
    at_most: Annotated[Limits, Flag(OBJECTIVE, "COST=N", repeatable=True)] = ()
    """limit of another cost: hw_groups=39, latency=5 (ms), ram=64k, flash=256k; repeatable"""
    hw: Annotated[Text | None, Flag(OBJECTIVE, "FILE|opu|opu_q|npu")] = None
    """group operators for this accelerator, and score every trial with it"""
    measure: Annotated[Text | None, Flag(OBJECTIVE, "ssh://USER@HOST")] = None
    """time every trial on this board, which builds and runs its C: latency and c_latency are its
    CPU milliseconds, and its integers are compared"""
    evaluator: Annotated[Evaluator, Flag(OBJECTIVE, "|".join(EVALUATORS))] = "auto"
    """what scores a candidate: engine runs its integers and needs a C compiler; auto does so too,
    or runs them slower without one; simulated runs the float simulation"""
    allow_float: Annotated[bool, Flag(OBJECTIVE)] = False
    """also try modules with float operators"""
    trials: Annotated[Whole, Flag(SEARCH, "N", everyday=True)] = Field(32, ge=1)
    """trials of the study in total, over all runs"""
    timeout: Annotated[Real | None, Flag(SEARCH, "S", expected="seconds")] = Field(None, gt=0)
    """start no trial after this many seconds"""
    patience: Annotated[
        Patience, Flag(SEARCH, "K|auto", expected="a whole number >= 1, or auto")
    ] = None
    """stop after K trials in a row without improvement; auto: once more trials can hardly help
    (auto where --minimize size has neither --max-drop nor --trials)"""
    prune: Annotated[Real | None, Flag(SEARCH, "A")] = Field(None, ge=0, lt=1)
    """significance level of early stopping; 0 turns it off (0.05; 0 for samplers without
    history)"""
    sampler: Annotated[Sampler, Flag(SEARCH, "|".join(SAMPLERS))] = "auto"
    """what proposes trials; auto: a Gaussian process with TPE"""
    seed: Annotated[Whole, Flag(SEARCH, "S")] = Field(0, ge=0)
    """seed of the sampler and of synthetic data"""
    batch: Annotated[Whole | None, Flag(SEARCH, "N")] = Field(None, ge=1)
    """trials proposed at a time (4, or one per worker)"""
    space: Annotated[Space, Flag(SEARCH, "FILE")] = None
    """the search space; qsearch doctor --space-out writes one"""
    pool: Annotated[Pool, Flag(WORKERS, "|".join(POOLS))] = "auto"
    """where workers run; auto: Ray with --address or RAY_ADDRESS, else processes"""
    workers: Annotated[Whole | None, Flag(WORKERS, "N", everyday=True)] = Field(None, ge=1)
    """number of worker processes (one per core)"""
    address: Annotated[Text | None, Flag(WORKERS, "A")] = None
    """address of a Ray cluster (a new local cluster)"""
    worker_cpus: Annotated[Real, Flag(WORKERS, "N")] = Field(1.0, ge=0)
    """cores per worker, and threads of its numeric libraries"""
    worker_memory: Annotated[Bytes | None, Flag(WORKERS, "B")] = None
    """memory per worker: 2G (no limit)"""
    trial_timeout: Annotated[Real, Flag(WORKERS, "S", expected="seconds")] = Field(3600.0, gt=0)
    """seconds without an answer after which a worker counts as dead"""
    out: Annotated[Text | None, Flag(STUDY, "DIR", also=("-o", "--output"), everyday=True)] = None
    """run folder (runs/<model>)"""
    storage: Annotated[Text | None, Flag(STUDY, "URL")] = None
    """database: sqlite:///… or postgresql://… (study.db in the run folder)"""
    study: Annotated[Text | None, Flag(STUDY, "NAME")] = None
    """name of the study in the storage (that of the run folder)"""
    artifacts: Annotated[Text | None, Flag(STUDY, "URL")] = None
    """where drivers share files, an fsspec URL: s3://… (the run folder)"""
    sign: Annotated[Text | None, Flag(STUDY, "KEY")] = None
    """sign the written module with this private key (qsearch keygen)"""
    fresh: Annotated[bool, Flag(STUDY)] = False
    """begin anew; the earlier study is deleted with the first trial of the new one"""
    try_: Annotated[Words, Flag(SEARCH, "FILE", repeatable=True)] = Field((), alias="try")
    """evaluate this qconfig.json (or k=v,…) before what the sampler proposes; repeatable"""
    keep_failed: Annotated[bool, Flag(STUDY)] = False
    """leave trials that failed in earlier runs, which are else tried again"""
    track: Annotated[Trackers, Flag(STUDY, "mlflow|wandb[:URI]", TRACKERS, repeatable=True)] = ()
    """write trials, command, versions and files to this tracker; URI is a server or folder of
    mlflow, or a project of wandb (or offline); repeatable"""
    dry_run: Annotated[bool, Flag(STUDY, everyday=True)] = False
    """print what would be done, and stop"""
    as_json: Annotated[bool, Flag(OUTPUT, everyday=True)] = Field(False, alias="json")
    """one JSON object as last line of stdout"""
    verbosity: int = 0
    """-1 errors only, 0 warnings, 1 more, 2 everything"""

    @property
    def worker_count(self) -> int:
        """Workers: as set, or one per core this process may use."""
        if self.pool == "inline":
            return 1
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def pool_kind(self) -> str:
        """The pool that ``auto`` stands for: Ray only where the user named a cluster or GPUs."""
        if self.pool != "auto":
            return self.pool
        if self.ray_address is not None:
            return "ray"
        return "process"

    @property
    def ray_address(self) -> str | None:
        """The cluster to join: as set, or for ``auto`` that of RAY_ADDRESS."""
        if self.pool == "auto":
            named = os.environ.get("RAY_ADDRESS")
        else:
            named = None
        return self.address or named or None

    @property
    def batch_size(self) -> int:
        """Trials proposed at a time: as set, or enough for all workers."""
        return self.batch or max(4, self.worker_count)

    @property
    def cut_at(self) -> CutAt:
        """Cut of the model by hand."""
        return CutAt(self.until, self.from_, self.set_input)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as reports and ``config.resolved.yaml`` hold them; passwords are hidden."""
        values = self.model_dump(mode="json", by_alias=True)
        values["max_drop"] = str(self.max_drop)
        values["dim"] = dict(self.dim)
        values["at_most"] = dict(self.at_most)
        found: dict[str, Any] = masked_values(values)
        return found


def names_of_keys() -> dict[str, str]:
    """Key of a file, a flag or a variable -> name of the field."""
    return {field.alias or name: name for name, field in Settings.model_fields.items()}
