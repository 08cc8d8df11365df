"""Labels that are words, texts, or stand for no label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsearch.data.prepared_data import NUMBERS, SEVERAL, Judged, open_data
from qsearch.errors import DataError
from workers.datasets.protocol import NO_LABEL, InputSpec
from workers.datasets.registry import open_dataset
from workers.errors import DatasetError
from workers.metrics.library import LIBRARY
from workers.metrics.registry import MetricSums

SPEC = (InputSpec("x", (1, 2), "float32"),)
ROWS = np.zeros((6, 2), np.float32)


def opened(folder: Path, labels: Any, judged: Judged | None = None, **fields: Any) -> Any:
    path = folder / "d.npz"
    np.savez(path, x=np.resize(ROWS, (len(labels), 2)), labels=labels)
    data = open_data(path, SPEC, name="eval", judged=judged, preprocess=fields or None)
    return data, open_dataset(data.ref, SPEC).labels(range(data.count))


def scored(word: str, outputs: Any, labels: Any) -> float | None:
    name = LIBRARY.get(word, word)
    sums = MetricSums([name], has_labels=True, has_reference=False)
    sums.add([np.asarray(outputs, np.float32)], None, np.asarray(labels))
    return sums.results()[name]


@pytest.mark.parametrize("word", ["top1", "f1", "auc", "perplexity", "miou"])
def test_a_label_of_minus_100_is_left_out_by_every_metric_of_classes(word: str) -> None:
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(40, 2)), rng.integers(0, 2, 40)
    wanted = scored(word, outputs[10:], labels[10:])
    labels[:10] = NO_LABEL
    assert scored(word, outputs, labels) == pytest.approx(wanted)


@pytest.mark.parametrize("word", ["mae", "rmse", "r2"])
def test_a_number_that_is_ignored_is_left_out_by_errors(word: str, tmp_path: Path) -> None:
    outputs, numbers = np.arange(12.0).reshape(6, 2), np.arange(12.0).reshape(6, 2) ** 1.5
    wanted = scored(word, outputs[1:], numbers[1:])
    numbers[0] = -999
    assert scored(word, outputs, opened(tmp_path, numbers, ignore=-999)[1]) == pytest.approx(wanted)


def test_values_to_ignore_are_no_labels_and_a_part_of_the_hash(tmp_path: Path) -> None:
    labels = np.asarray([0, 1, 255, 2, 9, 1])
    plain, ignoring = opened(tmp_path, labels), opened(tmp_path, labels, ignore=[255, 9])
    assert ignoring[1].tolist() == [0, 1, NO_LABEL, 2, NO_LABEL, 1]
    assert plain[0].sha256 != ignoring[0].sha256
    with pytest.raises(DatasetError, match="an integer or a list of them"):
        opened(tmp_path, labels, ignore="none")


def test_labels_have_to_fit_the_output(tmp_path: Path) -> None:
    three = Judged((3,), "float32")
    assert opened(tmp_path, [0, 1, NO_LABEL, 2], three)[0].has_labels
    assert opened(tmp_path, [0.0, 1.0, 2.0], three)[0].has_labels  # as a csv may hold classes
    assert opened(tmp_path, [0.5, 1.0, 2.0], three)[0].label_kind == NUMBERS
    assert opened(tmp_path, [[0, 1, 1], [0, 0, 0]], three)[0].label_kind == SEVERAL
    for labels, told in (([1, 2, 3], "subtract 1"), ([0, -1, 1], "ignore: -1"), ([0, 7], "7")):
        with pytest.raises(DataError, match=told):
            opened(tmp_path, labels, three)
    with pytest.raises(DataError, match="--metric mae, rmse, r2"):
        opened(tmp_path, [3, 17], Judged((1,), "float32"))


def test_words_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    words = np.asarray(["dog", "cat", "dog", "ape"])
    three = Judged((3,), "float32")
    assert opened(tmp_path, words, three)[1].tolist() == [2, 1, 2, 0]
    given = opened(tmp_path, words[:2], three, classes=["dog", "bee", "cat"])
    assert given[1].tolist() == [0, 2]
    with pytest.raises(DataError, match="2 words, and the model has 3 classes"):
        opened(tmp_path, words[:2], three)
    with pytest.raises(DatasetError, match="'cat' is not among the classes"):
        opened(tmp_path, words, classes=["dog", "ape"])
    (tmp_path / "d.csv").write_text("a,b,label\n1,2,yes\n3,4,no\n")
    data = open_data(tmp_path / "d.csv", SPEC, name="eval")
    labels = open_dataset(data.ref, SPEC).labels(range(2))
    assert labels is not None
    assert labels.tolist() == [1, 0]


def test_texts_of_a_reader_are_judged_by_their_characters(tmp_path: Path) -> None:
    texts = np.asarray(["ab", "c"])
    labels = opened(tmp_path, texts, alphabet="-abc")[1]
    assert labels.tolist() == [[1, 2], [3, -1]]
    steps = np.eye(4)[[[1, 0, 2], [3, 0, 1]]]
    assert scored("cer", steps, labels) == pytest.approx(-1 / 3)
    with pytest.raises(DatasetError, match="'c', which the alphabet"):
        opened(tmp_path, texts, alphabet="-ab")


def test_several_classes_at_once_are_judged_class_by_class() -> None:
    from sklearn import metrics

    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 4)), rng.integers(0, 2, (50, 4))
    wanted = metrics.f1_score(labels, logits > 0, average="macro")
    assert scored("f1", logits, labels) == pytest.approx(wanted)
    assert scored("f1", 1 / (1 + np.exp(-logits)), labels) == pytest.approx(wanted)
    wanted = metrics.roc_auc_score(labels, logits, average="macro")
    assert scored("auc", logits, labels) == pytest.approx(wanted)
