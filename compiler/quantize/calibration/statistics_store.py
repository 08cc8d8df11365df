"""Store statistics and scales of calibration for another process, arrays under plain fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from compiler.qtypes.options import options_of
from compiler.qtypes.qconfig import QConfig

CHANNELS: Final = "channels"
STATISTICS: Final = "calibration"
SCALES: Final = "scales"

Arrays = Mapping[str, NDArray[Any]]


class StatisticsStore(Protocol):
    """Keeps what was measured, so that another process need not measure it again."""

    def load(self, kind: str, fields: Mapping[str, Any]) -> Arrays | None:
        """Return the arrays saved under these plain fields; None where there are none.

        Args:
            kind: ``CHANNELS``, ``STATISTICS`` or ``SCALES``.
        """

    def save(self, kind: str, fields: Mapping[str, Any], arrays: Arrays) -> None:
        """Keep arrays under these fields."""


def statistics_fields(qconfig: QConfig) -> dict[str, Any]:
    """Plain fields that decide the statistics of the first calibration."""
    return {"variant": qconfig.calibration_fields()}


def channel_fields(sample: bool) -> dict[str, Any]:
    """Plain fields of channel statistics, with a sample of the inputs or without."""
    return {"variant": CHANNELS, "sample": sample}


def scale_fields(qconfig: QConfig) -> dict[str, Any]:
    """Plain fields that decide the activation scales."""
    values = qconfig.to_dict()
    options = options_of(type(qconfig))
    decides = {name: values[name] for name, one in options.items() if one.ranged}
    return {**statistics_fields(qconfig), **decides, "layers": qconfig.layers.input_bits}
