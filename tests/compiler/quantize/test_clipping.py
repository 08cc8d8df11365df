"""Ranges that cut off much of a tensor are named."""

from __future__ import annotations

import numpy as np

from compiler import relay
from compiler.quantize import QConfig, activation_scales, calibration_stats, mark
from compiler.quantize.calibration.clipping import Clipping, clipping_note, heavily_clipped
from compiler.quantize.calibration.stats import CalibrationStats

op = relay.op


def statistics(values: np.ndarray) -> CalibrationStats:
    """Of a convolution's input with these values."""
    x = relay.var("x", values.shape)
    weight = relay.const(np.ones((1, values.shape[1], 1, 1), np.float32))
    mod = relay.module(relay.Function((x,), op.nn.conv2d(x, weight)))
    annotated, _ = mark(mod, QConfig.recommended())
    return calibration_stats(annotated, [{"x": values.astype(np.float32)}])


def ranges(stats: CalibrationStats, mode: str, nbit: int = 8) -> np.ndarray:
    config = QConfig.recommended(calibrate_mode=mode, nbit_input=nbit)
    return np.asarray(activation_scales(stats, config))


def test_divergence_of_pixels_at_six_bits_keeps_hardly_anything_and_is_named() -> None:
    """Pixels have 256 values in 8001 bins, and most of these are black, which is -1 here."""
    rng = np.random.default_rng(0)
    pixels = np.where(rng.random((4, 1, 28, 28)) < 0.7, 0, rng.integers(0, 256, (4, 1, 28, 28)))
    stats = statistics(pixels / 127.5 - 1)
    (found,) = heavily_clipped(stats, ranges(stats, "kl_divergence", 6))
    assert found.share > 0.5
    assert found.range_share < 0.2
    assert "energy" in str(found)
    assert heavily_clipped(stats, ranges(stats, "mse", 6)) == []


def test_a_range_up_to_the_largest_value_cuts_off_nothing() -> None:
    stats = statistics(np.random.default_rng(1).standard_normal((2, 3, 16, 16)))
    for mode in ("max", "percentile", "mse"):
        assert heavily_clipped(stats, ranges(stats, mode)) == []


def test_the_note_names_mode_tensor_and_remedy() -> None:
    assert clipping_note([], "kl_divergence") == ()
    found = [Clipping("%3 nn.softmax", 0.076, 0.51), Clipping("%9", 0.02, 0.8)]
    (note,) = clipping_note(found, "kl_divergence")
    assert "calibrate_mode=kl_divergence cuts off much of 2 tensors" in note
    assert "%3 nn.softmax: its range ends at 51% of max|x|" in note
    assert "calibrate_mode=mse" in note
