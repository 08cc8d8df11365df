"""ONNX attributes of sliding windows, which convolution and pooling nodes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def window_attributes(attrs: Any, kernel_shape: Sequence[int]) -> dict[str, list[int]]:
    """``strides``, ``pads``, ``dilations`` and ``kernel_shape`` of a node.

    Args:
        attrs: of a convolution or pooling: ``strides``, ``padding``, ``dilation``.
        kernel_shape: height and width of the window.
    """
    return {
        "strides": list(attrs.strides),
        "pads": list(attrs.padding),
        "dilations": list(attrs.dilation),
        "kernel_shape": list(kernel_shape),
    }
