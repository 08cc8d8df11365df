"""Every way into the quantizer gives the same scales, module and warnings for one configuration."""

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

import compiler
import qsearch
from compiler.frontend.from_onnx.load import load
from compiler.quantize import QConfig, QuantizeContext, quantize
from qsearch.errors import SettingsError

MODELS = Path(qsearch.__file__).parent / "models"
IMAGES = 16

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "clipped": {"calibrate_mode": "kl_divergence", "nbit_input": 4},
    "in order": {"weight_rounding": "sequential"},
    "corrected": {
        "smooth_alpha": 0.5,
        "weight_rounding": "sequential",
        "activation_scheme": "asymmetric",
    },
}


class Digits(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = list(images()[:, None])

    def get_next(self) -> dict[str, Any] | None:
        return {"input": self._left.pop()} if self._left else None


def images() -> Any:
    with np.load(MODELS / "digits_calib.npz") as file:
        return np.asarray(file["input"], np.float32)[:IMAGES]


def quantized_before(folder: Path, kept: int | None, convolutions_only: bool = True) -> Path:
    """Digits after onnxruntime's quantize_static, but for nodes behind the first ``kept``."""
    ready, path = folder / "float.onnx", folder / ("whole.onnx" if kept is None else "part.onnx")
    quant_pre_process(MODELS / "digits_cnn.onnx", ready, skip_symbolic_shape=True)
    nodes = onnx.load(ready).graph.node
    left = [node.name for node in nodes if node.op_type == "Conv" or not convolutions_only]
    quantize_static(
        ready,
        path,
        Digits(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[] if kept is None else left[kept:],
    )
    return path


CASES = {
    "float": CONFIGURATIONS,
    "partly QDQ": ("clipped", "corrected"),
    "QDQ": ("recommended", "in order"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {"float": MODELS / "digits_cnn.onnx", "partly QDQ": quantized_before(folder, 1)}
    return {**made, "QDQ": quantized_before(folder, None)}


def searched(model: Path, changes: dict[str, Any], folder: Path) -> Any:
    """A search whose space holds one point."""
    fields = QConfig.recommended(**changes).to_dict()
    space = {"fields": {name: [fields[name]] for name in ("calibrate_mode", *changes)}}
    data = {"input": images()}
    return qsearch.launch(
        model, calib=data, trials=1, pool="inline", out=folder, space=space, prune=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in CASES for name in CASES[k]])
def test_one_configuration_is_one_module_whatever_made_it(
    kind: str, name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    model, changes = models[kind], CONFIGURATIONS[name]
    config = QConfig.recommended(**changes)
    data = {"input": images()}
    compiled = qsearch.quantize(model, data, changes)
    text = compiler.text(compiled.module, show_spans=False)

    mod, params = load(model)
    prepared = compiler.quantize.prerequisite_optimize(mod, params, 3, simplify=True)
    run = QuantizeContext(config)
    batches = [{"input": image[None]} for image in images()]
    alone = quantize(prepared, dataset=batches, context=run)
    assert compiler.text(alone, show_spans=False) == text

    shown = qsearch.insight(model, data, qconfig=changes, samples=2)
    ranges = [np.max(point.range_s) for point in run.report.points]
    if config.weight_rounding == "nearest":  # else insight examines the parts as they were before
        assert [point.range_s for point in shown.insight.points] == [float(r) for r in ranges]

    assert qsearch.doctor(model, changes).diagnosis.fully_integral

    if model.name == "whole.onnx":
        with pytest.raises(SettingsError, match="leaves nothing to search for"):
            searched(model, changes, tmp_path / "run")
        return
    found = searched(model, changes, tmp_path / "run")
    (trial,) = found.trials
    assert trial.qconfig == config.to_dict()
    assert compiler.text(found.best_module().module, show_spans=False) == text
