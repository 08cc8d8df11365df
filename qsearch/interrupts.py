"""Ctrl-C and SIGTERM that wait for the end of what must not be cut off."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_kept() -> Iterator[None]:
    """A signal takes effect when the block ends; a second one takes effect at once.

    A native module cut off in its import crashes; a transaction cut off in SQLAlchemy's own code
    keeps the lock of the database. Signals that nobody handles stay as they are, and threads other
    than the main one, to which Python brings no signal, are left alone.

    Raises:
        KeyboardInterrupt: there was one, and the handler before is Python's own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        kept.append((number, frame))
        if len(kept) > 1:
            signal.default_int_handler(number, frame)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with contextlib.ExitStack() as restored:
            for number, handler in handlers.items():
                if callable(handler):
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, keep)
            yield
    finally:
        if kept:
            signal_number, frame = kept[0]
            before = handlers[signal.Signals(signal_number)]
            assert callable(before)
            before(signal_number, frame)
