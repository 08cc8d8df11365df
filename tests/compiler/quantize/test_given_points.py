"""Models quantized by another tool keep their scales and zero points, on integers only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

import qsearch.models
from compiler import evaluate
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.expr import Constant, is_op_call
from compiler.ir.module import IRModule
from compiler.proof.derive import derive_static
from compiler.quantize import (
    QConfig,
    build_candidate,
    given_note,
    mark,
    measured_points,
    prerequisite_optimize,
    ungiven_weights,
)
from compiler.targets.ort.integer_executor import IntegerExecutor

MODEL = Path(qsearch.models.__file__).parent / "digits_cnn.onnx"
BATCH = 8


class Digits(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = list(pixels("calib")[:16, None])

    def get_next(self) -> dict[str, Any] | None:
        return {"input": self._left.pop()} if self._left else None


def pixels(split: str) -> np.ndarray:
    with np.load(MODEL.parent / f"digits_{split}.npz") as file:
        return np.asarray(file["input"], np.float32)


SCHEMES = {
    "signed": (QuantType.QInt8, True, False),
    "signed, per channel": (QuantType.QInt8, True, True),
    "signed, zero points": (QuantType.QInt8, False, True),
    "unsigned, zero points": (QuantType.QUInt8, False, True),
}


@pytest.fixture(params=SCHEMES)
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> onnx.ModelProto:
    activations, symmetric, per_channel = SCHEMES[request.param]
    quant_pre_process(MODEL, tmp_path / "float.onnx", skip_symbolic_shape=True)
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "q.onnx",
        Digits(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=activations,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": symmetric},
    )
    return onnx.load(tmp_path / "q.onnx")


def imported(proto: onnx.ModelProto) -> IRModule:
    mod, params = load(proto.SerializeToString(), dims={"N": BATCH})
    return prerequisite_optimize(mod, params, 3, simplify=True)


def test_a_qdq_model_keeps_its_integers_scales_and_outputs(theirs: onnx.ModelProto) -> None:
    mod = imported(theirs)
    config = QConfig.recommended(calibrate_mode="max", weight_scale="mse", rounding="TONEAREST")
    annotated, _ = mark(mod, config)
    assert measured_points(annotated) == []
    assert not ungiven_weights(annotated)
    module = build_candidate(mod, config, []).partitioned
    assert module is not None
    assert [str(finding) for finding in derive_static(module).findings] == []

    stored = {
        numpy_helper.to_array(tensor).tobytes()
        for tensor in theirs.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
    }
    products = [
        node
        for node in post_order(module["quantized_main"].body)
        if is_op_call(node, "nn.conv2d", "nn.dense")
    ]
    assert len(products) == len(stored) == 4
    for product in products:
        weight = product.args[1]  # type: ignore[attr-defined]
        assert isinstance(weight, Constant)
        assert weight.data.tobytes() in stored

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(theirs.SerializeToString(), options)
    exact = IntegerExecutor(module)
    images = pixels("dev")[: 4 * BATCH]
    found, wanted = [], []
    for start in range(0, len(images), BATCH):
        batch = {"input": images[start : start + BATCH]}
        found.append(evaluate(module, batch)[0])
        wanted.append(session.run(None, batch)[0])
        np.testing.assert_array_equal(exact.run(batch)[0], found[-1])
    ours, reference = np.concatenate(found), np.concatenate(wanted)
    # Their simulation rounds in float32, so a sum next to a half may go to the other side.
    assert np.mean(ours != reference) < 0.1
    assert np.abs(ours - reference).max() <= 0.03 * np.abs(reference).max()


def test_the_note_says_what_is_kept_and_a_float_model_has_none(theirs: onnx.ModelProto) -> None:
    assert "quantized already" in given_note(imported(theirs))
    assert given_note(imported(onnx.load(MODEL))) == ""


CLIPPED = """<ir_version: 8, opset_import: ["": 17]>
clipped (float[N, 6] x) => (float[N, 6] y)
  <float s = {0.05}, uint8 z = {128}, float low = {LOW}, float high = {HIGH}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  [limits] c = Clip (d, low, high)
  n = Neg (c)
  p = QuantizeLinear (n, s, z)
  y = DequantizeLinear (p, s, z)
}"""


@pytest.mark.parametrize(("low", "high", "steps"), [(-1.0, 2.0, 0), (-1.02, 2.03, 1)])
def test_limits_behind_a_point_are_its_nearest_steps_and_named_off_its_grid(
    low: float, high: float, steps: int
) -> None:
    text = CLIPPED.replace("LOW", str(low)).replace("HIGH", str(high))
    model = onnx.parser.parse_model(text)
    batches = [{"x": x[None].astype("float32")} for x in np.linspace(-3, 3, 96).reshape(-1, 6)]
    module = qsearch.quantize(model, batches)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    far = [np.abs(module.run(x)[0] - session.run(None, x)[0]).max() for x in batches]
    assert max(far) <= 1e-6 + 0.05 * steps
    assert ("limits of 'limits' are rounded" in given_note(imported(model))) == bool(steps)


SCORES = """<ir_version: 8, opset_import: ["": 17]>
scores (float[N, 16] x, float[N, 16] u) => (float[N, N] y)
<float step = {0.05}, int8 low = {-100}, int8 high = {90}, float large = {0.5}, int8 zero = {0}>
{
    rows = QuantizeLinear (x, step, low)
    a = DequantizeLinear (rows, step, low)
    columns = QuantizeLinear (u, step, high)
    b = DequantizeLinear (columns, step, high)
    turned = Transpose <perm = [1, 0]> (b)
    sums = MatMul (a, turned)
    held = QuantizeLinear (sums, large, zero)
    y = DequantizeLinear (held, large, zero)
}"""


def test_both_factors_of_a_product_keep_their_zero_points() -> None:
    proto = onnx.parser.parse_model(SCORES)
    module = build_candidate(imported(proto), QConfig.recommended(), []).partitioned
    assert module is not None
    rng = np.random.default_rng(0)
    inputs = {name: rng.uniform(-14, 14, (BATCH, 16)).astype(np.float32) for name in "xu"}
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)[0]
    np.testing.assert_array_equal(IntegerExecutor(module).run(inputs)[0], wanted)
    np.testing.assert_array_equal(evaluate(module, inputs)[0], wanted)


TWICE = """<ir_version: 8, opset_import: ["": 17]>
twice (float[1, 16] x) => (float[1, 16] y)
<float fine = {0.03}, float coarse = {0.05}, int8 zero = {0}>
{
    first = QuantizeLinear (x, fine, zero)
    a = DequantizeLinear (first, fine, zero)
    second = QuantizeLinear (a, coarse, zero)
    b = DequantizeLinear (second, coarse, zero)
    c = Relu (b)
    third = QuantizeLinear (c, fine, zero)
    d = DequantizeLinear (third, fine, zero)
    fourth = QuantizeLinear (d, coarse, zero)
    y = DequantizeLinear (fourth, coarse, zero)
}"""


def test_points_that_follow_each_other_all_round() -> None:
    model = onnx.parser.parse_model(TWICE)
    rng = np.random.default_rng(2)
    batches = [{"x": rng.normal(0, 2, (1, 16)).astype(np.float32)} for _ in range(20)]
    module = qsearch.quantize(model, batches)
    # It leaves out points that follow each other, and then rounds once.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    for batch in batches:
        np.testing.assert_array_equal(module.run(batch)[0], session.run(None, batch)[0])
    closeness = module.provenance["closeness"]
    assert (closeness["to"], closeness["sqnr_db"]) == ("the given file", None)
