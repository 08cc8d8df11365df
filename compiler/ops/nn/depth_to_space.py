"""nn.depth_to_space and nn.space_to_depth: channels become pixels of a block, and back."""

from __future__ import annotations

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Op
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.evaluate import computes_by_body
from compiler.ops.nn.window import arrange, axes_of, restore
from compiler.ops.op_attrs import OpAttrs, Size, Sizes


class SubPixelAttrs(OpAttrs):
    """Edge of a block in pixels; its place is the outer ("DCR") or inner ("CRD") channel index."""

    block_size: Size = 1
    layout: str = "NCHW"
    mode: str = "DCR"


def _grown(op: str, size: Dim, factor: int, divide: bool, what: str) -> Dim:
    if isinstance(size, AnyDim):
        return size
    if not divide:
        return size * factor
    if size % factor:
        raise TypeInferenceError(f"{op}: {what} {size} is no multiple of {factor}")
    return size // factor


def _sub_pixel(op: str, to_space: bool) -> Op:
    pattern = OpPattern.INJECTIVE

    @define_op(op, pattern=pattern)
    def defined(types: Types, attrs: SubPixelAttrs) -> Type:
        data = tensor_of_rank(op, types, 0, "data", 4)
        axes = axes_of(op, attrs.layout, "NCHW", "layout")
        b = attrs.block_size
        if b < 1 or attrs.mode not in ("DCR", "CRD"):
            raise TypeInferenceError(
                f"{op}: block_size {b}, mode {attrs.mode!r}", fix="a block of 1 or more; DCR or CRD"
            )
        n, c, h, w = arrange(data.shape, axes)
        c = _grown(op, c, b * b, to_space, "number of channels")
        h = _grown(op, h, b, not to_space, "height")
        w = _grown(op, w, b, not to_space, "width")
        return TensorType(restore((n, c, h, w), axes), data.dtype)

    return defined


def _blocks(attrs: SubPixelAttrs, shape: Sizes, to_space: bool) -> tuple[Sizes, Sizes, Sizes]:
    """The shape that splits off blocks, the order of its axes, and the shape of the result."""
    n, c, h, w = shape
    b = attrs.block_size
    if not to_space:
        if attrs.mode == "DCR":
            order = (0, 3, 5, 1, 2, 4)
        else:
            order = (0, 1, 3, 5, 2, 4)
        return (n, c, h // b, b, w // b, b), order, (n, c * b * b, h // b, w // b)
    inner = c // (b * b)
    if attrs.mode == "DCR":
        return (n, b, b, inner, h, w), (0, 3, 4, 1, 5, 2), (n, inner, h * b, w * b)
    return (n, inner, b, b, h, w), (0, 1, 4, 2, 5, 3), (n, inner, h * b, w * b)


# (N, C, H, W) to (N, C / b^2, H * b, W * b), and to (N, C * b^2, H / b, W / b).
_TO_SPACE = _sub_pixel("nn.depth_to_space", True)
_TO_DEPTH = _sub_pixel("nn.space_to_depth", False)


@computes_by_body(_TO_SPACE, _TO_DEPTH)
@FBody.register(_TO_SPACE, _TO_DEPTH)
def sub_pixel_body(step: Step, words: Words) -> Value:
    """A transpose between two reshapes."""
    layout = step.attrs.layout
    data = words.transpose(step.args[0], [layout.index(c) for c in "NCHW"])
    split, order, shape = _blocks(step.attrs, shape_of(data), step.name == "nn.depth_to_space")
    found = words.reshape(words.transpose(words.reshape(data, split), order), shape)
    return words.transpose(found, ["NCHW".index(c) for c in layout])
