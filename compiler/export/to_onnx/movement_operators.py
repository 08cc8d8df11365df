"""Names of operators, for both integer exports: identities on integers, and movements of integers.

``compiler/proof`` keeps lists of its own: it must not inherit a mistake of the exporters.
"""

from __future__ import annotations

from typing import Final

IDENTITIES: Final = (
    "annotation.stop_fusion",
    "annotation.cast_hint",
    "on_device",
    "device_copy",
    "copy",
    "round",
    "round_even",
    "floor",
    "ceil",
    "trunc",
)
"""The value itself; roundings change nothing on integers."""

MOVES: Final = (
    "reshape",
    "reshape_like",
    "nn.batch_flatten",
    "squeeze",
    "expand_dims",
    "broadcast_to",
    "transpose",
    "concatenate",
    "stack",
    "split",
    "strided_slice",
    "reverse",
    "tile",
    "repeat",
    "take",
    "gather",
    "gather_nd",
    "nn.mirror_pad",
    "nn.depth_to_space",
    "nn.space_to_depth",
)
"""Operators whose plain ONNX form serves integers of any carrier."""
