"""max, min over axes, with a NaN winning; all, any over axes of bool tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Op
from compiler.lir.builder import Reduction
from compiler.lir.nodes import Combiner
from compiler.ops.reduce.axes import of_axes, reduction
from compiler.ops.reduce.reduction_loops import highest, lowered_reduction, lowest
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.numpy_compute import FNumpyCompute


def _register(op: Op, function: Any, combiner: Combiner) -> None:
    FNumpyCompute.register(op)(of_axes(function))

    def combination(dtype: str, terms: int) -> tuple[str, Reduction]:
        return dtype, Reduction(combiner, (lowest if combiner == "max" else highest)(dtype))

    FLower.register(op)(lowered_reduction(combination))


_register(reduction("max", bools_too=True), np.max, "max")
_register(reduction("min", bools_too=True), np.min, "min")
_register(reduction("all", "bool"), np.all, "min")
_register(reduction("any", "bool"), np.any, "max")


@FBody.register("max", "min", "all", "any")
def extremum_body(step: Step, words: Words) -> Value | None:
    """The largest of numbers; the smallest is the largest of what is turned around."""
    (data,) = step.args
    dtype = data.type.dtype
    if step.name == "max" and dtype != "bool":
        return None
    x = words.cast(data, "uint8") if dtype == "bool" else data
    turned = step.name in ("min", "all")
    x = words.mirrored(x) if turned else x
    how = {name: getattr(step.attrs, name) for name in ("axis", "keepdims", "exclude")}
    found = words.word("max", [x], shape_of(step.results[0]), x.type.dtype, **how)
    return words.cast(words.mirrored(found) if turned else found, dtype)
