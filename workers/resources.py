"""What a request cost: CPU seconds and peak memory of this process."""

from __future__ import annotations

import resource
import sys
import time


class CpuClock:
    """CPU seconds of this process, all threads, since it was made."""

    def __init__(self) -> None:
        self._start = time.process_time()

    @property
    def seconds(self) -> float:
        """CPU seconds so far."""
        return time.process_time() - self._start


def peak_rss_bytes() -> int:
    """Largest resident set this process ever had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
