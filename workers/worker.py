"""Worker: both kinds of request in one process, and answers that survive the way back."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from compiler.errors import CompilerError
from workers.errors import UserCodeError, WorkerError
from workers.messages import (
    CalibrationRequest,
    CalibrationResult,
    EvaluationRequest,
    EvaluationResult,
    Handle,
)
from workers.user_code import UserCode, failure_in_user_code, install

Fetch = Callable[[Handle], Any]
"""Finds the value of a handle; raises WorkerError for a handle that is not known."""

Answer = tuple[Any, Exception | None]
"""(result, None) or (None, error)."""


class RequestRunner(Protocol):
    """Runs requests in each worker of a pool."""

    def run(self, request: Any) -> Any:
        """The result of one request; any exception is the request's."""


class Worker:
    """Runs calibration and evaluation requests; caches live as long as the process.

    Args:
        fetch: where handles of requests are looked up.
    """

    def __init__(self, fetch: Fetch) -> None:
        # Imported here: a driver that only submits needs neither numpy kernels nor onnxruntime.
        from workers.calibration import CalibrationActor
        from workers.evaluation import EvaluationActor
        from workers.object_store import ObjectStore

        values = ObjectStore(fetch)
        self._calibration = CalibrationActor(values)
        self._evaluation = EvaluationActor(values)

    def run(
        self, request: CalibrationRequest | EvaluationRequest
    ) -> CalibrationResult | EvaluationResult:
        """Answer one request.

        Raises:
            CompilerError: and its subclasses; see the two actors.
        """
        try:
            if isinstance(request, CalibrationRequest):
                return self._calibration.run(request)
            self._calibration.forget()
            return self._evaluation.run(request)
        except CompilerError as error:
            error.add_note(_part_of(request))
            raise


def _part_of(request: CalibrationRequest | EvaluationRequest) -> str:
    samples = f"samples {request.samples.start} to {request.samples.stop - 1}"
    if isinstance(request, CalibrationRequest):
        return f"in calibration, {request.measurement.step}, {samples}"
    return f"in evaluation by {request.build.evaluator}, {samples}"


class _Refused:
    """Answers every request with the error that the user's modules gave here."""

    def __init__(self, error: UserCodeError) -> None:
        self._error = error

    def run(self, request: Any) -> Any:
        """Raise it."""
        raise self._error


def with_user_code(runner: RequestRunner, code: UserCode) -> RequestRunner:
    """The runner once the user's modules are imported here; requests fail where one cannot be."""
    try:
        install(code)
    except UserCodeError as error:
        error.add_note("in a worker; the driver could import it")
        return _Refused(error)
    return runner


def answer(runner: RequestRunner, request: Any, where: str) -> Answer:
    """Run a request and turn what it raises into a value that can be pickled."""
    try:
        return runner.run(request), None
    except Exception as error:
        return None, _portable(failure_in_user_code(error) or error, where)


def _portable(error: Exception, where: str) -> Exception:
    trace = "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is not type(error):
            raise TypeError(type(copy).__name__)
    except Exception:  # whatever a foreign exception's own pickling does
        copy = WorkerError(f"{type(error).__name__}: {error}", where=where)
    if not isinstance(error, WorkerError) and not hasattr(error, "what"):
        # Not one of our own messages: the trace is what a developer needs.
        copy.add_note(trace)
    assert isinstance(copy, Exception)
    return copy
