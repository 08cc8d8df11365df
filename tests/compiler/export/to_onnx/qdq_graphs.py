"""Networks for the tests of QDQ graphs, and what they measure."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from compiler.runtime.artifact import QModule
from compiler.targets.engine.library import adds_pairs
from compiler.targets.ort.session import OrtExecutor


def sqnr_db(found: np.ndarray, wanted: np.ndarray) -> float:
    """Signal to noise of outputs."""
    noise = float(np.square(found - wanted).sum())
    return 10 * float(np.log10(np.square(wanted).sum() / max(noise, 1e-12)))


def kernels(model: onnx.ModelProto, folder: Path) -> collections.Counter[str]:
    """Operators of the graph that onnxruntime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    data = model.SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(options.optimized_model_filepath)
    return collections.Counter(node.op_type for node in optimized.graph.node)


def residual_network(
    normalized: bool = False, layers: Mapping[str, Any] | None = None
) -> tuple[QModule, list[dict[str, np.ndarray]]]:
    """Blocks whose results are added to what they read, in a module of these choices; and data."""
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op, nn = np.random.default_rng(3), relay.op, relay.op.nn

    def conv(value: Any) -> Any:
        weight = relay.const(rng.normal(0, 0.35, (8, 8, 1, 1)).astype("float32"))
        bias = relay.const(np.full((8, 1, 1), 0.1, "float32"))
        return op.add(nn.conv2d(value, weight), bias)

    value: Any = relay.var("x", (1, 8, 6, 6))
    for _ in range(2):
        value = op.add(value, conv(nn.relu(conv(value))))
    value = nn.relu(op.add(conv(value), conv(value)))
    if normalized:
        scale = relay.const(np.ones(6, "float32"))
        value = nn.layer_norm(op.add(value, conv(value)), scale, scale)
    mod = relay.module(conv(value))
    data = [{"x": rng.normal(0, 1, (1, 8, 6, 6)).astype("float32")} for _ in range(8)]
    asked = QConfig.recommended(layers=layers or {}, calibrate_mode="mse")
    return QModule(Calibration(mod, data[:4]).candidate(asked).module), data


def of_file(model: onnx.ModelProto) -> OrtExecutor:
    """What a file computes: in floats where kernels for 8 bits saturate (no VNNI)."""
    return OrtExecutor(model, fused_grids=not adds_pairs())


def outputs_of(run: Any, data: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The first output for all inputs."""
    return np.concatenate([run([batch["x"]])[0] for batch in data])


def multiplier_and_shift(value: float) -> tuple[int, int]:
    """(M, e) with factor = M * 2^(e - 31) and M in [2^30, 2^31), for a float32 factor."""
    fraction, exponent = np.frexp(np.float64(np.float32(value)))
    multiplier = int(np.floor(fraction * 2**31 + 0.5))
    return (multiplier, int(exponent)) if multiplier < 1 << 31 else (1 << 30, int(exponent) + 1)
