"""Logging of all three packages: to ``run.log`` always, to stderr by verbosity."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

PACKAGES = ("qsearch", "workers", "compiler")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(verbosity: int = 0, log_file: Path | None = None) -> None:
    """Send records of our packages to stderr and, if given, to ``log_file``.

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
    for package in PACKAGES:
        logger = logging.getLogger(package)
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
        logger.propagate = False
