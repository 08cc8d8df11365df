"""A study names the data that it is calibrated and scored on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.numpy_helper import from_array

import qsearch
from qsearch.opening.model_file import find_model
from qsearch.search.context import PreparedStudy
from qsearch.search.preparation import prepare_study
from qsearch.settings.launch_settings import Settings


def digits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (4, 1, 8, 8)).astype("float32")


def prepared(tmp_path: Path, settings: dict[str, Any], **objects: Any) -> PreparedStudy:
    return prepare_study(
        Settings(model="digits", **settings),
        find_model("digits"),
        objects_folder=tmp_path,
        **objects,
    )


@pytest.mark.parametrize(("name", "other"), [("calib", "evaluation"), ("evaluation", "calib")])
def test_objects_go_before_paths_and_paths_before_what_comes_with_the_model(
    tmp_path: Path, name: str, other: str
) -> None:
    """The other data stay those that come with the model."""
    field = {"calib": "calib", "evaluation": "eval"}
    np.save(tmp_path / "path.npy", digits(1))

    def hashes(settings: dict[str, Any], **objects: Any) -> dict[str, str]:
        study = prepared(tmp_path / "spool", {"metric": "sqnr", **settings}, **objects)
        return {"calib": study.calib.sha256, "evaluation": study.evaluation.sha256}

    shipped = hashes({})
    path = {field[name]: str(tmp_path / "path.npy")}
    from_path = hashes(path)
    from_object = hashes(path, **{name: digits(2)})
    assert len({found[name] for found in (shipped, from_path, from_object)}) == 3
    assert {found[other] for found in (shipped, from_path, from_object)} == {shipped[other]}
    assert hashes({}, **{name: digits(2)}) == from_object


@pytest.mark.parametrize(
    ("last", "has_answers"),
    [
        (["y = Flatten(c)"], True),
        (["g = GlobalAveragePool(c)", "y = Flatten(g)"], True),
        (["r = Relu(c)", "s = Softmax<axis=1>(r)", "y = Flatten(s)"], True),
        (["r = Relu(c)", "g = GlobalAveragePool(r)", "y = Flatten(g)"], False),
        (["s = Sigmoid(c)", "j = Concat<axis=1>(c, s)", "y = Flatten(j)"], False),
        (["f = Flatten(c)", "n = ReduceL2<axes=[1]>(f)", "y = Div(f, n)"], False),
    ],
)
def test_features_and_joined_outputs_have_no_answer_to_agree_on(
    tmp_path: Path, last: list[str], has_answers: bool
) -> None:
    """As an embedding, or boxes beside the scores of a detector."""
    weight = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32)
    nodes = "\n".join(["c = Conv(x, w)", *last])
    text = '<ir_version: 8, opset_import: ["": 13]> g (float[n, 2, 8, 8] x) => (float[n, m] y) '
    graph = onnx.parser.parse_model(f"{text}{{\n{nodes}\n}}")
    graph.graph.initializer.append(from_array(weight, "w"))
    onnx.save(graph, tmp_path / "m.onnx")
    images = np.random.default_rng(1).normal(size=(8, 2, 8, 8)).astype(np.float32)
    study = prepare_study(
        Settings(model=str(tmp_path / "m.onnx")),
        find_model(str(tmp_path / "m.onnx")),
        objects_folder=tmp_path,
        calib=images,
        evaluation=images,
    )
    assert study.decides is has_answers


@pytest.mark.parametrize(("classes", "labelled"), [(1, False), (3, True)])
def test_labels_judge_a_model_whose_outputs_are_classes(
    tmp_path: Path, classes: int, labelled: bool
) -> None:
    weight = np.random.default_rng(0).normal(size=(2, classes)).astype(np.float32)
    text = '<ir_version: 8, opset_import: ["": 13]> g (float[n, 2] x) => (float[n, m] y) '
    graph = onnx.parser.parse_model(f"{text}{{ y = MatMul(x, w) }}")
    graph.graph.initializer.append(from_array(weight, "w"))
    onnx.save(graph, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.eye(2, dtype=np.float32)[[0, 1] * 4], labels=[0, 0] * 4)
    study = prepare_study(
        Settings(model=str(tmp_path / "m.onnx"), eval=str(tmp_path / "d.npz")),
        find_model(str(tmp_path / "m.onnx")),
        objects_folder=tmp_path,
        calib=np.eye(2, dtype=np.float32),
    )
    assert study.has_labels is labelled


def test_a_search_for_size_may_lose_the_four_answers_that_luck_explains(tmp_path: Path) -> None:
    shipped = np.load(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    np.savez(tmp_path / "few.npz", **{name: shipped[name][:16] for name in shipped.files})
    study = prepared(tmp_path, {"minimize": ["size"], "eval": str(tmp_path / "few.npz")})
    assert (study.metric, str(study.settings.max_drop)) == ("top1", "0.25")
