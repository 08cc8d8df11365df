"""Logging of all three packages: to ``run.log`` always, to stderr by verbosity."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("qsearch", "workers", "compiler")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextlib.contextmanager
def logging_to(verbosity: int = 0, log_file: Path | None = None) -> Iterator[None]:
    """Send records of our packages to stderr and, if given, to ``log_file``, for a while.

    Args:
        verbosity: -1 errors only, 0 warnings, 1 informational, 2 everything.
        log_file: appended to; gets everything from INFO on.
    """
    level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(level)
    console.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handlers: list[logging.Handler] = [console]
    if log_file is not None:
        file_handler = logging.FileHandler(log_file, encoding="utf-8")
        file_handler.setLevel(min(level, logging.INFO))
        file_handler.setFormatter(logging.Formatter(_FORMAT))
        handlers.append(file_handler)
    loggers = [logging.getLogger(package) for package in PACKAGES]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, old_level, propagate in before:
            for handler in handlers:
                logger.removeHandler(handler)
            logger.setLevel(old_level)
            logger.propagate = propagate
        for handler in handlers:
            handler.close()
