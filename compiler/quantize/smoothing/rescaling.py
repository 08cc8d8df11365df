"""Apply a QConfig to the float module before it is marked: scales change, not the function."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import CalibrationError
from compiler.ir.module import IRModule
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.preparation.even_inputs import with_one_scale
from compiler.quantize.smoothing.smoothing import smooth
from compiler.quantize.weighted_calls import weighted_calls


def rescaled(
    mod: IRModule, qconfig: QConfig, channels: ChannelStats | None
) -> tuple[IRModule, tuple[ChannelRanges, ...]]:
    """The module smoothed as ``qconfig`` says, and its channels' ranges. In files of devices, where
    every result is narrow, an input has one scale.

    Args:
        mod: result of ``prerequisite_optimize``; returned as it is where nothing is asked for.
        channels: statistics of ``mod``; needed where ``qconfig.needs_channels``.

    Raises:
        CalibrationError: they are missing, or of another module.
    """
    ranges = _ranges(mod, qconfig, channels)
    if qconfig.narrow_results:
        mod, ranges = with_one_scale(mod, ranges)
    if qconfig.smooth_alpha is not None:
        mod, ranges = smooth(mod, ranges, qconfig.smooth_alpha)
    return mod, tuple(ranges)


def _ranges(
    mod: IRModule, qconfig: QConfig, channels: ChannelStats | None
) -> Sequence[ChannelRanges]:
    if channels is None and not qconfig.needs_channels:
        return ()
    if channels is None:
        raise CalibrationError(
            "smooth_alpha and weight_rounding need statistics of single channels",
            fix="measure them with channel_stats(mod, dataset), or unset these fields",
        )
    expected = len(weighted_calls(mod["main"]))
    if len(channels.labels) != expected:
        raise CalibrationError(
            f"channel statistics of {len(channels.labels)} operators were given for a module "
            f"with {expected}",
            fix="use statistics of this very module",
        )
    return channels.ranges()
