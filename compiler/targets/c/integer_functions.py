"""C functions of integers, and functions of integers and floats (min, max, abs, quotients)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from compiler.lir.ranges import dtype_range
from compiler.targets.c.c_types import bits_of, c_type, function_text, unsigned_of


class Functions(Protocol):
    """The functions that a file needs: ``Arithmetic``, as the texts of functions use it."""

    def __call__(self, operation: str, dtype: str) -> str:
        """Name of the function for an operation on a dtype."""

    def wrap(self, dtype: str, unsigned: str) -> str:
        """Expression: an unsigned value modulo the range of ``dtype``."""


Maker = Callable[[Functions, str, str], str]
"""``make(use, name, dtype)``: the text of a function."""


def _wrap(_: Functions, name: str, dtype: str) -> str:
    bits = bits_of(dtype)
    wide = unsigned_of(dtype)
    kind = c_type(dtype)
    largest = _limit(dtype)
    if bits >= 32:
        return function_text(
            kind,
            f"{name}({wide} u)",
            f"return u <= {largest} ? ({kind})u : -({kind})(~u) - 1;",
            f"u modulo 2^{bits}, as a signed number.",
        )
    mask = f"0x{(1 << bits) - 1:X}u"
    return function_text(
        kind,
        f"{name}(uint32_t u)",
        f"u &= {mask};\n    return ({kind})(u <= {largest} ? (int32_t)u : "
        f"-(int32_t)(~u & {mask}) - 1);",
        f"u modulo 2^{bits}, as a signed number.",
    )


def _limit(dtype: str) -> str:
    """Largest value of a signed dtype as an unsigned constant."""
    value = dtype_range(dtype)[1]
    if bits_of(dtype) == 64:
        return f"UINT64_C(0x{value:X})"
    return f"0x{value:X}u"


def _ordered(operation: str) -> Maker:
    def make(_: Functions, name: str, dtype: str) -> str:
        kind = c_type(dtype)
        sign = "<" if operation == "min" else ">"
        if dtype.startswith("float"):
            body = f"return (a {sign} b || a != a) ? a : b;"
            note = f"{operation} that is NaN where either is."
        else:
            body = f"return a {sign} b ? a : b;"
            note = ""
        return function_text(kind, f"{name}({kind} a, {kind} b)", body, note)

    return make


def _abs(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    if dtype.startswith("float"):
        zero = "0.0f" if dtype == "float32" else "0.0"
        return function_text(kind, f"{name}({kind} x)", f"return x > {zero} ? x : {zero} - x;")
    wide = unsigned_of(dtype)
    negated = use.wrap(dtype, f"0u - ({wide})x")
    return function_text(kind, f"{name}({kind} x)", f"return x < 0 ? {negated} : x;")


def _shift_right(use: Functions, name: str, dtype: str) -> str:
    wide = unsigned_of(dtype)
    kind = c_type(dtype)
    result = use.wrap(dtype, "((((" + wide + ")x) ^ sign) >> n) ^ sign")
    return function_text(
        kind,
        f"{name}({kind} x, int32_t n)",
        # The shift of a negative number is the compiler's choice; nearly all choose this one.
        f"#if -1 >> 1 == -1\n    return ({kind})(x >> n);\n#else\n"
        f"    const {wide} sign = 0u - ({wide})(x < 0);\n    return {result};\n#endif",
        "floor(x / 2^n).",
    )


def _quotient(floor: bool) -> Maker:
    def make(use: Functions, name: str, dtype: str) -> str:
        kind = c_type(dtype)
        if dtype.startswith("float"):
            quotient = f"({kind})({use('floor', dtype)}(a / b))"
            return function_text(kind, f"{name}({kind} a, {kind} b)", f"return {quotient};")
        lines = ["if (b == 0) return 0;"]
        if not dtype.startswith("u"):
            negated = use.wrap(dtype, f"0u - ({unsigned_of(dtype)})a")
            lines.append(f"if (b == -1) return {negated};")
            if floor:
                lines.append(f"if (a % b != 0 && (a < 0) != (b < 0)) return ({kind})(a / b - 1);")
        lines.append(f"return ({kind})(a / b);")
        return function_text(
            kind,
            f"{name}({kind} a, {kind} b)",
            "\n    ".join(lines),
            f"a / b rounded {'down' if floor else 'toward 0'}; 0 for b = 0.",
        )

    return make


def _remainder(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    if dtype.startswith("float"):
        body = (
            f"const {kind} r = {use('fmod', dtype)}(a, b);\n"
            f"    return (r != 0 && (r < 0) != (b < 0)) ? ({kind})(r + b) : r;"
        )
        return function_text(kind, f"{name}({kind} a, {kind} b)", body)
    lines = ["if (b == 0) return 0;"]
    if not dtype.startswith("u"):
        lines.append("if (b == -1) return 0;")
        lines.append(f"if (a % b != 0 && (a < 0) != (b < 0)) return ({kind})(a % b + b);")
    lines.append(f"return ({kind})(a % b);")
    note = "a - b * floor(a / b); 0 for b = 0."
    return function_text(kind, f"{name}({kind} a, {kind} b)", "\n    ".join(lines), note)


def _isqrt(_: Functions, name: str, dtype: str) -> str:
    body = (
        "uint64_t rest = (uint64_t)x, root = 0, bit = UINT64_C(1) << 62;\n"
        "    while (bit > rest) bit >>= 2;\n"
        "    for (; bit != 0; bit >>= 2) {\n"
        "        if (rest >= root + bit) {\n"
        "            rest -= root + bit;\n"
        "            root = (root >> 1) + bit;\n"
        "        } else {\n"
        "            root >>= 1;\n"
        "        }\n"
        "    }\n"
        "    return (int64_t)root;"
    )
    return function_text("int64_t", f"{name}(int64_t x)", body, "floor(sqrt(x)), digit by digit.")


def _ipow(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    wide = unsigned_of(dtype)
    signed = not dtype.startswith("u")
    if signed:
        below = "    if (y < 0) return x == 1 ? 1 : x == -1 ? ((y % 2) ? -1 : 1) : 0;\n"
    else:
        below = ""
    body = (
        f"{wide} power = 1, base = ({wide})x;\n{below}"
        "    for (; y != 0; y /= 2) {\n"
        "        if (y % 2 != 0) power *= base;\n"
        "        base *= base;\n"
        "    }\n"
        f"    return {use.wrap(dtype, 'power')};"
    )
    return function_text(kind, f"{name}({kind} x, {kind} y)", body, "x to the power y.")


def _half_up_shift(use: Functions, name: str, dtype: str) -> str:
    """x * 2^left in the dtype of x, for any sign of ``left``."""
    bits = bits_of(dtype)
    kind = c_type(dtype)
    wide = unsigned_of(dtype)
    shifted = use.wrap(dtype, f"({wide})x << left")
    one = "UINT64_C(1)" if bits == 64 else "1u"
    rounded = use.wrap(dtype, f"({wide})x + ({one} << (-left - 1))")
    if dtype.startswith("u"):
        down = f"({kind})(({rounded}) >> -left)"
    else:
        down = f"{use('shift_right', dtype)}({rounded}, -left)"
    body = (
        f"if (left >= {bits} || left <= -{bits}) return 0;\n"
        f"    if (left >= 0) return {shifted};\n"
        f"    return {down};"
    )
    note = f"floor(x * 2^left + 1/2) modulo 2^{bits}."
    return function_text(kind, f"{name}({kind} x, int32_t left)", body, note)


def _fixed_point_multiply(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    narrow = use("wrap", "int32")
    value = f"{narrow}((uint32_t)(((wide ^ sign) >> (31 + right)) ^ sign))"
    result = f"return ({kind}){value};"
    if bits_of(dtype) < 32 or dtype.startswith("u"):
        result = f"return {use.wrap(dtype, f'(uint32_t){value}')};"
    body = (
        "const int32_t left = shift > 0 ? shift : 0, right = shift < 0 ? -shift : 0;\n"
        "    uint64_t wide, sign;\n"
        f"    if (multiplier == 0x40000000) return {use('half_up_shift', dtype)}(x, shift - 1);\n"
        "    if (left > 63 || right > 32) return 0;\n"
        "    wide = ((uint64_t)x << left) * (uint64_t)multiplier + (UINT64_C(1) << (30 + right));\n"
        "    sign = 0u - (wide >> 63);\n"
        f"    {result}"
    )
    note = "floor(x * multiplier * 2^(shift - 31) + 1/2), in 64 bits."
    return function_text(kind, f"{name}({kind} x, int32_t multiplier, int32_t shift)", body, note)


SHORT_BITS = 25
"""Bits of numbers of which 32 hold one, wherever in a byte it begins."""


def _unpack(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    full = "uint64_t" if bits_of(dtype) == 64 else "uint32_t"
    if "short" in name or bits_of(dtype) <= 16:
        wide = "uint32_t"
    else:
        wide = "uint64_t"
    value = f"(({full})(held & mask) << shift) + ({full})low"
    body = (
        f"const {wide} mask = (({wide})1 << bits) - 1u;\n"
        f"    {wide} held = 0;\n"
        "    int32_t have = 0;\n"
        "    for (int32_t i = 0; i < count; ++i) {\n"
        f"        for (; have < bits; have += 8) held |= ({wide})*from++ << have;\n"
        f"        to[i] = {use.wrap(dtype, value)};\n"
        "        held >>= bits;\n"
        "        have -= bits;\n"
        "    }"
    )
    head = f"{name}(const uint8_t *from, int32_t count, int32_t bits, int32_t shift, {kind} low,"
    return function_text("void", f"{head}\n    {kind} *to)", body, "Numbers of some bits each.")


def _negate_rows(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    negated = use.wrap(dtype, f"0u - ({unsigned_of(dtype)})*to")
    body = (
        "for (int32_t i = 0; i < count; i += rows * inner)\n"
        "        for (int32_t row = 0; row < rows; ++row)\n"
        "            for (int32_t k = 0; k < inner; ++k, ++to)\n"
        f"                if (signs[row / 8] >> row % 8 & 1) *to = {negated};"
    )
    head = f"{name}(const uint8_t *signs, int32_t rows, int32_t inner, int32_t count, {kind} *to)"
    return function_text("void", head, body, "Negates the rows that have a sign.")


INTEGER_FUNCTIONS: dict[str, Maker] = {
    "wrap": _wrap,
    "min": _ordered("min"),
    "max": _ordered("max"),
    "abs": _abs,
    "shift_right": _shift_right,
    "half_up_shift": _half_up_shift,
    "floordiv": _quotient(floor=True),
    "truncdiv": _quotient(floor=False),
    "floormod": _remainder,
    "isqrt": _isqrt,
    "ipow": _ipow,
    "fixed_point_multiply": _fixed_point_multiply,
    "unpack": _unpack,
    "unpack_short": _unpack,
    "negate_rows": _negate_rows,
}
