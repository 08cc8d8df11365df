"""Check submissions: the settings of ``launch`` without paths, imports and places.

A server reads nothing but uploads and plain values for its users, and runs no code of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from compiler.errors import CompilerError, check_known, legal_names, raised_as
from compiler.fusion.hardware.description import shipped_descriptions
from qsearch.data.streams import STATES
from qsearch.errors import SettingsError
from qsearch.opening.model_file import SHIPPED
from qsearch.run.run_folder import RunFolder, confined
from qsearch.server.uploads import DATA, MODELS, place_of, references
from qsearch.settings.config import Resolved, check_plain, resolve
from qsearch.settings.launch_settings import Settings, is_import_path, names_of_keys
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Failure, Job
from workers.datasets.preprocess import FIELDS as OF_IMAGES
from workers.metrics.library import LIBRARY

FILES: Final = ("model", "calib", "eval")
"""Settings that name an upload; ``model`` may also be a shipped one."""
NAMES: Final = "files"
"""Key of a submission: the user's names of the uploads, by setting, for messages."""
MAPPINGS: Final = ("space", "preprocess", "hw")
"""Settings that name a file for ``launch``, and hold its content here."""
SUBMITTED: Final = (
    *FILES,
    *MAPPINGS,
    "dim",
    "until",
    "from",
    "set_input",
    "metric",
    "minimize",
    "max_drop",
    "max_size",
    "for",
    "at_most",
    "evaluator",
    "allow_float",
    "trials",
    "timeout",
    "patience",
    "prune",
    "sampler",
    "seed",
    "batch",
    "pool",
    "workers",
    "worker_cpus",
    "worker_memory",
    "trial_timeout",
)
"""Settings that a server accepts; all others name places of its machine, or code."""
PLACES: Final = frozenset(
    ("address", "artifacts", "dry_run", "fresh", "measure", "out", "sign", "storage")
)
"""Settings of ``launch`` that a client refuses where they are given to it."""
PREPARED: Final = (*OF_IMAGES, STATES)
"""Fields of ``preprocess`` that a server takes: those of arrays and folders of images."""
GROWING: Final = ("trials", "timeout", "patience", "workers", "pool", NAMES)
"""Settings that may change when a study is continued: they do not change its results."""
WORKER_CPUS: Final = 64
STUDY_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""Pattern of the name of a study on a server: it is also a folder."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Folder of a server's studies, and its resources.

    Attributes:
        root: the server's folder; what users name lies in ``studies`` below it.
        storage: database of the queue and of all studies; None keeps the queue in ``root`` and
            every study in its run folder.
        max_studies: studies that run at a time.
        workers: most workers of one study, and how many it gets unless it says.
        pools: where workers may run; the first one unless a study says.
        address: Ray cluster of the pool "ray"; None starts one for each study.
        max_memory: bytes that a driver, and each process that it starts, may allocate.
    """

    root: Path
    storage: str | None = None
    max_studies: int = 1
    workers: int = 1
    pools: tuple[str, ...] = ("process",)
    address: str | None = None
    max_memory: int | None = None

    @property
    def queue_url(self) -> str:
        """The database of the queue."""
        return self.storage or f"sqlite:///{(self.root / 'queue.db').absolute()}"

    @property
    def uploads(self) -> Path:
        """Folder of uploads."""
        return self.root / ".uploads"

    @property
    def jobs(self) -> Path:
        """Locks of drivers, and small files that their jobs brought."""
        return self.root / ".jobs"

    @property
    def studies(self) -> Path:
        """The run folders of submitted studies, and nothing else."""
        return self.root / "studies"

    def folder(self, name: str) -> RunFolder:
        """The run folder of a study that is submitted under this name.

        Raises:
            SettingsError: no name for a folder.
        """
        return RunFolder(confined(self.studies, name))

    def folder_of(self, job: Job) -> RunFolder:
        """The run folder of a job; the operator also resumes studies that lie in ``root``."""
        found = self.folder(job.name)
        own = bool(job.settings) or found.path.exists()
        if own:
            return found
        return RunFolder(confined(self.root, job.name))


OPTIONS: Final = TypeAdapter(ServerOptions)
"""Server options as JSON, for the process of a driver."""


def checked(settings: Mapping[str, Any], options: ServerOptions) -> Settings:
    """The settings of a submission, as ``launch`` would check them.

    Args:
        settings: by the names of the flags; files as references of uploads.
    Raises:
        SettingsError: a setting or a value that a server does not take.
    """
    # Before anything is resolved: some settings name code, which that would import.
    for name in settings:
        if name in ("passes", "import"):
            raise _user_code(name)
        if name in SUBMITTED or name == NAMES:
            continue
        if name in names_of_keys():
            raise SettingsError(
                f"a server decides {name} itself", where=f"settings.{name}", fix="leave it out"
            )
        what = f"unknown setting {name!r}"
        check_known(name, SUBMITTED, what, SettingsError, f"settings.{name}")
    given = {n: value for n, value in settings.items() if value is not None and n != NAMES}
    _check_places(given)
    what = "the settings cannot be used"
    with raised_as(SettingsError, what, ValueError, where="settings", fix="give less"):
        check_plain(given)
    # A name of a file in place of what launch reads from one.
    files = {n: f"{n}.json" for n in ("preprocess", "hw") if isinstance(given.get(n), Mapping)}
    found = resolve({**given, **files}, environment={}).settings
    pool = found.pool if "pool" in given else options.pools[0]
    what = f"this server has no pool {pool!r}"
    check_known(pool, options.pools, what, SettingsError, "settings.pool")
    _check_size(found, options.workers)
    return found


def launch_settings(job: Job, options: ServerOptions) -> Resolved:
    """Return the settings for the driver of a job; a job without settings goes on with its run
    folder.

    Raises:
        SettingsError: an upload or a run folder that is no longer there.
    """
    folder = options.folder_of(job)
    flags: dict[str, Any] = {"out": str(folder.path), "storage": options.storage}
    if not job.settings:
        return resolve(flags, config_file=folder.config, environment={})
    flags |= {"study": job.name, "pool": options.pools[0], "workers": options.workers}
    flags |= {name: value for name, value in job.settings.items() if name != NAMES}
    for name, path in _uploaded(job, options).items():
        if not path.exists():
            raise SettingsError(
                "an upload of the study is no longer there", where=str(path), fix="submit it again"
            )
        flags[name] = str(path)
    for name in ("preprocess", "hw"):
        if isinstance(flags.get(name), Mapping):
            path = options.jobs / str(job.id) / f"{name}.json"
            write_atomically(path, json.dumps(flags[name], sort_keys=True).encode())
            flags[name] = str(path)
    if flags["pool"] == "ray":
        flags["address"] = options.address
    return resolve(flags, environment={})


def model_name(job: Job) -> str | None:
    """Return the name of a job's model in reports: the user's name of the file, else that of the
    upload."""
    found = job.settings.get(NAMES, {}).get("model", job.settings.get("model"))
    if found is None:
        return None
    return str(found)


def _uploaded(job: Job, options: ServerOptions) -> dict[str, Path]:
    """Return the paths of a job's uploads, by setting."""
    found = {}
    for name in FILES:
        reference = str(job.settings.get(name))
        if references(reference):
            sha256, _, kind = reference.partition(".")
            found[name] = place_of(options.uploads, sha256, kind)
    return found


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error is, or follows from, memory that was not there."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def failure_of(error: Exception, job: Job, options: ServerOptions) -> Failure:
    """Return the report of an error for the owner of a job: uploads have the names of the user's
    files.

    Paths of the server stay its own.
    """
    if options.max_memory is not None and lacks_memory(error):
        return Failure(
            f"the study needs more than the {options.max_memory >> 20} MiB of memory that this "
            "server gives a process",
            "memory",
            "ask for a smaller --batch or less data, or the server's operator for more: "
            "qsearch serve --max-memory",
        )
    if not isinstance(error, CompilerError):
        return Failure(
            f"unforeseen {type(error).__name__}",
            "the search",
            "the log in its run folder says where",
        )
    names = job.settings.get(NAMES, {})
    shown = {
        str(path): names.get(setting, f"the upload of {setting}")
        for setting, path in _uploaded(job, options).items()
    }
    shown |= {str(Path(path).absolute()): name for path, name in shown.items()}
    shown |= {Path(path).name: name for path, name in shown.items()}
    shown |= {f"{options.root.absolute()}/": "", f"{options.root}/": ""}

    def told(text: str | None) -> str | None:
        for path in sorted(shown, key=len, reverse=True):
            text = None if text is None else text.replace(path, shown[path])
        if text is None:
            return None
        return text[:2000]

    return Failure(told(error.what) or "", told(error.where), told(error.fix))


def _check_places(given: Mapping[str, Any]) -> None:
    """Nothing names a file of the server, or code."""
    model = given.get("model", "")
    if not (references(model) and model.rpartition(".")[2] in MODELS) and model not in SHIPPED:
        raise SettingsError(
            f"{str(model)[:80]!r} is no model of this server",
            where="settings.model",
            fix=f"upload an .onnx file, or name a shipped model: {', '.join(SHIPPED)}",
        )
    for name in ("calib", "eval"):
        word = given.get(name)
        if word is not None and not (references(word) and word.rpartition(".")[2] in DATA):
            raise SettingsError(
                f"{name} names no upload",
                where=f"settings.{name}",
                fix="upload an .npz, an .npy or a zip of images, and give SHA256.KIND",
            )
    for name in MAPPINGS:
        value = given.get(name)
        shipped = name == "hw" and value in shipped_descriptions() if isinstance(value, str) else 0
        if value is not None and not isinstance(value, Mapping) and not shipped:
            raise SettingsError(
                f"{name} is a path, and a server reads none for its users",
                where=f"settings.{name}",
                fix="give the content of the file",
            )
    for field, value in (given.get("preprocess") or {}).items():
        if field not in PREPARED:
            raise SettingsError(
                f"a server does not take {field!r}: it has arrays and folders of images only",
                where="settings.preprocess",
                fix=f"{legal_names(str(field), PREPARED)}; with texts, sounds, tables, boxes or "
                "masks run qsearch launch where they lie",
            )
        if field != STATES:  # names of tensors, which may hold a slash
            _refuse_paths(value, f"settings.preprocess.{field}")
    for name in ("metric", "sampler"):
        value = given.get(name)
        if isinstance(value, str) and is_import_path(value) and value not in LIBRARY.values():
            raise _user_code(name)


def _refuse_paths(value: Any, where: str) -> None:
    """Refuse every text in plain values that could name a file, however deep it lies."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, str) and not one.isalnum():
            raise SettingsError(
                f"{one[:80]!r} is no word or number", where=where, fix="give a word or a number"
            )


def _check_size(found: Settings, workers: int) -> None:
    if (found.workers or 1) > workers:
        raise SettingsError(
            f"a study of this server has {workers} workers at most",
            where="settings.workers",
            fix=f"ask for {workers}, or leave it out",
        )
    if found.worker_cpus > WORKER_CPUS:
        raise SettingsError(
            f"a worker may use {WORKER_CPUS} cores at most",
            where="settings.worker_cpus",
            fix="leave it out",
        )


def _user_code(name: str) -> SettingsError:
    return SettingsError(
        f"{name} names code of yours, and a server runs none",
        where=f"settings.{name}",
        fix="run `qsearch launch` with it on a machine of yours",
    )
