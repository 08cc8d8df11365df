"""A C file from its parts: headers, arithmetic, constants, functions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from compiler.lir.nodes import PrimFunc
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.c_types import APART, INLINED
from compiler.targets.c.constants import ConstantPool

ROLLED: Final = "KEEP_LOOP"
"""In front of a loop that the compiler does not unroll: GCC 12 does not end on some of int64."""

_GNU: Final = "defined(__GNUC__) && __GNUC__ >= "
_CLONES: Final = (
    "defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__AVX2__) \\\n"
    f"    && {_GNU}6 && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)"
)
"""Condition of the preprocessor under which a program can have versions of a function and choose
when it starts."""


def _versions(*targets: str) -> str:
    named = ", ".join(f'"{target}"' for target in targets)
    return f"__attribute__((noinline, target_clones({named})))"


_MACROS: Final = {
    ROLLED: ((f"{_GNU}8", '_Pragma("GCC unroll 1")'), ("", "")),
    APART: (
        (f"{_CLONES} && {_GNU}12", _versions("arch=x86-64-v4", "avx2", "default")),
        (_CLONES, _versions("avx2", "default")),
        (f"{_GNU}3", "__attribute__((noinline))"),
        ("", ""),
    ),
    INLINED: ((f"{_GNU}3", "inline __attribute__((always_inline))"), ("", "inline")),
}
"""Words of the text: what they stand for under the first condition that holds."""


def source_text(
    title: str, use: Arithmetic, pool: ConstantPool, definitions: Sequence[str], header: str = ""
) -> str:
    """Text of a file.

    Args:
        title: what the file is, for its first comment.
        use: the arithmetic its functions call.
        pool: the constants they read.
        definitions: the functions, callees first.
        header: the file's own header, included first.
    """
    parts = [comment(title)]
    includes = [f'#include "{header}"'] if header else []
    includes += ["#include <stdint.h>"]
    includes += ["#include <string.h>"] if use.uses_memcpy else []
    macros = use.uses_math_macros or pool.uses_math_macros
    includes += ["#include <math.h>"] if use.uses_libm or macros else []
    parts.append("\n".join(includes) + "\n")
    # Some compilers would fuse a * b + c into one rounding, and give other bits.
    parts.append("#if defined(__clang__)\n#pragma STDC FP_CONTRACT OFF\n#endif\n")
    written = use.definitions()
    for macro, meanings in _MACROS.items():
        if any(macro in definition for definition in (*written, *definitions)):
            lines = []
            for condition, text in meanings:
                lines.append(f"#elif {condition}" if condition else "#else")
                lines.append(f"#define {macro} {text}".rstrip())
            parts.append("\n".join(lines).replace("#elif", "#if", 1) + "\n#endif\n")
    parts += written
    parts += pool.definitions()
    parts += definitions
    return "\n".join(parts)


def comment(text: str) -> str:
    """A C comment of one or more lines, ending in a line break."""
    lines = text.replace("*/", "* /").replace("/*", "/ *").splitlines()
    if len(lines) == 1:
        return f"/* {lines[0]} */\n"
    return "\n".join(["/*", *(f" * {line}".rstrip() for line in lines), " */"]) + "\n"


def kernel_comment(func: PrimFunc) -> str:
    """Return a comment on a kernel: its loop-level text, a block a line."""
    lines: list[str] = []
    for line in func.definition(func.name, lambda array: "constant").splitlines():
        lines += textwrap.wrap(line.strip(), 92, subsequent_indent="    ") or [""]
    return comment("\n".join(lines))
