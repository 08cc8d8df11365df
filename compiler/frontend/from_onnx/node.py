"""One ONNX node for a converter: its inputs, attributes and ways to build typed calls.

Before it, what the importer knows about every tensor of the graph while it walks the nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import numpy_helper

from compiler.errors import OnnxImportError, raised_as
from compiler.ir.attrs import Attrs
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    call_op,
    dtype_name,
)
from compiler.ir.ty import DTYPES, TensorType, TupleType, Type, bits, is_dynamic
from compiler.ir.ty import Any as AnyDim
from compiler.ir.type_relation import result_of
from compiler.ops.number_format import Array
from compiler.span import ONNX, Span

MAX_TENSOR_BYTES = 2 << 30
MAX_CONSTANT = 1 << 24
"""Elements of the largest constant that a converter makes, such as a matrix of weights."""
_LARGE = 1 << 20
"""Bytes of an initializer of which one at a time is kept as it is stored."""


class Grid(NamedTuple):
    """Constant parameters of a QuantizeLinear or DequantizeLinear.

    Attributes:
        scale: float32; one, or one for each channel along ``axis``.
        zero_point: int64, of the same shape.
        dtype: of the integers; ``low`` and ``high`` are the ends that they keep to.
    """

    scale: Array
    zero_point: Array
    axis: int
    dtype: str
    low: int
    high: int

    def equals(self, other: Grid) -> bool:
        """True for integers of one dtype that stand for the same real values."""
        same = self.dtype == other.dtype and (self.scale.ndim == 0 or self.axis == other.axis)
        points = np.array_equal(self.zero_point, other.zero_point)
        return same and points and np.array_equal(self.scale, other.scale)


class Quantized(NamedTuple):
    """A QuantizeLinear: the data that it read, and the real values on its grid."""

    data: Expr
    real: Expr
    grid: Grid


class GraphValues:
    """Expressions and known contents by ONNX tensor name.

    An initializer becomes a named parameter when an expression first reads it; a form derived from
    it (transposed, reshaped) takes its name where it is the only reader. ``quantized`` remembers
    results of QuantizeLinear by tensor name, ``products`` those of MatMulInteger and ConvInteger
    as functions of a constant factor, which give the product times it in real numbers.
    ``integer_weights`` is set where weights are stored as integers.
    """

    def __init__(
        self,
        initializers: dict[str, onnx.TensorProto],
        uses: Counter[str],
        mapped: Mapping[str, Array],
    ) -> None:
        self.params: dict[str, Array] = {}
        self.param_vars: list[Var] = []
        self._initializers = initializers
        self._uses = uses
        self._arrays = dict(mapped)
        self._large = ""
        self._exprs: dict[str, Expr] = {}
        self._stored: set[str] = set()
        self._forms: dict[tuple[str, str], Var] = {}
        self._attrs: dict[tuple[type[Attrs], str], Attrs] = {}
        self._types: dict[tuple[tuple[int, ...], str], TensorType] = {}
        self.quantized: dict[str, Quantized] = {}
        self.integer_weights = False
        self.products: dict[str, Callable[[Array], Expr | None]] = {}

    def attrs(self, kind: type[Attrs], given: dict[str, Any]) -> Attrs:
        """The record of these values, one for all calls that are given the same numbers and words.

        What reads a large graph then reads few records.
        """
        if not all(map(_is_plain, given.values())):
            return kind.make(**given)
        key = kind, repr(given)  # tells 1 from 1.0 and from True
        held = self._attrs.get(key)
        if held is None:
            held = self._attrs[key] = kind.make(**given)
        return held

    def add_initializers(self, tensors: Sequence[onnx.TensorProto]) -> None:
        """Stored tensors of a branch that is taken."""
        self._initializers.update((tensor.name, tensor) for tensor in tensors)

    def bind(self, name: str, expr: Expr, reads: Iterable[str] | None = None) -> None:
        """Name an expression after the ONNX tensor it computes, of the tensors that it reads."""
        self._exprs[name] = expr
        if reads is not None and all(map(self.is_stored, reads)):
            self._stored.add(name)

    def is_stored(self, name: str) -> bool:
        """True for what is made of initializers alone, such as a dequantized weight."""
        return not name or name in self._initializers or name in self._stored

    def has(self, name: str) -> bool:
        """True when the tensor is an initializer, an input, or was computed already."""
        return name in self._exprs or name in self._initializers

    def expr(self, name: str) -> Expr:
        """Expression of a tensor; an initializer becomes a parameter of its own name."""
        if name in self._exprs:
            return self._exprs[name]
        return self.parameter(name, "", self._initializer(name))

    def known(self, name: str) -> Array | None:
        """Content of a tensor that does not depend on the inputs, if the importer has it."""
        expr = self._exprs.get(name)
        if isinstance(expr, Constant):
            return expr.data
        if name in self._initializers:
            return self._initializer(name)
        return None

    def is_initializer(self, name: str) -> bool:
        """True when the tensor is stored in the file."""
        return name in self._initializers

    def parameter(self, name: str, form: str, array: Array) -> Var:
        """The parameter that holds ``form`` of initializer ``name``; made at first use."""
        key = (name, form)
        if key not in self._forms:
            alone = not form or (self._uses[name] == 1 and name not in self.params)
            title = name if alone else f"{name}.{form}"
            if title in self.params:
                title = f"{name}.as_stored"
            if not array.ndim or not (array.flags.c_contiguous or array.flags.f_contiguous):
                array = np.array(array, order="C")
            ty = self._type_of(array)
            var = Var(title, ty)
            var.set_checked_type(ty)
            if array.flags.owndata:
                array.flags.writeable = False  # so a Constant need not copy it
            self._forms[key] = var
            self.params[title] = array
            self.param_vars.append(var)
        return self._forms[key]

    def _type_of(self, array: Array) -> TensorType:
        """One object for all parameters of a type: what reads a large graph reads few of them."""
        key = array.shape, dtype_name(array.dtype)
        held = self._types.get(key)
        if held is None:
            held = self._types[key] = TensorType(*key)
        return held

    def has_2_bits(self, name: str) -> bool:
        """Return whether a tensor is an initializer of 2 bits, which is read as one of 4."""
        tensor = self._initializers.get(name)
        return tensor is not None and tensor.data_type in _IN_4_BITS

    def _initializer(self, name: str) -> Array:
        if name not in self._arrays:
            array = to_array(_in_4_bits(self._initializers[name]))
            if array.nbytes >= _LARGE:
                self._arrays.pop(self._large, None)
                self._large = name
            self._arrays[name] = array
        return self._arrays[name]


_IN_4_BITS: dict[int, int] = {
    onnx.TensorProto.INT2: onnx.TensorProto.INT4,
    onnx.TensorProto.UINT2: onnx.TensorProto.UINT4,
}


def _in_4_bits(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """A tensor of 2 bits as one of 4; others as they are."""
    wanted = _IN_4_BITS.get(tensor.data_type)
    if wanted is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return tensor
    values = numpy_helper.to_array(tensor).astype(np.int8).reshape(-1)
    return onnx.helper.make_tensor(tensor.name, wanted, tensor.dims, values)


def _is_plain(value: Any) -> bool:
    """Return whether the repr of a value tells all of it."""
    values = value if type(value) in (list, tuple) else (value,)
    return all(type(item) in _PLAIN and item == item for item in values)  # NaNs differ in bits


_PLAIN = frozenset((int, float, bool, str, type(None)))


_WIDENED: Final = frozenset(
    value
    for name, value in onnx.TensorProto.DataType.items()
    if name.startswith(("BFLOAT16", "FLOAT8", "FLOAT4"))
)
"""Floats that numpy has not. Constants of them are read as float32, which holds each exactly."""


def to_array(tensor: onnx.TensorProto) -> Array:
    """The content of a TensorProto.

    Raises:
        OnnxImportError: a dtype the IR does not have, or less data than the shape needs.
    """
    where = f"tensor {tensor.name!r}"
    widened = tensor.data_type in _WIDENED
    if widened:
        dtype = "float32"
    else:
        dtype = dtype_of(tensor.data_type, where)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        # onnx would read any file that the location names.
        raise OnnxImportError("external data of this tensor was not loaded", where=where)
    what = f"a {dtype} tensor of shape {list(tensor.dims)} cannot be read"
    fix = "the file is damaged; export it again"
    with raised_as(OnnxImportError, what, ValueError, TypeError, where=where, fix=fix):
        if any(d < 0 for d in tensor.dims):
            raise ValueError(f"negative dimension in {list(tensor.dims)}")
        refuse_huge(TensorType(tuple(tensor.dims), dtype), where)
        array = np.asarray(numpy_helper.to_array(tensor))
    if str(array.dtype) != dtype:
        return array.astype(dtype)
    return array


def dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """A sparse tensor as one with all its elements, of the same name.

    Raises:
        OnnxImportError: it is too large, or its indices do not fit its shape.
    """
    values = to_array(sparse.values).reshape(-1)
    indices = to_array(sparse.indices)
    where = f"sparse tensor {sparse.values.name!r}"
    shape = tuple(sparse.dims)
    limits = shape
    rows = indices
    if indices.ndim == 1:
        limits = (math.prod(shape),)
        rows = indices[:, None]
    fits = rows.shape == (values.size, len(limits)) and rows.dtype == np.int64
    if not fits or min(shape, default=0) < 0 or ((rows < 0) | (rows >= limits)).any():
        raise OnnxImportError(
            f"{indices.dtype} indices of shape {indices.shape} do not place {values.size} values "
            f"in {shape}",
            where=where,
            fix="the file is damaged; export it again",
        )
    refuse_huge(TensorType(shape, str(values.dtype)), where)
    whole = np.zeros(shape, values.dtype)
    steps = [math.prod(limits[axis + 1 :]) for axis in range(len(limits))]
    whole.reshape(-1)[rows @ np.array(steps, np.int64)] = values
    return numpy_helper.from_array(whole, sparse.values.name)


def dtype_of(data_type: int, where: str) -> str:
    """The IR's dtype for an ONNX element type.

    Raises:
        OnnxImportError: the IR has none (string, complex, float8, …).
    """
    names: dict[str, str] = {"FLOAT": "float32", "DOUBLE": "float64"}
    if data_type not in onnx.TensorProto.DataType.values():
        raise OnnxImportError(f"unknown ONNX element type {data_type}", where=where)
    name = str(onnx.TensorProto.DataType.Name(data_type))
    dtype = names.get(name, name.lower())
    if dtype not in DTYPES or dtype == "void":
        raise OnnxImportError(
            f"element type {name} is not supported",
            where=where,
            fix="encode texts outside: export the part of the model that reads and gives numbers "
            "(onnx.utils.extract_model)"
            if name == "STRING"
            else "export the model with float16, float32, float64, bool or integers there",
        )
    return dtype


def typed_call(name: str, args: Sequence[Expr], attrs: Attrs | None, span: Span) -> Call:
    """A call that carries its type, so that the next converter can ask for ranks and shapes.

    Raises:
        TypeInferenceError: the argument types do not fit.
    """
    call = call_op(name, *args, attrs=attrs, span=span)
    op = call.op
    assert isinstance(op, Op)
    result = result_of(op.rel, [arg.checked_type for arg in args], call.attrs)
    assert result is not None, f"{name} did not give a result type"
    call.set_checked_type(result)
    refuse_huge(result, str(span))
    return call


def typed_tuple(fields: Sequence[Expr], span: Span | None = None) -> Tuple:
    """A tuple that carries its type."""
    result = Tuple(tuple(fields), span=span)
    result.set_checked_type(TupleType(tuple(f.checked_type for f in fields)))
    return result


def refuse_huge(ty: Type, where: str) -> None:
    """Bound every tensor before anything computes it: a 100-byte file can ask for terabytes.

    Raises:
        OnnxImportError: more than MAX_TENSOR_BYTES.
    """
    if isinstance(ty, TensorType) and not is_dynamic(ty):
        size = ty.num_elements * max(bits(ty.dtype), 8) // 8
        if size > MAX_TENSOR_BYTES:
            raise OnnxImportError(
                f"a tensor {ty} would take {size} bytes; the limit is {MAX_TENSOR_BYTES}",
                where=where,
            )


# ---- one node ------------------------------------------------------------------------------------


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
        if known is None:
            return self.values.expr(self.proto.input[index])
        return self.const(known)

    def args(self) -> list[Expr]:
        """Expressions of all inputs."""
        return [self.arg(i) for i in range(self.num_inputs)]

    def known(self, index: int) -> Array | None:
        """Content of an input that does not depend on the model's inputs."""
        if self.has_input(index):
            return self.values.known(self.proto.input[index])
        return None

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

    def floats(self, index: int, what: str) -> list[float]:
        """A constant input of real numbers as a list."""
        return [float(v) for v in self.require_known(index, what).reshape(-1)]

    def ints_since(self, opset: int, index: int, name: str, what: str) -> list[int] | None:
        """Integers that are a constant input from an opset on, and an attribute before."""
        if self.opset < opset:
            given: list[int] | None = self.attr(name, None)
            return given
        if self.has_input(index):
            return self.ints(index, what)
        return None

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

    def choice(self, name: str, legal: Sequence[str]) -> str:
        """Text of an attribute, the first legal one where it is missing.

        Raises:
            OnnxImportError: it is none of them.
        """
        value: str = self.attr(name, legal[0])
        if value not in legal:
            raise self.error(f"{name} {value!r} is not one of {', '.join(legal)}")
        return value

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
        if isinstance(dim, AnyDim):
            return self.shape(expr)[axis]
        return dim

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
        if rank:
            return axis % rank
        return 0

    # Building

    def call(self, name: str, *args: Expr, **attrs: Any) -> Expr:
        """A typed call of one of our operators."""
        attrs_type = Op.get(name).attrs_type
        if attrs_type is not None:
            record = self.values.attrs(attrs_type, attrs)
        else:
            record = None
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
        if axis == to:
            return data
        return self.call("transpose", data, axes=tuple(order))

    def along(self, vector: Expr, axis: int, rank: int) -> Expr:
        """A vector shaped so that it broadcasts along one of so many axes."""
        shape = [-1 if place == self.axis(axis, rank) else 1 for place in range(rank)]
        return self.call("reshape", vector, newshape=tuple(shape))

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

    def cast(self, data: Expr, dtype: str) -> Expr:
        """The data in a dtype; as they are where they have it."""
        if data.tensor_type.dtype == dtype:
            return data
        return self.call("cast", data, dtype=dtype)

    def reshaped(self, data: Expr, shape: Sequence[int]) -> Expr:
        """The data in a shape; as they are where they have it."""
        wanted = tuple(shape)
        if self.shape(data) == wanted:
            return data
        return self.call("reshape", data, newshape=wanted)

    def times(self, expr: Expr, factor: float) -> Expr:
        """An expression times a number; as it is for 1."""
        if factor == 1.0:
            return expr
        return self.call("multiply", expr, self.scalar_like(factor, expr))
