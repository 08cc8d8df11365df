"""Models of which another tool has quantized all or a part: launch, compile, verify."""

from __future__ import annotations

from pathlib import Path

import pytest

import qsearch
from qsearch.errors import SettingsError
from tests.qsearch.test_entry_points import MODELS, quantized_before


@pytest.mark.slow
@pytest.mark.parametrize("convolutions_only", [False, True])
def test_what_is_left_in_float_is_searched_and_the_module_proved(
    convolutions_only: bool, few_digits: Path, few_labelled: Path, tmp_path: Path
) -> None:
    path = quantized_before(tmp_path, 2, convolutions_only)
    data = {"calib": few_digits, "eval": few_labelled}
    result = qsearch.launch(path, **data, trials=2, pool="inline", out=tmp_path / "run")
    assert result.summary["best"]["top1"] > 0.9
    found = qsearch.verify(tmp_path / "run", few_labelled)
    assert [str(finding) for finding in found.findings] == []
    assert found.evaluation is not None
    assert found.evaluation["top1"] == result.summary["emitted"]["top1"]
    assert found.evaluation["stored_outputs_sha256"] == found.evaluation["outputs_sha256"]


def test_a_model_that_is_quantized_throughout_is_compiled_and_not_searched(tmp_path: Path) -> None:
    path = quantized_before(tmp_path, None)
    with pytest.raises(SettingsError, match="leaves nothing to search for"):
        qsearch.launch(path, trials=1, pool="inline", out=tmp_path / "run")
    module = qsearch.quantize(path, MODELS / "digits_calib.npz")
    module.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
