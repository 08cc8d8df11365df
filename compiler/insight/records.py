"""Results of ``examine``, as frozen records with plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PointInsight:
    """One quantize point.

    Attributes:
        index: place in binding order, over points of every kind.
        kind: "input", "weight" or "activation".
        op: operator that makes the tensor; "" for a model input or a constant.
        onnx_nodes: ONNX nodes that operator came from.
        layers: indices of the layers that read the point.
        minimum, maximum: extremes of the float tensor over the samples.
        range_s: range S in use, in the units of the tensor; the largest of several channels.
        levels: first and last integer in use, 0 standing for 0: (-127, 127) symmetric, (0, 255)
            unsigned, (-98, 157) with a zero point.
        scale_min, scale_max: smallest and largest of the scales; equal when there is one.
        channels: number of scales.
        thresholds: calibrate_mode → S; empty for weights.
        saturated: fraction of the values that the clip bounds cut off.
        local_db: SQNR of quantizing the exact tensor; None where nothing is lost.
        upstream_db: SQNR of the tensor in the simulated module, where everything before it is
            quantized too; None for weights, and where nothing is lost.
        name: what QConfig.layers calls it.
    """

    index: int
    kind: str
    op: str
    onnx_nodes: tuple[str, ...]
    layers: tuple[int, ...]
    minimum: float
    maximum: float
    range_s: float
    levels: tuple[int, int]
    scale_min: float
    scale_max: float
    channels: int
    thresholds: Mapping[str, float]
    saturated: float
    local_db: float | None
    upstream_db: float | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class LayerInsight:
    """One operator that reads quantize points; a constant bias counts to the operator it follows.

    Attributes:
        index: place in visiting order.
        op: operator; "result" for points that only a function result reads.
        onnx_nodes: ONNX nodes it came from.
        conv_index: what skip_conv_layers calls this nn.conv2d, else None.
        layer: what QConfig.layers calls this convolution or matrix product, else "".
        points: indices of the points it reads.
        output_db: SQNR of the model's outputs when only this layer is quantized; None where
            nothing is lost.
        agreement: fraction of samples whose highest output stays the same then.
    """

    index: int
    op: str
    onnx_nodes: tuple[str, ...]
    conv_index: int | None
    layer: str
    points: tuple[int, ...]
    output_db: float | None
    agreement: float


@dataclass(frozen=True, slots=True)
class OutputInsight:
    """The model's outputs against the float model's.

    Attributes:
        output_db: SQNR, of several outputs the harmonic mean of theirs; None: equal.
        agreement: share of equal answers.
        worst: place of the output with the least SQNR; None of a model with one.
        worst_db: its SQNR; None: equal.
        worst_name: what the file of the model calls it, where that is known.
    """

    output_db: float | None
    agreement: float
    worst: int | None = None
    worst_db: float | None = None
    worst_name: str | None = None

    @property
    def worst_told(self) -> str:
        """Name the worst output and its SQNR; "" if there is one output, or all are exact."""
        if self.worst is None or self.worst_db is None:
            return ""
        if self.worst_name is None:
            name = str(self.worst)
        else:
            name = repr(self.worst_name)
        return f"the worst output is {name}: {self.worst_db:.1f} dB"


@dataclass(frozen=True, slots=True)
class Insight:
    """Everything ``examine`` found.

    Attributes:
        samples: runs of the model that were measured.
        simulated: the classic simulation.
        integer: the realised module, float parts included; None with do_simulation.
    """

    samples: int
    simulated: OutputInsight
    integer: OutputInsight | None
    layers: tuple[LayerInsight, ...]
    points: tuple[PointInsight, ...]


@dataclass(slots=True)
class Ratio:
    """Running sums of a signal-to-quantization-noise ratio."""

    signal: float = 0.0
    noise: float = 0.0

    @property
    def db(self) -> float | None:
        """10·log10(signal / noise); None without noise, -400 without signal."""
        if self.noise == 0:
            return None
        if not (self.signal > 0 and math.isfinite(self.noise)):
            return -400.0
        return 10 * math.log10(self.signal / self.noise)
