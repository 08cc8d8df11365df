"""A trained model with channels up to 2^8 apart: unusable by ranges alone, rescued by rescaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.quantize import (
    QConfig,
    channel_stats,
    prerequisite_optimize,
)
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.runtime.exact_executor import exact_executor
from tests.compiler.quantize.candidates import calibrated

pytestmark = pytest.mark.shared

Rows = list[dict[str, NDArray[Any]]]


@pytest.fixture(scope="module")
def outlier(shared_data: Path) -> tuple[IRModule, Rows, Rows, NDArray[Any]]:
    """The model, 64 calibration images, 500 dev images, and their labels."""
    mod, params = load(str(shared_data / "fashion_outlier.onnx"), dims={"N": 1})
    rows = []
    for split, count in (("calib", 64), ("dev", 500)):
        with np.load(shared_data / f"fashion_{split}.npz") as data:
            images, labels = data["images"][:count], data["labels"][:count]
        # As shared/data/load.py prepares them for the fashion models.
        pixels = images.astype(np.float32) / np.float32(127.5) - np.float32(1)
        rows.append([{"input": image[None, None]} for image in pixels])
    return prerequisite_optimize(mod, params, 3), rows[0], rows[1], labels


def logits(mod: IRModule, config: QConfig, calib: Rows, dev: Rows) -> NDArray[Any]:
    channels = channel_stats(mod, calib) if config.needs_channels else None
    candidate = calibrated(mod, config, calib, channels)
    assert candidate.partitioned is not None
    executor = exact_executor(candidate.partitioned).executor
    return np.concatenate([executor.run(row)[0] for row in dev])


@pytest.mark.parametrize(
    "fields",
    [
        {"smooth_alpha": 0.75},
        {"smooth_alpha": 0.75, "weight_rounding": "corrected"},
    ],
)
def test_rescaled_integers_stay_within_a_point_of_float(
    fields: dict[str, Any], outlier: tuple[IRModule, Rows, Rows, NDArray[Any]]
) -> None:
    mod, calib, dev, labels = outlier
    run = float_executor(mod)
    expected = np.concatenate([run.run(row)[0] for row in dev])
    top1 = (expected.argmax(1) == labels).mean()
    assert top1 > 0.88

    config = QConfig.recommended(calibrate_mode="mse", weight_scale="mse", **fields)
    found = logits(mod, config, calib, dev)

    assert (found.argmax(1) == labels).mean() >= top1 - 0.01
    assert (found.argmax(1) == expected.argmax(1)).mean() >= 0.97
    noise = np.sum((found - expected) ** 2)
    assert 10 * np.log10(np.sum(expected**2) / noise) > 22


def test_ranges_alone_lose_the_model(
    outlier: tuple[IRModule, Rows, Rows, NDArray[Any]],
) -> None:
    mod, calib, dev, labels = outlier
    found = logits(mod, QConfig.recommended(), calib, dev[:200])
    assert (found.argmax(1) == labels[:200]).mean() < 0.6
