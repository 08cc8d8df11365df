"""The module of any trial: the bits that were scored."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qsearch
from compiler.runtime.archive import read_archive
from qsearch.cli.main import run
from qsearch.errors import SettingsError, StoreError
from tests.each import each

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, few_labelled: Path) -> Path:
    made = tmp_path_factory.mktemp("runs") / "d"
    words = ["launch", "digits", "--eval", str(few_labelled), "--trials", "4", "--pool", "inline"]
    assert run([*words, "-o", str(made)]) == 0
    return made


def test_every_trial_gives_the_outputs_that_were_scored(
    folder: Path, few_labelled: Path, tmp_path: Path
) -> None:
    for row in each(qsearch.trials(folder)):
        out = tmp_path / f"{row['number']}.qmod"
        qsearch.write_trial(folder, row["number"], out)
        found = qsearch.run_module(out, few_labelled, executor="reference")
        assert found["top1"] == row["top1"]
        assert found["outputs_sha256"] == row["outputs_sha256"]


def test_the_winner_is_the_file_that_the_search_wrote(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "w.qmod"
    assert run(["best", str(folder), "-o", str(out)]) == 0
    ours, theirs = read_archive(out), read_archive(folder / "best.qmod")
    assert ours.keys() == theirs.keys()
    # Which ONNX node a call came from is not known of every call any more.
    for name in ours.keys() - {"spans.json", "proof.json", "manifest.json"}:
        assert ours[name] == theirs[name], name


@pytest.fixture(scope="module")
def mobile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose first depthwise layer reads 16 bits, channels of uneven ranges, and data."""
    made = tmp_path_factory.mktemp("mobile")
    rng = np.random.default_rng(2)
    sizes = np.exp2(np.arange(8.0)).reshape(-1, 1, 1, 1)
    weights = {
        "stem": rng.normal(0, 0.3, (8, 4, 3, 3)) / sizes,
        "deep": rng.normal(0, 0.3, (8, 1, 3, 3)) * sizes,
        "wide": rng.normal(0, 0.2, (32, 8, 3, 3)),
        "last": rng.normal(0, 0.1, (32, 32, 3, 3)),
        "answers": rng.normal(0, 0.1, (5, 32, 1, 1)),
    }
    nodes, value = [], "x"
    for name in weights:
        taps = {"pads": [1, 1, 1, 1]} if name != "answers" else {}
        groups = 8 if name == "deep" else 1
        nodes.append(
            helper.make_node("Conv", [value, f"{name}.w"], [name], name, group=groups, **taps)
        )
        nodes.append(helper.make_node("Clip", [name, "low", "high"], [f"{name}.r"]))
        value = f"{name}.r"
    nodes[-1] = helper.make_node("GlobalAveragePool", ["answers"], ["pooled"])
    nodes.append(helper.make_node("Flatten", ["pooled"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "mobile",
        [helper.make_tensor_value_info("x", 1, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", 1, [1, 5])],
        [
            *(numpy_helper.from_array(w.astype("float32"), f"{n}.w") for n, w in weights.items()),
            *(numpy_helper.from_array(np.float32(e), n) for n, e in (("low", 0), ("high", 6))),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), made / "m.onnx")
    for name, count in (("calib", 16), ("dev", 24)):
        images = rng.normal(0, 1, (count, 4, 8, 8)).astype("float32")
        np.savez(made / f"{name}.npz", x=images, label=np.arange(count) % 5)
    return made


def test_a_trial_without_score_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "d"
    shutil.copytree(folder, copy)
    with sqlite3.connect(copy / "study.db") as database:
        database.execute("UPDATE qs_trial SET state = 'pruned' WHERE number = 2")
    with pytest.raises(SettingsError, match=r"trial 2 .* stopped early"):
        qsearch.write_trial(copy, 2, tmp_path / "t.qmod")
    with pytest.raises(SettingsError, match="no trial 99"):
        qsearch.write_trial(copy, 99, tmp_path / "t.qmod")
    shutil.rmtree(copy / "artifacts")
    with pytest.raises(StoreError):
        qsearch.write_trial(copy, 0, tmp_path / "t.qmod")
    assert not (tmp_path / "t.qmod").exists()
