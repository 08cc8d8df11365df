"""``compile`` audits what it builds: the configuration mends faults, and the record says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qsearch
from compiler.ir.text.printer import text
from compiler.qtypes.qconfig import QConfig
from compiler.runtime.artifact import load_qmod
from tests.compiler.quantize.planting import planted

POINT = 2
MODELS = Path(qsearch.__file__).parent / "models"
MODEL = str(MODELS / "digits_cnn.onnx")


@pytest.fixture(scope="module")
def calib() -> dict[str, Any]:
    with np.load(MODELS / "digits_calib.npz") as data:
        return {name: data[name][:32] for name in data.files}


def test_a_fault_is_mended_and_the_file_of_the_configuration_makes_the_same_module(
    calib: dict[str, Any], tmp_path: Path
) -> None:
    with planted("coarse", POINT, other=0):
        module = qsearch.quantize(MODEL, calib)
        module.save(tmp_path / "mended.qmod")
        assert module.qconfig is not None
        again = qsearch.quantize(MODEL, calib, module.qconfig)
    audit = load_qmod(tmp_path / "mended.qmod").provenance["audit"]
    (name,) = (name for name in module.qconfig.layers if name.startswith("@"))
    assert name in audit["doubts"]
    assert name in audit["repairs"][0]
    assert audit["after_db"] > audit["before_db"]
    assert again.qconfig == module.qconfig
    assert again.provenance["audit"]["repairs"] == []
    one, other = (text(each.module, external_data={}) for each in (module, again))
    assert one == other


def test_a_configuration_that_is_given_is_measured_and_stays(calib: dict[str, Any]) -> None:
    given = QConfig.recommended(calibrate_mode="max")
    with planted("constant", POINT, other=0):
        module = qsearch.quantize(MODEL, calib, given)
    assert module.qconfig == given
    audit = module.provenance["audit"]
    assert any("constant" in flags for flags in audit["doubts"].values())
    assert audit["worst"].startswith("@")
