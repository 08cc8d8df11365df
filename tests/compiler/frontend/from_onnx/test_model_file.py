"""Reading of model files that cannot be trusted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from compiler.frontend.from_onnx.model_file import read_model
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from tests.each import each

WEIGHT = np.arange(6, dtype="float32").reshape(2, 3)


def small_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def with_external_weight(folder: Path, location: str, **extra: str) -> Path:
    """A model in ``folder`` whose weight points at ``location``."""
    model = small_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **extra}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OnnxImportError, match="there is no file"):
        load(tmp_path / "none.onnx")


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(OnnxImportError, match="is not a file"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"hello, this is text", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04ab"])
def test_other_files_are_told_from_damaged_models(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(OnnxImportError, match="is not an ONNX model"):
        load(path)


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    with pytest.raises(OnnxImportError, match="is empty"):
        load(path)


def test_every_truncation_gives_an_import_error() -> None:
    data = small_model().SerializeToString()
    for length in each(range(1, len(data) - 1, 7)):
        with pytest.raises(OnnxImportError):
            load(data[:length])


def test_a_truncated_file_is_called_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = small_model().SerializeToString()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(OnnxImportError, match="cut off"):
        load(path)


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small_model().SerializeToString())
    with pytest.raises(OnnxImportError, match="the limit is 10"):
        read_model(path, max_bytes=10)


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"1234" + WEIGHT.tobytes())
    path = with_external_weight(tmp_path, "w.bin", offset="4", length="24")
    _, params = load(path)
    np.testing.assert_array_equal(params["w"], WEIGHT.T)


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/hostname", "a/../../w.bin", "..\\w.bin", "C:\\w.bin", ""]
)
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(OnnxImportError, match="inside the model's folder"):
        load(with_external_weight(folder, location))


def test_external_data_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "w.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(OnnxImportError, match="symbolic link"):
        load(with_external_weight(folder, "w.bin"))


def test_external_data_below_a_linked_folder_is_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "data").symlink_to(outside)
    with pytest.raises(OnnxImportError, match="symbolic link"):
        load(with_external_weight(folder, "data/w.bin"))


def test_external_data_that_is_a_hard_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    os.link(tmp_path / "secret", folder / "w.bin")
    with pytest.raises(OnnxImportError, match="hard link"):
        load(with_external_weight(folder, "w.bin"))


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(OnnxImportError, match="missing"):
        load(with_external_weight(tmp_path, "w.bin"))


@pytest.mark.parametrize(
    "extra", [{"length": "25"}, {"offset": "-1"}, {"offset": "20", "length": "24"}]
)
def test_ranges_outside_the_data_file_are_refused(tmp_path: Path, extra: dict[str, str]) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(OnnxImportError, match="outside the file"):
        load(with_external_weight(tmp_path, "w.bin", **extra))


def with_large_weight(folder: Path, rows: int = 512) -> tuple[Path, np.ndarray[Any, Any]]:
    """A model whose weight of (rows, 1024) floats begins 8 bytes into the file beside it."""
    weight = np.random.default_rng(1).normal(size=(rows, 1024)).astype("float32")
    (folder / "w.bin").write_bytes(b"12345678" + weight.tobytes())
    path = with_external_weight(folder, "w.bin", offset="8", length=str(weight.nbytes))
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = weight.shape
    model.graph.node[0].op_type = "Gather"
    model.graph.node[0].input[:] = ["w", "x"]
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.shape.dim.extend(
        helper.make_tensor_value_info(
            "y", TensorProto.FLOAT, [1, 2, 1024]
        ).type.tensor_type.shape.dim
    )
    path.write_bytes(model.SerializeToString())
    return path, weight


def test_large_external_data_is_mapped_and_not_copied(tmp_path: Path) -> None:
    path, weight = with_large_weight(tmp_path)
    _, params = load(path)
    np.testing.assert_array_equal(params["w"], weight)
    assert not params["w"].flags.writeable
    with (tmp_path / "w.bin").open("r+b") as file:  # a copy would not see it
        file.seek(8)
        file.write(np.float32(7).tobytes())
    assert params["w"][0, 0] == 7


def test_large_external_data_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path, _ = with_large_weight(tmp_path)
    with (tmp_path / "w.bin").open("r+b") as file:
        file.truncate(1 << 20)
    with pytest.raises(OnnxImportError, match="outside the file"):
        load(path)


def test_bytes_cannot_have_external_data(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    data = with_external_weight(tmp_path, "w.bin").read_bytes()
    with pytest.raises(OnnxImportError, match="given as bytes"):
        load(data)


def test_an_initializer_with_less_data_than_its_shape_is_refused() -> None:
    model = small_model()
    model.graph.initializer[0].dims[0] = 1 << 20
    with pytest.raises(OnnxImportError, match="cannot be read"):
        load(model.SerializeToString())


def named_model() -> bytes:
    """x → NAMENAME → MIDDLE → SECONDND(+ WEIGHTSS) → y."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["MIDDLE"], name="NAMENAME"),
            helper.make_node("Add", ["MIDDLE", "WEIGHTSS"], ["y"], name="SECONDND"),
        ],
        "GRAPHGRA",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "WEIGHTSS")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("name", [b"NAMENAME", b"SECONDND", b"MIDDLE", b"WEIGHTSS", b"GRAPHGRA"])
@pytest.mark.parametrize("letters", [b"\xff\xfe", b"\xb2\xe3", b"\x80\x80"])
def test_names_that_are_not_utf_8_are_written_with_escapes(name: bytes, letters: bytes) -> None:
    changed = named_model().replace(name, letters + name[2:])
    mod, params = load(changed)
    printed = text(mod)
    escaped = letters.decode("utf-8", "backslashreplace")
    assert all(isinstance(key, str) for key in params)
    (weights,) = params.values()
    np.testing.assert_array_equal(weights, np.arange(4, dtype=np.float32))
    if name == b"WEIGHTSS":
        assert list(params) == [escaped + "IGHTSS"]
    assert parse(printed)["main"].params[0].name_hint == "x"


def test_a_name_that_is_there_as_bytes_and_as_their_escapes_is_refused() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["Qab"]),
            helper.make_node("Neg", ["Qab"], ["\\xffab"]),
            helper.make_node("Add", ["Qab", "\\xffab"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(OnnxImportError, match="twice, as text and as bytes"):
        load(made.SerializeToString().replace(b"Qab", b"\xffab"))


def test_operators_that_are_not_utf_8_are_refused_with_their_names() -> None:
    changed = named_model().replace(b"Relu", b"R\xfflu")
    with pytest.raises(OnnxImportError, match=r"unsupported operator: R\\xfflu"):
        load(changed)
