"""What the importer knows about every tensor of the graph while it walks the nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.errors import OnnxImportError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Op,
    Tuple,
    Var,
    call_op,
    dtype_name,
)
from compiler.ir.ty import DTYPES, TensorType, TupleType, Type, bits, is_dynamic
from compiler.ir.type_relation import result_of
from compiler.ops.number_format import Array
from compiler.span import Span

MAX_TENSOR_BYTES = 2 << 30
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
        return self._initializer(name) if name in self._initializers else None

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
        """Whether a tensor is an initializer of 2 bits, which is read as one of 4."""
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
    """Whether the repr of a value tells all of it."""
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
    dtype = "float32" if widened else dtype_of(tensor.data_type, where)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        # onnx would read any file that the location names.
        raise OnnxImportError("external data of this tensor was not loaded", where=where)
    try:
        if any(d < 0 for d in tensor.dims):
            raise ValueError(f"negative dimension in {list(tensor.dims)}")
        elements = math.prod(tensor.dims)
        if elements * max(bits(dtype), 8) // 8 > MAX_TENSOR_BYTES:
            raise ValueError(f"{elements} elements are more than {MAX_TENSOR_BYTES} bytes")
        array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise OnnxImportError(
            f"a {dtype} tensor of shape {list(tensor.dims)} cannot be read: {error}",
            where=where,
            fix="the file is damaged; export it again",
        ) from error
    return array.astype(dtype) if str(array.dtype) != dtype else array


def dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """A sparse tensor as one with all its elements, of the same name.

    Raises:
        OnnxImportError: it is too large, or its indices do not fit its shape.
    """
    values, indices = to_array(sparse.values).reshape(-1), to_array(sparse.indices)
    where, shape = f"sparse tensor {sparse.values.name!r}", tuple(sparse.dims)
    limits, rows = shape, indices
    if indices.ndim == 1:
        limits, rows = (math.prod(shape),), indices[:, None]
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
