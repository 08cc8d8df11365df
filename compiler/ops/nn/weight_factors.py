"""Convolutions and dense layers: factors that their weight takes up, and their mean response."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant
from compiler.ops.nn.weight_scaling import is_depthwise
from compiler.ops.nn.window import axes_of
from compiler.ops.rules.channel_factors import RESULT, Absorber, ChannelFactors, FQChannelFactors
from compiler.ops.rules.mean_response import FQMeanResponse, MeanResponse


@FQChannelFactors.register("nn.conv2d")
def conv2d_factors(call: Call) -> ChannelFactors | None:
    """The weight: output channels times the result's factors, input channels by the data's.

    A grouped convolution that is not depthwise lets no factor in.
    """
    attrs: Any = call.attrs
    if not isinstance(call.args[1], Constant):
        return None
    behind = {c: 3 - attrs.kernel_layout.index(c) for c in "OI"}
    own = {RESULT: (attrs.out_layout or attrs.data_layout).index("C")}
    absorbers = [Absorber(1, RESULT, behind["O"])]
    reads = "I" if attrs.groups == 1 else "O" if is_depthwise(call) else None
    if reads is not None:
        own[0] = attrs.data_layout.index("C")
        absorbers.append(Absorber(1, 0, behind[reads], divides=True))
    return ChannelFactors(own, absorbers=tuple(absorbers))


@FQChannelFactors.register("nn.dense")
def dense_factors(call: Call) -> ChannelFactors | None:
    """The weight: rows times the result's factors, columns by the data's."""
    if not isinstance(call.args[1], Constant):
        return None
    last = len(call.args[0].tensor_type.shape) - 1
    rows, columns = Absorber(1, RESULT, 1), Absorber(1, 0, 0, divides=True)
    return ChannelFactors({RESULT: last, 0: last}, absorbers=(rows, columns))


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
