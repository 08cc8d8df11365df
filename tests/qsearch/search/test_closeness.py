"""Distance of a module from its float model, for ``compile`` and ``launch`` alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import qsearch
from qsearch.cli.main import run


def _layer(tmp_path: Path, outputs: int = 1) -> tuple[str, str]:
    """Two dense layers around 3000, the difference from it behind them; and data without labels."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(16, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["h"]),
        helper.make_node("Sub", ["h", "b"], ["y"]),
        helper.make_node("Mul", ["h", "two"], ["z"]),
    ]
    names = ["y", "z"][:outputs]
    graph = helper.make_graph(
        nodes[: 4 + outputs],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in names],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.full(8, 3e3, np.float32), "b"),
            numpy_helper.from_array(np.eye(8, dtype=np.float32), "v"),
            numpy_helper.from_array(np.float32(2), "two"),
        ],
    )
    model, data = str(tmp_path / "layer.onnx"), str(tmp_path / "x.npz")
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    np.savez(data, x=rng.normal(size=(32, 16)).astype(np.float32))
    return model, data


def test_outputs_behind_the_float_part_are_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _layer(tmp_path)
    out = str(tmp_path / "m.qmod")
    # 8 bits keep 3000 ± 4 well, but not the difference from 3000.
    assert run(["compile", model, "--calib", data, "--until", "h", "-o", out]) == 1
    assert "far from float" in capfd.readouterr().err
    assert qsearch.load(out).provenance["closeness"]["sqnr_db"] < 6


def test_the_worst_of_several_outputs_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _layer(tmp_path, outputs=2)
    out = str(tmp_path / "m.qmod")
    assert run(["compile", model, "--calib", data, "--until", "h", "-o", out]) == 1
    assert "(output 'y', the worst) on 32 samples" in capfd.readouterr().err


def test_a_search_without_labels_ends_with_1_where_its_best_is_far_from_float(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = _layer(tmp_path)
    monkeypatch.chdir(tmp_path)
    cut = ["--until", "h", "--metric", "sqnr", "--trials", "2", "--pool", "inline"]
    cut += ["--max-drop", "100%"]
    assert run(["launch", "--model", model, "--calib", data, *cut]) == 1
    said = capfd.readouterr().out
    assert "far from float" in said
    assert "target    missed" not in said, "no limit was missed"
    assert (tmp_path / "runs" / "layer" / "best.qmod").exists()


def test_a_recording_that_begins_with_silence_is_judged_by_all_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _layer(tmp_path)
    rows = np.random.default_rng(4).normal(size=(64, 16)).astype(np.float32)
    rows[:16] *= 1e-3
    np.savez(data, x=rows)
    assert run(["compile", model, "--calib", data, "--until", "m", "-o", str(tmp_path / "m")]) == 0
    assert "close to float" in capfd.readouterr().err


def _boxes_and_scores(folder: Path, share: float = 1.0) -> tuple[str, str]:
    """Boxes in pixels and scores in one output; ``share`` of the power of the scores."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "u"], ["b0"]),
        helper.make_node("Mul", ["b0", "k"], ["b"], name="boxes"),
        helper.make_node("Conv", ["r", "v"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s0"]),
        helper.make_node("Mul", ["s0", "share"], ["s"], name="scores"),
        helper.make_node("Concat", ["b", "s"], ["y"], axis=1),
    ]
    stored = {
        "w": rng.normal(size=(16, 8, 1, 1)).astype("f"),
        "u": np.abs(rng.normal(size=(4, 16, 1, 1))).astype("f"),
        "v": rng.normal(size=(8, 16, 1, 1)).astype("f"),
        "k": np.float32(64),
        "share": np.float32(share),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 12, 4, 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    model, data = str(folder / "head.onnx"), str(folder / "x.npz")
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    np.savez(data, x=rng.normal(size=(32, 8, 4, 4)).astype("f"))
    return model, data


def test_the_worst_group_of_an_output_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _boxes_and_scores(tmp_path)
    out = str(tmp_path / "m.qmod")
    assert run(["compile", model, "--calib", data, "-o", out]) == 0
    assert "scores (channels 4–11)" in capfd.readouterr().err
    found = qsearch.load(out).provenance["closeness"]
    assert found["group"] == "scores (channels 4–11)"
    assert found["sqnr_db"] < found["output_db"]


def test_a_lost_group_ends_with_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # One scale for pixels and for scores of a thousandth: every score is one integer.
    model, data = _boxes_and_scores(tmp_path, share=1e-3)
    out = str(tmp_path / "m.qmod")
    fields = "auto,keep_output_wide=false,nbit_input=8"
    code = run(["compile", model, "--calib", data, "-o", out, "--qconfig", fields])
    said = capfd.readouterr().err
    assert code == 1, said
    assert "lost, nearly constant in integers: scores (channels 4–11)" in " ".join(said.split())
