"""A tiny network, prepared as a study prepares it, with data on disk."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.ir.blob import ModuleBlob
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, activation_scales, prerequisite_optimize
from compiler.quantize.calibration.measurement import Measurement, Step
from compiler.quantize.calibration.stats import CalibrationStats
from tests.compiler.networks import residual_net
from tests.workers.shards import calibrate_shard
from workers.messages import Build, CalibrationRequest, DatasetRef, EvaluationRequest

PERCENTILES = (0.999, 0.99999)
BUILT = [field.name for field in fields(Build)]


@dataclass(frozen=True)
class TinyStudy:
    """A module, its blob and 48 labelled samples."""

    mod: IRModule
    blob: bytes
    qconfig: QConfig
    dataset: DatasetRef
    images: NDArray[np.float32]

    def calibration(self, step: Step, samples: range, merged: Any = None) -> CalibrationRequest:
        measurement = Measurement(step, self.qconfig, PERCENTILES)
        return CalibrationRequest(self.blob, self.dataset, samples, measurement, merged)

    def stats(self) -> CalibrationStats:
        whole = range(len(self.images))
        first = calibrate_shard(self.calibration("ranges", whole))
        second = calibrate_shard(self.calibration("histograms", whole, first.arrays))
        return CalibrationStats.from_arrays(second.arrays)

    def evaluation(self, evaluator: Any, **changed: Any) -> EvaluationRequest:
        request = EvaluationRequest(
            build=Build(self.blob, self.qconfig.to_dict(), None, evaluator),
            dataset=self.dataset,
            samples=range(len(self.images)),
            metrics=("top1",),
        )
        parts = {name: changed.pop(name) for name in BUILT if name in changed}
        return replace(request, build=replace(request.build, **parts), **changed)

    def scales(self) -> tuple[float, ...]:
        return tuple(float(s) for s in activation_scales(self.stats(), self.qconfig))


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> TinyStudy:
    mod, params = residual_net(blocks=1, channels=6, size=8, classes=5, seed=3)
    mod = prerequisite_optimize(mod, params, 3)
    rng = np.random.default_rng(11)
    images = rng.standard_normal((48, 3, 8, 8)).astype(np.float32)
    path: Path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, x=images, labels=rng.integers(0, 5, 48))
    dataset = DatasetRef("npz", {"path": str(path)})
    blob = ModuleBlob.pack(mod).data
    return TinyStudy(mod, blob, QConfig.recommended(), dataset, images)
