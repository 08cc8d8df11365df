"""Axes that a model leaves open have the sizes of the data, of the weights or of other inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile  # type: ignore[import-untyped]
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from PIL import Image

import qsearch
from qsearch.cli.main import run
from qsearch.errors import DataError
from qsearch.opening.model_file import find_model
from qsearch.opening.open_model import dims_with

Dims = list[Any]


def model(
    path: Path, inputs: dict[str, Dims], *nodes: Any, kind: int = TensorProto.FLOAT, **weights: Any
) -> Path:
    ports = [helper.make_tensor_value_info(name, kind, dims) for name, dims in inputs.items()]
    made = [from_array(np.asarray(value, np.float32), name) for name, value in weights.items()]
    nodes = nodes or (helper.make_node("Identity", [next(iter(inputs))], ["y"]),)
    out = helper.make_tensor_value_info("y", kind if not weights else TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", ports, [out], made)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path / "m.onnx")
    return path / "m.onnx"


def sizes(path: Path, data: Path | None = None, **fields: Any) -> dict[str, int]:
    return dims_with(data, find_model(path), {}, fields)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, (6, 9)),
        ({"stretch": [4, 7]}, (4, 7)),
        ({"letterbox": {"size": [8, 5]}}, (8, 5)),
        ({"resize": 8, "crop": [4, 6]}, (4, 6)),
        ({"resize": 5}, (5, 5)),
    ],
)
def test_images_tell_height_and_width(tmp_path: Path, fields: Any, found: tuple[int, int]) -> None:
    images = tmp_path / "images"
    images.mkdir()
    Image.fromarray(np.zeros((6, 9, 3), np.uint8)).save(images / "a.png")
    path = model(tmp_path, {"x": ["n", 3, "h", "w"]})
    assert sizes(path, images, **fields) == dict(zip("hw", found))
    path = model(tmp_path, {"x": ["n", "h", "w", 3]})
    assert sizes(path, images, **fields) == dict(zip("hw", found))
    path = model(tmp_path, {"x": ["n", None, None, None]})
    gray = sizes(path, images, channel_order="GRAY", **fields)
    assert gray == {"x:1": 1, "x:2": found[0], "x:3": found[1]}


def test_sounds_tell_samples_and_frames(tmp_path: Path) -> None:
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    for name, count in (("a", 800), ("b", 1600)):
        soundfile.write(sounds / f"{name}.wav", np.zeros(count), 8000)
    assert sizes(model(tmp_path, {"x": ["n", "t"]}), sounds, rate=16000) == {"t": 3200}
    mel = {"n_fft": 400, "n_mels": 40, "center": False}
    path = model(tmp_path, {"x": ["n", "t", 40]})
    assert sizes(path, sounds, rate=16000, log_mel=mel) == {"t": 15}


def test_texts_are_as_long_as_the_preprocess_file_says(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("one\n")
    ports = {"ids": ["n", "seq"], "mask": ["n", "seq"]}
    path = model(tmp_path, ports, kind=TensorProto.INT64)
    assert sizes(path, tmp_path / "t.txt", tokenizer="t.json", length=12) == {"seq": 12}


def test_doctor_takes_open_sizes_from_the_data_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(model(tmp_path, {"x": ["n", 3, "h", "w"]}))
    assert run(["doctor", path]) == 2
    assert "or give --calib (and --preprocess)" in capsys.readouterr().err
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((6, 9, 3), np.uint8)).save(tmp_path / "images" / "a.png")
    (tmp_path / "pre.yaml").write_text("stretch: [4, 7]")
    words = ["--calib", str(tmp_path / "images"), "--preprocess", str(tmp_path / "pre.yaml")]
    run(["doctor", path, *words])
    assert "x: float32[1, 3, 4, 7]" in capsys.readouterr().out


def test_weights_and_other_inputs_tell_sizes(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    path = model(tmp_path, {"x": ["n", "c"]}, product, w=np.ones((5, 2)))
    assert sizes(path) == {"c": 5}
    assert run(["doctor", str(path)]) == 0
    layer = helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=1)
    steps = {"x": [3, "n", "c"]}
    path = model(tmp_path, steps, layer, w=np.ones((1, 4, 7)), r=np.ones((1, 4, 1)))
    assert sizes(path)["c"] == 7
    two: dict[str, Dims] = {"ids": ["n", 16], "mask": ["n", "seq"]}
    assert sizes(model(tmp_path, two, kind=TensorProto.INT64)) == {"seq": 16}


def test_a_model_that_scales_pixels_itself_is_not_scaled_twice(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 9, 3), np.uint8)
    for place, image in enumerate(pixels):
        Image.fromarray(image).save(images / f"{place:02}.png")
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Sub", ["t", "m"], ["c"], name="centre"),
        helper.make_node("Div", ["c", "s"], ["d"], name="scale"),
        helper.make_node("Conv", ["d", "w"], ["y"]),
    ]
    weights = {"m": 127.0, "s": 128.0, "w": np.random.default_rng(1).normal(size=(4, 3, 3, 3))}
    path = model(tmp_path, {"x": ["n", "h", "w", 3]}, *nodes, kind=TensorProto.UINT8, **weights)
    for line, node in (("mean: 127", "centre"), ("std: 128", "scale")):
        (tmp_path / "pre.yaml").write_text(line)
        source = qsearch.DataSource(images, tmp_path / "pre.yaml")
        with pytest.raises(DataError, match=f"itself .node '{node}'"):
            qsearch.quantize(path, source)
    (tmp_path / "pre.yaml").write_text("stretch: [6, 8]")
    module = qsearch.quantize(path, qsearch.DataSource(images, tmp_path / "pre.yaml"))
    small = np.stack([np.asarray(Image.fromarray(p).resize((8, 6))) for p in pixels[:1]])
    assert module(small).shape == (1, 4, 4, 6)
