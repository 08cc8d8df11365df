"""What the layers of a trial lose, measured on the inputs that its study kept; in the inspector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compiler.insight import layer_sqnr
from compiler.ir.blob import ModuleBlob
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import ChannelStats
from qsearch.dashboard.histograms import arrays_of
from qsearch.search.winner import runs_of


def layers_of(
    module: Path,
    qconfig: dict[str, Any],
    inputs: Path,
    scales: Path | None,
    channels: Path | None,
) -> dict[str, Any]:
    """Layers in visiting order with their ratios in dB, and that of the outputs.

    Args:
        module: the float module as workers get it.
        qconfig: fields of the configuration.
        inputs: as ``sample_inputs`` made them.
        scales: ranges of the configuration; None for global_scale.
        channels: statistics of single channels, where the configuration needs them.
    Raises:
        CompilerError: the files do not belong together.
    """
    network = ModuleBlob(module.read_bytes()).unpack()
    names = [param.name_hint for param in network["main"].params]
    runs = runs_of(arrays_of(inputs), names)
    found, outputs = layer_sqnr(
        network,
        QConfig.from_dict(qconfig),
        None if scales is None else arrays_of(scales)["scales"],
        runs,
        channels=None if channels is None else ChannelStats.from_arrays(arrays_of(channels)),
    )
    return {
        "samples": len(runs),
        "layers": [layer.to_dict() for layer in found],
        "output_db": outputs.output_db,
        "agreement": outputs.agreement,
    }
