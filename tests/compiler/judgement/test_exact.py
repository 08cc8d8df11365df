"""Exact evaluation against onnxruntime, on every form of integers that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

from compiler.errors import EvaluationError, OnnxImportError
from compiler.judgement.exact import evaluate
from compiler.judgement.layers import read_network
from qsearch.opening.model_file import find_model
from tests.compiler.judgement.small_files import dense, node, packed, random_weights
from tests.each import each
from tests.needs import exact_products, unoptimized


class Samples:
    def __init__(self) -> None:
        self._left = iter([{"input": digits(i)} for i in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def digits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (1, 1, 8, 8)).astype(np.float32)


def runtime(
    path: str | bytes, inputs: dict[str, np.ndarray], options: Any = None
) -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(path, options or unoptimized()).run(None, inputs))


@pytest.mark.parametrize(
    ("form", "activations", "by_channel"),
    [
        (QuantFormat.QDQ, QuantType.QInt8, True),
        (QuantFormat.QDQ, QuantType.QUInt8, False),
        (QuantFormat.QDQ, QuantType.QUInt16, False),
        (QuantFormat.QOperator, QuantType.QUInt8, True),
    ],
)
def test_files_of_quantize_static_are_evaluated_as_onnxruntime_does(
    form: QuantFormat, activations: QuantType, by_channel: bool, tmp_path: Path
) -> None:
    target = tmp_path / "q.onnx"
    quantize_static(
        find_model("digits").path,
        target,
        Samples(),
        quant_format=form,
        activation_type=activations,
        weight_type=QuantType.QInt8,
        per_channel=by_channel,
    )
    network = read_network(target)
    assert len(network.products) == 4
    for seed in each(range(3)):
        options = exact_products() if form == QuantFormat.QOperator else None
        (theirs,) = runtime(str(target), {"input": digits(seed)}, options)
        ours = evaluate(network, {"input": digits(seed)}).values[network.outputs[0]]
        # 16-bit points meet the float32 sums of onnxruntime within a step of 3e-4.
        far = 3e-4 if activations == QuantType.QUInt16 else 1e-5 * np.abs(ours).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=far)


def test_a_dynamic_file_is_evaluated_as_onnxruntime_does(tmp_path: Path) -> None:
    quantize_dynamic(find_model("digits").path, tmp_path / "d.onnx")
    network = read_network(tmp_path / "d.onnx")
    (theirs,) = runtime(str(tmp_path / "d.onnx"), {"input": digits(0)}, exact_products())
    ours = evaluate(network, {"input": digits(0)}).values[network.outputs[0]]
    # The ranges are measured in float32, in which sums in front of them differ.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


def test_a_rescale_goes_to_even_at_a_tie() -> None:
    network = read_network(dense(np.ones((1, 1), np.int8), scales=(1, 1, 2), zeros=(0, 0)))
    halves = [int(evaluate(network, {"x": np.full((1, 1), x, np.float32)}).values["p"].item())
              for x in (1, 3, 5, 7)]  # fmt: skip
    assert halves == [0, 2, 2, 4]


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_operators_of_com_microsoft_become_products_between_points(alpha: float) -> None:
    """The bias of QGemm has the scale of its product, alpha included."""
    constants = {"s": np.float32(0.02), "z": np.uint8(3), "w": random_weights(4, 3, 99)}
    constants |= {"zw": np.int8(0), "b": np.arange(3, dtype=np.int32) * 900}
    names = ["x", "s", "z", "w", "s", "zw", "b", "s", "z"]
    product = node("QGemm", names, ["y"], name="layer", domain="com.microsoft", alpha=alpha)
    made = packed([product], [2, 4], constants, dtype=TensorProto.UINT8, out=TensorProto.UINT8)
    x = np.random.default_rng(0).integers(0, 256, (2, 4)).astype(np.uint8)
    network = read_network(made)
    assert [p.name for p in network.products] == ["layer"]
    np.testing.assert_array_equal(
        evaluate(network, {"x": x}).values["y"], runtime(made, {"x": x})[0]
    )


def test_a_convolution_with_its_channels_last_is_a_product() -> None:
    constants = {"s": np.float32(0.02), "z": np.uint8(3), "zw": np.int8(0)}
    constants["w"] = random_weights(6, 9, 99).reshape(6, 1, 3, 3)
    names = ["x", "s", "z", "w", "s", "zw", "s", "z"]
    product = node(
        "QLinearConv", names, ["y"], name="layer", domain="com.microsoft", channels_last=1
    )
    made = packed([product], [2, 5, 5, 1], constants, dtype=TensorProto.UINT8, out=2)
    x = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 1)).astype(np.uint8)
    network = read_network(made)
    assert [p.name for p in network.products] == ["layer"]
    np.testing.assert_array_equal(
        evaluate(network, {"x": x}).values["y"], runtime(made, {"x": x})[0]
    )


def test_a_graph_within_a_node_has_no_exact_evaluation() -> None:
    branch = packed([node("Identity", ["x"], ["y"])], [1], {})
    from onnx import ModelProto

    graph = ModelProto.FromString(branch).graph
    del graph.input[:]
    constants = {"s": np.float32(1), "z": np.uint8(0), "c": np.array(True)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("If", ["c"], ["y"], name="choice", then_branch=graph, else_branch=graph),
    ]
    network = read_network(packed(nodes, [1], constants))
    with pytest.raises(EvaluationError, match="If 'choice' has no exact evaluation"):
        evaluate(network, {"x": np.zeros(1, np.float32)})


def test_a_float_model_is_refused() -> None:
    with pytest.raises(OnnxImportError, match="holds no integers"):
        read_network(packed([node("Relu", ["x"], ["y"])], [1], {}))


def test_an_lstm_of_com_microsoft_runs_in_onnxruntime_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.normal(0, 0.5, (1, 16, 3)).astype(np.float32),
        "r": rng.normal(0, 0.5, (1, 16, 4)).astype(np.float32),
    }
    lstm = node("LSTM", ["x", "w", "r"], ["y", "", ""], name="lstm", hidden_size=4)
    plain = tmp_path / "f.onnx"
    plain.write_bytes(packed([lstm], [5, 1, 3], constants))
    quantize_dynamic(plain, tmp_path / "q.onnx", op_types_to_quantize=["LSTM"])
    x = rng.normal(0, 1, (5, 1, 3)).astype(np.float32)
    network = read_network(tmp_path / "q.onnx")
    (theirs,) = runtime(str(tmp_path / "q.onnx"), {"x": x})
    np.testing.assert_allclose(evaluate(network, {"x": x}).values["y"], theirs, rtol=0, atol=1e-6)


def test_values_are_dropped_once_read_and_integers_of_points_kept() -> None:
    network = read_network(dense(random_weights(8, 4, 60)))
    inputs = {"x": np.ones((1, 8), np.float32)}
    kept, whole = evaluate(network, inputs).values, evaluate(network, inputs, whole=True).values
    assert {"q", "p", "y"} <= kept.keys()
    assert "f" not in kept
    assert "f" in whole
    np.testing.assert_array_equal(kept["y"], whole["y"])
