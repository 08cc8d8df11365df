"""Forms of the values of an integer module in a LiteRT file, while its operators are recognised.

Tensor values are tensors. Wide ones (int32) are kept as what they are made of until they are narrow
again: most operators hold them inside. Where none does, they are tensors of int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_tflite.file import Grid
from compiler.ops.rules.requantize import SUM_SHIFT

Ints = NDArray[np.int64]
NARROW: Final = ("int8", "int16")
"""Dtypes that operators with scales read and give; one file has one of them, but for what TFLM
widens."""
ANY: Final = (*NARROW, "int32")
"""Dtypes that tensors of a file may hold."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file.

    Attributes:
        tensor: its number.
        shape: elements per axis.
        scale: real value of a step; 0 of int32, where nobody asks.
        zero: the module's integer that stands for 0.
        offset: the module's integer less the file's: 128 where the module has uint8.
        dtype: "int8", "int16" or "int32".
    """

    tensor: int
    shape: tuple[int, ...]
    scale: float = 0.0
    zero: int = 0
    offset: int = 0
    dtype: str = "int8"

    @property
    def kind(self) -> tuple[int, int, str]:
        """Scale, zero point and dtype that tensors of one operator share."""
        return self.zero, self.offset, self.dtype

    @property
    def grid(self) -> Grid:
        """Grid of the tensor, as the file states it."""
        return Grid((self.scale,), self.zero - self.offset)


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor with zeros around its image: (top, left, bottom, right)."""

    source: Tensor
    padding: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Raw:
    """``(source - zero) * factor`` in int32.

    Attributes:
        factor: 2^20 in front of sums; the count of a window in front of its mean.
    """

    source: Tensor
    zero: int = 0
    factor: int = 1

    @property
    def raised(self) -> bool:
        """Return whether it is as fine as a side of a sum."""
        return self.source.dtype == "int8" and self.factor == 1 << SUM_SHIFT


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

    source: Tensor
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
class Matmul:
    """Products of matrices, int32.

    Attributes:
        adjoint: whether the second one is read transposed.
        out: shape of the result in the file.
    """

    lhs: Tensor
    rhs: Tensor
    adjoint: bool
    out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """Sums of int16 along axes, int32."""

    source: Tensor
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a sum: 2^20 times a tensor, scaled.

    Attributes:
        scale: real value of a step of the tensor there; a factor of the model may be in it.
    """

    source: Tensor
    multiplier: int = 0
    shift: int = 0
    scale: float = 0.0


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
        units: real value of a step of the source, one or one for each channel.
        scale: real value of a step of the result.
        low, high: limits of the result, its zero point not yet added.
        zero: what has been added.
        floor: a lower limit for each channel beside it.
    """

    source: Product | Matmul | Total | Sum | Raw | Tensor
    multiplier: Ints
    shift: Ints
    units: NDArray[np.float64]
    scale: float
    low: int = -(1 << 31)
    high: int = (1 << 31) - 1
    zero: int = 0
    floor: Ints | None = None


Form = Tensor | Padded | Raw | Product | Matmul | Total | Operand | Sum | Scaled
