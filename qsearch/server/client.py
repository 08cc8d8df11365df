"""``qsearch.Client``: uploads, submits, watches and downloads; everything is checked on this side.

Only the standard library speaks to the server, so that a program that submits loads little.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

from qsearch.data.prepared_data import check_exists
from qsearch.errors import SearchError, SearchFailedError, SettingsError
from qsearch.opening.frameworks import model_file
from qsearch.opening.model_file import SHIPPED
from qsearch.run.run_folder import FOLDER_NAMES, PathLike, is_folder_name
from qsearch.server.connection import (
    Connection,
    NotFoundError,
    ServerError,
    UnavailableError,
    UnreachableError,
    Whole,
)
from qsearch.server.packing import check_target, data_file, given_settings, part_of, sent_model
from qsearch.server.submission import NAMES, PLACES
from qsearch.server.uploads import HIDDEN

if TYPE_CHECKING:
    from qsearch.commands.verification import Verification

T = TypeVar("T")

API: Final = "2."
"""Prefix of the API versions that this client supports."""
POLL_S: Final = 1.0
AWAY_S: Final = 60.0
"""Seconds for which ``wait`` waits for a server that does not answer, for it may be restarting."""
log = logging.getLogger("qsearch.client")
_ENDED: Final = ("done", "failed", "cancelled")
_PAGE: Final = 500


class Client:
    """A server of studies, started with ``qsearch serve``.

    Every method raises ServerError where the server refuses, with what, where and fix, and
    UnreachableError: no server answers.

    Args:
        url: as the server printed it: http://host:8090.
        token: of a user; None is QSEARCH_TOKEN.
        timeout_s: seconds in which a connection has to move.
    Example::

        client = qsearch.Client("http://gpu-box:8090", token="qs_…")
        job = client.submit("m.onnx", calib="calib.npz", trials=64)
        if client.wait(job["name"])["state"] == "done":
            client.download(job["name"], "m.qmod")
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 60.0) -> None:
        token = token or os.environ.get("QSEARCH_TOKEN") or None
        self._server = Connection(url, token, timeout_s)
        self.url = self._server.url

    def me(self) -> dict[str, Any]:
        """The user of the token, and the user's rights and limit."""
        found = self._server.ask("/me")
        if not str(found["api"]).startswith(API):
            raise UnreachableError(
                f"the server speaks version {found['api']}, and this client {API}x",
                where=self.url,
                fix="use the version of qsearch that the server has",
            )
        return found

    # Submitting -----------------------------------------------------------------------------------

    def submit(
        self,
        model: Any,
        *,
        calib: Any = None,
        eval: Any = None,
        trials: int | None = None,
        study: str | None = None,
        config: PathLike | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Upload the files that the server lacks and queue a study; the same call continues it.

        Args:
            model: path of an ONNX file, a shipped model ("digits"), a ModelProto, or its bytes.
            calib, eval: a path (.npz, .npy, folder of images), or arrays as ``launch`` takes them.
            trials: of the study in total.
            study: its name on the server; None makes one from the model's.
            config: configuration file with the names of the flags.
            settings: further settings of ``qsearch.launch``; not those about places and own code.
        Returns:
            The job: ``name``, ``state``, ``position``, … as ``job`` gives it.
        Raises:
            CompilerError: what ``launch`` would refuse is refused here, before anything is sent.
        """
        if study is not None:
            _quoted(study)
        with tempfile.TemporaryDirectory(prefix="qsearch-submit-") as folder:
            model, calib = model_file(model, calib, Path(folder))
            file, stem = sent_model(model, Path(folder))
            given = {"calib": calib, "eval": eval}
            paths = {n: v for n, v in given.items() if isinstance(v, str | os.PathLike)}
            flags = {"model": str(file), "trials": trials, **paths, **settings}
            wanted = given_settings(flags, config)
            if places := sorted(PLACES & settings.keys()):
                raise SettingsError(
                    f"{places[0]} is the server's to choose",
                    where=f"submit({places[0]}=…)",
                    fix="leave it out; `download` fetches the module",
                )
            # A file may name the data as well.
            data = {name: wanted.pop(name, None) for name in given}
            data |= {name: value for name, value in given.items() if value is not None}
            for name, value in data.items():
                if isinstance(value, str | os.PathLike):
                    check_exists(os.fspath(value), name)
            self._check_may_submit()
            wanted["model"] = str(file) if str(file) in SHIPPED else self.upload(file)
            for name, value in data.items():
                if value is not None:
                    wanted[name] = self.upload(data_file(value, name, file, wanted, Path(folder)))
        names = {n: Path(p).name for n, p in data.items() if isinstance(p, str | os.PathLike)}
        names["model"] = Path(model).name if isinstance(model, str | os.PathLike) else file.name
        names = {n: re.sub(rf"[\\\t\n{HIDDEN}]", "_", name) for n, name in names.items()}
        asked = {**wanted, "name": study, "stem": stem, NAMES: names}
        return self._server.ask("/studies", asked)

    def upload(self, path: PathLike) -> str:
        """Send a file unless the server has it from this user; its reference, ``SHA256.KIND``."""
        file = Path(path)
        kind = file.suffix.lower().removeprefix(".")
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            with contextlib.suppress(NotFoundError):
                self._server.ask(f"/uploads/{digest}?kind={kind}")
                return f"{digest}.{kind}"
            stream.seek(0)
            size = os.fstat(stream.fileno()).st_size
            try:
                self._server.send(f"/uploads?kind={kind}", stream, size)
            except ServerError as error:
                # Of several files, which one: the server knows no names.
                error.add_note(f"file: {file.name}: {size} bytes")
                raise
        return f"{digest}.{kind}"

    def uploads(self) -> list[dict[str, Any]]:
        """List the uploads of this user: ``upload``, ``kind``, ``bytes``."""
        return self._server.listed("/uploads")

    def forget_upload(self, sha256: str) -> None:
        """Delete an upload that no unfinished study needs."""
        self._server.ask(f"/uploads/{quote(sha256, safe='')}/delete", {})

    # Watching -------------------------------------------------------------------------------------

    def queue(self) -> list[dict[str, Any]]:
        """Jobs that run, that wait in their order, and the last that ended."""
        return self._server.listed("/jobs")

    def job(self, name: str) -> dict[str, Any]:
        """One job: ``state``, ``position``, ``error``, ``exit_code``, ``study``, …"""
        return self._server.ask(f"/jobs/{_quoted(name)}")

    def studies(self, name: str | None = None) -> list[dict[str, Any]]:
        """One row per study that has begun, or the one of a name; columns as ``qsearch.status``."""
        if name is not None:
            return [_study_row(self.status(name))]
        found = self._server.ask("/studies?limit=100")["studies"]
        return [_study_row(study) for study in found]

    def status(self, name: str) -> dict[str, Any]:
        """Return the standing of a study: ``finished``, ``target_trials``, ``best``, ``verdict``,
        ``phase``."""
        return self._server.ask(f"/studies/{self._key(name)}")

    def trials(
        self, name: str, filter: str = "", sort: str = "number", limit: int | None = None
    ) -> list[dict[str, Any]]:
        """One row per trial, with the columns of ``qsearch.trials`` and its arguments."""
        from qsearch.report.listing import with_all_columns

        rows: list[dict[str, Any]] = []
        path = f"/studies/{self._key(name)}/trials"
        asked = {"filter": filter, "sort": sort, "limit": _PAGE}
        while True:
            page = self._server.ask(f"{path}?{urlencode({**asked, 'offset': len(rows)})}")["rows"]
            rows += [_trial_row(trial) for trial in page]
            if len(page) < _PAGE or len(rows) >= (limit or len(rows) + 1):
                return with_all_columns(rows[:limit])

    def best(self, name: str, number: int | None = None) -> dict[str, Any]:
        """The winner so far, or another trial: scores, parameters, configuration.

        Args:
            number: of the trial that is meant instead.
        Raises:
            SearchFailedError: no trial was completed.
        """
        found = self.status(name)
        if number is None and found["best"] is None:
            raise SearchFailedError(
                f"study {name!r} has no complete trial", where=self.url, fix=found["phase"]
            )
        told: dict[str, Any] = {}
        if number is None:
            number = found["best"]["number"]
            told = {"verdict": found["verdict"]["words"], "luck": found["best"]["luck"]}
        trial = self._server.ask(f"/studies/{found['key']}/trials/{number}")
        told |= {name: trial[name] for name in ("intervals", "qconfig")}
        return {"study": name, **_trial_row(trial), **told, "module": None}

    def events(self, name: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """The history of a study: ``id``, ``kind``, ``trial``, ``data``, ``at``.

        Args:
            after: id of the last event that is known.
        """
        path = f"/studies/{self._key(name)}/events"
        while page := self._server.listed(f"{path}?{urlencode({'after': after, 'limit': 1000})}"):
            yield from page
            after = page[-1]["id"]

    def wait(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        told: Callable[[dict[str, Any], int], None] | None = None,
    ) -> dict[str, Any]:
        """Wait until a job has ended, also while the server restarts.

        Args:
            timeout_s: None waits as long as it takes.
            told: called with the job and the number of finished trials, whenever they change.
        Returns:
            The job.
        Raises:
            UnreachableError: the server was away for a minute, or the time is over.
        """
        if timeout_s is None:
            end = None
        else:
            end = time.monotonic() + timeout_s
        last: tuple[Any, ...] = ()
        while True:
            job, finished = self._patiently(lambda: self._progress(name))
            now = (job["state"], job["position"], finished)
            if told is not None and now != last:
                told(job, finished)
            last = now
            if job["state"] in _ENDED:
                return job
            if end is not None and time.monotonic() > end:
                raise UnreachableError(
                    f"study {name!r} is {job['state']} after {timeout_s:g} s",
                    where=self.url,
                    fix="wait longer; it goes on without you",
                )
            time.sleep(POLL_S)

    # Changing and taking --------------------------------------------------------------------------

    def cancel(self, name: str) -> dict[str, Any]:
        """End a job; a running one first writes the best module so far."""
        return self._server.ask(f"/jobs/{_quoted(name)}/cancel", {})

    def command(self, name: str, kind: str) -> int:
        """Send ``stop``, ``pause`` or ``resume`` to the drivers of a study; how many read it."""
        path = f"/studies/{self._key(name)}/commands"
        return int(self._server.ask(path, {"kind": kind})["listening"])

    def try_qconfig(self, name: str, fields: Mapping[str, Any], trial: int | None = None) -> int:
        """Have a configuration evaluated next; how many drivers read it.

        Args:
            fields: those that differ from ``trial``, or from where the search starts.
        """
        path = f"/studies/{self._key(name)}/tries"
        wish = {"trial": trial, "fields": dict(fields)}
        return int(self._server.ask(path, wish)["listening"])

    def download(self, name: str, path: PathLike) -> Verification:
        """Fetch the winner's module and verify it here; a file that is refuted is not kept.

        Args:
            path: where the .qmod is written.
        Returns:
            What was proved on this machine.
        Raises:
            SearchFailedError: it is refuted, and floats were not asked for.
            SettingsError, RunFolderError: it cannot be written there.
        """
        from qsearch.commands.verification import verify

        target = check_target(path)
        job = self.job(name)
        with (
            self._server.open(f"/studies/{self._key(name)}/files/best.qmod") as answer,
            part_of(target) as part,
        ):
            with part.open("wb") as stream:
                shutil.copyfileobj(Whole(answer, self.url), stream)
            found = verify(part)
            if not found.acceptable() and not job["settings"].get("allow_float"):
                why = "; ".join(str(finding) for finding in found.findings[:3])
                raise SearchFailedError(
                    f"the module of {name!r} is refuted: {why or found.record}",
                    where=self.url,
                    fix="do not use it; tell the server's operator",
                )
        return replace(found, path=Path(path))

    # Asking ---------------------------------------------------------------------------------------

    def _check_may_submit(self) -> None:
        me = self.me()
        if me["may"] != "submit" or me["queue"] is None:
            raise ServerError(
                "the server has no queue"
                if me["queue"] is None
                else f"the token of {me['name']} may read, and submit nothing",
                where=self.url,
                fix="ask its operator: qsearch serve"
                if me["queue"] is None
                else "ask its operator for one: qsearch token NAME --may submit",
            )

    def _key(self, name: str) -> str:
        """The key of a study in addresses."""
        job = self.job(name)
        if job["study"] is None and job["error"] is not None:
            why = job["error"]
            raise SearchError(
                f"study {name!r} is {job['state']}, and has no trials: {why['what']}",
                where=why["where"] or self.url,
                fix=why["fix"],
            )
        if job["study"] is None:
            starts = job["state"] == "running"
            if starts:
                why = "its driver is just starting"
            else:
                why = f"it is {job['state']}"
            if starts:
                fix = "try again in some seconds"
            else:
                fix = "wait; `qsearch queue` tells its place"
            raise SearchError(f"study {name!r} has not begun: {why}", where=self.url, fix=fix)
        return str(job["study"])

    def _progress(self, name: str) -> tuple[dict[str, Any], int]:
        job = self.job(name)
        key = job["study"]
        return job, 0 if key is None else self._server.ask(f"/studies/{key}")["finished"]

    def _patiently(self, ask: Callable[[], T]) -> T:
        end = time.monotonic() + AWAY_S
        told = False
        while True:
            try:
                return ask()
            except (UnreachableError, UnavailableError) as error:
                if not told:
                    log.warning("%s; asking again for %g s", error.what, AWAY_S)
                told = True
                if time.monotonic() > end:
                    raise UnreachableError(
                        f"the server went away: {error.what}",
                        where=self.url,
                        fix="what runs there goes on; run the same command when it is back",
                    ) from error
            time.sleep(POLL_S)


def _quoted(name: str) -> str:
    """The name of a study in an address.

    Raises:
        SettingsError: no study can have it.
    """
    if not is_folder_name(name):
        raise SettingsError(
            f"{name!r} is no name for a study", where="--study", fix=f"use {FOLDER_NAMES}"
        )
    return quote(name, safe="")


def _trial_row(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial of the API as a row of ``qsearch.trials``."""
    own = ("samples", "from_store", "attempts", "seconds", "error")
    head = {name: trial[name] for name in ("number", "state", "stage")}
    score = trial["score"] or {}
    rest = {name: trial[name] for name in own}
    return {**head, **score, "params": trial["params"], **rest}


def _study_row(study: dict[str, Any]) -> dict[str, Any]:
    """A study of the API as a row of ``qsearch.status``."""
    best = study["best"]
    return {
        "study": study["name"],
        "model": study["model"],
        "state": study["state"],
        "stopped": study["stopped"],
        "trials": f"{study['finished']}/{study['target_trials']}",
        "metric": study["measure"]["name"],
        "best": None if best is None else best["value"],
        "best_trial": None if best is None else best["number"],
        "drivers": study["listening"],
    }
