"""Set up and end a process of ours: log, signals, locks; nothing heavy is imported."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from qsearch.masking import masked

PACKAGES = ("qsearch", "workers", "compiler")
_IMPORTING: Final = "<frozen importlib._bootstrap>"
_LOGGING: Final = logging.getLogger.__code__.co_filename
"""Files of the frames of a running import, and of logging's own."""
_LOOK_AGAIN_S: Final = 0.05
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _LogFile(logging.FileHandler):
    """A log that a full disk, or a folder that is gone, ends in silence.

    Python would print a traceback for every line; what the search itself cannot write is told.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave the line out."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close, whatever is left to be written."""
        with contextlib.suppress(OSError):
            super().close()


class _Formatter(logging.Formatter):
    """Hides the passwords of URLs, also in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


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
    console.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    handlers: list[logging.Handler] = [console]
    if log_file is not None:
        file_handler = _LogFile(log_file, encoding="utf-8")
        file_handler.setLevel(min(level, logging.INFO))
        file_handler.setFormatter(_Formatter(_FORMAT))
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


@contextlib.contextmanager
def quieted(library: str, level: int, warning: type[Warning]) -> Iterator[None]:
    """Keep a library's log lines below ``level``, and such warnings, off the user's terminal."""
    logger = logging.getLogger(library)
    before = logger.level
    logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", warning)
            yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def native_stdout_dropped() -> Iterator[None]:
    """Drop what compiled code prints to standard output inside the block.

    HiGHS 1.12, which SciPy 1.17 carries, prints a line left from debugging (ERGO-Code/HiGHS #2783).
    On a pipe C keeps it until the process ends, where it would follow the last line of ``--json``.
    """
    if sys.stdout is None:  # closed by the parent process
        yield
        return
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


# Signals ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """A signal takes effect when the block ends; a second one takes effect at once.

    A native module cut off in its import crashes; a transaction cut off in SQLAlchemy's own code
    keeps the lock of the database. Signals that nobody handles stay as they are, and threads other
    than the main one, to which Python brings no signal, are left alone.

    Raises:
        KeyboardInterrupt: there was one, and the handler before is Python's own.
    """
    kept: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        kept.append((number, frame))
        if len(kept) > 1:
            signal.default_int_handler(number, frame)

    before: Mapping[int, _Handler] = {}
    try:
        with _handled_by(keep) as before:
            yield
    finally:
        if kept:
            number, frame = kept[0]
            before[number](number, frame)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A signal ends the block wherever it meets it, after an import or logging that is running.

    A module that is cut off in its import is half there, and fails when it is imported again to
    write the best so far. ``logging`` cut off in its own code keeps a lock that every thread which
    imports waits for. An interrupt inside of a destructor or of a weak reference's callback, which
    Python would print and forget, comes again.

    Raises:
        KeyboardInterrupt: there was a signal, and the handler before is Python's own.
    """
    caller = sys._getframe(2)  # beneath it an import may have called us
    print_ignored = sys.unraisablehook
    last = signal.SIGINT.value

    def when_whole(number: int, frame: FrameType | None) -> None:
        nonlocal last
        last = number
        at = frame
        if frame is not None and frame.f_code.co_filename == _LOGGING:
            send_again()
            return
        while at is not None and at is not caller:
            if at.f_code.co_filename == _IMPORTING:
                send_again()
                return
            at = at.f_back
        before[number](number, frame)

    def send_again() -> None:
        threading.Timer(_LOOK_AGAIN_S, os.kill, (os.getpid(), last)).start()

    def hear_ignored(ignored: sys.UnraisableHookArgs) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            send_again()
        else:
            print_ignored(ignored)

    sys.unraisablehook = hear_ignored
    try:
        with _handled_by(when_whole) as before:
            yield
    finally:
        sys.unraisablehook = print_ignored


_Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def _handled_by(handler: _Handler) -> Iterator[Mapping[int, _Handler]]:
    """Put it in the place of the handlers of SIGTERM and SIGINT, which are given."""
    before: dict[int, _Handler] = {}
    with contextlib.ExitStack() as restored:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                old = signal.getsignal(number)
                if callable(old):
                    before[number] = old
                    restored.callback(signal.signal, number, old)
                    signal.signal(number, handler)
        yield before


# Locks ------------------------------------------------------------------------------------------


def try_lock(descriptor: int) -> bool:
    """Lock an open file; False where another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def file_lock(path: Path, busy: Exception) -> Iterator[Callable[[], bool]]:
    """Hold an exclusive lock on ``path``, which is created; its holder may delete it.

    Yields:
        a function that tells whether the locked file still lies at ``path``.

    Raises:
        Exception: ``busy``, when another process holds it.
    """
    while True:
        with path.open("a") as handle:
            if not try_lock(handle.fileno()):
                raise busy
            if not _is_at(path, handle.fileno()):
                continue  # its holder deleted it since it was opened
            yield partial(_is_at, path, handle.fileno())
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False
