"""Sums over samples: what one point loses, and how far the model's outputs move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.insight.records import OutputInsight, Ratio
from compiler.ir.expr import Call, Constant, Expr, Op, Tuple, TupleGetItem
from compiler.ir.ty import TupleType, Type
from compiler.ops.annotation.attach_simulated_quantize import point_attrs
from compiler.ops.annotation.minus_infinity import LIMIT
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.qtypes.qconfig import kind2str

Arrays = Sequence[NDArray[Any]]

_COUNTED: Final = 1024
"""Values of a tensor among which different ones are counted."""


class PointSums:
    """One quantize point with bound scales, fed with float tensors and what simulation made of it.

    Args:
        point: a simulated_quantize call of a simulated module.

    Attributes:
        scale: of the point, or one per channel.
        levels: first and last integer, counted from 0.
    """

    def __init__(self, point: Call) -> None:
        scale, low, high = (arg.data for arg in point.args[1:] if isinstance(arg, Constant))
        self._point = point
        self._bounds = (scale, low, high)
        self.scale = scale
        self.levels = (int(low), int(high))
        attrs = point_attrs(point)
        assert attrs is not None
        self.kind = kind2str(attrs.kind)
        rank = len(point.args[0].tensor_type.shape)
        self._spread = scale
        if attrs.axis is not None:
            self._spread = scale.reshape(-1, *(1,) * (rank - attrs.axis % rank - 1))
        self.minimum = math.inf
        self.maximum = -math.inf
        self.local = Ratio()
        self.upstream = Ratio()
        self._seen: tuple[set[Any], set[Any]] = (set(), set())
        self._count = self._saturated = 0

    @property
    def saturated(self) -> float:
        """Fraction of the values beyond the clip bounds by more than rounding."""
        if self._count:
            return self._saturated / self._count
        return 0.0

    @property
    def distinct(self) -> tuple[int, int]:
        """Numbers of different values in a part of the float tensor, and in its quantized form."""
        return len(self._seen[0]), len(self._seen[1])

    @property
    def even(self) -> Ratio:
        """Signal and expected noise of as many levels over all values."""
        low, high = self.levels
        step = max(self.maximum / max(high, 1), self.minimum / low if low < 0 else 0.0)
        return Ratio(self.local.signal, self._count * step * step / 12)

    def add(
        self, exact: NDArray[Any], simulated: NDArray[Any] | None, held: NDArray[Any] | None = None
    ) -> None:
        """Count one tensor.

        Args:
            exact: of the float network.
            simulated: the point's result in the simulated module; None for a constant.
            held: the constant that the point reads, where it may be rounded already.
        """
        ty = self._point.checked_type
        assert isinstance(self._point.op, Op)
        rule = FNumpyCompute.require(self._point.op)
        read = exact if held is None else held
        # What stands for minus infinity leaves float32 in units of a small scale.
        with np.errstate(over="ignore", invalid="ignore"):
            (local,) = rule(self._point.attrs, [read, *self._bounds], ty)
            units = exact / self._spread
        masked = exact < -LIMIT / 2
        if masked.any():  # no value of a masked place matters, if it is low
            exact, local, units = (np.where(masked, 0, each) for each in (exact, local, units))
            if simulated is None:
                simulated = None
            else:
                simulated = np.where(masked, 0, simulated)
        self.minimum = min(self.minimum, float(exact.min(initial=math.inf)))
        self.maximum = max(self.maximum, float(exact.max(initial=-math.inf)))
        _, low, high = self._bounds
        beyond = (units > high + 0.5) | (units < low - 0.5)
        self._saturated += int(np.count_nonzero(beyond))
        self._count += exact.size
        add_to(self.local, exact, local)
        stride = max(exact.size // _COUNTED, 1)
        for seen, values in zip(self._seen, (exact, local), strict=True):
            seen.update(np.unique(values.ravel()[::stride]).tolist())
        if simulated is not None:
            add_to(self.upstream, exact, simulated)


class OutputSums:
    """The outputs of a module compared with the outputs of the float model."""

    def __init__(self) -> None:
        self._ratios: list[Ratio] = []
        self._equal = self._count = 0

    def add(self, reference: Arrays, outputs: Arrays) -> None:
        """Count the outputs of one run."""
        self._ratios = self._ratios or [Ratio() for _ in reference]
        for ratio, wanted, found in zip(self._ratios, reference, outputs, strict=True):
            add_to(ratio, wanted, found)
        wanted = decisions(reference[0])
        found = decisions(outputs[0])
        self._equal += int(np.count_nonzero(wanted == found))
        self._count += wanted.size

    def result(self) -> OutputInsight:
        """SQNR and agreement so far."""
        agreement = self._equal / self._count if self._count else 1.0
        whole = [ratio for ratio in self._ratios if ratio.signal > 0] or self._ratios
        if len(self._ratios) < 2:
            return OutputInsight(whole[0].db if whole else None, agreement)
        # The errors of each output relative to its own power, as the score of a search has them.
        losses = [ratio.noise / ratio.signal if ratio.signal > 0 else 0.0 for ratio in whole]
        together = Ratio(float(len(losses)), sum(losses))
        worst = max(whole, key=lambda ratio: losses[whole.index(ratio)])
        place = next(n for n, ratio in enumerate(self._ratios) if ratio is worst)
        return OutputInsight(together.db, agreement, place, worst.db)


def add_to(ratio: Ratio, wanted: NDArray[Any], found: NDArray[Any]) -> None:
    """Add signal and noise of one pair of tensors, in float64."""
    exact = np.asarray(wanted, np.float64).ravel()
    with np.errstate(invalid="ignore"):
        noise = np.asarray(found, np.float64).ravel() - exact
    # Not np.dot: threads of its library cost five times what the sum does.
    ratio.signal += float(np.einsum("i,i->", exact, exact))
    ratio.noise += float(np.einsum("i,i->", noise, noise))


def decisions(output: NDArray[Any]) -> NDArray[np.intp]:
    """Index of the highest value along the last axis."""
    rows = np.atleast_2d(output)
    highest: NDArray[np.intp] = np.argmax(rows.reshape(-1, rows.shape[-1]), axis=-1)
    return highest


def results_of(body: Expr, ty: Type) -> list[Expr]:
    """The tensors that a function body of type ``ty`` returns, tuples flattened one level."""
    if isinstance(body, Tuple):
        return list(body.fields)
    if isinstance(ty, TupleType):
        return [TupleGetItem(body, index) for index in range(len(ty.fields))]
    return [body]
