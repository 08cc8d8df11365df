"""one_hot(indices, on_value, off_value; depth, axis, dtype): on_value at the index."""

from __future__ import annotations

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, integer_tensor, normalize_axis, same_dtype, tensor_of_rank
from compiler.ops.evaluate import computes_by_body
from compiler.ops.op_attrs import OpAttrs, Size


class OneHotAttrs(OpAttrs):
    """Length and place of the new axis; dtype "" means that of the values."""

    depth: Size
    axis: int = -1
    dtype: str = ""


@define_op(
    "one_hot",
    arg_names=("indices", "on_value", "off_value"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)
def one_hot(types: Types, attrs: OneHotAttrs) -> Type:
    """The indices' shape with the depth inserted.

    Raises:
        TypeInferenceError: the values are no scalars of one dtype, or the depth is not positive.
    """
    indices = integer_tensor("one_hot", types, 0, "indices")
    on = tensor_of_rank("one_hot", types, 1, "on_value", 0)
    dtype = same_dtype("one_hot", on, tensor_of_rank("one_hot", types, 2, "off_value", 0))
    if attrs.depth < 1:
        raise TypeInferenceError(f"one_hot: depth {attrs.depth} is not positive")
    axis = normalize_axis("one_hot", attrs.axis, len(indices.shape) + 1)
    shape = (*indices.shape[:axis], attrs.depth, *indices.shape[axis:])
    return TensorType(shape, attrs.dtype or dtype)


@computes_by_body(one_hot)
@FBody.register(one_hot)
def one_hot_body(step: Step, words: Words) -> Value:
    """The index compared with the places along the new axis."""
    index, on, off = step.args
    shape = shape_of(step.results[0])
    dtype = step.results[0].type.dtype
    axis = step.attrs.axis % len(shape)
    index = words.reshape(words.cast(index, "int64"), [*shape[:axis], 1, *shape[axis + 1 :]])
    hit = words.equal(words.broadcast(index, shape), words.places(shape, axis))
    return words.where(hit, words.cast(on, dtype), words.cast(off, dtype))
