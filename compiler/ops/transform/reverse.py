"""reverse(axis): the elements of one axis in the opposite order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type
from compiler.ops.arg_types import Types, normalize_axis, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class ReverseAttrs(OpAttrs):
    """The axis that is turned around."""

    axis: int


@define_op("reverse", arg_names=("data",), attrs_type=ReverseAttrs, pattern=OpPattern.INJECTIVE)
def reverse(types: Types, attrs: ReverseAttrs) -> Type:
    """Type of the data."""
    data = tensor("reverse", types, 0, "data")
    normalize_axis("reverse", attrs.axis, len(data.shape))
    return data


@FNumpyCompute.register(reverse)
def reverse_numpy(attrs: ReverseAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [np.flip(args[0], axis=attrs.axis)]


@FBody.register("reverse")
def reverse_body(step: Step, words: Words) -> Value:
    """A slice with a stride of -1."""
    (data,) = step.args
    return words.slice(data, step.attrs.axis % len(data.type.shape), -1, None, -1)
