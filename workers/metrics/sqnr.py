"""Metric "sqnr": signal to quantization noise ratio of the outputs, in decibels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import declare, metrics

_SUMS = ("signal", "noise", "samples", "signal_squares", "noise_squares", "products")

FLOOR_DB = -400.0
"""Stands for "nothing left of the signal": outputs that are not finite, a reference of zeros."""


class Sqnr:
    """10 log10 of reference^2 over (output - reference)^2, both summed over all samples.

    Of several outputs the errors count relative to the power of their own output, so that one of
    small values is not drowned: the ratio is the harmonic mean of those of the outputs. An output
    whose reference is all 0 has no power to compare with and is left out.

    The squares and products of what single samples add are summed too, for ``standard_error``.
    """

    needs_labels = False
    needs_reference = True

    def init(self) -> State:
        return dict.fromkeys(_SUMS, 0.0)

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Add the squares of the reference and of the differences, output by output."""
        assert reference is not None  # needs_reference
        for place, (output, wanted) in enumerate(zip(outputs, reference, strict=True)):
            signal = np.asarray(wanted, np.float64)
            with np.errstate(invalid="ignore"):  # a NaN ranks lowest
                noise = np.asarray(output, np.float64) - signal
            signals = _of_samples(signal)
            noises = _of_samples(noise)
            sums = (
                float(np.sum(signal * signal)),
                float(np.sum(noise * noise)),
                float(len(signals)),
                float(signals @ signals),
                float(noises @ noises),
                float(signals @ noises),
            )
            for name, value in zip(_SUMS, sums, strict=True):
                key = _key(name, place)
                state[key] = state.get(key, 0.0) + value

    def result(self, state: Mapping[str, float]) -> float | None:
        """The ratio in dB; None where it is infinite, since the outputs are equal.

        Outputs that are not finite have the lowest value, so that a broken module never ranks as
        a perfect one.
        """
        return _decibels(relative_noise(state))

    def loss(self, state: Mapping[str, float]) -> float:
        """Return the loss of a part."""
        return relative_noise(state)

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """Standard error in dB, by the delta method on the ratio of two sums.

        With S, N the signal and noise of n samples, var(log(S/N)) is
        n/(n-1) sum_i (s_i/S - n_i/N)^2. Errors of several outputs are taken to go together.
        """
        shares = [(loss, _spread(sums)) for sums in _outputs_of(state) if (loss := _loss(sums))]
        total = sum(loss for loss, _ in shares)
        if not shares or not math.isfinite(total) or any(spread is None for _, spread in shares):
            return None
        return sum(loss * (spread or 0.0) for loss, spread in shares) / total


def sqnr_db(wanted: Iterable[Outputs], found: Iterable[Outputs]) -> float | None:
    """Return the SQNR of the outputs of samples; None where they are equal."""
    metric = Sqnr()
    state = metric.init()
    for theirs, ours in zip(wanted, found, strict=True):
        metric.update(state, ours, theirs, None)
    return metric.result(state)


def relative_noise(state: Mapping[str, float]) -> float:
    """Mean over the outputs of noise by signal; infinite where one is not finite."""
    outputs = list(_outputs_of(state))
    powerful = [sums for sums in outputs if _counts(sums)] or outputs
    return sum(map(_loss, powerful)) / max(len(powerful), 1)


def worst_output(state: Mapping[str, float]) -> tuple[int, float | None] | None:
    """Place and SQNR in dB of the worst output of several; None of a model with one."""
    losses = [(_loss(sums), -n) for n, sums in enumerate(_outputs_of(state)) if _counts(sums)]
    if _key("signal", 1) not in state or not losses:
        return None
    loss, place = max(losses)
    return -place, _decibels(loss)


def _decibels(loss: float) -> float | None:
    if loss == 0:
        return None
    if math.isfinite(loss):
        return -10.0 * math.log10(loss)
    return FLOOR_DB


def _key(name: str, place: int) -> str:
    if place == 0:
        return name
    return f"{name}.{place}"


def _outputs_of(state: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """The sums of each output."""
    place = 0
    while _key("signal", place) in state:
        yield {name: state[_key(name, place)] for name in _SUMS if _key(name, place) in state}
        place += 1


def _counts(sums: Mapping[str, float]) -> bool:
    """Return whether the output has power to compare with, or is not finite."""
    return sums["signal"] != 0 or not math.isfinite(sums["noise"])


def _loss(sums: Mapping[str, float]) -> float:
    signal = sums["signal"]
    noise = sums["noise"]
    if not (math.isfinite(signal) and math.isfinite(noise)):
        return math.inf
    if signal > 0:
        return noise / signal
    if noise > 0:
        return math.inf
    return 0.0


def _spread(sums: Mapping[str, float]) -> float | None:
    """Standard error in dB of one output."""
    count, signal, noise = (sums.get(name, 0.0) for name in ("samples", "signal", "noise"))
    if count < 2 or not (signal > 0 and noise > 0 and math.isfinite(signal + noise)):
        return None
    spread = (
        sums["signal_squares"] / signal**2
        + sums["noise_squares"] / noise**2
        - 2 * sums["products"] / (signal * noise)
    )
    return 10 / math.log(10) * math.sqrt(max(spread, 0.0) * count / (count - 1))


def _of_samples(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of squares of every sample, float64 (samples,)."""
    if values.ndim:
        rows = values.reshape(len(values), -1)
    else:
        rows = values.reshape(1, 1)
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


metrics.register("sqnr")(Sqnr())
declare(
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
)
declare(
    "worst_output_db",
    title="worst output",
    unit="dB",
    place=3,
    meaning="SQNR of the worst of several outputs",
    template="{:.2f} dB",
)
