"""Metric "sqnr": signal to quantization noise ratio of the outputs, in decibels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import Measure, measures, metrics

_SUMS = ("signal", "noise", "samples", "signal_squares", "noise_squares", "products")

FLOOR_DB = -400.0
"""Stands for "nothing left of the signal": outputs that are not finite, a reference of zeros."""


class Sqnr:
    """10 log10(sum reference^2 / sum (output - reference)^2), over all outputs and samples.

    The squares and products of what single samples add are summed too, for ``standard_error``.
    """

    needs_labels = False
    needs_reference = True

    def init(self) -> State:
        return dict.fromkeys(_SUMS, 0.0)

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Add the squares of the reference and of the differences."""
        assert reference is not None  # needs_reference
        signals, noises = np.zeros(1), np.zeros(1)
        for output, wanted in zip(outputs, reference, strict=True):
            signal = np.asarray(wanted, np.float64)
            noise = np.asarray(output, np.float64) - signal
            state["signal"] += float(np.sum(signal * signal))
            state["noise"] += float(np.sum(noise * noise))
            signals = signals + _of_samples(signal)
            noises = noises + _of_samples(noise)
        state["samples"] += len(signals)
        state["signal_squares"] += float(signals @ signals)
        state["noise_squares"] += float(noises @ noises)
        state["products"] += float(signals @ noises)

    def result(self, state: Mapping[str, float]) -> float | None:
        """The ratio in dB; None where it is infinite, since the outputs are equal.

        Outputs that are not finite have the lowest value, so that a broken module never ranks as
        a perfect one.
        """
        signal, noise = state["signal"], state["noise"]
        if noise == 0 and math.isfinite(signal):
            return None
        if not (signal > 0 and noise > 0 and math.isfinite(signal) and math.isfinite(noise)):
            return FLOOR_DB
        return 10.0 * math.log10(signal / noise)

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """Standard error in dB, by the delta method on the ratio of two sums.

        With S, N the signal and noise of n samples, var(log(S/N)) is
        n/(n-1) sum_i (s_i/S - n_i/N)^2.
        """
        count, signal, noise = (state.get(name, 0.0) for name in ("samples", "signal", "noise"))
        if count < 2 or not (signal > 0 and noise > 0 and math.isfinite(signal + noise)):
            return None
        spread = (
            state["signal_squares"] / signal**2
            + state["noise_squares"] / noise**2
            - 2 * state["products"] / (signal * noise)
        )
        return 10 / math.log(10) * math.sqrt(max(spread, 0.0) * count / (count - 1))


def _of_samples(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of squares of every sample, float64 (samples,)."""
    rows = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


metrics.register("sqnr")(Sqnr())
measures.register("sqnr_db")(
    Measure(
        "sqnr_db",
        "sqnr",
        title="SQNR",
        unit="dB",
        interval="error",
        infinite=-FLOOR_DB,
        place=2,
        meaning="how near the outputs are to those of the float model (signal to quantization "
        "noise); higher is better, 6 dB more halve the error",
        template="{:.2f} dB",
        loss=lambda sums: sums["noise"],
    )
)
