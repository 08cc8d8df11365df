"""Models of which another tool has quantized all or a part: launch, compile, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import qsearch
from qsearch.errors import SettingsError

FOLDER = Path(qsearch.__file__).parent / "models"


class Digits(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        with np.load(FOLDER / "digits_calib.npz") as file:
            self._left = list(np.asarray(file["input"], np.float32)[:16, None])

    def get_next(self) -> dict[str, Any] | None:
        return {"input": self._left.pop()} if self._left else None


def quantized(folder: Path, kept: int, convolutions_only: bool) -> Path:
    """The digits model with float nodes (or only convolutions) behind the first ``kept``."""
    ready = folder / "float.onnx"
    quant_pre_process(FOLDER / "digits_cnn.onnx", ready, skip_symbolic_shape=True)
    nodes = onnx.load(ready).graph.node
    left = [n.name for n in nodes if n.op_type == "Conv" or not convolutions_only][kept:]
    path = folder / "q.onnx"
    quantize_static(
        ready,
        path,
        Digits(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=left,
    )
    return path


@pytest.mark.parametrize("convolutions_only", [False, True])
def test_what_is_left_in_float_is_searched_and_the_module_proved(
    convolutions_only: bool, tmp_path: Path
) -> None:
    path = quantized(tmp_path, 2, convolutions_only)
    data = {name: FOLDER / f"digits_{name}.npz" for name in ("calib", "dev")}
    result = qsearch.launch(
        path, calib=data["calib"], eval=data["dev"], trials=2, pool="inline", out=tmp_path / "run"
    )
    assert result.summary["best"]["top1"] > 0.9
    found = qsearch.verify(tmp_path / "run", data["dev"])
    assert [str(finding) for finding in found.findings] == []
    assert found.evaluation is not None
    assert found.evaluation["top1"] == result.summary["emitted"]["top1"]
    assert found.evaluation["stored_outputs_sha256"] == found.evaluation["outputs_sha256"]


def test_a_model_that_is_quantized_throughout_is_compiled_and_not_searched(tmp_path: Path) -> None:
    path = quantized(tmp_path, 100, False)
    with pytest.raises(SettingsError, match="leaves nothing to search for"):
        qsearch.launch(path, trials=1, pool="inline", out=tmp_path / "run")
    module = qsearch.quantize(path, FOLDER / "digits_calib.npz")
    module.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
