"""Conv and ConvTranspose; one spatial axis is imported as two with height 1, three as slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from compiler.frontend.from_onnx.convert.activation import swish_of
from compiler.frontend.from_onnx.convert.volume import convolve_volume, convolve_volume_transposed
from compiler.frontend.from_onnx.convert.window import (
    AUTO_PADS,
    Window,
    convolved,
    halves,
    pads_of,
    per_axis,
    read_window,
    spatial_axes,
)
from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

Ints = tuple[int, ...]


def _weight(node: OnnxNode, given: Expr | None, axes: int) -> Expr:
    """Input 1 or what is given for it, with two spatial axes."""
    if axes == 1 and given is None:
        given = node.weight(1, "2d", lambda w: w[:, :, None, :])
        if given is not None:
            return given
    weight = node.arg(1) if given is None else given
    if axes == 1:
        return node.call("expand_dims", weight, axis=2)
    return weight


def _add_bias(node: OnnxNode, result: Expr) -> Expr:
    """Bias as an add of a (C, 1, 1) constant, the form the quantization rules know."""
    if not node.has_input(2):
        return result
    ones = node.rank(result) - 2
    bias = node.weight(2, "channels", lambda b: b.reshape(-1, *(1,) * ones))
    if bias is None:
        bias = node.call("expand_dims", node.arg(2), axis=1, num_newaxis=ones)
    return node.call("add", result, bias)


@from_onnx("Conv")
def conv(node: OnnxNode) -> Expr:
    """Conv with one to three spatial axes."""
    return convolution(node, node.arg(0), None)


def convolution(node: OnnxNode, data: Expr, given: Expr | None) -> Expr:
    """The attributes of ``node`` applied to operands that were made for it.

    Args:
        given: the weight, without a bias; None: inputs 1 and 2.
    """
    axes = spatial_axes(node, data)
    if given is None:
        kernel = _kernel_size(node)
    else:
        kernel = node.shape(given)[2:]
    window = read_window(node, node.attr("kernel_shape", None) or kernel, data)
    if axes == 3:
        if given is not None:
            raise node.error("three spatial axes are supported for float operands only")
        return convolve_volume(node, data, window, partial(_add_bias, node))
    if given is None and _is_correlated(node, data, window):
        return _add_bias(node, _correlated(node, data, window))
    if axes == 1:
        data = node.call("expand_dims", data, axis=2)
        window = window.with_height_one()
    weight = _weight(node, given, axes)
    result = convolved(node, "nn.conv2d", data, weight, window, channels=node.shape(weight)[0])
    if given is None:
        result = _add_bias(node, result)
    if axes == 1:
        return node.call("squeeze", result, axis=(2,))
    return result


@from_onnx("CausalConvWithState", since=27)
def causal_conv_with_state(node: OnnxNode) -> list[Expr]:
    """A depthwise convolution behind the last steps of an earlier call, or zeros; the last steps
    for the next call."""
    data = node.arg(0)
    activation = node.choice("activation", ("none", "silu", "swish"))
    axes, (steps,) = spatial_axes(node, data), _kernel_size(node)
    if node.has_input(3):
        data = node.joined([node.arg(3), data], 2)
    else:
        width = ((0, 0), (0, 0), (steps - 1, 0))
        data = node.call("nn.pad", data, node.scalar_like(0, data), pad_width=width)
    weight = _weight(node, None, axes)
    size = node.shape(data)[2]
    result = node.call(
        "nn.conv2d",
        node.call("expand_dims", data, axis=2),
        weight,
        groups=node.shape(weight)[0],
        channels=node.shape(weight)[0],
        kernel_size=(1, steps),
    )
    result = node.call("squeeze", _add_bias(node, result), axis=(2,))
    if activation != "none":
        result = swish_of(node, result, 1.0)
    if len(node.proto.output) == 1:
        return [result]
    begin, end = (size - steps + 1,), (size,)
    return [result, node.call("strided_slice", data, begin=begin, end=end, axes=(2,))]


@from_onnx("STFT", since=17)
def stft(node: OnnxNode) -> Expr:
    """A convolution with the cosines and sines of each frequency, under the window."""
    signal = node.arg(0)
    samples, parts = (node.size(signal, axis) for axis in (1, 2))
    if parts != 1:
        raise node.error("complex samples are not supported", "give their real part")
    if node.has_input(2):
        window = node.require_known(2, "the window")
    else:
        window = None
    if window is None:
        size = node.ints(3, "the frame length")[0]
    else:
        size = len(window)
    count = size // 2 + 1 if node.attr("onesided", 1) else size
    if 2 * count * size > MAX_CONSTANT:
        raise node.error(f"a frame of {size} samples is a product of {2 * count * size}")
    turns = np.outer(np.arange(count), np.arange(size)) % size / size
    wave = np.exp(-2j * np.pi * turns) * (1 if window is None else window)
    weight = np.concatenate([wave.real, wave.imag])[:, None, None]
    found = node.call(
        "nn.conv2d",
        node.call("reshape", signal, newshape=(-1, 1, 1, samples)),
        node.const(weight, signal.tensor_type.dtype),
        strides=(1, node.ints(1, "the frame step")[0]),
        channels=2 * count,
        kernel_size=(1, size),
    )
    parted = node.call("reshape", found, newshape=(-1, 2, count, node.size(found, 3)))
    return node.call("transpose", parted, axes=(0, 3, 2, 1))


def _is_correlated(node: OnnxNode, data: Expr, window: Window) -> bool:
    """Return whether a weight is computed, for one sample of which there are not too many
    windows."""
    shape = data.tensor_type.shape
    static = shape[0] == 1 and all(isinstance(size, int) for size in shape)
    if not static or node.values.is_stored(node.proto.input[1]):
        return False
    return math.prod((*window.kernel, *node.shape(data))) <= MAX_CONSTANT


def _correlated(node: OnnxNode, data: Expr, window: Window) -> Expr:
    """Convert a correlation, such as of a template with an image in trackers, to a product of
    matrices, of the weight and of the windows of the data, group by group."""
    weight = node.arg(1)
    groups = node.attr("group", 1)
    around = [(0, 0), (0, 0), *zip(window.begins, window.ends, strict=True)]
    if any(map(any, around)):
        data = node.call("nn.pad", data, node.scalar_like(0, data), pad_width=around)
    _, channels, *sizes = node.shape(data)
    none = (0,) * len(sizes)
    window = window._replace(begins=none, ends=none)
    places = node.const(window.elements(sizes)[0].T.reshape(-1))
    taken = node.call("take", node.call("reshape", data, newshape=(channels, -1)), places, axis=1)
    found = window.counts(sizes)
    columns = node.call("reshape", taken, newshape=(groups, -1, math.prod(found)))
    outputs = node.shape(weight)[0]
    rows = node.call("reshape", weight, newshape=(groups, outputs // groups, -1))
    product = node.call("nn.batch_matmul", rows, columns, transpose_b=False)
    return node.call("reshape", product, newshape=(1, outputs, *found))


def _kernel_size(node: OnnxNode) -> Ints:
    """Spatial shape of the weight; a stored one is not made a parameter by asking."""
    known = node.known(1)
    if known is not None:
        return known.shape[2:]
    return node.shape(node.arg(1))[2:]


@from_onnx("ConvTranspose")
def conv_transpose(node: OnnxNode) -> Expr:
    """ConvTranspose with one to three spatial axes; output_shape and auto_pad become padding."""
    data = node.arg(0)
    axes = spatial_axes(node, data)
    spatial = [node.size(data, axis) for axis in range(2, axes + 2)]
    kernel = node.attr("kernel_shape", None) or _kernel_size(node)
    window, extra = _transposed_window(node, tuple(kernel), spatial)
    if axes == 3:
        return convolve_volume_transposed(node, data, window, extra, partial(_add_bias, node))
    weight = _weight(node, None, axes)
    if axes == 1:
        data = node.call("expand_dims", data, axis=2)
        window = window.with_height_one()
        extra = (0, *extra)
    sizes = {"channels": node.shape(weight)[1] * node.attr("group", 1), "output_padding": extra}
    result = convolved(node, "nn.conv2d_transpose", data, weight, window, **sizes)
    result = _add_bias(node, result)
    if axes == 1:
        return node.call("squeeze", result, axis=(2,))
    return result


def _transposed_window(node: OnnxNode, kernel: Ints, spatial: Sequence[int]) -> tuple[Window, Ints]:
    """Window and output_padding of a ConvTranspose."""
    axes = len(spatial)
    strides, dilations = (per_axis(node, name, axes) for name in ("strides", "dilations"))
    extra = per_axis(node, "output_padding", axes, 0)
    auto_pad = node.choice("auto_pad", AUTO_PADS)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(spatial, strides, kernel, dilations, extra)
    ]
    wanted = node.attr("output_shape", None)
    if wanted is not None:
        wanted = wanted[-axes:]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [min(n * s, f) for n, s, f in zip(spatial, strides, full)]
    if wanted is None:
        none = (0,) * axes
        begins, ends = (none, none) if auto_pad == "VALID" else pads_of(node, axes)
        return Window(kernel, strides, dilations, begins, ends), extra
    totals = [f - w for f, w in zip(full, wanted)]
    # An output larger than the full one is reached by output padding instead of negative padding.
    extra = tuple(e + max(-t, 0) for e, t in zip(extra, totals))
    totals = [max(t, 0) for t in totals]
    # ONNX: SAME_UPPER gives the odd pixel to the end, every other mode to the beginning.
    begins, ends = halves(totals, auto_pad == "SAME_UPPER")
    return Window(kernel, strides, dilations, begins, ends), extra
