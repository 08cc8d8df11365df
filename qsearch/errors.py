"""Errors of the service: what, where, fix, and the exit code of the command that meets them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from compiler.errors import CompilerError
from qsearch.exit_codes import EXIT_BAD_INPUT, EXIT_SEARCH_FAILED, EXIT_TARGET_MISSED
from workers.errors import (
    BrokenRunError,
    DatasetError,
    LostClusterError,
    MetricError,
    UserCodeError,
    WorkerError,
)


class SearchError(CompilerError):
    """Anything the service refuses or cannot finish; subclasses choose the exit code, and the
    status of a server's answer."""

    exit_code: ClassVar[int] = EXIT_BAD_INPUT
    http_status: ClassVar[int] = 400


class SettingsError(SearchError):
    """An option, environment variable or configuration key that is unknown or ill-valued."""


class ModelFileError(SearchError):
    """The model file is missing, unreadable or not what its name promises."""


class DataError(SearchError):
    """Calibration or evaluation data that does not fit the model."""


class RunFolderError(SearchError):
    """The run folder cannot be written or holds something else."""

    http_status = 409


class StoreError(SearchError):
    """The database cannot be reached, is busy, or has another schema."""

    http_status = 503


class EmptyStoreError(StoreError):
    """The database exists, and no search has written to it yet."""


class ConflictError(StoreError):
    """The rows are in the store already: another driver or user stored them first."""

    http_status = 409


class SearchFailedError(SearchError):
    """The search broke: trials ended with errors, or a result is missing."""

    exit_code: ClassVar[int] = EXIT_SEARCH_FAILED


class NoModuleError(SearchFailedError):
    """Every trial was scored, and none gives a module that may be handed over."""

    exit_code: ClassVar[int] = EXIT_TARGET_MISSED


class WrongImportError(SearchError):
    """The imported model computes another function than its file."""

    exit_code: ClassVar[int] = EXIT_TARGET_MISSED


@contextlib.contextmanager
def system_errors(
    kind: type[CompilerError], what: str, *, where: str | None = None, fix: str | None = None
) -> Iterator[None]:
    """Raise what the system says of files in the block as an error of ours: ``what``, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}", where=where, fix=fix) from error


def exit_code_of(error: CompilerError) -> int:
    """Exit code of a command that ends with ``error``."""
    if isinstance(error, SearchError):
        return error.exit_code
    if isinstance(error, LostClusterError):
        return EXIT_SEARCH_FAILED  # the same command goes on once the cluster is there again
    of_input = isinstance(error, BrokenRunError | DatasetError | MetricError | UserCodeError)
    if isinstance(error, WorkerError) and not of_input:
        return EXIT_SEARCH_FAILED
    return EXIT_BAD_INPUT
