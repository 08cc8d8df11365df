"""The audit of what ``compile`` chooses, and of the winner of a search."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from compiler.errors import CompilerError
from compiler.insight.audit import SAMPLES, Repaired, measure, repaired
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Candidate
from compiler.runtime.artifact import constants_of
from compiler.runtime.packed import member_bytes
from qsearch.data.prepared_data import Batches, PreparedData
from workers.datasets.protocol import InputSpec

log = logging.getLogger("qsearch.search.audit")

AUDIT: Final = "audit"
"""Key of the provenance of a module, and kind of an event of a study: ``Repaired.to_dict``."""
_MOST_BYTES: Final = 48 << 20


def audited(
    calibration: Calibration,
    qconfig: QConfig,
    candidate: Candidate,
    data: PreparedData,
    inputs: tuple[InputSpec, ...],
    *,
    mends: bool = True,
    fixed: Collection[str] = (),
) -> Repaired:
    """Measure the module of a configuration, and mend what can be mended.

    Large networks are not measured: the float network and the simulation would be held beside the
    module.

    Args:
        candidate: of the configuration.
        data: calibration data.
        mends: whether the configuration may change.
        fixed: as of ``repaired``.
    """
    kept = Repaired(qconfig, candidate, None)
    if member_bytes(constants_of(candidate.annotated)) > _MOST_BYTES:
        return kept
    samples = list(Batches(data, inputs, 2 * SAMPLES))
    try:
        if mends:
            return repaired(calibration, qconfig, candidate, samples, fixed)
        return Repaired(qconfig, candidate, measure(candidate, samples[::2]))
    except CompilerError as error:
        log.info("the module is not audited: %s", error.what)
        return kept
