"""Sliding windows: kernel, strides, dilations and padding of Conv and pools, auto_pad resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class Window:
    """One value per spatial axis, from the first to the last."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        """Our order for two spatial axes: top, left, bottom, right."""
        return (*self.begins, *self.ends)

    @property
    def moves_nothing(self) -> bool:
        """Whether every window is one element, and each element in one window."""
        ones = {*self.kernel, *self.strides} == {1}
        return ones and not any((*self.begins, *self.ends))

    def with_height_one(self) -> Window:
        """The window of one spatial axis as one of two, over data of height 1."""
        return Window(
            (1, *self.kernel),
            (1, *self.strides),
            (1, *self.dilations),
            (0, *self.begins),
            (0, *self.ends),
        )


def read_window(node: OnnxNode, kernel: Sequence[int], data: Expr) -> Window:
    """Window of a node over the spatial axes of ``data``: all but the first two.

    Raises:
        OnnxImportError: attributes of the wrong length, an unknown auto_pad, or an auto_pad that
            depends on an unknown size.
    """
    rank = node.rank(data) - 2
    strides = _per_axis(node, "strides", rank)
    dilations = _per_axis(node, "dilations", rank)
    auto_pad = node.attr("auto_pad", "NOTSET")
    if auto_pad == "NOTSET":
        pads = node.attr("pads", None) or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise node.error(f"pads {pads} need {2 * rank} values")
        begins, ends = tuple(pads[:rank]), tuple(pads[rank:])
    elif auto_pad == "VALID":
        begins = ends = (0,) * rank
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [node.size(data, axis) for axis in range(2, rank + 2)]
        totals = [
            max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, strides, dilations)
        ]
        small = tuple(t // 2 for t in totals)
        large = tuple(t - t // 2 for t in totals)
        begins, ends = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    else:
        raise node.error(
            f"auto_pad {auto_pad!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER"
        )
    if any(p < 0 for p in (*begins, *ends)):
        raise node.error(f"negative padding {(*begins, *ends)} is not supported")
    return Window(tuple(kernel), strides, dilations, begins, ends)


def _per_axis(node: OnnxNode, name: str, rank: int) -> tuple[int, ...]:
    value = node.attr(name, None) or [1] * rank
    if len(value) != rank:
        raise node.error(f"{name} {value} need {rank} values")
    return tuple(value)
