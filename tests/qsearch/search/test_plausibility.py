"""What is wrong with data shows itself before the search: labels, scales, orders, few samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qsearch
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.measurement import Measurement
from qsearch.cli.main import run
from qsearch.errors import DataError
from qsearch.opening.model_file import find_model
from qsearch.search.calibration import phase_of
from qsearch.search.launch import plan
from qsearch.settings.config import resolve
from workers.errors import DatasetError

pytestmark = pytest.mark.usefixtures("quick_space")

Change = Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]


def arrays() -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(str(find_model("digits").eval)) as data:
        (name,) = (key for key in data.files if key != "labels")
        return data[name], data["labels"]


def data(path: Path, change: Change, name: str = "eval") -> str:
    images, labels = change(*arrays())
    np.savez(path / f"{name}.npz", input=images.astype(np.float32), labels=labels)
    return str(path / f"{name}.npz")


def planned(path: Path, change: Change) -> dict[str, Any]:
    return plan(resolve({"model": "digits", "eval": data(path, change), "out": str(path / "r")}))


def shuffled(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return x, np.random.default_rng(0).permutation(y)


def renamed(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return x, np.random.default_rng(1).permutation(10)[y]


def two_exchanged(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return x, np.array([0, 1, 2, 7, 4, 5, 6, 3, 8, 9])[y]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: (x, y), "none"),
        (lambda x, y: (np.where(x == 0, np.float32(-0.01), x), y), "none"),
        (two_exchanged, "classes in another order than the model: label 3 is 7, 7 is 3"),
        (lambda x, y: (x[y < 9], y[y < 9] + 1), "the labels seem to count from 1: subtract 1"),
        (lambda x, y: (x[y > 0], y[y > 0] - 1), "add 1"),
        (shuffled, "no better than guessing among 10 classes: labels that belong to other"),
        (renamed, "the labels count the classes in another order than the model"),
        (lambda x, y: (np.zeros_like(x), y), "for every sample"),
        (lambda x, y: (x[y == 3], y[y == 3]), "samples have the label 3: top1 is of one class"),
        (lambda x, y: (x[:20], y[:20]), "few evaluation samples"),
        (lambda x, y: (x * 255, y), "and 0 to 255 in the evaluation data: prepare both alike"),
        (lambda x, y: (x * 2 - 1, y), "scaled to 0..1 ((x + 1) / 2) (McNemar's test, p ="),
    ],
)
def test_a_dry_run_names_the_likely_mistake(tmp_path: Path, change: Change, told: str) -> None:
    found = planned(tmp_path, change)
    assert told in found["warnings"]
    assert "top1" in found["float model"]


def test_one_hot_labels_are_told_with_what_to_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels are one-hot: one 1 among 10") as caught:
        planned(tmp_path, lambda x, y: (x, np.eye(10, dtype=np.int64)[y]))
    assert "labels.argmax(1)" in str(caught.value.fix)


def test_a_label_that_is_no_class_is_refused_with_its_sample(tmp_path: Path) -> None:
    images, labels = arrays()
    first = int(np.flatnonzero(labels == 9)[0])
    with pytest.raises(DataError, match=f"sample {first} has the label 10, and the model has 10"):
        planned(tmp_path, lambda x, y: (x, y + 1))
    with pytest.raises(DataError, match="the label 10") as caught:
        qsearch.launch("digits", eval=(images, labels + 1), out=tmp_path / "r", pool="inline")
    assert "subtract 1" in str(caught.value)


def test_the_other_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"NHWC; store input.transpose\(0, 3, 1, 2\)"):
        planned(tmp_path, lambda x, y: (x.transpose(0, 2, 3, 1), y))


def test_launch_warns_once_and_a_resumed_search_repeats_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "--model", "digits", "--eval", data(tmp_path, shuffled)]
    words += ["--pool", "inline", "--max-drop", "1", "-o", str(tmp_path / "run")]
    for trials in ("1", "2"):
        run([*words, "--trials", trials])
        shown = capfd.readouterr()
        assert shown.err.count("no better than guessing") == 1
        assert "no better than guessing" in shown.out


def test_progress_names_the_passes_and_why_data_are_read_again() -> None:
    plain = QConfig.recommended()
    smoothed = plain.with_overrides(smooth_alpha=0.75)
    phase = phase_of(Measurement("ranges", plain, (0.999,)))
    assert phase == "calibration: pass 1 of 2, ranges"
    again = phase_of(Measurement("histograms", smoothed, (0.999,)))
    assert again.startswith(
        "calibration: pass 2 of 2, histograms; again, because smoothing by 0.75"
    )
