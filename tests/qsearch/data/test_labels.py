"""Labels that do not fit, do not count or are several at once, in every command that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from PIL import Image

import qsearch
from qsearch.cli.main import run
from qsearch.data.prepared_data import Judged, open_data
from qsearch.errors import DataError
from qsearch.search.launch import plan
from qsearch.settings.config import resolve
from tests.each import each
from workers.datasets.protocol import NO_LABEL, InputSpec

ROWS = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
LABELS = (ROWS @ WEIGHT).argmax(axis=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with m.onnx and m.qmod of three classes."""
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", c]) for n, c in zip("xy", (4, 3))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [from_array(WEIGHT, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    qsearch.quantize(str(tmp_path / "m.onnx"), ROWS).save(tmp_path / "m.qmod")
    return tmp_path


def given(folder: Path, labels: Any) -> str:
    np.savez(folder / "d.npz", x=ROWS, labels=labels)
    return str(folder / "d.npz")


def dry(folder: Path, labels: Any, **options: Any) -> dict[str, Any]:
    data = given(folder, labels)
    words = {"model": str(folder / "m.onnx"), "calib": data, "eval": data, **options}
    return plan(resolve({**words, "out": str(folder / "r")}))


def test_a_label_that_is_no_class_is_refused_by_every_command(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = given(model, LABELS + 1)
    commands = [["run"], ["verify"], ["launch", "--dry-run", "--model"]]
    for command in each(commands):
        name = "m.onnx" if command[0] == "launch" else "m.qmod"
        assert run([*command, str(model / name), "--eval", data]) == 2
        told = capfd.readouterr().err
        assert "has the label 3, and the model has 3 classes (0 to 2)" in told
        assert "subtract 1" in told


def test_samples_without_a_label_count_in_no_score(model: Path) -> None:
    some = np.where(np.arange(60) % 3 == 0, NO_LABEL, LABELS)
    right = qsearch.run_module(model / "m.qmod", given(model, LABELS))["top1"]
    assert qsearch.run_module(model / "m.qmod", given(model, some))["top1"] >= 0.9 <= right
    (model / "pre.yaml").write_text("ignore: 7")
    found = dry(model, some, preprocess=str(model / "pre.yaml"))
    assert "not used" not in found["warnings"]
    assert "top1 100.0% on 40 samples" in found["float model"]


def test_several_classes_at_once_are_named(model: Path) -> None:
    several = (ROWS @ WEIGHT > 0).astype(np.int64)
    assert "a sample has several labels of 0 or 1" in dry(model, several)["warnings"]
    assert "the mean over the outputs (macro)" in dry(model, several, metric="f1")["warnings"]
    with pytest.raises(qsearch.errors.SettingsError, match="several labels of 0 or 1"):
        dry(model, several, metric="top1")
    scored = qsearch.run_module(model / "m.qmod", given(model, several), metric="auc")
    assert scored["auc"] > 0.9
    assert "auc is the mean over the outputs" in scored["warnings"][0]


def test_a_sample_of_several_classes_has_no_highest_output_to_agree_on(model: Path) -> None:
    data = given(model, (ROWS @ WEIGHT > 0).astype(np.int64))
    words = {"calib": data, "eval": data, "pool": "inline", "trials": 1, "metric": "f1"}
    result = qsearch.launch(model / "m.onnx", out=model / "r", **words)
    assert "float     SQNR infinite, f1 1" in result.text()
    assert "agreement" not in result.text()


def test_classes_that_a_table_holds_as_floats_are_classes(model: Path) -> None:
    (model / "d.csv").write_text(
        "a,b,c,d,label\n"
        + "".join(
            f"{','.join(map(str, row))},{label}.0\n" for row, label in zip(ROWS.tolist(), LABELS)
        )
    )
    assert qsearch.run_module(model / "m.qmod", model / "d.csv")["top1"] > 0.9


def test_folders_named_by_numbers_are_said_to_be_indices(tmp_path: Path) -> None:
    for name in ("000", "180"):
        (tmp_path / "d" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "d" / name / "a.png")
    spec, judged = InputSpec("x", (1, 3, 2, 2), "float32"), Judged((2,), "float32")
    with pytest.raises(DataError, match=r"named by numbers are class indices(.|\n)*classes\.txt"):
        open_data(tmp_path / "d", [spec], name="eval", preprocess={"std": 255}, judged=judged)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_one_hot_labels_are_said_to_be_one_hot(model: Path, dtype: Any) -> None:
    with pytest.raises(DataError, match="the labels are one-hot") as caught:
        dry(model, np.eye(3, dtype=dtype)[LABELS])
    assert "argmax(1)" in str(caught.value.fix)
