"""Python data of every kind becomes the same .npz."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from qsearch.data.object_data import objects_to_npz
from qsearch.errors import DataError
from workers.datasets.protocol import InputSpec

INPUT = (InputSpec("x", (1, 2, 3), "float32"),)
DATA = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
LABELS = np.array([3, 1, 4, 1, 5])


class Reader:
    """onnxruntime's CalibrationDataReader by duck typing."""

    def __init__(self) -> None:
        self._items = iter(DATA)

    def get_next(self) -> dict[str, Any] | None:
        item = next(self._items, None)
        return None if item is None else {"x": item[np.newaxis]}


def test_a_tuple_of_all_inputs_and_all_labels_is_one_data_set(tmp_path: Path) -> None:
    found = loaded(objects_to_npz((DATA, LABELS), INPUT, tmp_path, "eval"))
    pairs = loaded(objects_to_npz(list(zip(DATA, LABELS, strict=True)), INPUT, tmp_path, "eval"))
    listed = loaded(objects_to_npz((DATA, LABELS.tolist()), INPUT, tmp_path, "eval"))
    assert listed["labels"].tolist() == LABELS.tolist()
    one_hot = loaded(objects_to_npz((DATA, np.eye(6)[LABELS]), INPUT, tmp_path, "eval"))
    assert one_hot["labels"].shape == (5, 6)
    assert {name: found[name].tolist() for name in found} == {
        "x": DATA.tolist(),
        "labels": LABELS.tolist(),
    }
    assert {name: pairs[name].tolist() for name in pairs} == {
        name: found[name].tolist() for name in found
    }


def test_a_frame_is_a_table_and_values_need_no_axis(tmp_path: Path) -> None:
    two = tuple(InputSpec(name, (1, 1), "float32") for name in ("age", "bmi"))
    ages, masses = [31.5, 40.25, 53.125], [20.0, 25.5, 30.0]
    columns = {"age": ages, "bmi": masses, "target": [0, 1, 1]}
    frame = objects_to_npz(pandas.DataFrame(columns), two, tmp_path, "calib")
    assert frame.read_text().splitlines()[:2] == ["age,bmi,target", "31.5,20.0,0"]
    rows = [{name: values[row] for name, values in columns.items()} for row in range(3)]
    for data in (columns, rows, list(zip(np.float32(ages), np.float32(masses), strict=True))):
        found = loaded(objects_to_npz(data, two, tmp_path, "calib"))
        assert found["age"].tolist() == [[31.5], [40.25], [53.125]]
        assert found["bmi"].tolist() == [[20.0], [25.5], [30.0]]


def loaded(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def batches() -> Iterator[dict[str, Any]]:
    yield {"x": DATA[:3]}
    yield {"x": DATA[3:]}


@pytest.mark.parametrize(
    "data",
    [
        DATA,
        {"x": DATA},
        list(DATA),
        [{"x": sample} for sample in DATA],
        batches(),
        batches,
        Reader(),
        lambda: Reader(),
    ],
    ids=["array", "mapping", "samples", "dicts", "batches", "function", "reader", "factory"],
)
def test_every_kind_of_data_gives_the_same_file(tmp_path: Path, data: Any) -> None:
    path = objects_to_npz(data, INPUT, tmp_path, "calib")
    np.testing.assert_array_equal(loaded(path)["x"], DATA)
    assert path.name == objects_to_npz(DATA, INPUT, tmp_path, "calib").name
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_an_input_without_axes_is_one_value_a_sample(tmp_path: Path) -> None:
    inputs = (InputSpec("x", (3, 4), "float32"), InputSpec("top", (), "float32"))
    data = [{"x": np.full((3, 4), k, "f4"), "top": np.float32(k)} for k in range(3)]
    found = loaded(objects_to_npz(data, inputs, tmp_path, "calib"))
    assert found["x"].shape == (3, 3, 4)
    assert found["top"].tolist() == [0, 1, 2]
    alone = objects_to_npz([one["top"] for one in data], inputs[1:], tmp_path, "calib")
    assert loaded(alone)["top"].tolist() == [0, 1, 2]


def test_labels_travel_along_one_by_one_or_together(tmp_path: Path) -> None:
    one = objects_to_npz({"x": DATA, "labels": LABELS}, INPUT, tmp_path, "eval")
    items = ({"x": x, "labels": label} for x, label in zip(DATA, LABELS, strict=True))
    assert objects_to_npz(items, INPUT, tmp_path, "eval") == one
    np.testing.assert_array_equal(loaded(one)["labels"], LABELS)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "no sample"),
        (iter(()), "no sample"),
        (5, "type int"),
        ("text", "type str"),
        ([{"x": DATA[0]}, {"y": DATA[0]}], "differ in their names"),
        ([{"x": DATA[0]}, {"x": DATA[0, :1]}], "items of 'x' differ"),
        ({"x": DATA, "labels": LABELS[:2]}, "different numbers of samples"),
        (np.array([[object()]]), "Python objects"),
        ([1, 2], "a sample of 'x' is one value"),
        ([(DATA[0], 1, 2)], "its parts differ in their shapes"),
    ],
)
def test_data_that_cannot_be_used_is_refused(tmp_path: Path, data: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        objects_to_npz(data, INPUT, tmp_path, "calib")
    assert list(tmp_path.iterdir()) == []


def test_samples_that_lack_an_axis_are_told_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="different numbers of samples") as refused:
        objects_to_npz({"x": DATA[:, 0], "labels": LABELS}, INPUT, tmp_path, "eval")
    assert str(DATA[:, 0].shape) in str(refused.value.where)
    assert str(INPUT[0]) in str(refused.value.fix)


def test_arrays_without_names_are_the_inputs_in_order(tmp_path: Path) -> None:
    two = (*INPUT, InputSpec("y", (1, 3), "float32"))
    other = DATA[:, 0]
    pairs = list(zip(DATA, other, strict=True))
    behind = [(x, y, label) for (x, y), label in zip(pairs, LABELS, strict=True)]
    beside = [(pair, label) for pair, label in zip(pairs, LABELS, strict=True)]
    named = [({"x": x, "y": y}, label) for x, y, label in behind]
    for data in (pairs, behind, beside, named):
        found = loaded(objects_to_npz(data, two, tmp_path, "calib"))
        assert found["x"].tolist() == DATA.tolist()
        assert found["y"].tolist() == other.tolist()
        assert ("labels" in found) == (data is not pairs)
    for data in (DATA, [(*row, 1, 2) for row in pairs]):
        with pytest.raises(DataError, match=r"arrays? without names for a model with 2 inputs"):
            objects_to_npz(data, two, tmp_path, "calib")
