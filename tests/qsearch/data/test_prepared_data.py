"""Data that fits the model is hashed; data that does not is refused with both sides named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from compiler.errors import CompilerError
from qsearch.data.prepared_data import prepare_data, read_preprocess
from qsearch.errors import SettingsError
from workers.datasets.protocol import InputSpec

INPUTS = (InputSpec("x", (1, 1, 4, 4), "float32"),)
GOOD = np.linspace(-1, 1, 5 * 16, dtype=np.float32).reshape(5, 1, 4, 4)


def prepared(given: Any, **options: Any) -> Any:
    return prepare_data(given, INPUTS, name="calib", **options)


def test_equal_arrays_have_equal_hashes_wherever_they_lie(tmp_path: Path) -> None:
    one, other = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(one, GOOD)
    np.save(other, GOOD)
    assert prepared(one).sha256 == prepared(str(other)).sha256
    np.save(other, GOOD + 1)
    assert prepared(one).sha256 != prepared(other).sha256


def test_labels_in_the_data_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=GOOD, labels=np.arange(5))
    data = prepared(path)
    assert (data.count, data.has_labels) == (5, True)


def test_synthetic_data_depends_on_the_seed_only() -> None:
    assert prepared(None, seed=1).sha256 == prepared(None, seed=1).sha256
    assert prepared(None, seed=1).sha256 != prepared(None, seed=2).sha256
    assert prepared(None).synthetic


def test_the_way_images_become_inputs_is_part_of_their_hash(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "0").mkdir()
    Image.new("L", (4, 4), 7).save(tmp_path / "0" / "a.png")
    one = prepared(tmp_path, preprocess={"mean": 0, "std": 1})
    other = prepared(tmp_path, preprocess={"mean": 127, "std": 1})
    assert one.has_labels
    assert one.sha256 != other.sha256


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": GOOD, "b": GOOD}, ["'x'", "'b'"]),
        ({"x": GOOD[:, :, :3]}, ["[5, 1, 3, 4]", "[1, 1, 4, 4]"]),
        ({"x": GOOD.astype(np.int64)}, ["int64", "float32"]),
        ({"x": GOOD[:0]}, ["empty"]),
        ({"x": np.where(GOOD > 0.9, np.nan, GOOD)}, ["nan", "'x'"]),
        ({"x": GOOD, "labels": np.arange(4)}, ["5", "4"]),
    ],
)
def test_data_that_does_not_fit_names_both_sides(
    tmp_path: Path, arrays: dict[str, Any], says: list[str]
) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **arrays)
    with pytest.raises(CompilerError) as caught:
        prepared(path)
    message = str(caught.value)
    assert all(word in message for word in says), message


def test_a_missing_path_is_named() -> None:
    with pytest.raises(CompilerError, match="does not exist"):
        prepared("no/such/data.npz")


@pytest.mark.parametrize(
    "text",
    [
        "resize: " + "[" * 3000,
        "resize: &a [*a]",
        "resize: " + "9" * 5000,
        "a0: &a0 [1, 1]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
    ],
)
def test_a_hostile_preprocess_file_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pre.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="not valid yaml") as caught:
        read_preprocess(str(path))
    assert len(str(caught.value)) < 1000


def convolution_of_open_sizes(path: Path) -> None:
    """x (samples, 2, ?, W), the third axis without a name."""
    sizes = ["samples", 2, None, "W"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="c")],
        "open",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sizes)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones((3, 2, 2, 2), np.float32), "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("kind", ["npz", "npy", "mapping", "array", "runs", "pairs"])
def test_arrays_tell_the_sizes_that_a_model_leaves_open(kind: str, tmp_path: Path) -> None:
    convolution_of_open_sizes(tmp_path / "m.onnx")
    images = np.random.default_rng(0).normal(size=(8, 2, 5, 6)).astype(np.float32)
    np.savez_compressed(tmp_path / "d.npz", x=images)
    np.save(tmp_path / "d.npy", images)
    objects = {
        "mapping": {"x": images},
        "array": images,
        "runs": [{"x": image[None]} for image in images],
        "pairs": [(image, 1) for image in images],
    }
    data: Any = objects.get(kind, tmp_path / f"d.{kind}")
    module = qsearch.quantize(tmp_path / "m.onnx", data)
    assert module.run(images[:1])[0].shape == (1, 3, 4, 5)
    assert qsearch.diff(tmp_path / "m.onnx", _saved(module, tmp_path)).nodes
    found = qsearch.insight(tmp_path / "m.onnx", data).insight
    assert [layer.op for layer in found.layers] == ["nn.conv2d"]


def test_an_array_with_an_axis_too_few_tells_no_sizes(tmp_path: Path) -> None:
    convolution_of_open_sizes(tmp_path / "m.onnx")
    with pytest.raises(CompilerError, match="has no value"):
        qsearch.quantize(tmp_path / "m.onnx", np.zeros((8, 5, 6), np.float32))


def _saved(module: qsearch.QModule, folder: Path) -> Path:
    module.save(folder / "m.qmod")
    return folder / "m.qmod"


def test_a_search_takes_sizes_from_its_data_and_what_is_given_goes_first(tmp_path: Path) -> None:
    convolution_of_open_sizes(tmp_path / "m.onnx")
    images = np.random.default_rng(0).normal(size=(8, 2, 5, 6)).astype(np.float32)
    asked: dict[str, Any] = {"calib": {"x": images}, "trials": 1, "pool": "inline"}
    qsearch.launch(tmp_path / "m.onnx", out=tmp_path / "run", **asked)
    assert qsearch.load(tmp_path / "run").run(images[:1])[0].shape == (1, 3, 4, 5)
    qsearch.launch(tmp_path / "m.onnx", out=tmp_path / "run", **asked)
    with pytest.raises(CompilerError, match=r"\[8, 2, 5, 6\] in the data"):
        qsearch.launch(tmp_path / "m.onnx", out=tmp_path / "other", dim={"W": 4}, **asked)


@pytest.mark.parametrize("field", ["mean", "means", "std"])
def test_fields_for_images_are_refused_beside_arrays(tmp_path: Path, field: str) -> None:
    np.save(tmp_path / "d.npy", GOOD)
    with pytest.raises(CompilerError, match=f"{field} in the preprocess file: arrays are taken"):
        prepared(tmp_path / "d.npy", preprocess={field: 5})


@pytest.mark.parametrize("given", ["npz", "mapping"])
def test_an_input_without_batch_axis_belongs_to_every_sample(tmp_path: Path, given: str) -> None:
    inputs = (InputSpec("x", (1, 4, 3), "float32"), InputSpec("pos", (4, 3), "float32"))
    arrays = {"x": np.ones((7, 4, 3), np.float32), "pos": np.zeros((4, 3), np.float32)}
    np.savez(tmp_path / "d.npz", **arrays)
    data: Any = tmp_path / "d.npz" if given == "npz" else arrays
    found = prepare_data(data, inputs, name="calib", objects_folder=tmp_path)
    assert found.count == 7
    if given == "npz":
        assert "pos: no batch axis, the same for all samples" in found.described
