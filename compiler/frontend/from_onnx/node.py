"""One ONNX node as a converter sees it: inputs, attributes and ways to build typed calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.values import (
    GraphValues,
    to_array,
    typed_call,
    typed_tuple,
)
from compiler.ir.expr import Constant, Expr, Op, TupleGetItem
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import TupleType
from compiler.ops.number_format import Array
from compiler.span import ONNX, Span

_REQUIRED = object()
_STATIC = "export with static shapes, or simplify the model first (onnxsim)"


class ConstantInputError(OnnxImportError):
    """An input that must be constant depends on the model's inputs; ``input_name`` says which."""

    input_name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxNode:
    """A node in its graph; every call it builds carries its span and its type."""

    proto: onnx.NodeProto
    opset: int
    span: Span
    values: GraphValues
    on_constants: bool = False
    """Read known inputs as Constants, so that the importer can compute the result."""

    @property
    def op_type(self) -> str:
        """The ONNX operator."""
        return self.proto.op_type

    @property
    def label(self) -> str:
        """Operator and name, for messages."""
        return f"{self.op_type} {self.span.source_name.removeprefix(ONNX)!r}"

    def error(self, what: str, fix: str | None = None) -> OnnxImportError:
        """An OnnxImportError that names this node."""
        return OnnxImportError(f"{self.op_type}: {what}", fix=fix, span=self.span)

    # Inputs

    @property
    def num_inputs(self) -> int:
        """Number of inputs, empty ones included."""
        return len(self.proto.input)

    def has_input(self, index: int) -> bool:
        """True when the optional input is given."""
        return index < len(self.proto.input) and bool(self.proto.input[index])

    def arg(self, index: int) -> Expr:
        """Expression of an input."""
        if not self.has_input(index):
            raise self.error(f"input {index} is missing")
        known = self.known(index) if self.on_constants else None
        return self.values.expr(self.proto.input[index]) if known is None else self.const(known)

    def args(self) -> list[Expr]:
        """Expressions of all inputs."""
        return [self.arg(i) for i in range(self.num_inputs)]

    def known(self, index: int) -> Array | None:
        """Content of an input that does not depend on the model's inputs."""
        return self.values.known(self.proto.input[index]) if self.has_input(index) else None

    def require_known(self, index: int, what: str, fix: str = _STATIC) -> Array:
        """Content of an input that must be constant; ``fix``: what to do where it is not.

        Raises:
            ConstantInputError: it depends on the model's inputs.
        """
        array = self.known(index)
        if array is None:
            name = self.proto.input[index] if self.has_input(index) else ""
            error = ConstantInputError(
                f"{self.op_type}: {what} (input {index}, {name!r}) must be constant",
                fix=fix,
                span=self.span,
            )
            error.input_name = name
            raise error
        return array

    def ints(self, index: int, what: str) -> list[int]:
        """A constant integer input as a list."""
        return [int(v) for v in self.require_known(index, what).reshape(-1)]

    def ints_since(self, opset: int, index: int, name: str, what: str) -> list[int] | None:
        """Integers that are a constant input from an opset on, and an attribute before."""
        if self.opset < opset:
            given: list[int] | None = self.attr(name, None)
            return given
        return self.ints(index, what) if self.has_input(index) else None

    def weight(self, index: int, form: str, derive: Callable[[Array], Array]) -> Expr | None:
        """A derived form of a constant input: a parameter, or a Constant where it was folded.

        None when the input is not constant.
        """
        array = self.known(index)
        if array is None:
            return None
        name = self.proto.input[index]
        if self.values.is_initializer(name) and not self.on_constants:
            return self.values.parameter(name, form, derive(array))
        return self.const(derive(array))

    # Attributes

    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """Value of an attribute: int, float, str, list of these, or an array.

        Raises:
            OnnxImportError: it is required and missing, or of a kind the importer does not read.
        """
        for attribute in self.proto.attribute:
            if attribute.name == name:
                return self._attribute_value(attribute)
        if default is _REQUIRED:
            raise self.error(f"attribute {name!r} is missing")
        return default

    def _attribute_value(self, attribute: onnx.AttributeProto) -> Any:
        if attribute.type == onnx.AttributeProto.TENSOR:
            return to_array(attribute.t)
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, (int, float)):
            return value
        if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            return list(value)
        if attribute.type == onnx.AttributeProto.STRINGS:
            return [v.decode("utf-8", "replace") for v in value]
        raise self.error(f"attribute {attribute.name!r} is of a kind that is not supported")

    # Types

    def shape(self, expr: Expr) -> tuple[int, ...]:
        """Static shape of an expression.

        Raises:
            OnnxImportError: a dimension is unknown (only with ``keep_dynamic``).
        """
        ty = expr.tensor_type
        if any(isinstance(d, AnyDim) for d in ty.shape):
            raise self.error(
                f"needs a static shape and has {ty}", fix="give the dimension with --dim NAME=VALUE"
            )
        return ty.concrete_shape

    def size(self, expr: Expr, axis: int) -> int:
        """Static size of one axis; other axes may be unknown.

        Raises:
            OnnxImportError: it is unknown (only with ``keep_dynamic``).
        """
        dim = expr.tensor_type.shape[axis]
        return self.shape(expr)[axis] if isinstance(dim, AnyDim) else dim

    def rank(self, expr: Expr) -> int:
        """Rank of an expression."""
        return len(expr.tensor_type.shape)

    def axis(self, axis: int, rank: int) -> int:
        """A non-negative axis.

        Raises:
            OnnxImportError: it is out of range.
        """
        if not -rank <= axis < max(rank, 1):
            raise self.error(f"axis {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0

    # Building

    def call(self, name: str, *args: Expr, **attrs: Any) -> Expr:
        """A typed call of one of our operators."""
        attrs_type = Op.get(name).attrs_type
        record = self.values.attrs(attrs_type, attrs) if attrs_type is not None else None
        return typed_call(name, args, record, self.span)

    def tuple(self, fields: Sequence[Expr]) -> Expr:
        """A typed tuple."""
        return typed_tuple(fields, self.span)

    def field(self, value: Expr, index: int) -> Expr:
        """One field of a typed tuple."""
        item = TupleGetItem(value, index, span=self.span)
        ty = value.checked_type
        assert isinstance(ty, TupleType)
        item.set_checked_type(ty.fields[index])
        return item

    def moved(self, data: Expr, axis: int, to: int) -> Expr:
        """The data with one axis at another place; as they are where it stands there."""
        order = [k for k in range(self.rank(data)) if k != axis]
        order.insert(to, axis)
        return data if axis == to else self.call("transpose", data, axes=tuple(order))

    def joined(self, parts: Sequence[Expr], axis: int) -> Expr:
        """Tensors one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return self.call("concatenate", self.tuple(parts), axis=axis)

    def const(self, value: ArrayLike, dtype: str | None = None) -> Constant:
        """A Constant."""
        return Constant(np.asarray(value, dtype=dtype), span=self.span)

    def scalar_like(self, value: float, expr: Expr) -> Constant:
        """A rank-0 Constant in the dtype of ``expr``."""
        return self.const(value, expr.tensor_type.dtype)

    def times(self, expr: Expr, factor: float) -> Expr:
        """An expression times a number; as it is for 1."""
        if factor == 1.0:
            return expr
        return self.call("multiply", expr, self.scalar_like(factor, expr))
