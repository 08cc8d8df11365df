"""Errors of the service: what, where, fix, and the exit code of the command that meets them."""

from __future__ import annotations

from typing import ClassVar

from compiler.errors import CompilerError

EXIT_OK = 0
"""The search ended and the emitted module keeps the promised accuracy."""
EXIT_TARGET_MISSED = 1
"""Everything was written, but no trial stayed within ``--max-drop``."""
EXIT_BAD_INPUT = 2
"""Options, files or data that cannot be used; nothing was searched."""
EXIT_SEARCH_FAILED = 3
"""The search ran but has nothing to hand over, or broke in a way we did not foresee."""
EXIT_INTERRUPTED = 130
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


class ForeignPackageError(SearchError):
    """``compiler`` or ``workers`` belong to another distribution."""


class SearchFailedError(SearchError):
    """No trial ended with a module that could be handed over."""

    exit_code: ClassVar[int] = EXIT_SEARCH_FAILED


def exit_code_of(error: BaseException) -> int:
    """Exit code of a command that ends with ``error``."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, SearchError):
        return error.exit_code
    if isinstance(error, CompilerError):
        return EXIT_BAD_INPUT
    return EXIT_SEARCH_FAILED
