"""Real models: calibration cost and memory are bounded, and the evaluator keeps accuracy."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from compiler.frontend.from_onnx.load import load
from compiler.ir.blob import ModuleBlob
from compiler.quantize import QConfig, activation_scales, mark, prerequisite_optimize
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.quantize.calibration.collectors import RangeCollector
from compiler.quantize.calibration.measurement import Measurement, Step
from compiler.quantize.calibration.profile_function import profile_function
from compiler.quantize.calibration.stats import CalibrationStats
from workers.calibration import CalibrationActor
from workers.evaluation import EvaluationActor
from workers.messages import Build, CalibrationRequest, DatasetRef, EvaluationRequest, Handle
from workers.metrics.registry import results
from workers.object_store import ObjectStore

pytestmark = pytest.mark.shared


@pytest.fixture
def loaders(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(shared_data))
    sys.modules.pop("load", None)
    import load as module

    return module


@pytest.mark.parametrize(("name", "bar"), [("digits_cnn", 0.98), ("fashion_resnet", 0.89)])
def test_a_calibrated_candidate_keeps_the_accuracy_on_the_grid(
    name: str, bar: float, shared_data: Path, loaders: ModuleType, tmp_path: Path
) -> None:
    kind = loaders.load_digits if name.startswith("digits") else loaders.load_fashion
    refs = {}
    for split, limit in (("calib", 128), ("dev", 300)):
        images, labels = kind(split, limit)
        path = tmp_path / f"{split}.npz"
        np.savez(path, input=loaders.preprocess(images, name), labels=labels)
        refs[split] = DatasetRef("npz", {"path": str(path)})
    mod, params = load(shared_data / f"{name}.onnx", dims={"N": 1})
    blob = ModuleBlob.pack(prerequisite_optimize(mod, params, 3)).data
    qconfig = QConfig.recommended()
    fields = qconfig.to_dict()
    values = ObjectStore(lambda handle: blob)
    calibration, evaluation = CalibrationActor(values), EvaluationActor(values)

    def calibrate(step: Step, merged: object = None) -> CalibrationStats:
        measurement = Measurement(step, qconfig, (0.99999,))
        request = CalibrationRequest(Handle("blob"), refs["calib"], range(128), measurement, merged)
        return CalibrationStats.from_arrays(calibration.run(request).arrays)

    stats = calibrate("histograms", calibrate("ranges").to_arrays())
    scales = tuple(float(s) for s in activation_scales(stats, qconfig))

    def evaluate(evaluator: str, **more: object) -> object:
        base = EvaluationRequest(
            Build(Handle("blob"), fields, scales, evaluator, **more),
            refs["dev"],
            range(300),
            ("top1",),
        )
        return evaluation.run(base)

    float_top1 = results(evaluate("float").sums)["top1"]
    integers = evaluate("engine")
    assert results(integers.sums)["top1"] >= max(bar, float_top1 - 0.02)


def test_memory_of_calibration_does_not_grow_with_the_images(
    shared_data: Path, loaders: ModuleType
) -> None:
    mod, params = load(shared_data / "fashion_resnet.onnx", dims={"N": 1})
    annotated, _ = mark(prerequisite_optimize(mod, params, 3), QConfig.recommended())
    profile, points = profile_function(annotated)
    executor = float_executor(profile)
    images, _ = loaders.load_fashion("calib", 512)
    rows = loaders.preprocess(images, "fashion_resnet")
    collector = RangeCollector(points)

    def feed(count: int) -> int:
        for i in range(count):
            collector.update(executor.run({"input": rows[i : i + 1]}))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    few = feed(32)
    # holding the activations of 480 more images would take 130 MB
    assert feed(512) - few < 20 << 10
