"""Facts about the machine without which figures mean little, and turn-taking CPU time."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime

HELD_TO = "QSEARCH_BENCHMARKS_HELD_TO"
"""Environment variable that avx2_only.py sets to the instructions that onnxruntime is held to."""


def machine() -> dict[str, Any]:
    """Processor, load and versions."""
    return {
        "machine": platform.machine(),
        "processor": _cpuinfo("model name") or platform.processor() or "unknown",
        "isa": instruction_set(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def alternated_ms(
    sides: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 3
) -> dict[str, float]:
    """Median CPU milliseconds of the calling thread per call, the sides taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + warm_up):
        for name, work in sides.items():
            begin = time.thread_time()
            work()
            taken[name].append(time.thread_time() - begin)
    return {name: 1e3 * float(np.median(times[warm_up:])) for name, times in taken.items()}


def instruction_set() -> str:
    """The widest instructions for integer products that the processor has, or is held to."""
    if HELD_TO in os.environ:
        return os.environ[HELD_TO]
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    names = {
        "amx_int8": "AMX",
        "avx512_vnni": "AVX512-VNNI",
        "avx_vnni": "AVX-VNNI",
        "avx512bw": "AVX512",
        "avx2": "AVX2",
        "asimddp": "NEON dot product",
        "asimd": "NEON",
    }
    return next((name for flag, name in names.items() if flag in flags), "baseline")


def _cpuinfo(field: str) -> str:
    """The first value of a field of /proc/cpuinfo; "" where there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            for line in stream:
                if line.startswith(field):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""
