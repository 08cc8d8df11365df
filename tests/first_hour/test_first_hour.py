"""The pages of this folder run in fresh folders, each with a tiny model and data of its kind."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from PIL import Image

from qsearch.cli.main import run

PAGES = sorted(Path(__file__).parent.glob("*.md"))
RNG = np.random.default_rng(0)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

Ports = dict[str, list[Any]]


def model(
    path: Path, inputs: Ports, outputs: Ports, nodes: list[Any], kind: int = FLOAT, **weights: Any
) -> None:
    taken = [helper.make_tensor_value_info(n, kind, dims) for n, dims in inputs.items()]
    given = [helper.make_tensor_value_info(n, FLOAT, dims) for n, dims in outputs.items()]
    made = [from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", taken, given, made)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path / "model.onnx")


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def pooled(count: int, *kernel: int) -> tuple[list[Any], dict[str, Any]]:
    """A convolution of x, its mean, and two classes."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "d"], ["y"]),
    ]
    return nodes, {"k": normal(4, count, *kernel), "d": normal(4, 2)}


def pictures(folder: Path, labelled: bool = True) -> None:
    for name in ("calib", "val"):
        for place in range(16):
            home = folder / name / (("cat", "dog")[place % 2] if labelled and name == "val" else "")
            home.mkdir(parents=True, exist_ok=True)
            pixels = RNG.integers(0, 256, (24, 36, 3)) // (1 + place % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(home / f"{place}.png")


def images(folder: Path) -> None:
    nodes, weights = pooled(3, 3, 3)
    model(folder, {"x": ["n", 3, 16, 24]}, {"y": ["n", 2]}, nodes, **weights)
    pictures(folder)


def texts(folder: Path) -> None:
    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "film": 4}
    tokens = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    whole = {"version": "1.0", "model": tokens, "pre_tokenizer": {"type": "Whitespace"}}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    for name in ("calib", "val"):
        rows = "".join(f"a {word} film,{word}\n" for word in ("good", "bad") * 10)
        (folder / f"{name}.csv").write_text("text,label\n" + rows)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Gemm", ["m", "d"], ["y"]),
    ]
    weights = {"table": normal(5, 8), "d": normal(8, 2)}
    model(folder, {"input_ids": ["n", "length"]}, {"y": ["n", 2]}, nodes, INT64, **weights)


def sounds(folder: Path) -> None:
    nodes, weights = pooled(1, 9)
    model(folder, {"x": ["n", 1, 800]}, {"y": ["n", 2]}, nodes, **weights)
    for name in ("calib", "val"):
        for place in range(16):
            home = folder / name / ("hum", "tone")[place % 2]
            home.mkdir(parents=True, exist_ok=True)
            wave = np.sin(np.arange(700) * (0.1 + place % 2)) + 0.1 * normal(700)
            soundfile.write(home / f"{place}.wav", wave / 2, 8000)


def table(folder: Path) -> None:
    first, second = normal(4, 8), normal(8, 2)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    model(folder, {"x": ["n", 4]}, {"y": ["n", 2]}, nodes, a=first, b=second)
    for name, seed in (("calib", 3), ("val", 4)):
        rows = np.random.default_rng(seed).normal(size=(40, 4)).astype(np.float32)
        said = (np.maximum(rows @ first, 0) @ second).argmax(axis=1)
        lines = [
            f"{','.join(f'{v:.5g}' for v in row)},{('no', 'yes')[n]}" for row, n in zip(rows, said)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,c,d,label", *lines]) + "\n")


def stream(folder: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "read"], ["a"]),
        helper.make_node("MatMul", ["h", "keep"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Tanh", ["s"], ["hn"]),
        helper.make_node("MatMul", ["hn", "out"], ["y"]),
    ]
    weights = {"read": normal(2, 3), "keep": normal(3, 3) / 3, "out": normal(3, 1)}
    model(folder, {"x": [1, 2], "h": [1, 3]}, {"y": [1, 1], "hn": [1, 3]}, nodes, **weights)
    for name in ("calib", "val"):
        np.savez(folder / f"{name}.npz", x=normal(4, 20, 2))


def detector(folder: Path) -> None:
    """Four boxes by a convolution of 32 x 32 pixels."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], strides=[16, 16]),
        helper.make_node("Reshape", ["c", "rows"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Abs", ["t"], ["y"]),
    ]
    rows = np.asarray([-1, 6, 4])
    weights = {"k": normal(6, 3, 16, 16), "rows": rows}
    model(folder, {"x": ["n", 3, 32, 32]}, {"y": ["n", 4, 6]}, nodes, **weights)
    pictures(folder, labelled=False)
    kinds = [{"id": 1, "name": "thing"}]
    for name in ("calib", "val"):
        files = [{"id": n, "file_name": f"{n}.png"} for n in range(16)]
        boxes = [{"image_id": n, "category_id": 1, "bbox": [4, 4, 9, 9]} for n in range(16)]
        coco = {"images": files, "categories": kinds, "annotations": boxes}
        (folder / name / "boxes.json").write_text(json.dumps(coco))


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = iter([{"x": row[None]} for row in normal(16, 3, 16, 24)])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._left, None)


def int8(folder: Path) -> None:
    images(folder)
    (folder / "model.onnx").rename(folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "model.onnx", Samples())
    for name in ("calib", "val"):
        np.savez(folder / f"{name}.npz", x=normal(16, 3, 16, 24))


KINDS: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (images, texts, sounds, table, stream, detector, int8)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_a_page_runs_in_a_fresh_folder(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text(encoding="utf-8")
    KINDS[page.stem](tmp_path)
    for block in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / block[0]).write_text(block[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QSEARCH_TRIALS", "1")
    monkeypatch.setenv("QSEARCH_POOL", "inline")
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for line in commands.splitlines():
        assert run(shlex.split(line)[1:]) == 0, (line, capfd.readouterr().err)
    told = capfd.readouterr()
    assert "is not used" not in told.err


def test_every_kind_of_data_has_a_page() -> None:
    assert [page.stem for page in PAGES] == sorted(KINDS)
