"""Experiment trackers: MLflow and W&B, each as one callback of trials that knows the run around it.

Each callback runs in a thread of its own: a server that is slow or gone delays no trial. Failed
trials and interrupted runs are written, too.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from compiler.errors import raised_as
from qsearch.errors import SettingsError
from qsearch.masking import masked
from qsearch.store.records import Trial

STATES: Final = ("end", "failed", "interrupted")
CLOSE_S: Final = 60.0
"""Seconds that the end of a search waits for each of its trackers."""
_ENDED: Final = ("complete", "pruned", "infeasible")

log = logging.getLogger("qsearch.run.tracking")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a run: its study, settings, command, versions, and the folder of its files."""

    study: str
    settings: Mapping[str, Any]
    command: str
    versions: Mapping[str, str]
    folder: Path


class TrackerCallback(Protocol):
    """Writes the trials of one run, and how the run ended."""

    def __call__(self, trial: Trial) -> None:
        """Write a trial that ended."""

    def end(self, state: str, files: Sequence[Path]) -> None:
        """Write the end of the run, one of ``STATES``, and its files."""


def figures_of(trial: Trial) -> dict[str, float]:
    """The scores of a trial and its seconds, under names that every tracker takes."""
    outcome = trial.outcome
    found = {k.replace(":", "."): v for k, v in (outcome.score or {}).items() if v is not None}
    if outcome.seconds is None:
        return found
    return {**found, "seconds": outcome.seconds}


def tags_of(trial: Trial) -> dict[str, str]:
    """State, stage, hash, and why the trial failed."""
    failure = trial.outcome.failure
    told = {"state": trial.state, "stage": trial.stage, "config_hash": trial.config_hash}
    if failure is None:
        return told
    return {**told, "error": failure.what[:500]}


class MlflowCallback:
    """A run of the study with a nested run for each trial, in the experiment ``qsearch``."""

    def __init__(self, uri: str | None, facts: RunFacts) -> None:
        mlflow: Any = import_module("mlflow")
        self._entities: Any = import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name("qsearch")
        if known:
            self._experiment = known.experiment_id
        else:
            self._experiment = self._client.create_experiment("qsearch")
        tags = {"command": facts.command, **{f"version.{k}": v for k, v in facts.versions.items()}}
        self._run = self._begin(facts.study, tags)
        self._log(self._run, facts.settings, {})

    def __call__(self, trial: Trial) -> None:
        tags = {**tags_of(trial), "mlflow.parentRunId": self._run}
        run = self._begin(f"trial {trial.number}", tags)
        self._log(run, trial.params, figures_of(trial))
        self._client.set_terminated(run, "FINISHED" if trial.state in _ENDED else "FAILED")

    def end(self, state: str, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run, str(file))
        status = dict(zip(STATES, ("FINISHED", "FAILED", "KILLED")))[state]
        self._client.set_terminated(self._run, status)

    def _begin(self, name: str, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self._experiment, run_name=name, tags=dict(tags))
        return str(run.info.run_id)

    def _log(self, run: str, params: Mapping[str, Any], figures: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(
            run,
            metrics=[self._entities.Metric(k, v, now, 0) for k, v in figures.items()],
            params=[self._entities.Param(k, str(v)[:500]) for k, v in params.items()],
        )


class WandbCallback:
    """A run of the project ``qsearch``, or of the given one; ``offline`` keeps it in a folder."""

    def __init__(self, uri: str | None, facts: RunFacts) -> None:
        self._wandb: Any = import_module("wandb")
        offline = uri == "offline"
        self._run = self._wandb.init(
            project="qsearch" if offline or uri is None else uri,
            name=facts.study,
            dir=str(facts.folder),
            mode="offline" if offline else None,
            config={**facts.settings, "command": facts.command, "versions": dict(facts.versions)},
            # Its own process starts slowly on a machine whose cores all search.
            settings=self._wandb.Settings(
                silent=True, console="off", x_service_wait=300, init_timeout=300
            ),
        )

    def __call__(self, trial: Trial) -> None:
        params = {f"params/{name}": value for name, value in trial.params.items()}
        self._run.log({"trial": trial.number, **tags_of(trial), **figures_of(trial), **params})

    def end(self, state: str, files: Sequence[Path]) -> None:
        if files:
            kept = self._wandb.Artifact("qsearch-run", type="run")
            for file in files:
                kept.add_file(str(file))
            self._run.log_artifact(kept)
        self._run.summary["ended"] = state
        self._run.finish(exit_code=STATES.index(state))


_KINDS: Final[Mapping[str, Callable[[str | None, RunFacts], TrackerCallback]]] = {
    "mlflow": MlflowCallback,
    "wandb": WandbCallback,
}


class Trackers:
    """The trackers of a run, a thread for each; a tracker that fails is logged and left.

    Args:
        words: ``mlflow`` or ``wandb``, and behind a colon another server or project than the
            tracker's own choice.
    Raises:
        SettingsError: the tracker's package is not installed.
    """

    def __init__(self, words: Sequence[str], facts: RunFacts) -> None:
        for word in words:
            name = word.partition(":")[0]
            what = f"{name} is not installed"
            fix = f"pip install 'qsearch[{name}]'"
            with raised_as(SettingsError, what, ImportError, where=f"--track {name}", fix=fix):
                import_module("mlflow.entities" if name == "mlflow" else name)
        self._threads = [_TrackerThread(word, facts) for word in words]
        for thread in self._threads:
            thread.start()

    def trial(self, trial: Trial) -> None:
        """Write a trial that ended."""
        for thread in self._threads:
            thread.news.put(trial)

    def end(self, state: str, files: Sequence[Path] = ()) -> None:
        """Write how the run ended, and wait for each tracker, ``CLOSE_S`` at most."""
        for thread in self._threads:
            thread.news.put((state, files))
        for thread in self._threads:
            thread.join(CLOSE_S)


class _TrackerThread(threading.Thread):
    def __init__(self, word: str, facts: RunFacts) -> None:
        super().__init__(name="tracker", daemon=True)
        self.news: queue.Queue[Trial | tuple[str, Sequence[Path]]] = queue.Queue()
        self._word = word
        self._facts = facts

    def run(self) -> None:
        name, _, uri = self._word.partition(":")
        try:
            callback = _KINDS[name](uri or None, self._facts)
            while isinstance(news := self.news.get(), Trial):
                callback(news)
            callback.end(*news)
        except Exception as error:  # whatever a foreign client raises: the search goes on
            told = masked(f"{type(error).__name__}: {error}")
            log.warning("--track %s: %s", masked(self._word), told)
