"""stack(tuple; axis): the fields of one tuple along a new axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Dim, TensorType, Type
from compiler.ops.arg_types import Types, merge_dim, normalize_axis, same_dtype, tensor_tuple
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.transform.concatenate import concatenate_annotate, concatenate_realize


@dataclass(frozen=True, eq=False)
class StackAttrs(OpAttrs):
    """Where the new axis stands in the result."""

    axis: int = 0


@define_op("stack", arg_names=("data",), attrs_type=StackAttrs, pattern=OpPattern.INJECTIVE)
def stack(types: Types, attrs: StackAttrs) -> Type:
    """The common shape with the number of fields inserted.

    Raises:
        TypeInferenceError: the types of the fields differ.
    """
    fields = tensor_tuple("stack", types, 0, "data")
    dims: list[Dim] = list(fields[0].shape)
    for index, field in enumerate(fields[1:], start=1):
        if len(field.shape) != len(dims):
            raise TypeInferenceError(f"stack: field 0 is {fields[0]} but field {index} is {field}")
        same_dtype("stack", fields[0], field)
        for k in range(len(dims)):
            dims[k] = merge_dim("stack", dims[k], field.shape[k], f"size of axis {k}")
    axis = normalize_axis("stack", attrs.axis, len(dims) + 1)
    return TensorType((*dims[:axis], len(fields), *dims[axis:]), fields[0].dtype)


@FNumpyCompute.register(stack)
def stack_numpy(attrs: StackAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    return [np.stack(list(args), axis=attrs.axis)]


# All fields have one scale, for every axis.
FQAnnotateRewrite.register(stack)(with_tables(concatenate_annotate))
FQRealizeRewrite.register(stack)(with_tables(concatenate_realize))


@FBody.register("stack")
def stack_body(step: Step, words: Words) -> Value:
    """Joined along a new axis."""
    shape = list(shape_of(step.results[0]))
    axis = step.attrs.axis % len(shape)
    shape[axis] = 1
    return words.concatenate([words.reshape(part, shape) for part in step.args], axis)
