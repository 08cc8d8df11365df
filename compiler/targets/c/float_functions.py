"""C functions of floats that need no mathematical library: rounding and conversion."""

from __future__ import annotations

from compiler.lir.ranges import dtype_range
from compiler.targets.c.c_types import c_type, function_text, int_literal
from compiler.targets.c.integer_functions import Functions, Maker


def float_to_int(name: str, source: str, to: str) -> str:
    """The function that makes an integer dtype of a float dtype."""
    real = c_type(source)
    kind = c_type(to)
    low, high = dtype_range(to)
    end = "f" if source == "float32" else ""
    lines = ["if (x != x) return 0;"]
    # Powers of two and small integers are exact in both float types.
    lines.append(f"if (x >= {float(high + 1)!r}{end}) return {int_literal(high, to)};")
    if low > -(1 << 24):
        below = f"x <= {float(low - 1)!r}{end}"
    else:
        below = f"x < {float(low)!r}{end}"
    lines.append(f"if ({below}) return {int_literal(low, to)};")
    lines.append(f"return ({kind})x;")
    note = "x truncated; outside of the range its ends; 0 for NaN."
    return function_text(kind, f"{name}({real} x)", "\n    ".join(lines), note)


def _whole_from(dtype: str) -> tuple[str, str]:
    """The number from which on all floats are whole, and an integer type that holds those below."""
    if dtype == "float32":
        return "8388608.0f", "int32_t"
    return "4503599627370496.0", "int64_t"


def _nearest(ties: str) -> Maker:
    def make(use: Functions, name: str, dtype: str) -> str:
        kind, (beyond, whole) = c_type(dtype), _whole_from(dtype)
        end = "f" if dtype == "float32" else ""
        lines = [
            f"const {kind} size = {use('abs', dtype)}(x);",
            f"{kind} whole;",
            f"if (!(size < {beyond}) || x == 0) return x;",
        ]
        if ties == "even":
            lines.append(f"whole = ({kind})(size + {beyond});")
            lines.append(f"whole = ({kind})(whole - {beyond});")
            note = "Nearest whole number, halves to even; where sums have no room for a fraction."
        else:
            up = f"whole = ({kind})(whole + 1.0{end});"
            lines.append(f"whole = ({kind})({whole})size;")
            lines.append(f"if (({kind})(size - whole) >= 0.5{end}) {up}")
            note = "Nearest whole number, halves away from 0."
        lines.append("return x < 0 ? -whole : whole;")
        return function_text(kind, f"{name}({kind} x)", "\n    ".join(lines), note)

    return make


def _trunc(use: Functions, name: str, dtype: str) -> str:
    kind, (beyond, whole) = c_type(dtype), _whole_from(dtype)
    body = (
        f"if (!({use('abs', dtype)}(x) < {beyond}) || x == 0) return x;\n"
        f"    return x < 0 ? -({kind})({whole})(-x) : ({kind})({whole})x;"
    )
    return function_text(kind, f"{name}({kind} x)", body, "The whole part of x.")


def _whole_below(sign: str) -> Maker:
    def make(use: Functions, name: str, dtype: str) -> str:
        kind = c_type(dtype)
        one = "1.0f" if dtype == "float32" else "1.0"
        beyond, step = (">", "-") if sign == "floor" else ("<", "+")
        body = (
            f"const {kind} whole = {use('trunc', dtype)}(x);\n"
            f"    return whole {beyond} x ? ({kind})(whole {step} {one}) : whole;"
        )
        return function_text(kind, f"{name}({kind} x)", body)

    return make


def _sigmoid(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    one = "1.0f" if dtype == "float32" else "1.0"
    exp = use("exp", dtype)
    return function_text(kind, f"{name}({kind} x)", f"return {one} / ({one} + {exp}(-x));")


def _rsqrt(use: Functions, name: str, dtype: str) -> str:
    kind = c_type(dtype)
    one = "1.0f" if dtype == "float32" else "1.0"
    return function_text(kind, f"{name}({kind} x)", f"return {one} / {use('sqrt', dtype)}(x);")


FLOAT_FUNCTIONS: dict[str, Maker] = {
    "round_even": _nearest("even"),
    "round_away": _nearest("away"),
    "trunc": _trunc,
    "floor": _whole_below("floor"),
    "ceil": _whole_below("ceil"),
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
}
