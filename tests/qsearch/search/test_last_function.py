"""qsearch/search/last_function.py: a last function that a metric of ranks wants in float."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from sklearn.metrics import roc_auc_score

import qsearch
from compiler.frontend.cut import last_function
from compiler.frontend.cut_graph import Graph
from qsearch.cli.main import run
from qsearch.run.progress import Progress

NET = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[n, 16] x) => (float[n, 1] y)
<int64[1] last = {{1}}, int64[1] behind = {{2}}, float even = {{0.05}}>
{{ [one] a = MatMul (x, w)  r = Relu (a)  [two] b = MatMul (r, v)  [bias] c = Add (b, o)  {tail} }}
"""
SIGMOID = "[tail] y = Sigmoid (c)"


def _saved(folder: Path, tail: str, offset: float) -> Path:
    """A classifier of two classes whose logits lie around an offset."""
    model = onnx.parser.parse_model(NET.format(tail=tail))
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.normal(0, 0.3, (16, 32)),
        "v": rng.normal(0, 4, (32, 1)),
        "o": np.array([offset]),
    }
    for name, array in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _data(path: Path, offset: float) -> tuple[Any, Any]:
    """Inputs, and others with labels that follow the logits but for some noise."""
    w, v, _ = (
        numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.name in "wvo"
    )
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 16)).astype(np.float32)
    logits = (np.maximum(x @ w, 0) @ v)[:, -1] + offset
    labels = (logits + rng.normal(0, 4, len(x)) > np.median(logits)).astype(np.int64)
    return {"x": x[:100]}, {"x": x[100:], "labels": labels[100:]}


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (SIGMOID, ("Sigmoid 'tail'", "bias")),
        ("[tail] p = Softmax (c)  y = Slice (p, last, behind, last)", ("Softmax 'tail'", "bias")),
        ("p = Tanh (c)  [tail] q = Exp (p)  y = Squeeze (q, last)", ("Exp 'tail'", "Tanh_4")),
        ("y = Relu (c)", None),
        ("p = Sigmoid (c)  y = Add (p, o)", None),
    ],
)
def test_what_keeps_the_order_of_its_operands_is_a_last_function(
    tail: str, found: tuple[str, str] | None, tmp_path: Path
) -> None:
    assert last_function(Graph(onnx.load(_saved(tmp_path, tail, 0)))) == found


class Phases(Progress):
    """Steps by the name of their phase."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.name = ""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        self.name = name

    def advance(self, steps: int = 1, note: str = "") -> None:
        self.steps[self.name] += steps


def test_a_last_function_whose_integers_mix_the_ranks_stays_in_float(tmp_path: Path) -> None:
    path = _saved(tmp_path, SIGMOID, -25)
    calib, evaluation = _data(path, -25)
    result = qsearch.launch(
        path,
        calib=calib,
        eval=evaluation,
        metric="auc",
        trials=1,
        pool="inline",
        out=tmp_path / "r",
        progress=(told := Phases()),
    )
    assert told.steps["Sigmoid 'tail': in float?"] == 2 * len(evaluation["x"])
    module = result.best_module()
    cut = str(module.provenance["cut"])
    assert cut.startswith("quantized until bias")
    assert "because of Sigmoid 'tail' (on integers auc is 0." in cut
    (scores,) = module.run(evaluation["x"])
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": evaluation["x"]})
    ours, theirs = (roc_auc_score(evaluation["labels"], found) for found in (scores, wanted))
    assert abs(ours - theirs) < 0.01
    assert run(["verify", str(tmp_path / "r" / "best.qmod"), "-q"]) == 0


@pytest.mark.parametrize(("metric", "offset"), [("auc", 0), ("f1", -25)])
def test_a_last_function_that_costs_no_ranks_is_on_integers(
    metric: str, offset: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _saved(tmp_path, f"k = Mul (c, even)  {SIGMOID.replace('c', 'k')}", offset)
    calib, evaluation = _data(path, offset)
    np.savez(tmp_path / "calib.npz", **calib)
    np.savez(tmp_path / "eval.npz", **evaluation)
    words = ["--calib", str(tmp_path / "calib.npz"), "--eval", str(tmp_path / "eval.npz")]
    words += ["--metric", metric, "-o", str(tmp_path / "r"), "--dry-run"]
    assert run(["launch", "--model", str(path), *words]) == 0
    assert "cut none" in " ".join(capsys.readouterr().out.split())
