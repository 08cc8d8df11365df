"""``python -m workers.pool.process_worker FD RUNNER MEMORY``: the worker's side of ProcessPool."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import pkgutil
import resource
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from workers.object_store import find
from workers.process import code_version
from workers.worker import answer, with_user_code

_WATCH_S = 1.0


def main(fd: int, runner_path: str, memory_bytes: int = 0) -> None:
    """Answer requests from the pipe ``fd`` until it closes.

    Args:
        memory_bytes: most that may be allocated, so that a request that wants more ends with a
            MemoryError and not the machine; 0 is any.
    """
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    gc.set_threshold(20_000)  # as in qsearch.__main__
    faulthandler.enable()  # a crash in native code leaves its stack in the log
    # Ctrl-C reaches the whole process group; the driver decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(fd)
    values: dict[str, Any] = {}
    runner = pkgutil.resolve_name(runner_path)(functools.partial(find, values))
    where = f"worker process, pid {os.getpid()}"
    try:
        pipe.send(("ready", code_version()))
        while True:
            message = pipe.recv()
            if message[0] == "put":
                values[message[1]] = message[2]
            elif message[0] == "import":
                runner = with_user_code(runner, message[1])
            else:
                pipe.send(("done", *answer(runner, message[1], where)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        gc.freeze()  # its memory is the system's in a moment: nothing of it is collected


def _end_after(parent: int) -> None:
    """End this process within a second after its driver was killed."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
