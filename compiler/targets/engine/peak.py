"""How many products of 8-bit integers a core adds up in a second at most, by instruction set.

A short loop of the dot-product instruction on registers, twelve sums at a time: no memory, no
epilogue. No kernel is faster; what a layer reaches of it says how well it uses the processor.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
import time
from pathlib import Path
from typing import Final

from compiler.targets.c.toolchain import build_library, find_compiler
from compiler.targets.engine.isa import build_flags
from compiler.targets.engine.library import detected_isa

_SUMS: Final = 12
_ROUNDS: Final = 5
_LOOPS: Final = 200_000

_SOURCE: Final = f"""
#include <stdint.h>
#define SUMS {_SUMS}
#if defined(QK_VNNI)
#include <immintrin.h>
typedef __m512i vec;
enum {{ MACS = 64 }};
static inline vec dot(vec s, vec a, vec b) {{ return _mm512_dpbusd_epi32(s, a, b); }}
static inline vec all(int x) {{ return _mm512_set1_epi32(x); }}
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#elif defined(QK_AVX2)
#include <immintrin.h>
typedef __m256i vec;
enum {{ MACS = 16 }};
static inline vec dot(vec s, vec a, vec b)
{{ return _mm256_add_epi32(s, _mm256_madd_epi16(a, b)); }}
static inline vec all(int x) {{ return _mm256_set1_epi32(x); }}
#define KEEP(v) __asm__ volatile("" : "+x"(v))
#elif defined(QK_NEON)
#include <arm_neon.h>
typedef int32x4_t vec;
enum {{ MACS = 16 }};
static inline vec dot(vec s, vec a, vec b)
{{ return vdotq_s32(s, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)); }}
static inline vec all(int x) {{ return vdupq_n_s32(x); }}
#define KEEP(v) __asm__ volatile("" : "+w"(v))
#else
typedef int32_t vec;
enum {{ MACS = 1 }};
static inline vec dot(vec s, vec a, vec b) {{ return (int32_t)((uint32_t)s + (uint32_t)(a * b)); }}
static inline vec all(int x) {{ return x; }}
#define KEEP(v) __asm__ volatile("" : "+r"(v))
#endif
__attribute__((visibility("default"))) int64_t qk_peak(int64_t loops)
{{
    vec a = all(1), b = all(1), {", ".join(f"s{n} = all(0)" for n in range(_SUMS))};
    for (int64_t i = 0; i < loops; ++i) {{
        {" ".join(f"KEEP(a); s{n} = dot(s{n}, a, b); KEEP(s{n});" for n in range(_SUMS))}
    }}
    return loops * SUMS * MACS;
}}
"""


@functools.cache
def peak_macs(isa: str | None = None) -> float | None:
    """Products a second on one core, the best of some rounds; None without a compiler.

    Args:
        isa: instruction set of ``isa.ISAS``; None for the best one of this processor.
    """
    if find_compiler() is None:
        return None
    with tempfile.TemporaryDirectory(prefix="qsearch-peak-") as folder:
        path = Path(folder) / "peak.c"
        path.write_text(_SOURCE, encoding="utf-8")
        library = ctypes.CDLL(
            str(build_library("qpeak", [path], build_flags(isa or detected_isa())))
        )
    library.qk_peak.restype = ctypes.c_int64
    library.qk_peak.argtypes = [ctypes.c_int64]
    best = 0.0
    for _ in range(_ROUNDS):
        begin = time.thread_time()
        macs = library.qk_peak(_LOOPS)
        best = max(best, macs / max(time.thread_time() - begin, 1e-9))
    return best
