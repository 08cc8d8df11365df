"""Dot products of int16 rows with the instructions that the compiler is allowed to use.

One C function per instruction set behind ``#if``: AVX-512, AVX2, NEON. A tile of rows by four
columns of sums stays in registers. Without one of them ``DOT_ROWS`` is not defined, and the loops
of ``product_form.py`` are plain C. Sums are exact in any order, so the bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = 4
"""Columns of a tile."""

HEADERS = """\
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif
"""


@dataclass(frozen=True, slots=True)
class _Form:
    """One instruction set.

    Attributes:
        condition: of the preprocessor.
        rows: of a tile, as many as there are registers for.
        step: int16 values of a vector.
        vector: type of a vector of int16; ``sums`` that of the sums.
        load: expression of a vector at ``{}``.
        rest: expression of the last, shorter vector at ``{}``; "" where there is none.
        add: statement: the sums ``{s}`` and the products of ``{a}`` and ``{b}``.
        four: statement: four vectors of sums ``{0}`` … ``{3}`` as one vector ``total`` of four.
        store: statement: ``total`` to ``{}``.
    """

    condition: str
    rows: int
    step: int
    vector: str
    sums: str
    zero: str
    load: str
    rest: str
    add: str
    four: str
    store: str


_HALVES = (
    "const __m256i h = _mm256_hadd_epi32(_mm256_hadd_epi32({0}, {1}), _mm256_hadd_epi32({2}, {3}));"
    " const __m128i total = _mm_add_epi32(_mm256_castsi256_si128(h), "
    "_mm256_extracti128_si256(h, 1));"
)
_NARROWED = "_mm256_add_epi32(_mm512_castsi512_si256({0}), _mm512_extracti64x4_epi64({0}, 1))"
_STORE = "_mm_storeu_si128((__m128i *)(void *)({}), total);"

_FORMS = (
    _Form(
        "defined(__AVX512BW__)",
        4,
        32,
        "__m512i",
        "__m512i",
        "_mm512_setzero_si512()",
        "_mm512_loadu_si512((const void *)({}))",
        "_mm512_maskz_loadu_epi16((__mmask32)((UINT32_C(1) << (depth - k)) - 1u), {})",
        "{s} = DOT_ADD({s}, {a}, {b});",
        _HALVES.format(*(_NARROWED.format(f"{{{n}}}") for n in range(COLUMNS))),
        _STORE,
    ),
    _Form(
        "defined(__AVX2__)",
        2,
        16,
        "__m256i",
        "__m256i",
        "_mm256_setzero_si256()",
        "_mm256_loadu_si256((const __m256i *)(const void *)({}))",
        "_mm256_inserti128_si256(_mm256_setzero_si256(), "
        "_mm_loadu_si128((const __m128i *)(const void *)({})), 0)",
        "{s} = _mm256_add_epi32({s}, _mm256_madd_epi16({a}, {b}));",
        _HALVES,
        _STORE,
    ),
    _Form(
        "defined(__aarch64__) && defined(__ARM_NEON)",
        4,
        8,
        "int16x8_t",
        "int32x4_t",
        "vdupq_n_s32(0)",
        "vld1q_s16({})",
        "",
        "{s} = vmlal_high_s16(vmlal_s16({s}, vget_low_s16({a}), vget_low_s16({b})), {a}, {b});",
        "const int32x4_t total = vpaddq_s32(vpaddq_s32({0}, {1}), vpaddq_s32({2}, {3}));",
        "vst1q_s32({}, total);",
    ),
)

_VNNI = """\
#if defined(__AVX512VNNI__)
#define DOT_ADD(s, a, b) _mm512_dpwssd_epi32(s, a, b)
#else
#define DOT_ADD(s, a, b) _mm512_add_epi32(s, _mm512_madd_epi16(a, b))
#endif
"""


def dot_products_text(name: str) -> str:
    """C text of ``name(a, rows, b, depth, sums, stride, columns)`` for every instruction set.

    ``sums[r * stride + c]`` becomes the dot product of row r of ``a`` and row c of ``b``, of
    ``depth`` values each, for r below ``rows`` and DOT_ROWS, and c below ``columns`` and COLUMNS.
    ``depth`` is a multiple of 8; ``b`` has COLUMNS rows.
    """
    parts = [
        "/* sums[r * stride + c]: row r of a times row c of b, each of depth int16 values. */\n"
    ]
    for number, form in enumerate(_FORMS):
        parts.append(f"#{'elif' if number else 'if'} {form.condition}\n")
        parts.append(_VNNI if "DOT_ADD" in form.add else "")
        parts.append(f"#define DOT_ROWS {form.rows}\n{_function(name, form)}")
    return "".join([*parts, "#endif\n"])


def _function(name: str, form: _Form) -> str:
    rows, columns = range(form.rows), range(COLUMNS)
    lines = [
        f"const int16_t *const a{r} = a + ({r} < rows ? {r} : rows - 1) * depth;" for r in rows
    ]
    every = ", ".join(f"s{r}{c} = {form.zero}" for r in rows for c in columns)
    lines += [f"{form.sums} {every};", "int32_t k = 0;"]
    lines.append(f"for (; k + {form.step} <= depth; k += {form.step}) {{")
    lines += _step(form, form.load)
    lines.append("}")
    if form.rest:
        lines.append("if (k < depth) {")
        lines += _step(form, form.rest)
        lines.append("}")
    for r in rows:
        place = f"sums + {r} * stride" if r else "sums"
        lines.append(f"if ({r} < rows) {{" if r else "{")
        lines.append("    " + form.four.format(*(f"s{r}{c}" for c in columns)))
        lines.append(f"    if (columns >= {COLUMNS}) {{ {form.store.format(place)} }}")
        lines.append(f"    else {{ int32_t part[{COLUMNS}]; {form.store.format('part')}")
        lines.append(f"        for (int32_t c = 0; c < columns; ++c) ({place})[c] = part[c]; }}")
        lines.append("}")
    head = (
        f"static inline void {name}(\n    const int16_t *a, int32_t rows, const int16_t *b, "
        "int32_t depth, int32_t *sums,\n    int32_t stride, int32_t columns)"
    )
    return f"{head}\n{{\n" + "\n".join(f"    {line}" for line in lines) + "\n}\n"


def _step(form: _Form, load: str) -> list[str]:
    lines = [
        f"    const {form.vector} y{c} = {load.format(f'b + {c} * depth + k')};"
        for c in range(COLUMNS)
    ]
    for r in range(form.rows):
        lines.append(f"    const {form.vector} x{r} = {load.format(f'a{r} + k')};")
        lines += [
            "    " + form.add.format(s=f"s{r}{c}", a=f"x{r}", b=f"y{c}") for c in range(COLUMNS)
        ]
    return lines
