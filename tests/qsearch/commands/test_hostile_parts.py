"""Float parts of a .qmod that anybody wrote: running and exporting them has limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import qsearch
from compiler.errors import EvaluationError
from compiler.runtime.artifact import QModule
from qsearch.cli.main import run
from tests.compiler.frontend.test_cut import detector
from tests.qsearch.commands.test_cut import _images

# Constants that onnxruntime would compute when it opens the part, and a loop without an end.
ENDLESS = """
    trips = Constant <value_int = 4611686018427387904> ()
    go_on = Constant <value = bool {1}> ()
    last = Loop <body = turns (int64 turn, bool go, float[1] held) => (bool again, float[1] more) {
        again = Identity (go)
        more = Add (held, held)
    }> (trips, go_on, one_more)
"""
LARGE = """
    sizes = Constant <value_ints = [2147483648]> ()
    ones = ConstantOfShape (sizes)
    sum = ReduceSum <keepdims = 1> (ones)
    last = Add (sum, one_more)
"""
PARTS = {"endless": ENDLESS, "large": LARGE}


def hostile(what: str, tmp_path: Path) -> QModule:
    """The module of a detector, with other nodes in the part behind it."""
    path = tmp_path / "detector.onnx"
    onnx.save(detector(), path)
    module = qsearch.quantize(path, _images())
    assert module.after is not None
    part = onnx.ModelProto.FromString(module.after)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        part (float[1] x) => (float nothing) <float[1] one_more = {{1}}> {{
            {PARTS[what]}
            total = ReduceSum <keepdims = 0> (last)
            nothing = Sub (total, total)
        }}"""
    more = onnx.parser.parse_model(text).graph
    name = part.graph.output[0].name
    for node in part.graph.node:
        node.output[:] = [f"{o}_plain" if o == name else o for o in node.output]
        node.input[:] = [f"{i}_plain" if i == name else i for i in node.input]
    part.graph.node.extend(more.node)
    part.graph.initializer.extend(more.initializer)
    part.graph.node.append(onnx.helper.make_node("Add", [f"{name}_plain", "nothing"], [name]))
    return replace(module, after=part.SerializeToString(), _pipelines=[])


@pytest.mark.parametrize("what", PARTS)
def test_a_part_behind_the_module_ends_in_time_and_memory(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("compiler.targets.ort.session.MOST_S", 1)
    module = hostile(what, tmp_path)
    with pytest.raises(EvaluationError, match=r"takes more than 1 s|needs more than 4 GiB"):
        module.run(np.zeros((1, 3, 8, 8), np.float32))
    module.save(tmp_path / "m.qmod")
    words = ["export", str(tmp_path / "m.qmod"), "--format", "onnx", "-o", str(tmp_path / "m.onnx")]
    assert run(words) == 2
    assert "what stays in float of the model" in capfd.readouterr().err
