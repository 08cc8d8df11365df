"""Errors of workers; all survive pickling, so that the driver gets them as they were raised."""

from __future__ import annotations

from compiler.errors import CompilerError


class WorkerError(CompilerError):
    """A pool or a worker that cannot do its job (not started, refused, wrong version, too slow)."""


class LostWorkerError(WorkerError):
    """A request whose workers died ``max_attempts`` times; the message says which and where."""


class DifferingOutputsError(WorkerError):
    """Outputs of a candidate that are not those of the exact reference: an executor is wrong."""


class BrokenRunError(WorkerError):
    """Data, code or a cluster that the whole run needs has changed or is gone. The error ends the
    run and is never stored as the outcome of a trial."""


class LostClusterError(BrokenRunError):
    """Ray itself ended: no worker answers, and none is restarted."""


class UserCodeError(WorkerError):
    """A module of the user that cannot be imported: what it raised, with file and line."""


class UserCodeChangedError(UserCodeError, BrokenRunError):
    """A file of the user that was edited after it was imported."""


class DatasetError(WorkerError, ValueError):
    """Data that cannot be used: missing, empty, not finite, or of names, shapes or dtypes that
    do not fit the model; the message names both sides."""


class DataChangedError(DatasetError, BrokenRunError):
    """Data that were replaced or deleted after their hash was taken."""


class MetricError(WorkerError, ValueError):
    """A metric that is unknown or lacks what it needs (labels, a reference)."""
