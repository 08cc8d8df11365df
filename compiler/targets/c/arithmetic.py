"""C functions for what C leaves undefined or to the implementation.

C99 says nothing of signed overflow, shifts of negative values and quotients by 0, and lets a
compiler choose what an unsigned value becomes in a signed type that cannot hold it. These functions
work on unsigned values and say it all; compilers reduce them to one or two instructions and
vectorise them. Names end in the dtype: ``wrap_i32``, ``max_i8``, ``fixed_point_multiply_i64``.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import CodegenError
from compiler.targets.c.value_ranges import dtype_range

C_TYPES = {
    "bool": "uint8_t",
    "int4": "int8_t",
    "uint4": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
}

_ONE_ARGUMENT = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "sin": "sin",
    "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "pow": "pow",
    "fmod": "fmod",
}  # fmt: skip
"""Functions of <math.h> by intrinsic, for float64; float32 ones end in f."""


def c_type(dtype: str) -> str:
    """C type that stores a dtype.

    Raises:
        CodegenError: C99 has none (float16).
    """
    if dtype not in C_TYPES:
        raise CodegenError(f"C has no type for {dtype}", fix="keep such values in float32")
    return C_TYPES[dtype]


def suffix(dtype: str) -> str:
    """``int32`` → ``i32``, ``uint8`` → ``u8``, ``float32`` → ``f32``; bool is u8."""
    if dtype == "bool":
        return "u8"
    return dtype.replace("uint", "u").replace("int", "i").replace("float", "f")


def bits_of(dtype: str) -> int:
    """Width in memory: 8, 16, 32 or 64."""
    return 8 if dtype in ("bool", "int4", "uint4") else int(dtype.lstrip("uintfloa"))


class Arithmetic:
    """The functions that a file needs, each asked for by name and defined once.

    ``uses_libm`` and ``uses_memcpy`` tell which headers beside <stdint.h> they need.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self.uses_libm = False
        self.uses_memcpy = False

    def definitions(self) -> list[str]:
        """C text of every function asked for; what a function calls stands before it."""
        return list(self._texts.values())

    def __call__(self, operation: str, dtype: str) -> str:
        """Name of the function for an operation on a dtype.

        Raises:
            CodegenError: the dtype has no C type.
        """
        maker = _MAKERS.get(operation)
        if maker is None:
            self.uses_libm = True
            return _ONE_ARGUMENT[operation] + ("f" if dtype == "float32" else "")
        name = f"{operation}_{suffix(dtype)}"
        if name not in self._texts:
            text = maker(self, name, dtype)
            self._texts[name] = text
        return name

    def wrap(self, dtype: str, unsigned: str) -> str:
        """Expression: a uint32_t (uint64_t for 64 bits) modulo the range of ``dtype``."""
        if dtype.startswith("u"):
            return f"({c_type(dtype)})({unsigned})"
        return f"{self('wrap', dtype)}({unsigned})"

    def convert(self, source: str, to: str, value: str) -> str:
        """Expression: a float in an integer dtype, saturated."""
        name = f"{suffix(source)}_to_{suffix(to)}"
        if name not in self._texts:
            self._texts[name] = _float_to_int(name, source, to)
        return f"{name}({value})"


def unsigned_of(dtype: str) -> str:
    """Unsigned C type in which arithmetic of ``dtype`` is done: 32 bits at least."""
    return "uint64_t" if bits_of(dtype) == 64 else "uint32_t"


Maker = Callable[[Arithmetic, str, str], str]


def _wrap(_: Arithmetic, name: str, dtype: str) -> str:
    bits = bits_of(dtype)
    wide, kind = unsigned_of(dtype), c_type(dtype)
    largest = _limit(dtype)
    if bits >= 32:
        return _function(
            kind,
            f"{name}({wide} u)",
            f"return u <= {largest} ? ({kind})u : -({kind})(~u) - 1;",
            f"u modulo 2^{bits}, as a signed number.",
        )
    mask = f"0x{(1 << bits) - 1:X}u"
    return _function(
        kind,
        f"{name}(uint32_t u)",
        f"u &= {mask};\n    return ({kind})(u <= {largest} ? (int32_t)u : "
        f"-(int32_t)(~u & {mask}) - 1);",
        f"u modulo 2^{bits}, as a signed number.",
    )


def _limit(dtype: str) -> str:
    """Largest value of a signed dtype as an unsigned constant."""
    value = dtype_range(dtype)[1]
    return f"UINT64_C(0x{value:X})" if bits_of(dtype) == 64 else f"0x{value:X}u"


def _ordered(operation: str) -> Maker:
    def make(_: Arithmetic, name: str, dtype: str) -> str:
        kind = c_type(dtype)
        sign = "<" if operation == "min" else ">"
        if dtype.startswith("float"):
            body = f"return (a {sign} b || a != a) ? a : b;"
            note = f"{operation} that is NaN where either is."
        else:
            body = f"return a {sign} b ? a : b;"
            note = ""
        return _function(kind, f"{name}({kind} a, {kind} b)", body, note)

    return make


def _abs(use: Arithmetic, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    if dtype.startswith("float"):
        zero = "0.0f" if dtype == "float32" else "0.0"
        return _function(kind, f"{name}({kind} x)", f"return x > {zero} ? x : {zero} - x;")
    wide = unsigned_of(dtype)
    negated = use.wrap(dtype, f"0u - ({wide})x")
    return _function(kind, f"{name}({kind} x)", f"return x < 0 ? {negated} : x;")


def _shift_right(use: Arithmetic, name: str, dtype: str) -> str:
    wide, kind = unsigned_of(dtype), c_type(dtype)
    result = use.wrap(dtype, "((((" + wide + ")x) ^ sign) >> n) ^ sign")
    return _function(
        kind,
        f"{name}({kind} x, int32_t n)",
        f"const {wide} sign = 0u - ({wide})(x < 0);\n    return {result};",
        "floor(x / 2^n).",
    )


def _quotient(floor: bool) -> Maker:
    def make(use: Arithmetic, name: str, dtype: str) -> str:
        kind = c_type(dtype)
        if dtype.startswith("float"):
            quotient = f"({kind})({use('floor', dtype)}(a / b))"
            return _function(kind, f"{name}({kind} a, {kind} b)", f"return {quotient};")
        lines = ["if (b == 0) return 0;"]
        if not dtype.startswith("u"):
            negated = use.wrap(dtype, f"0u - ({unsigned_of(dtype)})a")
            lines.append(f"if (b == -1) return {negated};")
            if floor:
                lines.append(f"if (a % b != 0 && (a < 0) != (b < 0)) return ({kind})(a / b - 1);")
        lines.append(f"return ({kind})(a / b);")
        return _function(
            kind,
            f"{name}({kind} a, {kind} b)",
            "\n    ".join(lines),
            f"a / b rounded {'down' if floor else 'toward 0'}; 0 for b = 0.",
        )

    return make


def _remainder(use: Arithmetic, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    if dtype.startswith("float"):
        body = (
            f"const {kind} r = {use('fmod', dtype)}(a, b);\n"
            f"    return (r != 0 && (r < 0) != (b < 0)) ? ({kind})(r + b) : r;"
        )
        return _function(kind, f"{name}({kind} a, {kind} b)", body)
    lines = ["if (b == 0) return 0;"]
    if not dtype.startswith("u"):
        lines.append("if (b == -1) return 0;")
        lines.append(f"if (a % b != 0 && (a < 0) != (b < 0)) return ({kind})(a % b + b);")
    lines.append(f"return ({kind})(a % b);")
    note = "a - b * floor(a / b); 0 for b = 0."
    return _function(kind, f"{name}({kind} a, {kind} b)", "\n    ".join(lines), note)


def _float_to_int(name: str, source: str, to: str) -> str:
    real, kind = c_type(source), c_type(to)
    low, high = dtype_range(to)
    end = "f" if source == "float32" else ""
    lines = ["if (x != x) return 0;"]
    # Powers of two and small integers are exact in both float types.
    lines.append(f"if (x >= {float(high + 1)!r}{end}) return {int_literal(high, to)};")
    below = f"x <= {float(low - 1)!r}{end}" if low > -(1 << 24) else f"x < {float(low)!r}{end}"
    lines.append(f"if ({below}) return {int_literal(low, to)};")
    lines.append(f"return ({kind})x;")
    note = "x truncated; outside of the range its ends; 0 for NaN."
    return _function(kind, f"{name}({real} x)", "\n    ".join(lines), note)


def _round_even(use: Arithmetic, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    shift, end = ("8388608.0", "f") if dtype == "float32" else ("4503599627370496.0", "")
    body = (
        f"const {kind} size = {use('abs', dtype)}(x);\n"
        f"    {kind} whole;\n"
        f"    if (!(size < {shift}{end}) || x == 0) return x;\n"
        f"    whole = ({kind})(size + {shift}{end});\n"
        f"    whole = ({kind})(whole - {shift}{end});\n"
        f"    return x < 0 ? -whole : whole;"
    )
    note = "Nearest whole number, halves to even; where sums have no room for a fraction."
    return _function(kind, f"{name}({kind} x)", body, note)


def _round_away(use: Arithmetic, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    shift, end = ("8388608.0", "f") if dtype == "float32" else ("4503599627370496.0", "")
    whole = "int32_t" if dtype == "float32" else "int64_t"
    body = (
        f"const {kind} size = {use('abs', dtype)}(x);\n"
        f"    {kind} whole;\n"
        f"    if (!(size < {shift}{end}) || x == 0) return x;\n"
        f"    whole = ({kind})({whole})size;\n"
        f"    if (({kind})(size - whole) >= 0.5{end}) whole = ({kind})(whole + 1.0{end});\n"
        f"    return x < 0 ? -whole : whole;"
    )
    return _function(kind, f"{name}({kind} x)", body, "Nearest whole number, halves away from 0.")


def _trunc(use: Arithmetic, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    shift, end = ("8388608.0", "f") if dtype == "float32" else ("4503599627370496.0", "")
    whole = "int32_t" if dtype == "float32" else "int64_t"
    body = (
        f"if (!({use('abs', dtype)}(x) < {shift}{end}) || x == 0) return x;\n"
        f"    return x < 0 ? -({kind})({whole})(-x) : ({kind})({whole})x;"
    )
    return _function(kind, f"{name}({kind} x)", body, "The whole part of x.")


def _whole_below(sign: str) -> Maker:
    def make(use: Arithmetic, name: str, dtype: str) -> str:
        kind, one = c_type(dtype), "1.0f" if dtype == "float32" else "1.0"
        beyond, step = (">", "-") if sign == "floor" else ("<", "+")
        body = (
            f"const {kind} whole = {use('trunc', dtype)}(x);\n"
            f"    return whole {beyond} x ? ({kind})(whole {step} {one}) : whole;"
        )
        return _function(kind, f"{name}({kind} x)", body)

    return make


def _infinity(use: Arithmetic, name: str, dtype: str) -> str:
    use.uses_memcpy = True
    kind, wide = c_type(dtype), unsigned_of(dtype)
    bits = "0x7F800000u" if dtype == "float32" else "UINT64_C(0x7FF0000000000000)"
    body = (
        f"const {wide} bits = {bits};\n    {kind} x;\n"
        "    memcpy(&x, &bits, sizeof x);\n    return x;"
    )
    return _function(kind, f"{name}(void)", body)


def _sigmoid(use: Arithmetic, name: str, dtype: str) -> str:
    kind, one = c_type(dtype), "1.0f" if dtype == "float32" else "1.0"
    exp = use("exp", dtype)
    return _function(kind, f"{name}({kind} x)", f"return {one} / ({one} + {exp}(-x));")


def _rsqrt(use: Arithmetic, name: str, dtype: str) -> str:
    kind, one = c_type(dtype), "1.0f" if dtype == "float32" else "1.0"
    return _function(kind, f"{name}({kind} x)", f"return {one} / {use('sqrt', dtype)}(x);")


def _isqrt(_: Arithmetic, name: str, dtype: str) -> str:
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
    return _function("int64_t", f"{name}(int64_t x)", body, "floor(sqrt(x)), digit by digit.")


def _ipow(use: Arithmetic, name: str, dtype: str) -> str:
    kind, wide = c_type(dtype), unsigned_of(dtype)
    signed = not dtype.startswith("u")
    below = (
        "    if (y < 0) return x == 1 ? 1 : x == -1 ? ((y % 2) ? -1 : 1) : 0;\n" if signed else ""
    )
    body = (
        f"{wide} power = 1, base = ({wide})x;\n{below}"
        "    for (; y != 0; y /= 2) {\n"
        "        if (y % 2 != 0) power *= base;\n"
        "        base *= base;\n"
        "    }\n"
        f"    return {use.wrap(dtype, 'power')};"
    )
    return _function(kind, f"{name}({kind} x, {kind} y)", body, "x to the power y.")


def _half_up_shift(use: Arithmetic, name: str, dtype: str) -> str:
    """x * 2^left in the dtype of x, for any sign of ``left``."""
    bits, kind, wide = bits_of(dtype), c_type(dtype), unsigned_of(dtype)
    shifted = use.wrap(dtype, f"({wide})x << left")
    one = "UINT64_C(1)" if bits == 64 else "1u"
    rounded = use.wrap(dtype, f"({wide})x + ({one} << (-left - 1))")
    down = (
        f"({kind})(({rounded}) >> -left)"
        if dtype.startswith("u")
        else f"{use('shift_right', dtype)}({rounded}, -left)"
    )
    body = (
        f"if (left >= {bits} || left <= -{bits}) return 0;\n"
        f"    if (left >= 0) return {shifted};\n"
        f"    return {down};"
    )
    note = f"floor(x * 2^left + 1/2) modulo 2^{bits}."
    return _function(kind, f"{name}({kind} x, int32_t left)", body, note)


def _fixed_point_multiply(use: Arithmetic, name: str, dtype: str) -> str:
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
    return _function(kind, f"{name}({kind} x, int32_t multiplier, int32_t shift)", body, note)


def _function(kind: str, head: str, body: str, note: str = "") -> str:
    comment = f"/* {note} */\n" if note else ""
    return f"{comment}static inline {kind} {head}\n{{\n    {body}\n}}\n"


def int_literal(value: int, dtype: str) -> str:
    """A C constant of (at least) this dtype."""
    bits = bits_of(dtype)
    if dtype.startswith("u") and bits >= 32:
        return f"UINT64_C({value})" if bits == 64 else f"{value}u"
    if bits == 64:
        return f"(-INT64_C({-value - 1}) - 1)" if value == -(1 << 63) else f"INT64_C({value})"
    return f"(-{-value - 1} - 1)" if value == -(1 << 31) else str(value)


_MAKERS: dict[str, Maker] = {
    "wrap": _wrap,
    "min": _ordered("min"),
    "max": _ordered("max"),
    "abs": _abs,
    "shift_right": _shift_right,
    "half_up_shift": _half_up_shift,
    "floordiv": _quotient(floor=True),
    "truncdiv": _quotient(floor=False),
    "floormod": _remainder,
    "round_even": _round_even,
    "round_away": _round_away,
    "trunc": _trunc,
    "floor": _whole_below("floor"),
    "ceil": _whole_below("ceil"),
    "infinity": _infinity,
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
    "isqrt": _isqrt,
    "ipow": _ipow,
    "fixed_point_multiply": _fixed_point_multiply,
}
