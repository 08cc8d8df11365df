"""calibrate_mode "kl_divergence": the threshold that loses least information.

The definition sums in float32 from left to right, and its objective is so flat and jagged that any
other order of summation picks other thresholds. A first stage estimates all 3874 candidates (group
sums and the smoothing in closed form, logarithms per group instead of per bin), and the definition
decides among the near-minimal ones, a tenth of them: the same answer.

Source: Relay v0.10 quantize/kl_divergence.py and calibrate.cc; Migacz, "8-bit inference with
TensorRT", 2017; spec/quantize.md section 6.5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.errors import CalibrationError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.kernels.protocol import Kernels, choose_kernels
from compiler.quantize._calibrate.modes import calibrate_modes
from compiler.quantize._calibrate.stats import NUM_BINS, TensorStats, bin_edges, flat_float32

_EPS = float(np.float32(0.0001))

_PROBES = 32
"""Candidates with the least estimates, on which estimate and definition are compared."""

_NEAR = 5e-4
_SAFETY = 8
"""A candidate goes to the definition when its estimate is this close to the best probe, or closer
than this many times the largest error of a probe: sums of 8001 terms from left to right in float32
are off by 3e-5 there as a rule and by 2e-4 at most."""

_CHUNK = 256


def kl_candidate(
    hist: NDArray[np.int64], levels: int, kernels: Kernels | None = None
) -> tuple[int, np.float32]:
    """Best candidate i of a histogram (bins z-i … z+i are kept, z the zero bin) and its divergence.

    Args:
        hist: counts of an odd number of bins over [-T, T].
        levels: quantized levels, odd, at most the number of bins.
        kernels: implementation; None chooses.
    Raises:
        CalibrationError: levels is even or does not fit the bins.
    """
    bins = hist.size
    if levels % 2 == 0 or bins % 2 == 0 or not 3 <= levels <= bins:
        raise CalibrationError(
            f"cannot search {levels} levels in {bins} bins",
            fix="both odd, levels at least 3 and at most the number of bins",
        )
    hist = np.ascontiguousarray(hist, np.int64)
    prefix = np.concatenate([[0], np.cumsum(hist)]).astype(np.int64)
    filled = np.concatenate([[0], np.cumsum(hist != 0)]).astype(np.int64)
    candidates = np.arange(levels // 2, bins // 2 + 1, dtype=np.int32)
    kernels = kernels or choose_kernels()
    estimates = _estimate(hist, prefix, filled, candidates, levels)

    def defined(places: NDArray[np.int64]) -> NDArray[np.float32]:
        return kernels.divergences(hist, prefix, filled, candidates[places], levels)

    kept = _promising(estimates, defined)
    chosen = defined(kept)
    best = int(np.argmin(chosen))
    return int(candidates[kept[best]]), chosen[best]


def find_scale_by_kl(
    arr: ArrayLike, num_bins: int = NUM_BINS, num_quantized_bins: int = 255
) -> np.float32:
    """Clipping threshold that loses least information when the samples are quantized.

    Args:
        arr: every value of one tensor over the calibration set, at least one; taken as float32.
        num_bins: histogram bins over [-max|x|, max|x|]; odd.
        num_quantized_bins: levels after quantization; odd, 255 for int8.
    Returns:
        Threshold in the units of the samples; larger magnitudes will be clipped.
    Raises:
        CalibrationError: samples are empty or not finite, or a bin count is even.
    Source: Relay v0.10 quantize/kl_divergence.py; Migacz, "8-bit inference with TensorRT", 2017.
    """
    values = flat_float32(arr)
    kernels = choose_kernels()
    edges = bin_edges(np.abs(values).max(), num_bins)
    hist = np.zeros(num_bins, np.int64)
    kernels.histogram(values, edges, hist)
    candidate, _ = kl_candidate(hist, num_quantized_bins, kernels)
    return np.float32(edges[num_bins // 2 + candidate + 1])


@calibrate_modes.register("kl_divergence")
def kl_scale(stats: TensorStats, qconfig: QConfig, nbit: int) -> np.float32:
    """Threshold by divergence for 2^nbit - 1 levels; max|x| where that exceeds the bins.

    Raises:
        CalibrationError: there is no histogram.
    """
    if stats.hist is None:
        raise CalibrationError("no histogram was collected", where=stats.label)
    levels = 2**nbit - 1
    if levels > stats.hist.size:
        return stats.largest
    candidate, _ = kl_candidate(stats.hist, levels)
    edges = bin_edges(stats.largest, stats.hist.size)
    return np.float32(edges[stats.hist.size // 2 + candidate + 1])


def _promising(
    estimates: NDArray[np.float64],
    defined: Callable[[NDArray[np.int64]], NDArray[np.float32]],
) -> NDArray[np.int64]:
    """Places of the candidates that the definition may prefer; the first when all are malformed."""
    unknown = np.isnan(estimates)
    order = np.argsort(np.where(unknown, np.inf, estimates), kind="stable")[:_PROBES]
    probes = order[np.isfinite(estimates[order])]
    if probes.size == 0:
        return np.flatnonzero(unknown) if unknown.any() else np.zeros(1, np.int64)
    exact = defined(np.sort(probes)).astype(np.float64)
    errors = np.abs(exact - estimates[np.sort(probes)])
    reach = max(_NEAR, _SAFETY * float(errors[np.isfinite(errors)].max(initial=0.0)))
    return np.flatnonzero(unknown | (estimates <= estimates[probes].min() + reach))


def _estimate(
    hist: NDArray[np.int64],
    prefix: NDArray[np.int64],
    filled: NDArray[np.int64],
    candidates: NDArray[np.int32],
    levels: int,
) -> NDArray[np.float64]:
    """Divergence of every candidate in float64, NaN where the closed form does not hold.

    With P' = P - e on P's filled bins and eps on the empty ones (the sum N stays), Q' likewise,
        N D = sum P' ln P' - sum P' ln Q' - N ln(N / M).
    P' ln P' is expanded in e around the integer counts, so prefix sums over the histogram serve all
    candidates; Q' is constant on the filled bins of a group.
    """
    counts = hist.astype(np.float64)
    some = hist > 0
    safe = np.where(some, counts, 1.0)
    terms = [np.where(some, safe * np.log(safe), 0.0), np.where(some, np.log(safe), 0.0)]
    terms += [np.where(some, safe**-power, 0.0) for power in (1, 2, 3)]
    sums = np.stack([np.concatenate([[0.0], np.cumsum(term)]) for term in terms])
    out = np.empty(candidates.size)
    for start in range(0, candidates.size, _CHUNK):
        part = candidates[start : start + _CHUNK].astype(np.int64)
        out[start : start + _CHUNK] = _estimate_part(hist, prefix, filled, sums, part, levels)
    return out


def _estimate_part(
    hist: NDArray[np.int64],
    prefix: NDArray[np.int64],
    filled: NDArray[np.int64],
    sums: NDArray[np.float64],
    i: NDArray[np.int64],
    levels: int,
) -> NDArray[np.float64]:
    zero = hist.size // 2
    a, b, n = zero - i, zero + i + 1, 2 * i + 1
    total = float(prefix[-1])
    p_first = prefix[a + 1]
    p_last = hist[b - 1] + prefix[-1] - prefix[b]

    # Boundaries of the groups as positions in the histogram; inner[0] is dropped from group 0.
    edges = np.empty((i.size, levels + 1), np.int64)
    edges[:, :-1] = a[:, None] + np.arange(levels) * (n // levels)[:, None]
    edges[:, -1] = b
    group = np.diff(prefix.astype(np.float64)[edges], axis=1)
    nonzero = np.diff(filled.astype(np.float64)[edges], axis=1)
    group[:, 0] -= hist[a]
    nonzero[:, 0] -= hist[a] > 0

    # P on the group's filled bins: counts, with the outliers added at both ends.
    p_mass = group.copy()
    p_mass[:, 0] += p_first
    p_mass[:, -1] += p_last - hist[b - 1]
    p_bins = nonzero.copy()
    p_bins[:, 0] += p_first > 0
    p_bins[:, -1] += (p_last > 0) & (hist[b - 1] == 0)
    has_q = nonzero > 0
    q_bins = np.where(has_q, p_bins, 0.0)
    value = group / np.maximum(nonzero, 1.0)

    with np.errstate(divide="ignore", invalid="ignore"):
        p_count, q_count = p_bins.sum(1), q_bins.sum(1)
        p_less = _EPS * (n - p_count) / p_count
        q_less = _EPS * (n - q_count) / q_count
        q_total = (value * q_bins).sum(1)
        log_q = np.log(np.where(has_q, value - q_less[:, None], _EPS))
        cross = ((p_mass - p_less[:, None] * p_bins) * log_q).sum(1)
        cross += _EPS * (n - p_count) * np.log(_EPS)

        # sum P' ln P' over the inside bins (both ends apart, where P is not the count).
        log_p, ln, r1, r2, r3 = sums[:, b - 1] - sums[:, a + 1]
        inside = filled[b - 1] - filled[a + 1]
        e = p_less
        entropy = log_p - e * (ln + inside) + e**2 / 2 * r1 + e**3 / 6 * r2 + e**4 / 12 * r3
        for mass in (p_first, p_last):
            rest = mass - e
            entropy += np.where(mass > 0, rest * np.log(np.where(mass > 0, rest, 1.0)), 0.0)
        entropy += _EPS * (n - p_count) * np.log(_EPS)
        divergence = (entropy - cross) / total - np.log(total) + np.log(q_total)
    malformed = (q_count == 0) | (q_less >= 1.0)
    # A large e leaves the expansion's reach: such candidates go to the definition.
    divergence = np.where(p_less < 0.1, divergence, np.nan)
    return np.where(malformed, np.inf, divergence)
