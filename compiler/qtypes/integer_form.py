"""Arithmetic of the operators that a module is made for, by ``QConfig.requantization``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """Properties of the operators that a module is made for; those of the engine by default.

    Attributes:
        scale_digits: binary digits of a scale that may be chosen freely; None for all of float32.
        rounds_twice: a requantization multiplies by the quotient of two doubles, and rounds twice
            in int32; so do both sides of a sum of narrow integers.
        stores_values: operators read and give values of ``nbit_input``: inputs of the model,
            its results, and what lies between.
        byte_tables: tables of functions read and give stored values.
        int32_kernels: a softmax reads 8 bits; averages are products, norms and slopes are made of
            operators of int32.
        whole_range: activations take the smallest integer of their dtype, too.
    """

    scale_digits: int | None = None
    rounds_twice: bool = False
    stores_values: bool = False
    byte_tables: bool = False
    int32_kernels: bool = False
    whole_range: bool = False


FORMS: Final[Mapping[str, IntegerForm]] = {
    "fixed_point": IntegerForm(),
    "float_product": IntegerForm(),
    "power_of_two": IntegerForm(scale_digits=1),
    "tflite": IntegerForm(12, True, True, True, True, True),
}
"""Forms by the values of ``QConfig.requantization``."""
