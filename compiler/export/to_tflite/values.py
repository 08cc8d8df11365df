"""What the values of an integer module are in a LiteRT file, while its operators are recognised.

Narrow values are tensors. Wide ones (int32) exist inside the file's operators only: they are kept
as what they are made of until they are narrow again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_tflite.file import Grid

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Narrow:
    """A tensor of int8.

    Attributes:
        tensor: its number.
        shape: elements per axis.
        scale: real value of a step.
        zero: the module's integer that stands for 0.
        offset: the module's integer less the file's: 128 where the module has uint8.
    """

    tensor: int
    shape: tuple[int, ...]
    scale: float
    zero: int
    offset: int

    @property
    def grid(self) -> Grid:
        """As the file says it."""
        return Grid((self.scale,), self.zero - self.offset)


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor with zeros around its image: (top, left, bottom, right)."""

    source: Narrow
    padding: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Raw:
    """``(source - zero) * factor`` in int32.

    Attributes:
        factor: 2^20 in front of sums; the count of a window in front of its mean.
    """

    source: Narrow
    zero: int = 0
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of products of a tensor with weights, int32.

    Attributes:
        weight: (out, height, width, in), or of a depthwise one (1, height, width, out).
        bias: one for each output channel.
        out: (images, height, width, out) of the result.
        low, high: limits of the sums; one for each output channel, or None.
        padding: (top, left, bottom, right).
    """

    source: Narrow
    weight: NDArray[np.int8]
    bias: Ints
    out: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    depthwise: bool = False
    low: Ints | None = None
    high: Ints | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a sum: 2^20 times a tensor, scaled."""

    source: Narrow
    multiplier: int
    shift: int


@dataclass(frozen=True, slots=True)
class Sum:
    """Two operands, added ("ADD"), subtracted ("SUB") or multiplied ("MUL", unscaled)."""

    name: str
    lhs: Operand
    rhs: Operand
    low: Ints | None = None
    high: Ints | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """A wide value on its way back: rescaled, limited, and moved by its zero point.

    Attributes:
        multiplier, shift: one, or one for each channel; empty where the value keeps its scale.
        scale: real value of a step.
        low, high: limits of the result, its zero point not yet added.
        zero: what has been added.
    """

    source: Product | Sum | Raw
    multiplier: Ints
    shift: Ints
    scale: float
    low: int = -(1 << 31)
    high: int = (1 << 31) - 1
    zero: int = 0


Form = Narrow | Padded | Raw | Product | Operand | Sum | Scaled
