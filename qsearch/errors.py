"""Errors of the service: what, where, fix, and the exit code of the command that meets them."""

from __future__ import annotations

from typing import ClassVar, Final

from compiler.errors import CompilerError
from workers.errors import BrokenRunError, DatasetError, MetricError, WorkerError

EXIT_OK: Final = 0
"""Done; for a search, the emitted module keeps the promised accuracy."""
EXIT_TARGET_MISSED: Final = 1
"""The answer is no: no trial stayed within ``--max-drop``, or none became integers only."""
EXIT_BAD_INPUT: Final = 2
"""Options, files, data, a store or a cluster that cannot be used, or no longer; the error says how
to go on, and finished trials are kept."""
EXIT_SEARCH_FAILED: Final = 3
"""The search ran but has nothing to hand over, or broke in a way we did not foresee."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C; the best so far is written and the same command goes on."""


class SearchError(CompilerError):
    """Anything the service refuses or cannot finish; subclasses choose the exit code."""

    exit_code: ClassVar[int] = EXIT_BAD_INPUT


class SettingsError(SearchError):
    """An option, environment variable or configuration key that is unknown or ill-valued."""


class ModelFileError(SearchError):
    """The model file is missing, unreadable or not what its name promises."""


class DataError(SearchError):
    """Calibration or evaluation data that does not fit the model."""


class RunFolderError(SearchError):
    """The run folder cannot be written or holds something else."""


class StoreError(SearchError):
    """The database cannot be reached, is busy, or has another schema."""


class EmptyStoreError(StoreError):
    """The database is there and no search has written to it yet."""


class TakenError(StoreError):
    """Another driver stored the same rows first."""


class SearchFailedError(SearchError):
    """The search broke: trials ended with errors, or a result is missing."""

    exit_code: ClassVar[int] = EXIT_SEARCH_FAILED


class NoModuleError(SearchFailedError):
    """Every trial was scored, and none gives a module that may be handed over."""

    exit_code: ClassVar[int] = EXIT_TARGET_MISSED


def exit_code_of(error: BaseException) -> int:
    """Exit code of a command that ends with ``error``."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, SearchError):
        return error.exit_code
    if isinstance(error, BrokenRunError):
        return EXIT_BAD_INPUT
    if isinstance(error, WorkerError) and not isinstance(error, DatasetError | MetricError):
        return EXIT_SEARCH_FAILED
    if isinstance(error, CompilerError):
        return EXIT_BAD_INPUT
    return EXIT_SEARCH_FAILED
