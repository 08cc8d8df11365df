"""Limits of a unit: how large a window, how many channels, how many bytes it can take at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields

from compiler.fusion.hardware.conditions import bytes_of, channel_axis, static_shape, tensor_of
from compiler.fusion.hardware.dfg import Node


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a unit; None stands for no limit.

    Attributes:
        max_kernel: elements of a convolution or pooling window along one axis; a global pool's
            window is the whole map.
        max_channels: channels of the first operand and of the result (see ``channel_axis``).
        buffer_bytes: bytes of all operands of one call, constants included.
    """

    max_kernel: int | None = None
    max_channels: int | None = None
    buffer_bytes: int | None = None

    def refusal(self, node: Node) -> str | None:
        """Explain why the unit cannot take this call; None when it can. Unknown sizes are
        refused."""
        if self.max_kernel is not None:
            window = window_of(node)
            if window is None or max(window, default=1) > self.max_kernel:
                return f"max_kernel {self.max_kernel}: the window is {_shown(window)}"
        if self.max_channels is not None:
            ends = [node.ref, *node.call.args[:1]]
            counts = [_channels(static_shape(tensor_of(expr))) for expr in ends]
            if None in counts or max(filter(None, counts), default=0) > self.max_channels:
                return f"max_channels {self.max_channels}: the call has {_shown(counts)} channels"
        if self.buffer_bytes is not None:
            sizes = [bytes_of(pred.ref.checked_type_or_none) for pred in set(node.preds)]
            if None in sizes or sum(filter(None, sizes)) > self.buffer_bytes:
                needed = "unknown" if None in sizes else sum(filter(None, sizes))
                return f"buffer_bytes {self.buffer_bytes}: the operands take {needed}"
        return None


LIMIT_NAMES = tuple(field.name for field in fields(Limits))


def window_of(node: Node) -> tuple[int, ...] | None:
    """Height and width of the window a call slides over its data; (1,) where it slides none."""
    attrs = node.call.attrs
    for name in ("kernel_size", "pool_size"):
        if hasattr(attrs, name):
            size = getattr(attrs, name)
            if size is None:  # a convolution may leave it to its weight
                weight = static_shape(tensor_of(node.call.args[1]))
                size = None if weight is None else weight[2:]
            if size is None:
                return size
            return tuple(size)
    if (node.op_name or "").startswith("nn.global_"):
        shape = static_shape(tensor_of(node.call.args[0]))
        if shape is None:
            return None
        return shape[2:]
    return (1,)


def _channels(shape: tuple[int, ...] | None) -> int | None:
    if shape is None:
        return None
    if shape:
        return shape[channel_axis(len(shape))]
    return 1


def _shown(values: object) -> str:
    if isinstance(values, (list, tuple)):
        return " x ".join("unknown" if v is None else str(v) for v in values)
    return "unknown"
