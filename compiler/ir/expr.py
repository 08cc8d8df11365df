"""Expressions: frozen nodes, shared by reference, equal only to themselves.

Content is compared by ``compiler.ir.structural``. Each kind lists its children in ``operands()`` in
the order in which every traversal visits them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compiler.errors import AttrError, TypeNotInferredError, UnknownOpError, nearest
from compiler.ir.attrs import NO_ATTRS, Attrs, DictAttrs
from compiler.ir.ty import DTYPES, FuncType, TensorType, Type, TypeVar
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.span import AnySpan, origin_of_new_nodes

Array = NDArray[Any]

_set = object.__setattr__


@singledispatch
def text_for_people(obj: object) -> str:
    """Return the text that ``print`` shows; ``ir.text.printer`` registers its text of nodes and
    modules."""
    return repr(obj)


class Quant(NamedTuple):
    """Real values that integers stand for: (integer - zero_point) * scale.

    Attributes:
        scale: a float32 above 0; along an axis a float32 constant of several, in a shape that
            broadcasts against the integers.
        bits: of a quantize point with more of them than 8 and at most 16; 0 for other values.
    """

    scale: float | Constant
    zero_point: int = 0
    bits: int = 0

    @property
    def scales(self) -> NDArray[np.float32]:
        """The scale as an array that broadcasts against the integers."""
        held = self.scale.data if isinstance(self.scale, Constant) else self.scale
        return np.asarray(held, np.float32)

    def fits(self, shape: Sequence[Any]) -> bool:
        """Return whether integers of this shape can have the scale."""
        try:
            return np.broadcast_shapes(self.scales.shape, tuple(shape)) == tuple(shape)
        except (ValueError, TypeError):  # TypeError: of a dimension without a number
            return not self.scales.ndim

    @property
    def of_tensor(self) -> tuple[float, int] | None:
        """Scale and zero point; None where the scale varies along an axis."""
        if isinstance(self.scale, Constant):
            return None
        return (self.scale, self.zero_point)


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Expr:
    """Base of every expression.

    ``span`` leads back to the source, ``virtual_device`` says where it is computed, ``quant`` of a
    call or variable which real values its integers stand for, where that is known; none takes part
    in equality, and no integer depends on them. ``checked_type`` is set by InferType only.
    """

    span: AnySpan | None = field(default=None, kw_only=True)
    quant: Quant | None = field(default=None, kw_only=True)
    virtual_device: VirtualDevice = field(default=UNCONSTRAINED, kw_only=True)
    _checked_type: Type | None = field(default=None, kw_only=True)

    @property
    def checked_type(self) -> Type:
        """The inferred type.

        Raises:
            TypeNotInferredError: InferType has not run on this node.
        """
        if self._checked_type is None:
            raise TypeNotInferredError(
                f"the type of this {type(self).__name__} is not known yet",
                where=describe(self),
                fix="run transform.InferType()(mod) and read the node of the module it returns",
                span=self.span,
            )
        return self._checked_type

    @property
    def checked_type_or_none(self) -> Type | None:
        """The inferred type, or None before InferType."""
        return self._checked_type

    def set_checked_type(self, ty: Type | None) -> None:
        """For InferType only."""
        _set(self, "_checked_type", ty)

    def set_span(self, span: AnySpan | None) -> None:
        """For nodes that nobody else holds yet."""
        _set(self, "span", span)

    @property
    def tensor_type(self) -> TensorType:
        """``checked_type`` of a tensor-valued expression."""
        ty = self.checked_type
        assert isinstance(ty, TensorType), f"{describe(self)} has type {ty}, a tensor is needed"
        return ty

    def operands(self) -> tuple[Expr, ...]:
        """Child expressions in visiting order."""
        return ()

    def with_fields(self, **changed: Any) -> Self:
        """Itself when every given field is unchanged (``is``, tuples by element), else a copy.

        A copy keeps span and virtual device and forgets ``checked_type``, which may be wrong now.
        """
        for name, value in changed.items():
            if not _same_field(getattr(self, name), value):
                break
        else:
            return self
        return self.fresh_copy(**changed)

    def fresh_copy(self, **changed: Any) -> Self:
        """A new node over these and the other fields, without a checked type."""
        values = {name: getattr(self, name) for name in _field_names(type(self))}
        return type(self)(**{**values, **changed})

    def __add__(self, other: Expr | ArrayLike) -> Call:
        return _binary("add", self, other)

    def __radd__(self, other: ArrayLike) -> Call:
        return _binary("add", as_expr(other, self), self)

    def __sub__(self, other: Expr | ArrayLike) -> Call:
        return _binary("subtract", self, other)

    def __rsub__(self, other: ArrayLike) -> Call:
        return _binary("subtract", as_expr(other, self), self)

    def __mul__(self, other: Expr | ArrayLike) -> Call:
        return _binary("multiply", self, other)

    def __rmul__(self, other: ArrayLike) -> Call:
        return _binary("multiply", as_expr(other, self), self)

    def __truediv__(self, other: Expr | ArrayLike) -> Call:
        return _binary("divide", self, other)

    def __neg__(self) -> Call:
        return call_op("negative", self)

    def __repr__(self) -> str:
        return f"<{describe(self)}>"

    def __str__(self) -> str:
        """Relay text with large constants described, for people; its repr where it has no text."""
        return text_for_people(self)


Exprs = tuple[Expr, ...]  # TupleGetItem's field hides the built-in name inside its class

_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(cls: type[Expr]) -> tuple[str, ...]:
    names = _FIELD_NAMES.get(cls)
    if names is None:
        fields = cls.__dataclass_fields__.values()
        names = tuple(f.name for f in fields if f.init and f.name != "_checked_type")
        _FIELD_NAMES[cls] = names
    return names


def _same_field(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(_same_field, old, new))
    if isinstance(old, (int, str)) and type(old) is type(new):
        return bool(old == new)
    return False


Args = tuple[Expr, ...]
"""Arguments of a call."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Var(Expr):
    """A local variable; the object is its identity, the name only a hint."""

    name_hint: str
    type_annotation: Type | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GlobalVar(Expr):
    """Name of a function of the module; equal by name within a module."""

    name_hint: str


def by_name(values: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The map of an attribute with the names of functions in place of their GlobalVars.

    Raises:
        AttrError: a key of another kind, which has neither a text nor a hash.
    """
    for key in values:
        if not isinstance(key, (str, GlobalVar)):
            raise AttrError(
                f"{key!r} ({type(key).__name__}) is a key of an attribute",
                fix="keys are strings or GlobalVars; keep a list of pairs otherwise",
            )
    return {f"@{k.name_hint}" if isinstance(k, GlobalVar) else k: v for k, v in values.items()}


# numpy computes a dtype's name anew each time, which takes longer than all else a Constant does.
_DTYPE_NAMES = {np.dtype(name): name for name in DTYPES if name in np.sctypeDict}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, as ``str`` does."""
    return _DTYPE_NAMES.get(dtype) or str(dtype)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constant(Expr):
    """A tensor literal: a read-only array, C-contiguous or (a weight as a file holds it) its
    transpose."""

    data: Array

    def __post_init__(self) -> None:
        data = np.asarray(self.data)
        flags = data.flags
        if not (flags.c_contiguous or flags.f_contiguous) or flags.writeable:
            data = data.copy(order="C")
            data.flags.writeable = False
        if data is not self.data:
            _set(self, "data", data)
        if self._checked_type is None:
            _set(self, "_checked_type", TensorType(data.shape, dtype_name(data.dtype)))

    @property
    def is_scalar(self) -> bool:
        """True for rank 0."""
        return self.data.ndim == 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tuple(Expr):
    """Several values; no field is the unit value."""

    fields: tuple[Expr, ...]

    def __post_init__(self) -> None:
        _set(self, "fields", tuple(self.fields))

    def operands(self) -> tuple[Expr, ...]:
        return self.fields


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TupleGetItem(Expr):
    """Field ``index`` of a tuple, counted from 0."""

    tuple: Expr
    index: int

    def operands(self) -> Exprs:
        return (self.tuple,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expr):
    """``op`` applied to ``args``; a call of an operator always has the operator's attrs record.

    A call without a span that a rewriter makes to replace a node takes the span of the node.
    """

    op: Expr
    args: tuple[Expr, ...]
    attrs: Attrs | None = None
    type_args: tuple[Type, ...] = ()

    def __post_init__(self) -> None:
        if type(self.args) is not tuple:
            _set(self, "args", tuple(self.args))
        if self.attrs is None and isinstance(self.op, Op) and self.op.attrs_type is not None:
            _set(self, "attrs", self.op.attrs_type.make())
        if self.span is None:
            _set(self, "span", origin_of_new_nodes())

    def operands(self) -> tuple[Expr, ...]:
        return (self.op, *self.args)

    def __getitem__(self, index: int) -> TupleGetItem:
        """Return field ``index`` of a call that gives a tuple, such as ``nn.batch_norm``."""
        return TupleGetItem(self, index, span=self.span)

    __iter__ = None  # the number of fields is known once types are inferred


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Function(Expr):
    """A closure: captures free variables lexically.

    ``nodes``, ``operators`` and ``is_dataflow`` (calls, tuples and leaves only), all of the body,
    are set by ``walk.nodes_of`` only.
    """

    params: tuple[Var, ...]
    body: Expr
    ret_type: Type | None = None
    type_params: tuple[TypeVar, ...] = ()
    attrs: DictAttrs = NO_ATTRS
    nodes: tuple[Expr, ...] | None = field(default=None, init=False)
    operators: frozenset[Op] = field(default=frozenset(), init=False)
    is_dataflow: bool = field(default=False, init=False)

    def fresh_copy(self, **changed: Any) -> Function:
        """Copy the node; the copy over the same body keeps the order of its nodes."""
        copy = Expr.fresh_copy(self, **changed)
        if copy.body is self.body:
            _set(copy, "nodes", self.nodes)
            _set(copy, "operators", self.operators)
            _set(copy, "is_dataflow", self.is_dataflow)
        return copy

    def __post_init__(self) -> None:
        _set(self, "params", tuple(self.params))
        if not isinstance(self.attrs, DictAttrs):
            _set(self, "attrs", DictAttrs(self.attrs))

    def operands(self) -> tuple[Expr, ...]:
        return (*self.params, self.body)

    @property
    def func_type(self) -> FuncType:
        """``checked_type`` as a function type."""
        ty = self.checked_type
        assert isinstance(ty, FuncType)
        return ty

    def get_attr(self, key: str, default: Any = None) -> Any:
        """Value of a function attribute."""
        return self.attrs.get(key, default)

    def has_nonzero_attr(self, key: str) -> bool:
        """True when the attribute is present and an integer other than 0."""
        value = self.attrs.get(key, 0)
        return isinstance(value, int) and value != 0

    def with_attr(self, key: str, value: Any) -> Function:
        """A copy with one attribute set; keeps ``checked_type``."""
        copy = self.with_fields(attrs=self.attrs.with_attr(key, value))
        copy.set_checked_type(self._checked_type)
        return copy

    def without_attr(self, key: str) -> Function:
        """A copy without the attribute; keeps ``checked_type``."""
        copy = self.with_fields(attrs=self.attrs.without_attr(key))
        copy.set_checked_type(self._checked_type)
        return copy


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Let(Expr):
    """``let var = value; body``; ``value`` sees ``var`` only if it is a Function (recursion)."""

    var: Var
    value: Expr
    body: Expr

    def operands(self) -> tuple[Expr, ...]:
        return (self.var, self.value, self.body)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class If(Expr):
    """One of two branches by a rank-0 bool; the other is not evaluated."""

    cond: Expr
    true_branch: Expr
    false_branch: Expr

    def operands(self) -> tuple[Expr, ...]:
        return (self.cond, self.true_branch, self.false_branch)


# Op is an expression (a call's callee) whose registry and rule tables live in compiler.ir.op.
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Op(Expr):
    """A registered operator: a singleton per name, made by ``compiler.ir.op.register_op``.

    By itself it has a type variable for each argument and one for the result.
    """

    name: str
    arg_names: tuple[str, ...] = ()
    num_inputs: int = 0
    attrs_type: type[Attrs] | None = None
    rel: Any = None
    pattern: int | None = None
    doc: str = ""
    flags: frozenset[str] = frozenset()
    optional: int = 0

    def takes(self, count: int) -> bool:
        """True if a call may have so many arguments: the last ``optional`` ones may be left out."""
        return self.num_inputs - self.optional <= count <= self.num_inputs

    def __post_init__(self) -> None:
        params = tuple(TypeVar(name) for name in (*self.arg_names, "result"))
        _set(self, "_checked_type", FuncType(params[:-1], params[-1], params))

    @staticmethod
    def get(name: str) -> Op:
        """The operator of this name.

        Raises:
            UnknownOpError: none is registered; the message lists the nearest names.
        """
        op = OPS.get(name) or registered_ops().get(name)
        if op is None:
            close = nearest(name, OPS)
            hint = f"did you mean {', '.join(close)}? " if close else ""
            raise UnknownOpError(
                f"unknown operator {name!r}",
                fix=f"{hint}`python -m compiler.ops` prints the list; an operator of your own is "
                "known once its module is imported (qsearch: --import)",
            )
        return op

    def __reduce__(self) -> tuple[Any, ...]:
        return (Op.get, (self.name,))


OPS: dict[str, Op] = {}
"""Operators that are registered, by name; filled by ``compiler.ir.op``."""

OPERATORS = "compiler.ops"
"""The package whose import registers every operator; loaded when the registry is first asked."""


def registered_ops() -> dict[str, Op]:
    """The registry with every operator in it."""
    importlib.import_module(OPERATORS)
    return OPS


def call_op(
    name: str, *args: Expr, attrs: Attrs | None = None, span: AnySpan | None = None
) -> Call:
    """A call of the operator ``name``; default attrs where none are given."""
    return Call(Op.get(name), args, attrs, span=span)


def as_expr(value: Expr | ArrayLike, like: Expr | None = None) -> Expr:
    """``value`` itself, or a Constant in the dtype of ``like`` (float32 where that is unknown)."""
    if isinstance(value, Expr):
        return value
    dtype = "float32"
    if like is not None:
        ty = like.checked_type_or_none
        if ty is None and isinstance(like, Var):
            ty = like.type_annotation
        if isinstance(ty, TensorType):
            dtype = ty.dtype
    return Constant(np.asarray(value, dtype=dtype))


def _binary(name: str, lhs: Expr, rhs: Expr | ArrayLike) -> Call:
    return call_op(name, lhs, as_expr(rhs, lhs))


def is_op_call(expr: Expr, *names: str) -> TypeGuard[Call]:
    """True when ``expr`` calls one of the named operators (any operator when none is named)."""
    return (
        isinstance(expr, Call) and isinstance(expr.op, Op) and (not names or expr.op.name in names)
    )


def describe(expr: Expr) -> str:
    """A few words naming one node, without visiting its operands."""
    if isinstance(expr, Var):
        return f"%{expr.name_hint}"
    if isinstance(expr, GlobalVar):
        return f"@{expr.name_hint}"
    if isinstance(expr, Op):
        return expr.name
    if isinstance(expr, Constant):
        return f"constant {tuple(expr.data.shape)} {expr.data.dtype}"
    if isinstance(expr, Call):
        if isinstance(expr.op, (Op, GlobalVar, Var)):
            callee = describe(expr.op)
        else:
            callee = type(expr.op).__name__
        return f"call of {callee}"
    return type(expr).__name__


class TempExpr(Expr):
    """Base of the temporary values a ForwardRewriter's rules pass to each other.

    A subclass may be a frozen dataclass or a plain class that sets its attributes in ``__init__``.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """With the fields of every Expr, which the ``__init__`` of a plain class leaves out."""
        self = object.__new__(cls)
        Expr.__init__(self)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def realize(self) -> Expr:
        """The ordinary expression that stands for this value outside its pass."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is realized")
