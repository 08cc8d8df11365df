"""Requests that are answered in this process, nothing remembered."""

from __future__ import annotations

import functools

from workers.calibration import CalibrationActor
from workers.evaluation import EvaluationActor
from workers.messages import (
    CalibrationRequest,
    CalibrationResult,
    EvaluationRequest,
    EvaluationResult,
)
from workers.object_store import ObjectStore, find

NOTHING_STORED = functools.partial(find, {})


def calibrate_shard(request: CalibrationRequest) -> CalibrationResult:
    """See ``CalibrationActor.run``."""
    return CalibrationActor(ObjectStore(NOTHING_STORED)).run(request)


def evaluate_shard(request: EvaluationRequest) -> EvaluationResult:
    """See ``EvaluationActor.run``."""
    return EvaluationActor(ObjectStore(NOTHING_STORED)).run(request)
