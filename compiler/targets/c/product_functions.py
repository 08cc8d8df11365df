"""C functions of sums of products (``product_form.py``): plain C, and DSP instructions of Arm.

SMLAD multiplies two pairs of int16 and adds both products to a sum; SXTB16 and UXTB16 make pairs of
the even bytes of a word. Four neighbours as two pairs are 0, 2 and 1, 3: the order does not matter
where both factors have it.
"""

from __future__ import annotations

from typing import Final

from compiler.targets.c.c_types import INLINED, c_type, function_text
from compiler.targets.c.integer_functions import Functions, Maker

_PAIRS: Final = """\
/* DSP instructions of Arm multiply pairs of int16. */
#if defined(__GNUC__) && defined(__ARM_FEATURE_DSP) && !defined(__ARM_FEATURE_MVE)
#include <arm_acle.h>
#define SMLAD
static inline int32_t word_at(const void *from)
{
    int32_t word;
    __builtin_memcpy(&word, from, sizeof word);
    return word;
}
#endif
"""
_COLUMNS: Final = ("k", "1 * depth + k", "2 * depth + k", "3 * depth + k")
"""Place of the next factor of each of four columns."""
_EVEN_FIRST: Final = (0, 2, 1, 3)


def _pairs(_: Functions, __: str, ___: str) -> str:
    return _PAIRS


def _extend(dtype: str) -> str:
    if dtype.startswith("u"):
        return "__uxtb16"
    return "__sxtb16"


def _text(head: str, lines: list[str], note: str) -> str:
    return function_text("void", head, "\n".join(lines).lstrip(), note, INLINED)


def _by_fours(place: str, behind: str, four: list[str]) -> list[str]:
    """A loop over whole fours, for DSP instructions only."""
    head = f"    for (; {place} + 4 <= {behind}; {place} += 4) {{"
    return ["#ifdef SMLAD", head, *four, "    }", "#endif"]


def _widen(use: Functions, name: str, dtype: str) -> str:
    use("pairs", "int16")
    if dtype == "int16":
        four = [f"        to[i + {t}] = from[i + {f}];" for t, f in enumerate(_EVEN_FIRST)]
    else:
        extend = _extend(dtype)
        four = [
            "        const uint32_t four = (uint32_t)word_at(from + i);",
            f"        const int32_t even = (int32_t){extend}(four);",
            f"        const int32_t odd = (int32_t){extend}(four >> 8);",
            "        __builtin_memcpy(to + i, &even, sizeof even);",
            "        __builtin_memcpy(to + i + 2, &odd, sizeof odd);",
        ]
    lines = [
        "    int32_t i = 0;",
        *_by_fours("i", "count", four),
        "    for (; i < count; ++i) to[i] = from[i];",
    ]
    head = f"{name}(const {c_type(dtype)} *from, int32_t count, int16_t *to)"
    return _text(head, lines, "Neighbours as int16; with SMLAD the even ones of four come first.")


def _row_dots(use: Functions, name: str, dtype: str) -> str:
    use("pairs", "int16")
    if dtype == "int16":
        four = [
            f"        s{n} += (int32_t)a[k + {t}] * (int32_t)b[{place} + {f}];"
            for n, place in enumerate(_COLUMNS)
            for t, f in enumerate(_EVEN_FIRST)
        ]
    else:
        extend = _extend(dtype)
        four = ["        const int32_t x0 = word_at(a + k), x1 = word_at(a + k + 2);"]
        four += ["        uint32_t four;"]
        for n, place in enumerate(_COLUMNS):
            four += [
                f"        four = (uint32_t)word_at(b + {place});",
                f"        s{n} = __smlad(x0, (int32_t){extend}(four), s{n});",
                f"        s{n} = __smlad(x1, (int32_t){extend}(four >> 8), s{n});",
            ]
    lines = [
        "    int32_t k = 0, s0 = 0, s1 = 0, s2 = 0, s3 = 0;",
        *_by_fours("k", "depth", four),
        "    for (; k < depth; ++k) {",
        *(f"        s{n} += (int32_t)a[k] * (int32_t)b[{at}];" for n, at in enumerate(_COLUMNS)),
        "    }",
        *(f"    sums[{n}] = s{n};" for n in range(4)),
    ]
    head = f"{name}(const int16_t *a, const {c_type(dtype)} *b, int32_t depth, int32_t *sums)"
    return _text(head, lines, "A row with four columns.")


def _dots(use: Functions, name: str, _: str) -> str:
    use("pairs", "int16")
    sums = [(row, n) for row in range(2) for n in range(4)]
    rows = ("k", "depth + k")
    pairs: list[str] = []
    for step in (0, 2):
        pairs += [f"        x{row} = word_at(a + {rows[row]} + {step});" for row in range(2)]
        for n, place in enumerate(_COLUMNS):
            pairs += [f"        y = word_at(b + {place} + {step});"]
            pairs += [f"        s{row}{n} = __smlad(x{row}, y, s{row}{n});" for row in range(2)]
    lines = [
        f"    int32_t {', '.join(f's{row}{n} = 0' for row, n in sums)};",
        "#ifdef SMLAD",
        "    for (int32_t k = 0; k < depth; k += 4) {",
        "        int32_t x0, x1, y;",
        *pairs,
        "    }",
        "#else",
        "    for (int32_t k = 0; k < depth; ++k) {",
        *(
            f"        s{row}{n} += (int32_t)a[{rows[row]}] * (int32_t)b[{_COLUMNS[n]}];"
            for row, n in sums
        ),
        "    }",
        "#endif",
        *(f"    sums[{'width + ' * row}{n}] = s{row}{n};" for row, n in sums),
    ]
    given = "const int16_t *a, const int16_t *b, int32_t depth, int32_t *sums, int32_t width"
    note = "Two rows with four columns; their length is a multiple of 4."
    return _text(f"{name}({given})", lines, note)


PRODUCT_FUNCTIONS: Final[dict[str, Maker]] = {
    "pairs": _pairs,
    "widen": _widen,
    "row_dots": _row_dots,
    "dots": _dots,
}
