"""ChannelStats: ends and mean of every channel that a weighted operator reads.

Measured on the float module before it is marked, so one measurement serves every configuration.
Ends, and means summed as integers, merge exactly: shards in any order give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Expr, Function, Tuple, describe
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import closed, ends_of
from compiler.ir.module import IRModule
from compiler.ops.op_call import op_call
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.qtypes.input_sample import InputSample
from compiler.quantize.weighted_calls import weighted_calls

_UNIT: Final = 2.0**30
"""Means are summed in units of 2^-30 …"""

_LARGEST_MEAN: Final = 2.0**20
"""… and held at this magnitude, so that int64 has room for 8,192 runs of the worst, and for
billions of ordinary ones."""


_ARRAYS: Final = ("sizes", "low", "high", "total")
"""Fields of ``ChannelStats`` that are arrays, in their order."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelStats:
    """Statistics of all weighted operators of a float module, in visiting order.

    Attributes:
        labels: one text per operator.
        sizes: channels of its data, int64.
        low: min x of all channels of all operators in a row, float32.
        high: max x, alike.
        total: means over batch and space, summed over runs, in units of 2^-30, int64.
        runs: how often the network ran.
        sample: some of the inputs; None where they were not kept.
    """

    labels: tuple[str, ...]
    sizes: NDArray[np.int64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    total: NDArray[np.int64]
    runs: int
    sample: InputSample | None = None

    def ranges(self) -> list[ChannelRanges]:
        """One record per operator."""
        mean = self.total / (_UNIT * self.runs)
        stops = np.cumsum(self.sizes)
        low = self.low.astype(np.float64)
        high = self.high.astype(np.float64)
        return [
            ChannelRanges(low[a:b], high[a:b], mean[a:b])
            for a, b in zip(stops - self.sizes, stops, strict=True)
        ]

    def merge(self, other: ChannelStats) -> ChannelStats:
        """Statistics of both shards together; exact, commutative and associative.

        Raises:
            CalibrationError: they are of different modules, or one alone has a sample.
        """
        if (self.sample is None) != (other.sample is None):
            raise CalibrationError("channel statistics with and without a sample do not merge")
        if self.labels != other.labels or not np.array_equal(self.sizes, other.sizes):
            raise CalibrationError(
                "channel statistics of different modules cannot be merged",
                where=f"{len(self.labels)} operators and {len(other.labels)}",
            )
        low = np.minimum(self.low, other.low)
        high = np.maximum(self.high, other.high)
        total = self.total + other.total
        runs = self.runs + other.runs
        sample = self.sample
        if sample is not None and other.sample is not None:
            sample = sample.merge(other.sample)
        return replace(self, low=low, high=high, total=total, runs=runs, sample=sample)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, such as an .npz holds; no pickle."""
        return {
            "labels": np.asarray(self.labels, dtype=np.str_),
            **{name: getattr(self, name) for name in _ARRAYS},
            "runs": np.asarray(self.runs, np.int64),
            **({} if self.sample is None else self.sample.to_arrays()),
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> ChannelStats:
        """Inverse of ``to_arrays``.

        Raises:
            CalibrationError: an array is missing.
        """
        try:
            labels = tuple(str(label) for label in arrays["labels"])
            numbers = {name: np.asarray(arrays[name]) for name in _ARRAYS}
            runs = int(arrays["runs"])
            sample = InputSample.from_arrays(arrays)
            return ChannelStats(labels, **numbers, runs=runs, sample=sample)
        except KeyError as error:
            raise CalibrationError(
                f"the arrays hold no channel statistics: {error} is missing",
                where=", ".join(sorted(arrays)) or "no arrays",
            ) from error


class ChannelCollector:
    """Runs over outputs of ``profile``: for each operator the ends and the means of its data.

    Args:
        mod: result of ``prerequisite_optimize``.
    Raises:
        CalibrationError: no operator of the module has a constant weight.
    """

    def __init__(self, mod: IRModule) -> None:
        main: Function = mod["main"]
        calls = weighted_calls(main)
        if not calls:
            raise CalibrationError(
                "no convolution or dense layer with a constant weight: no channels to measure",
                fix="leave smooth_alpha and weight_rounding unset for this model",
            )
        read = dict.fromkeys(call.args[0] for call, _ in calls)
        given = dict(zip(read, read))
        params = main.params
        if ends := ends_of(main):
            whole = Function(params, Tuple((*read, *ends)))
            whole = closed(infer_module(IRModule.from_expr(whole)))["main"]
            given = dict(zip(read, whole.body.operands()))
            params = whole.params
        outputs: dict[tuple[Expr, int], int] = {}
        reductions: list[Expr] = []
        self._place: list[int] = []
        for call, response in calls:
            data = call.args[0]
            key = (data, response.data_axis)
            if key not in outputs:
                outputs[key] = len(reductions)
                others: dict[str, Any] = {"axis": (response.data_axis,), "exclude": True}
                reductions += [
                    op_call(name, given[data], **others) for name in ("min", "max", "mean")
                ]
            self._place.append(outputs[key])
        profile = Function(params, Tuple(tuple(reductions)))
        self.profile: IRModule = infer_module(IRModule.from_expr(profile))
        self._labels = tuple(f"{k}: {describe(call)}" for k, (call, _) in enumerate(calls))
        sizes = [c.args[0].tensor_type.concrete_shape[r.data_axis] for c, r in calls]
        self._sizes = np.asarray(sizes, np.int64)
        self._low = np.full(sum(sizes), np.inf, np.float32)
        self._high = -self._low
        self._total = np.zeros(sum(sizes), np.int64)
        self._runs = 0

    def update(self, outputs: list[NDArray[Any]]) -> None:
        """Add one run.

        Raises:
            CalibrationError: a value is not finite.
        """
        low, high, mean = (
            np.concatenate([outputs[place + which] for place in self._place]) for which in range(3)
        )
        if not all(np.isfinite(one).all() for one in (low, high, mean)):
            raise CalibrationError(
                "the data of a weighted operator holds NaN or infinity",
                fix="check the model and the calibration data",
            )
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        held = np.clip(mean.astype(np.float64), -_LARGEST_MEAN, _LARGEST_MEAN)
        self._total += np.rint(held * _UNIT).astype(np.int64)
        self._runs += 1

    def result(self) -> ChannelStats:
        """The statistics so far, of one run at least."""
        low = self._low.copy()
        high = self._high.copy()
        total = self._total.copy()
        return ChannelStats(self._labels, self._sizes, low, high, total, self._runs)
