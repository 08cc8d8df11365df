"""C functions for what C leaves undefined or to the implementation.

C99 says nothing of signed overflow, shifts of negative values and quotients by 0, and lets a
compiler choose what an unsigned value becomes in a signed type that cannot hold it. These functions
work on unsigned values and say it all; compilers reduce them to one or two instructions and
vectorise them. Names end in the dtype: ``wrap_i32``, ``max_i8``, ``fixed_point_multiply_i64``.
"""

from __future__ import annotations

from compiler.targets.c.c_types import c_type, suffix
from compiler.targets.c.float_functions import FLOAT_FUNCTIONS, float_to_int
from compiler.targets.c.integer_functions import INTEGER_FUNCTIONS
from compiler.targets.c.product_functions import PRODUCT_FUNCTIONS

_FUNCTIONS = INTEGER_FUNCTIONS | PRODUCT_FUNCTIONS | FLOAT_FUNCTIONS


class Arithmetic:
    """The functions that a file needs, each asked for by name and defined once.

    ``uses_libm``, ``uses_math_macros`` and ``uses_memcpy`` tell which headers beside <stdint.h>
    the functions need.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self.uses_libm = False
        self.uses_math_macros = False
        self.uses_memcpy = False

    def definitions(self) -> list[str]:
        """C text of every function asked for; what a function calls stands before it."""
        return list(self._texts.values())

    def __call__(self, operation: str, dtype: str) -> str:
        """Name of the function for an operation on a dtype.

        Raises:
            CodegenError: the dtype has no C type.
        """
        maker = _FUNCTIONS.get(operation)
        if maker is None:
            # The other intrinsics are those of <math.h>, where names for float32 end in f.
            self.uses_libm = True
            return operation + ("f" if dtype == "float32" else "")
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
            self._texts[name] = float_to_int(name, source, to)
        return f"{name}({value})"
