"""The stored files that a trial was made from: module, statistics, ranges, inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.statistics_store import CHANNELS, SCALES, STATISTICS
from qsearch.dashboard.snapshots import Snapshot
from qsearch.dashboard.sources import NotFoundError
from qsearch.dashboard.state import Shared
from qsearch.search.calibration import stored_keys
from qsearch.search.session import FLOAT_MODULE
from qsearch.search.shipped import INPUTS
from qsearch.store.records import Trial


@dataclass(frozen=True, slots=True)
class Measurements:
    """Files on this machine; None for what is not there.

    Attributes:
        qconfig: of the trial.
        module: the float module, packed.
        statistics: of its calibration.
        scales: ranges that its configuration chose.
        channels: statistics of single channels.
        inputs: the first calibration inputs.
    """

    qconfig: QConfig
    module: Path | None
    statistics: Path | None
    scales: Path | None
    channels: Path | None
    inputs: Path | None

    @property
    def complete(self) -> bool:
        """Whether its layers can be measured."""
        ranges = self.scales is not None or not self.qconfig.needs_ranges
        channels = self.channels is not None or not self.qconfig.needs_channels
        return self.module is not None and self.inputs is not None and ranges and channels


def measurements(found: Shared, study: Snapshot, trial: Trial) -> Measurements:
    """The files of a trial."""
    qconfig = QConfig.from_dict(trial.qconfig)
    store = found.sources.artifacts(study.source, study.study)
    spec = study.study.spec
    files: dict[str, dict[str, Path]] = {}
    for each in study.repository.artifacts_of(study.study.id):
        if store is not None and store.has(each.kind, each.sha256):
            files.setdefault(each.kind, {})[each.key] = store.path(
                each.kind, each.sha256
            ).absolute()
    key = {
        "module": spec.get("module_sha256"),
        "calib": spec.get("calib_sha256"),
        "code": study.study.code_version,
        "percentiles": spec.get("percentiles"),
    }
    variant, scales, channels = stored_keys(key, qconfig)

    def any_of(kind: str) -> Path | None:
        return next(iter(files.get(kind, {}).values()), None)

    return Measurements(
        qconfig,
        module=any_of(FLOAT_MODULE),
        statistics=files.get(STATISTICS, {}).get(variant),
        scales=files.get(SCALES, {}).get(scales),
        channels=files.get(CHANNELS, {}).get(channels),
        inputs=any_of(INPUTS),
    )


def missing(what: str, number: int) -> NotFoundError:
    """The error for a trial some of whose files are elsewhere."""
    return NotFoundError(
        f"no {what} of this trial on this machine",
        where=f"trial {number}",
        fix="start the dashboard on the folder of its run folders: qsearch dashboard DIR",
    )
