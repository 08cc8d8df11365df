"""Constants as C arrays: each content once, however many functions read it.

Large arrays of bytes are written as strings: a compiler reads one string far faster than a number
an element. They lie one behind another in ``constant_bytes``; integers that fewer bits hold than
their type has, in those bits (``runtime/packed.py``), in ``packed_bytes``.

    static const union { char rows[2][2048]; int8_t i8[4096]; uint8_t u8[4096]; } constant_bytes =
    { {"\\1\\377\\16…", "…"} };
    kernel((constant_bytes.i8 + 128), …);
    unpack_i8((packed_bytes.u8 + 96), 144, 4, 0, -8, arena->i8);
"""

from __future__ import annotations

import numpy as np

from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.runtime.artifact import constants_of
from compiler.runtime.packed import Form, form_of, numbers
from compiler.targets.c.c_types import C_TYPES, c_type, float_literal, int_literal, suffix
from compiler.targets.c.names import Names

_WIDTH = 100
_SMALLEST_STRING = 256
"""Bytes of an array that is written as a string."""
_ROW = 4000
"""Most bytes of a row of strings; C99 promises strings of 4095 characters."""
_PIECE = 64
"""Bytes a line."""
_ALIGNMENT = 16
_CALL_BYTES = 48
"""Bytes of code that unpacks an array."""
PICKED_BITS = 24
"""Four bytes hold numbers of so many bits, wherever these begin: a kernel reads them in place."""
_MOST_BITS = 57
"""Largest number of bits that unpacking holds beside a byte."""

_ESCAPES = [
    # A digit is escaped, so that no escape before it takes it in; so are \\ " and ? (trigraphs).
    chr(byte) if 32 <= byte < 127 and byte not in b'"\\?01234567' else f"\\{byte:o}"
    for byte in range(256)
]


def packed_form(array: Array, ends: bool = False) -> Form | None:
    """Return the packed form of an array; None where its bytes are as good.

    Args:
        ends: leave out entries that a table repeats at its ends, for a kernel that reads in place.
    """
    form = form_of(array, ends)
    if form.inner is not None and form.bits > PICKED_BITS:
        form = form_of(array)
    worth = form.nbytes(array.size) + _CALL_BYTES < array.nbytes and array.dtype.kind in "iu"
    if worth and form.bits <= _MOST_BITS:
        return form
    return None


class ConstantPool:
    """The constant arrays of a file.

    Args:
        names: of the file's scope.
    """

    def __init__(self, names: Names | None = None) -> None:
        self._names = names if names is not None else Names()
        self._held: dict[tuple[str, bytes], str] = {}
        self._arrays: list[tuple[str, Array]] = []
        self._bytes: dict[str, tuple[str, bytearray]] = {}

    def name_of(self, array: Array, wanted: str) -> str:
        """C name of an array with this content; ``wanted`` when it is new."""
        content = np.ascontiguousarray(array)
        key = str(content.dtype), content.tobytes()
        if key not in self._held:
            if (
                content.dtype.kind in "iu"
                and content.itemsize == 1
                and content.size >= _SMALLEST_STRING
            ):
                padded = content.tobytes() + bytes(-content.nbytes % _ALIGNMENT)
                self._held[key] = self._place(padded, "constant_bytes", suffix(str(content.dtype)))
            else:
                self._held[key] = self._names.fresh(wanted)
                self._arrays.append((self._held[key], content))
        return self._held[key]

    def packed(self, array: Array, form: Form) -> str:
        """C expression of the first byte of the signs and numbers of an array."""
        key = f"packed {array.dtype} {form}", np.ascontiguousarray(array).tobytes()
        if key not in self._held:
            self._held[key] = self._place(numbers(array, form), "packed_bytes", "u8")
        return self._held[key]

    def _place(self, data: bytes, wanted: str, member: str) -> str:
        """C expression of the first byte of data among the strings of a name."""
        if wanted not in self._bytes:
            self._bytes[wanted] = self._names.fresh(wanted), bytearray()
        name, held = self._bytes[wanted]
        at = len(held)
        held += data
        return f"({name}.{member} + {at})"

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        strings = sum(len(held) for _, held in self._bytes.values())
        return strings + sum(array.nbytes for _, array in self._arrays)

    @property
    def uses_math_macros(self) -> bool:
        """Return whether a value is infinite or NaN, which <math.h> has names for."""
        floats = [array for _, array in self._arrays if array.dtype.kind == "f"]
        return any(not np.isfinite(array).all() for array in floats)

    def definitions(self) -> list[str]:
        """``static const`` definitions: the bytes, then arrays in the order they were asked for."""
        strings = [bytes_text(name, bytes(held)) for name, held in self._bytes.values()]
        return [*strings, *(array_text(name, array) for name, array in self._arrays)]


def c_bytes(module: IRModule) -> int:
    """``CPackage.constant_bytes`` of what ``pipeline.fuse_for_c`` made of a module."""
    pool = ConstantPool()
    for array in constants_of(module):
        form = packed_form(array, ends=True)
        if form is None:
            pool.name_of(array, "constant")
        else:
            pool.packed(array, form)
    return pool.nbytes


def bytes_text(name: str, data: bytes) -> str:
    """``static const union {…} name``: bytes as strings, read as int8 or uint8."""
    rows = -(-len(data) // _ROW)
    width = -(-len(data) // rows)
    size = rows * width
    lines = []
    for start in range(0, len(data), width):
        row = data[start : start + width]
        for at in range(0, len(row), _PIECE):
            lines.append('"' + "".join([_ESCAPES[byte] for byte in row[at : at + _PIECE]]) + '"')
        lines[-1] += ","
    lines[-1] = lines[-1].rstrip(",")
    return (
        # Rows have no room for the zero behind a string, which C allows.
        "#if defined(__GNUC__) && __GNUC__ >= 15 \\\n"
        "    || defined(__clang_major__) && __clang_major__ >= 21\n"
        '#pragma GCC diagnostic ignored "-Wunterminated-string-initialization"\n#endif\n'
        f"static const union {{\n    char rows[{rows}][{width}];\n    int8_t i8[{size}];\n"
        f"    uint8_t u8[{size}];\n}} {name} = {{ {{\n" + "\n".join(lines) + "\n} };\n"
    )


def array_text(name: str, array: Array) -> str:
    """``static const T name[size] = {…};``; the shape stands in a comment."""
    dtype = str(array.dtype)
    values = elements(array)
    shape = "x".join(map(str, array.shape)) or "scalar"
    lines: list[str] = []
    line = ""
    for value in values:
        if len(line) + len(value) + 1 > _WIDTH:
            lines.append(line)
            line = ""
        line += f"{value},"
    lines.append(line.rstrip(","))
    head = f"static const {c_type(dtype)} {name}[{max(array.size, 1)}] = {{ /* {shape} */"
    return "\n".join([head, *lines, "};"]) + "\n"


def elements(array: Array) -> list[str]:
    """C constants of the elements, row-major; one 0 for an empty array, which C has not."""
    flat = np.ascontiguousarray(array).reshape(-1)
    dtype = str(array.dtype)
    if flat.size == 0:
        return ["0"]
    if dtype.startswith("float"):
        return [float_literal(value, dtype) for value in flat]
    assert dtype in C_TYPES
    return [int_literal(int(value), dtype) for value in flat.tolist()]
