"""Small networks that quantization tools write as ONNX, each run in an environment of its own.

    python -m venv ENV && ENV/bin/pip install torch onnx onnxscript PACKAGES
    ENV/bin/python write.py TOOL FOLDER

PACKAGES are those of ``PIP``. FOLDER gets ``TOOL.NETWORK.CONFIGURATION.onnx`` for every
configuration; the files beside this script were written so. Imports nothing of this project.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional as F

PIP = {
    "nncf": ("nncf==3.4.0",),
    "brevitas": ("brevitas==0.13.4", "onnxoptimizer"),
    "quark": ("amd-quark==0.13",),
    "modelopt": ("nvidia-modelopt[onnx]==0.47.0", "onnxslim"),
    "aimet": ("aimet-onnx==2.42.0",),
}


class Residual(nn.Module):
    """Convolutions with batch norms, a depthwise one, a residual sum, a concatenation, a mean."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.depth, self.point = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 8, 1)
        self.down, self.last = nn.Conv2d(8, 12, 3, 2, 1), nn.Linear(20, 10)
        self.activation = activation
        with torch.no_grad():
            for layer in (self.first, self.depth, self.point, self.down):
                layer.weight *= torch.exp(torch.randn(layer.weight.shape[0], 1, 1, 1) / 2)
            self.norm.running_mean.normal_(0, 0.2)
            self.norm.running_var.uniform_(0.3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.norm(self.first(x)))
        x = x + self.point(self.activation(self.depth(x)))
        both = torch.cat([F.max_pool2d(x, 2), self.activation(self.down(x))], 1)
        return self.last(both.mean((2, 3)))


class Gated(nn.Module):
    """Squeeze and excitation, a transposed convolution, upsampling, four activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(4, 2, 3, 1, 1)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.first(x))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        x = F.interpolate(F.leaky_relu(self.up(x), 0.1), scale_factor=2, mode="nearest")
        return torch.tanh(self.last(x))


class Attention(nn.Module):
    """A layer of a transformer with two heads."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.embed, self.last, self.heads = nn.Linear(8, width), nn.Linear(width, 5), heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        samples, steps, width = x.shape
        normed = self.norms[0](x)
        q, k, v = (
            part(normed).reshape(samples, steps, self.heads, -1).transpose(1, 2)
            for part in self.parts[:3]
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.parts[3]((weights @ v).transpose(1, 2).reshape(samples, steps, width))
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return self.last(x.mean(1))


class Sequence(nn.Module):
    """Convolutions in one dimension, grouped, with slopes that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 8, 5, 1, 2), nn.Conv1d(8, 8, 3, 2, 1, groups=2)
        self.slope, self.last = nn.PReLU(8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.elu(self.second(self.slope(self.first(x))))
        return F.log_softmax(self.last(x.amax(2)), -1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu6": (lambda: Residual(nn.ReLU6()), (1, 3, 16, 16)),
    "silu": (lambda: Residual(nn.SiLU()), (1, 3, 16, 16)),
    "gated": (Gated, (1, 3, 8, 8)),
    "attention": (Attention, (1, 6, 8)),
    "sequence": (Sequence, (1, 3, 20)),
}

Written = Iterator[tuple[str, onnx.ModelProto]]


def data(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """The 16 samples that every tool is calibrated with."""
    return list(np.random.default_rng(1).normal(0, 1, (16, *shape)).astype(np.float32))


def networks() -> Iterator[tuple[str, onnx.ModelProto, list[np.ndarray[Any, Any]]]]:
    """Name, float file and data of every network."""
    for name, (make, shape) in NETWORKS.items():
        torch.manual_seed(3)
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            model, example = make().eval(), torch.zeros(shape)
            names = {"input_names": ["x"], "output_names": ["y"], "dynamo": False}
            torch.onnx.export(model, (example,), file.name, opset_version=17, **names)
            yield name, onnx.load(file.name), data(shape)


def nncf() -> Written:
    """Intel NNCF: both presets; weights alone in 8 and 4 bits."""
    import nncf as tool

    modes = tool.CompressWeightsMode
    for name, model, samples in networks():
        kind = {"model_type": tool.ModelType.TRANSFORMER} if name == "attention" else {}
        for preset in (tool.QuantizationPreset.PERFORMANCE, tool.QuantizationPreset.MIXED):
            given = tool.Dataset(samples, lambda sample: {"x": sample})
            made = tool.quantize(model, given, preset=preset, subset_size=len(samples), **kind)
            yield f"{name}.{preset.value}", made
        if name == "attention":
            yield f"{name}.weights8", tool.compress_weights(model, mode=modes.INT8_ASYM)
            options = {
                "mode": modes.INT4_SYM,
                "group_size": 16,
                "ignored_scope": tool.IgnoredScope(names=["/embed/MatMul"]),
            }
            yield f"{name}.weights4", tool.compress_weights(model, **options)


def brevitas() -> Written:
    """Brevitas' QCDQ and QONNX: granularity, zero points, integer biases, few bits."""
    import brevitas.quant as kinds
    from brevitas.export import export_onnx_qcdq, export_qonnx

    points = {"data": kinds.ShiftedUint8ActPerTensorFloat}
    fixed = {
        "weight": kinds.Int8WeightPerTensorFixedPoint,
        "data": kinds.Int8ActPerTensorFixedPoint,
        "relu": kinds.Uint8ActPerTensorFixedPoint,
    }
    samples = torch.tensor(np.stack(data((1, 3, 8, 8))))
    for name, options in {
        "int8": {},
        "channels": {"weight": kinds.Int8WeightPerChannelFloat},
        "zeros": {**points, "weight": kinds.ShiftedUint8WeightPerTensorFloat},
        "zeros_channels": {**points, "weight": kinds.ShiftedUint8WeightPerChannelFloat},
        "powers": fixed,
        "bias8": {"bias": kinds.Int8Bias},
        "bias16": {"bias": kinds.Int16Bias},
        "bias32": {"bias": kinds.Int32Bias},
        "weights4": {"weight_bits": 4},
        "weights2": {"weight_bits": 2},
        "weights4_points4": {"weight_bits": 4, "bits": 4},
        "weights3_points6": {"weight_bits": 3, "bits": 6},
    }.items():
        torch.manual_seed(1)
        model = _brevitas_network(**options)
        for sample in samples:
            model.train()(sample)
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            export_onnx_qcdq(model.eval(), args=samples[0], export_path=file.name, dynamo=False)
            yield f"conv.{name}", onnx.load(file.name)
            if name in ("int8", "zeros_channels", "weights3_points6"):
                export_qonnx(model, args=samples[0], export_path=file.name, dynamo=False)
                yield f"conv.{name}.qonnx", onnx.load(file.name)


def _brevitas_network(
    weight: Any = None,
    data: Any = None,
    relu: Any = None,
    bias: Any = None,
    bits: int = 8,
    weight_bits: int = 8,
) -> nn.Module:
    """A plain, a depthwise and a transposed convolution, and a dense layer."""
    import brevitas.nn as quantized
    import brevitas.quant as kinds

    relu, data = relu or kinds.Uint8ActPerTensorFloat, data or kinds.Int8ActPerTensorFloat
    held: dict[str, Any] = {"weight_quant": weight or kinds.Int8WeightPerTensorFloat, "bias": True}
    held |= {"bias_quant": bias, "weight_bit_width": weight_bits}
    handed = {"return_quant_tensor": bias is not None}
    point: dict[str, Any] = {"bit_width": bits, "return_quant_tensor": True}
    return nn.Sequential(
        quantized.QuantIdentity(act_quant=data, **point),
        quantized.QuantConv2d(3, 8, 3, padding=1, stride=2, **held, **handed),
        quantized.QuantReLU(act_quant=relu, **point),
        quantized.QuantConv2d(8, 8, 3, padding=1, groups=8, **held, **handed),
        quantized.QuantReLU(act_quant=relu, **point),
        quantized.QuantConvTranspose2d(8, 4, 2, stride=2, **held),
        quantized.QuantIdentity(act_quant=data, **point),
        nn.Flatten(),
        quantized.QuantLinear(4 * 64, 5, **held),
    )


def quark() -> Written:
    """AMD Quark: bytes, powers of two, 16 bits in the operators of com.microsoft."""
    import quark.onnx as tool
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, samples: list[np.ndarray[Any, Any]]) -> None:
            self.samples = iter(samples)

        def get_next(self) -> dict[str, Any] | None:
            return next(({"x": sample} for sample in self.samples), None)

    ranges = {"calibration_method": tool.CalibMethod.MinMax}
    channels = {"quant_granularity": tool.QuantGranularity.Channel}
    for name, model, samples in networks():
        for kind, points, held, options in (
            ("u8", tool.UInt8Spec, tool.Int8Spec, channels),
            ("s8", tool.Int8Spec, tool.Int8Spec, {}),
            ("s16", tool.Int16Spec, tool.Int8Spec, {}),
            ("u16", tool.UInt16Spec, tool.Int8Spec, channels),
        ):
            layer = {"activation": points(**ranges), "weight": held(**ranges, **options)}
            config = tool.QConfig(global_config=tool.QLayerConfig(**layer))
            with tempfile.TemporaryDirectory() as folder:
                given, made = Path(folder, "given.onnx"), Path(folder, "made.onnx")
                onnx.save(model, given)
                tool.ModelQuantizer(config).quantize_model(str(given), str(made), Reader(samples))
                yield f"{name}.{kind}", onnx.load(made)


def modelopt() -> Written:
    """NVIDIA ModelOpt: 8 bits beside float32 and float16, blocks of 4 bits."""
    from modelopt.onnx.quantization import quantize

    for name, model, samples in networks():
        for kind, options in {
            "int8": {"quantize_mode": "int8", "calibration_method": "max"},
            "float16": {"quantize_mode": "int8", "high_precision_dtype": "fp16"},
            "int4": {"quantize_mode": "int4", "calibration_method": "rtn_dq"},
        }.items():
            with tempfile.TemporaryDirectory() as folder:
                given, made = Path(folder, "given.onnx"), Path(folder, "made.onnx")
                onnx.save(model, given)
                asked: dict[str, Any] = {"high_precision_dtype": "fp32", **options}
                asked |= {"calibration_data": {"x": np.concatenate(samples)}}
                quantize(str(given), calibration_eps=["cpu"], output_path=str(made), **asked)
                yield f"{name}.{kind}", onnx.load(made)


def aimet() -> Written:
    """Qualcomm AIMET: 8 and 16 bits, weights of 4, stored as integers and as floats."""
    from aimet_onnx.common.quantsim_config.utils import get_path_for_per_channel_config
    from aimet_onnx.quantsim import QuantizationSimModel

    options = {"quant_scheme": "min_max", "config_file": get_path_for_per_channel_config()}
    for name, model, samples in networks():
        for weight, point in (("int8", "int8"), ("int8", "int16"), ("int4", "int16")):
            bits = {"param_type": weight, "activation_type": point}
            cpu = ["CPUExecutionProvider"]
            sim = QuantizationSimModel(copy.deepcopy(model), providers=cpu, **bits, **options)
            sim.compute_encodings([{"x": sample} for sample in samples])
            for kind in ("integers", "floats"):
                made = sim.to_onnx_qdq(prequantize_constants=kind == "integers")
                yield f"{name}.{weight}_{point}_{kind}", made


TOOLS: dict[str, Callable[[], Written]] = {
    "nncf": nncf,
    "brevitas": brevitas,
    "quark": quark,
    "modelopt": modelopt,
    "aimet": aimet,
}


if __name__ == "__main__":
    for title, written in TOOLS[sys.argv[1]]():
        onnx.save(written, Path(sys.argv[2]) / f"{sys.argv[1]}.{title}.onnx")
