"""A user's own metric, sampler, passes, data and callbacks, by object and by import path."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.errors import RunFolderError, SearchFailedError, SettingsError
from qsearch.opening.model_file import find_model
from qsearch.store.records import Trial
from workers.metrics.custom import custom_metric

pytestmark = pytest.mark.usefixtures("quick_space", "few_images")

HERE = Path(__file__).parent


@pytest.fixture
def own_code(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The user's module, importable here and, by the path they inherit, in worker processes."""
    monkeypatch.syspath_prepend(str(HERE))
    import own_code

    yield own_code
    sys.modules.pop("own_code", None)


@pytest.fixture
def digits() -> dict[str, Any]:
    data = np.load(find_model("digits").eval)
    return {name: data[name] for name in data.files}


def search(tmp_path: Path, **options: Any) -> qsearch.SearchResult:
    options = {"trials": 3, "pool": "inline", "sampler": "random", **options}
    return qsearch.launch("digits", out=tmp_path / "run", **options)


@pytest.mark.slow
def test_a_metric_of_ones_own_is_what_the_search_maximises(
    own_code: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = search(tmp_path, metric=own_code.margin)
    path = "own_code:margin"
    scores = [t.outcome.score for t in result.trials if t.outcome.score is not None]
    assert all({path, "margin.margin", "margin.largest"} <= set(score) for score in scores)
    best = result.best_trial.user_attrs["score"]
    assert best[path] == max(score[path] for score in scores)
    assert result.summary["baseline"][path] > 0
    assert best["margin.margin"] == best[path]
    assert f"{path} {best[path]:.4g}" in result.text()
    assert result.summary["best"][path] == best[path]
    (row,) = qsearch.trials(result.folder, sort=f"-{path}", limit=1)
    assert row["margin.largest"] == best["margin.largest"]
    low, high = result.summary["best"]["intervals"][path]
    assert low < best[path] < high
    assert f"{path}_error" not in row
    (compared,) = qsearch.compare([result.folder])
    assert compared[path] == best[path]
    assert run(["best", str(result.folder)]) == 0
    shown = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    assert shown[path] == f"{best[path]:.4f}"
    assert shown["margin.largest"] == f"{best['margin.largest']:.4f}"
    assert f"{path}_error" not in shown


@pytest.mark.slow
def test_a_metric_that_gives_nan_is_no_score(own_code: Any, tmp_path: Path) -> None:
    result = search(tmp_path, metric=own_code.without_number)
    scores = [trial.outcome.score or {} for trial in result.trials]
    assert [score["own_code:without_number"] for score in scores] == [None] * 3
    assert result.summary["baseline"]["own_code:without_number"] == -1.0


@pytest.mark.slow
def test_a_metric_with_a_value_per_sample_is_the_same_on_processes(
    own_code: Any, tmp_path: Path
) -> None:
    here = search(tmp_path / "a", metric=own_code.correct)
    there = search(tmp_path / "b", metric="own_code:correct", pool="process", workers=2)
    ours, theirs = ([t.outcome.score for t in r.trials] for r in (here, there))
    assert ours == theirs
    assert all(s["own_code:correct"] == s["top1"] for s in ours if s is not None)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["inline", "process"])
def test_the_command_finds_own_code_in_the_working_directory(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text("def one(outputs, labels):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["launch", "digits", "--trials", "1", "--pool", pool, "--workers", "1", "-o", "run"]
    try:
        assert run([*words, "-q", "--metric", "beside:one"]) == 0
    finally:
        sys.modules.pop("beside", None)
    assert qsearch.best(Path("run"))["number"] == 0


@pytest.mark.slow
def test_scores_of_an_edited_metric_are_not_mixed_with_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def scores(value: float, folder: str, trials: int = 1) -> list[float]:
        text = f"def one(outputs, labels):\n    return {value}\n"
        (tmp_path / "edited_metric.py").write_text(text)
        sys.modules.pop("edited_metric", None)
        custom_metric.cache_clear()
        storage = f"sqlite:///{tmp_path}/all.db"
        made = search(
            tmp_path / folder,
            metric="edited_metric:one",
            storage=storage,
            study=folder,
            trials=trials,
        )
        return [(t.outcome.score or {})["edited_metric:one"] for t in made.trials]

    assert scores(1.0, "a") == [1.0]
    with pytest.raises(RunFolderError, match="other settings: metric_code"):
        scores(2.0, "a", 2)
    assert scores(2.0, "b") == [2.0], "not from the storage"
    assert scores(1.0, "a", 2) == [1.0, 1.0]


def test_a_metric_that_fails_says_so(own_code: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="own_code:broken failed: RuntimeError: no such column"):
        search(tmp_path, metric=own_code.broken)


def test_what_workers_cannot_import_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="workers cannot import the metric"):
        search(tmp_path, metric=lambda outputs, labels: 0.0, pool="process")
    with pytest.raises(SettingsError, match="no_such_module"):
        search(tmp_path, sampler="no_such_module:sampler")


@pytest.mark.slow
def test_a_sampler_of_ones_own_is_asked_with_a_seed_per_batch(
    own_code: Any, tmp_path: Path
) -> None:
    own_code.SAMPLERS_MADE.clear()
    search(tmp_path, sampler=own_code.my_sampler, trials=6, batch=3)
    assert len(set(own_code.SAMPLERS_MADE)) == len(own_code.SAMPLERS_MADE) == 2


@pytest.mark.slow
def test_a_class_of_samplers_gets_the_seed_by_its_name(own_code: Any, tmp_path: Path) -> None:
    runs = [search(tmp_path / name, sampler="own_code:ShyTPE", trials=4, batch=1) for name in "ab"]
    first, second = ([trial.params for trial in result.trials] for result in runs)
    assert first == second


def test_own_passes_run_before_the_search(own_code: Any, tmp_path: Path) -> None:
    own_code.PASSES_RUN.clear()
    result = search(
        tmp_path, trials=1, passes=["FoldConstant", "own_code:FoldAgain", "own_code:my_pass"]
    )
    assert own_code.PASSES_RUN == ["my_pass"]
    assert len(result.trials) == 1
    with pytest.raises(SettingsError, match="no pass"):
        search(tmp_path / "other", passes=["builtins:dict"])


class Tensor:
    """What a tensor of torch can do, as far as we look."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = array.shape

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.array, dtype)


class Loader:
    """A torch DataLoader: batches of [inputs, labels], a list as its default collation makes."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = inputs, labels

    def __iter__(self) -> Iterator[list[Tensor]]:
        for start in range(0, len(self.inputs), 64):
            part = slice(start, start + 64)
            yield [Tensor(self.inputs[part]), Tensor(self.labels[part])]


@pytest.mark.slow
def test_data_of_other_libraries_is_read_as_it_comes(
    digits: dict[str, Any], tmp_path: Path
) -> None:
    (name,) = set(digits) - {"labels"}
    inputs, labels = digits[name][:128], digits["labels"][:128]
    rows = [{"image": x, "label": int(y)} for x, y in zip(inputs, labels, strict=True)]
    raw = [{"pixels": x * 2, "digit": int(y)} for x, y in zip(inputs, labels, strict=True)]
    kinds = {
        "mapping": {name: inputs, "labels": labels},
        "loader": Loader(inputs, labels),
        "rows": rows,
        "nncf": qsearch.Dataset(raw, lambda row: (row["pixels"] / 2, row["digit"])),
    }
    found = {
        kind: search(tmp_path / kind, trials=1, calib=inputs, eval=data)
        for kind, data in kinds.items()
    }
    scores = [result.trials[0].outcome.score for result in found.values()]
    assert scores[0] is not None
    assert scores[0]["top1"] is not None
    assert all(score == scores[0] for score in scores)


@pytest.mark.slow
def test_callbacks_hear_of_stored_trials_and_can_stop(tmp_path: Path) -> None:
    heard: list[Trial] = []

    def callback(trial: Trial) -> bool:
        heard.append(trial)
        return len(heard) == 2

    result = search(tmp_path, trials=12, callbacks=[callback])
    assert [t.number for t in heard] == [t.number for t in result.trials if t.finished]
    assert 2 <= len(heard) < 12
    assert result.summary["stopped"] == "stopped on request"


def test_a_search_without_a_trial_has_no_best(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(SearchFailedError):
        search(tmp_path, stop=stop)
