"""Store statistics and scales of calibration for another process, arrays under plain fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.qtypes.options import options_of
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.measurement import Ranges

CHANNELS: Final = "channels"
STATISTICS: Final = "calibration"
SCALES: Final = "scales"

Arrays = Mapping[str, NDArray[Any]]


class Storable(Protocol):
    """Statistics or scales."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, such as an .npz holds."""


class StatisticsStore(Protocol):
    """Keeps what was measured, so that another process need not measure it again."""

    def load(self, kind: str, fields: Mapping[str, Any]) -> Arrays | None:
        """Return the arrays saved under these plain fields; None where there are none.

        Args:
            kind: ``CHANNELS``, ``STATISTICS`` or ``SCALES``.
        """

    def save(self, kind: str, fields: Mapping[str, Any], found: Storable) -> None:
        """Keep the arrays of what was found under these fields."""


class NoStore:
    """Keeps nothing."""

    def load(self, kind: str, fields: Mapping[str, Any]) -> Arrays | None:
        """None."""

    def save(self, kind: str, fields: Mapping[str, Any], found: Storable) -> None:
        """Nothing happens."""


@dataclass(frozen=True, slots=True)
class CalibratedScales:
    """Scales of one configuration."""

    scales: Ranges

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays."""
        return {"scales": np.asarray(self.scales, np.float64)}

    @staticmethod
    def from_arrays(arrays: Arrays) -> CalibratedScales:
        """The inverse of ``to_arrays``.

        Raises:
            CalibrationError: an array is missing.
        """
        try:
            return CalibratedScales(tuple(float(scale) for scale in arrays["scales"]))
        except KeyError as error:
            raise CalibrationError(f"the arrays hold no scales: {error} is missing") from error


def statistics_fields(qconfig: QConfig) -> dict[str, Any]:
    """Plain fields that decide the statistics of the first calibration."""
    return {"variant": qconfig.calibration_fields()}


def channel_fields(sample: bool) -> dict[str, Any]:
    """Plain fields of channel statistics, with a sample of the inputs or without."""
    return {"variant": CHANNELS, "sample": sample}


def scale_fields(qconfig: QConfig) -> dict[str, Any]:
    """Plain fields that decide the activation scales."""
    values, options = qconfig.to_dict(), options_of(type(qconfig))
    decides = {name: values[name] for name, one in options.items() if one.ranged}
    return {**statistics_fields(qconfig), **decides, "layers": qconfig.layers.input_bits}
