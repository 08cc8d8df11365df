"""Experiment trackers: each trial and the run around it, by each tracker's own client.

A thread of its own talks to them: a server that is slow or gone delays no trial. Trials that failed
and runs that were interrupted are written, too.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from compiler.errors import raised_as
from qsearch.errors import SettingsError
from qsearch.store.records import Trial

STATES: Final = ("end", "failed", "interrupted")
CLOSE_S: Final = 60.0
"""Seconds that the end of a search waits for its trackers."""
_ENDED: Final = ("complete", "pruned", "infeasible")

log = logging.getLogger("qsearch.run.tracking")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a run: its study, settings, command, versions, and where its files are."""

    study: str
    settings: Mapping[str, Any]
    command: str
    versions: Mapping[str, str]
    folder: Path


class Tracker(Protocol):
    """One tracker of one run."""

    def trial(self, trial: Trial) -> None:
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


class MlflowTracker:
    """A run of the study with a nested run for each trial, in the experiment ``qsearch``."""

    def __init__(self, uri: str | None, facts: RunFacts) -> None:
        mlflow: Any = import_module("mlflow")
        self._entities: Any = import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name("qsearch")
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment("qsearch")
        )
        tags = {"command": facts.command, **{f"version.{k}": v for k, v in facts.versions.items()}}
        self._run = self._begin(facts.study, tags)
        self._log(self._run, facts.settings, {})

    def trial(self, trial: Trial) -> None:
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


class WandbTracker:
    """A run of the project ``qsearch``, or of the one that is named; offline where that is said."""

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
        self._rows: list[list[Any]] = []

    def trial(self, trial: Trial) -> None:
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


class TensorboardTracker:
    """A folder of events with one below it for each trial; needs no TensorFlow."""

    def __init__(self, uri: str | None, facts: RunFacts) -> None:
        self._folder = Path(uri) if uri else facts.folder / "tensorboard"
        self._modules = {
            name: import_module(f"tensorboard.{place}")
            for name, place in (
                ("writer", "summary.writer.event_file_writer"),
                ("event", "compat.proto.event_pb2"),
                ("summary", "compat.proto.summary_pb2"),
                ("hparams", "plugins.hparams.summary_v2"),
                ("hparams_data", "plugins.hparams.plugin_data_pb2"),
                ("hparams_about", "plugins.hparams.metadata"),
                ("text", "plugins.text.summary_v2"),
            )
        }
        self._run = self._opened(self._folder)
        self._text("command", facts.command)
        for part in (facts.versions, facts.settings):
            told = "\n".join(f"    {name}: {value}" for name, value in part.items())
            self._text("versions" if part is facts.versions else "settings", told)

    def trial(self, trial: Trial) -> None:
        module = self._modules
        writer = self._opened(self._folder / f"trial-{trial.number:04}")
        params = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in {**trial.params, **tags_of(trial)}.items()
        }
        self._write(writer, module["hparams"].hparams_pb(params))
        summary = module["summary"].Summary()
        for name, value in figures_of(trial).items():
            summary.value.add(tag=name, simple_value=value)
        end = module["hparams_data"].SessionEndInfo(
            status=1 if trial.state in _ENDED else 2, end_time_secs=time.time()
        )
        data = module["hparams_data"].HParamsPluginData(session_end_info=end)
        about = module["hparams_about"]
        summary.value.add(
            tag=about.SESSION_END_INFO_TAG,
            metadata=about.create_summary_metadata(data),
            tensor=about.NULL_TENSOR,
        )
        self._write(writer, summary, trial.number)
        writer.close()

    def end(self, state: str, files: Sequence[Path]) -> None:
        self._text("ended", state)
        self._text("files", "\n".join(f"    {f} ({f.stat().st_size} bytes)" for f in files))
        self._run.close()

    def _opened(self, folder: Path) -> Any:
        return self._modules["writer"].EventFileWriter(str(folder))

    def _text(self, tag: str, text: str) -> None:
        self._write(self._run, self._modules["text"].text_pb(tag, text))

    def _write(self, writer: Any, summary: Any, step: int = 0) -> None:
        event = self._modules["event"].Event(wall_time=time.time(), step=step, summary=summary)
        writer.add_event(event)
        writer.flush()


_KINDS: Final[Mapping[str, Callable[[str | None, RunFacts], Tracker]]] = {
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
    "tensorboard": TensorboardTracker,
}


class Trackers:
    """The trackers of a run, called in a thread; the first error of each is logged, and it is left.

    Args:
        words: ``mlflow``, ``wandb`` or ``tensorboard``, with ``:URI`` behind where it is another
            server, project or folder than the tracker's own choice.
    Raises:
        SettingsError: the tracker's package is not installed.
    """

    def __init__(self, words: Sequence[str], facts: RunFacts) -> None:
        self._queue: queue.Queue[Trial | tuple[str, Sequence[Path]]] = queue.Queue()
        self._words = tuple(words)
        self._facts = facts
        for word in words:
            name = word.partition(":")[0]
            what = f"{name} is not installed"
            fix = f"pip install 'qsearch[{name}]'"
            with raised_as(SettingsError, what, ImportError, where=f"--track {word}", fix=fix):
                import_module("mlflow.entities" if name == "mlflow" else name)
        self._thread = threading.Thread(target=self._serve, name="trackers", daemon=True)
        if words:
            self._thread.start()

    def trial(self, trial: Trial) -> None:
        """Tell of a trial that ended."""
        self._queue.put(trial)

    def end(self, state: str, files: Sequence[Path] = ()) -> None:
        """Tell how the run ended, and wait until the trackers know, a minute at most."""
        if self._thread.is_alive():
            self._queue.put((state, files))
            self._thread.join(CLOSE_S)

    def _serve(self) -> None:
        opened: dict[str, Tracker] = {}
        for word in self._words:
            name, _, uri = word.partition(":")
            with self._errors_logged(word):
                opened[word] = _KINDS[name](uri or None, self._facts)
        while True:
            told = self._queue.get()
            for word in list(opened):
                tracker = opened.pop(word)
                with self._errors_logged(word):
                    if isinstance(told, Trial):
                        tracker.trial(told)
                    else:
                        tracker.end(*told)
                    opened[word] = tracker
            if isinstance(told, tuple):
                return

    @staticmethod
    @contextlib.contextmanager
    def _errors_logged(word: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a foreign client raises: the search goes on
            log.warning("--track %s: %s: %s", word, type(error).__name__, error)
