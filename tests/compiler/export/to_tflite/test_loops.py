"""A loop is written out in a LiteRT file, and gives the module's integers."""

from __future__ import annotations

import pytest

from compiler.errors import TfliteExportError
from compiler.export.to_tflite import module
from compiler.pipeline import tflite_file
from compiler.targets.tflite.interpreters import JUDGES, FileJudge
from tests.compiler.frontend.from_onnx.test_recurrent import GATES, quantized, sqnr_db
from tests.needs import missing

pytest.importorskip("ai_edge_litert", reason=missing("the Python packages of the tests"))
pytest.importorskip("tflite_micro", reason=missing("the Python packages of the tests"))


@pytest.mark.parametrize("kind", GATES)
def test_every_step_gives_the_integers_of_the_module(kind: str) -> None:
    prepared, candidate, data = quantized(kind, 12, requantization="tflite")
    found = candidate.partitioned
    assert found is not None
    made = tflite_file(found, ["x"], ["y"])
    judge = FileJudge(found, made.data, JUDGES)
    for inputs in data:
        judge.compare(inputs)
    judge.compare_noise(4)
    assert judge.differing == dict.fromkeys(JUDGES, 0)
    assert sqnr_db(prepared, found, data) >= 25


def test_more_steps_than_a_file_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, candidate, _ = quantized("GRU", 12, requantization="tflite")
    found = candidate.partitioned
    assert found is not None
    monkeypatch.setattr(module, "MOST_STEPS", 11)
    with pytest.raises(TfliteExportError, match="a loop of 12 steps"):
        tflite_file(found, ["x"], ["y"])
