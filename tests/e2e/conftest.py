"""Real command lines in real processes, on a network of two layers that is quick to search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from qsearch.store.engine import open_engine
from qsearch.store.records import Trial
from qsearch.store.repository import Repository
from tests.benchmarks.unseen_networks import Network
from tests.e2e.holding import Hold
from tests.qsearch.conftest import postgres_server, postgres_url
from tests.qsearch.quick import QUICK_SPACE

__all__ = ["postgres_server", "postgres_url"]  # fixtures

TIMEOUT_S = 600.0
TRIALS = 8
ALL_TRIALS = ("--trials", str(TRIALS))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file."""
    from tests.e2e.browser import chromium

    with chromium() as found:
        yield found


@dataclass(frozen=True)
class Launch:
    """``qsearch launch`` into one folder."""

    folder: Path
    options: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """Of the command line, behind ``qsearch``."""
        return ["launch", "-o", str(self.folder), "--json", *self.options]

    @property
    def hold(self) -> Hold:
        """Where processes that stand still are told to go on."""
        return Hold(self.folder.with_name(f"{self.folder.name}.held"))

    def start(self, *more: str, held_after: int | None = None) -> subprocess.Popen[str]:
        """A process that searches; after each ``held_after`` trials of its own it stands still."""
        held = {} if held_after is None else self.hold.environment(held_after)
        return subprocess.Popen(
            [sys.executable, "-m", "qsearch", *self.words, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **held},
            start_new_session=True,
        )

    def finish(self, *more: str, code: int = 0) -> dict[str, Any]:
        """Search to the end; the object printed by --json."""
        process = self.start(*more)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, err
        assert "Traceback" not in err
        summary: dict[str, Any] = json.loads(out.splitlines()[-1])
        return summary

    def trials(self) -> list[Trial]:
        """The study's trials as they are stored now."""
        database = self.folder / "study.db"
        if not database.exists():
            return []
        with closing(Repository(open_engine(f"sqlite:///{database}"))) as repository:
            study = repository.find_study(self.folder.name)
            return repository.trials_of(study.id) if study is not None else []

    def finished(self) -> int:
        """How many trials are finished now."""
        return sum(trial.finished for trial in self.trials())

    def wait_until_held(self, process: subprocess.Popen[str]) -> None:
        """Wait until a process that was started with ``held_after`` stands still."""
        end = time.monotonic() + TIMEOUT_S
        while not self.hold.held(process.pid):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "the search does not move"
            time.sleep(0.02)

    def story(self) -> list[Any]:
        """What must be the same however the search was run."""
        return [
            (t.number, t.batch, t.params, t.state, t.outcome.score, t.outcome.outputs_sha256)
            for t in self.trials()
        ]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A convolution and a dense layer, and their images: what is killed is processes."""
    folder = tmp_path_factory.mktemp("small")
    files = {"model": "small.onnx", "calib": "calib.npz", "eval": "eval.npz"}
    made = {word: folder / name for word, name in files.items()}
    network = Network(7)
    features = network.conv(network.input(1, 1, 8, 8), (4, 1, 3, 3))
    classes = network.dense(network("Flatten", features), 4 * 8 * 8, 10)
    onnx.save(network.model(classes), made["model"])
    images = np.random.default_rng(7).normal(size=(96, 1, 1, 8, 8)).astype(np.float32)
    np.savez(made["calib"], x=images[:32, 0])
    session = onnxruntime.InferenceSession(made["model"])
    scores = np.concatenate([session.run(None, {"x": image})[0] for image in images])
    # The clearest of the others: no trial misses its target by chance.
    clear = 32 + np.ptp(np.sort(scores[32:])[:, -2:], axis=1).argsort()[32:]
    np.savez(made["eval"], x=images[clear, 0], labels=scores[clear].argmax(axis=1))
    return made


@pytest.fixture(scope="session")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space of trials that are quick to build: they round no weights one by one."""
    path = tmp_path_factory.mktemp("space") / "space.json"
    fields = {**QUICK_SPACE["fields"], "weight_rounding": ["nearest", "corrected"]}
    path.write_text(json.dumps({"fields": fields}), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def digits(few_digits: Path, space: Path) -> tuple[str, ...]:
    """Options of a launch of the model that ships with the package."""
    return ("--model", "digits", "--calib", str(few_digits), "--space", str(space))


@pytest.fixture(scope="session")
def quickly(small: dict[str, Path], space: Path) -> tuple[str, ...]:
    """Options of a launch whose trials are quick."""
    named = {**small, "space": space}.items()
    return tuple(word for name, path in named for word in (f"--{name}", str(path)))


@pytest.fixture
def launch(tmp_path: Path, quickly: tuple[str, ...]) -> Callable[..., Launch]:
    """``launch("name", "--trials", "8")``: a launch into a folder of this name."""
    return lambda name, *options: Launch(tmp_path / name, (*quickly, *options))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory, quickly: tuple[str, ...]) -> Launch:
    """A search of TRIALS trials that nothing disturbed."""
    done = Launch(tmp_path_factory.mktemp("unbroken") / "small", (*quickly, *ALL_TRIALS))
    done.finish("--pool", "inline")
    return done
