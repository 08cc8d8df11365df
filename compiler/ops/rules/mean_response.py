"""FQMeanResponse: the mean output of a weighted operator from the mean of its data.

Calibration measures the data of operators with this rule channel by channel; bias correction asks
what an error of the weight adds to the output on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ops.nn.window import axes_of

Vector = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MeanResponse:
    """A weighted operator, linear in data (operand 0) and weight (operand 1).

    Attributes:
        data_axis: channel axis of the data.
        respond: ``respond(weight, means) -> output means``: weight of the operator's own shape, one
            mean per input channel, one result per output channel, float64. Positions that read
            padding read 0; otherwise a channel is taken to be as large everywhere.
    """

    data_axis: int
    respond: Callable[[NDArray[Any], Vector], Vector]


FQMeanResponse: OpRule[Callable[[Call], MeanResponse | None]] = OpRule(
    "FQMeanResponse", asked_by="channel statistics and bias correction (compiler/quantize)"
)
"""``rule(call)`` for a typed call; None for layouts it does not know."""


@FQMeanResponse.register("nn.conv2d")
def conv2d_mean_response(call: Call) -> MeanResponse:
    """Each tap counts as often as it lies on the data and not on the padding."""
    attrs: Any = call.attrs
    data_axes = axes_of("nn.conv2d", attrs.data_layout, "NCHW", "data_layout")
    out_axes = axes_of("nn.conv2d", attrs.out_layout or attrs.data_layout, "NCHW", "out_layout")
    kernel_axes = axes_of("nn.conv2d", attrs.kernel_layout, "OIHW", "kernel_layout")
    kernel = call.args[1].tensor_type.concrete_shape
    data, out = call.args[0].tensor_type.concrete_shape, call.tensor_type.concrete_shape
    coverage = [
        _coverage(
            data[data_axes[k]],
            out[out_axes[k]],
            kernel[kernel_axes[k]],
            attrs.strides[k - 2],
            attrs.dilation[k - 2],
            attrs.padding[k - 2],
        )
        for k in (2, 3)
    ]

    def respond(weight: NDArray[Any], means: NDArray[Any]) -> NDArray[Any]:
        taps = weight.transpose(kernel_axes).astype(np.float64)
        summed = np.einsum("oihw,h,w->oi", taps, *coverage)
        per_group = summed.reshape(attrs.groups, -1, summed.shape[1])
        response = np.einsum("goi,gi->go", per_group, means.reshape(attrs.groups, -1))
        return np.asarray(response.reshape(-1))

    return MeanResponse(data_axes[1], respond)


def _coverage(
    size: int, out: int, taps: int, stride: int, dilation: int, before: int
) -> NDArray[np.float64]:
    """Fraction of the output positions at which each tap lies on the data."""
    places = np.arange(out)[None, :] * stride + np.arange(taps)[:, None] * dilation - before
    return np.asarray(((places >= 0) & (places < size)).mean(axis=1))


@FQMeanResponse.register("nn.dense")
def dense_mean_response(call: Call) -> MeanResponse:
    """The weight times the means."""

    def respond(weight: NDArray[Any], means: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(weight.astype(np.float64) @ means)

    return MeanResponse(len(call.args[0].tensor_type.shape) - 1, respond)
