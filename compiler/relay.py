"""Builders for people and tests: var, const, op.<name>, Function, Let, Tuple, If, …

from compiler import relay

x = relay.var("x", (1, 3, 8, 8))
w = relay.var("w", (4, 3, 3, 3))
y = relay.op.nn.relu(relay.op.nn.conv2d(x, w, padding=1))
mod = relay.module(relay.Function((x, w), y))

Operators are names of the module too, as in Relay: ``relay.add``, ``relay.nn.relu``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from compiler.errors import AttrError
from compiler.ir.adt import Clause as Clause
from compiler.ir.adt import Constructor as Constructor
from compiler.ir.adt import Match as Match
from compiler.ir.adt import PatternConstructor as PatternConstructor
from compiler.ir.adt import PatternTuple as PatternTuple
from compiler.ir.adt import PatternVar as PatternVar
from compiler.ir.adt import PatternWildcard as PatternWildcard
from compiler.ir.adt import RefCreate as RefCreate
from compiler.ir.adt import RefRead as RefRead
from compiler.ir.adt import RefWrite as RefWrite
from compiler.ir.adt import TypeData as TypeData
from compiler.ir.expr import Call as Call
from compiler.ir.expr import Constant as Constant
from compiler.ir.expr import Expr as Expr
from compiler.ir.expr import Function as Function
from compiler.ir.expr import GlobalVar as GlobalVar
from compiler.ir.expr import If as If
from compiler.ir.expr import Let as Let
from compiler.ir.expr import Op, as_expr
from compiler.ir.expr import TempExpr as TempExpr
from compiler.ir.expr import Tuple as Tuple
from compiler.ir.expr import TupleGetItem as TupleGetItem
from compiler.ir.expr import Var as Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule as IRModule
from compiler.ir.op import all_ops, has_op
from compiler.ir.ty import Any as _AnyDim
from compiler.ir.ty import FuncType as FuncType
from compiler.ir.ty import GlobalTypeVar as GlobalTypeVar
from compiler.ir.ty import RefType as RefType
from compiler.ir.ty import TensorType as TensorType
from compiler.ir.ty import TupleType as TupleType
from compiler.ir.ty import Type as Type
from compiler.ir.ty import TypeCall as TypeCall
from compiler.ir.ty import TypeVar as TypeVar
from compiler.lazy_names import lazy_names
from compiler.ops.op_call import op_call

if TYPE_CHECKING:
    from compiler import quantize as quantize
    from compiler import transform as transform
    from compiler.ir import analysis as analysis
    from compiler.ir import dataflow_pattern as dataflow_pattern

AnyDim = _AnyDim
"""A dimension whose size is not known."""


def var(
    name: str, shape: Type | Sequence[int | AnyDim] | str | None = None, dtype: str = "float32"
) -> Var:
    """A local variable.

    Args:
        name: a hint; the object is the identity.
        shape: elements per axis, a complete type, or the dtype of a scalar; None leaves the type
            to inference.
        dtype: element type when ``shape`` is a shape.
    """
    if shape is None or isinstance(shape, Type):
        return Var(name, shape)
    if isinstance(shape, str):
        return Var(name, TensorType((), shape))
    return Var(name, TensorType(tuple(shape), dtype))


def const(value: ArrayLike, dtype: str | None = None) -> Constant:
    """A tensor literal. Without ``dtype``: numpy arrays keep theirs, Python floats become float32,
    Python ints int32, bools bool."""
    if dtype is not None:
        return Constant(np.asarray(value, dtype))
    array = np.asarray(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        array = array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))
    return Constant(array)


def call(name: str, *args: Any, **attrs: Any) -> Call:
    """A call of the operator ``name``.

    Args:
        name: as in the text format, such as "nn.conv2d".
        args: expressions, numbers (constants in the dtype of the first argument) and, where the
            operator takes a tuple, lists of expressions. What comes after the last argument is
            taken for attributes, in their order of declaration.
        attrs: attributes by name.
    Raises:
        UnknownOpError: no such operator.
        AttrError: an attribute it does not have, or one given twice.
    """
    target = Op.get(name)
    operands = args[: target.num_inputs]
    extra = args[target.num_inputs :]
    like = next((a for a in operands if isinstance(a, Expr)), None)
    exprs = [
        Tuple(tuple(a)) if isinstance(a, (list, tuple)) and _holds_exprs(a) else as_expr(a, like)
        for a in operands
    ]
    if target.attrs_type is None:
        if extra:
            raise AttrError(f"{name} has no attributes", where=f"given {[*extra, *attrs]}")
        return op_call(name, *exprs, **attrs)
    fields = [f for f in target.attrs_type.__dataclass_fields__ if f != "type_key"]
    if len(extra) > len(fields):
        raise AttrError(f"{name} takes {target.num_inputs} arguments and {len(fields)} attributes")
    for field, value in zip(fields, extra):
        if field in attrs:
            raise AttrError(f"{name}: attribute {field!r} is given twice")
        attrs[field] = value
    return op_call(name, *exprs, **attrs)


def _holds_exprs(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(v, Expr) for v in values)


class OpNamespace:
    """``op.add``, ``op.nn.conv2d``, …: attribute access spells an operator's name."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        full = self._prefix + name
        if has_op(full):
            return _Builder(full)
        if any(o.name.startswith(full + ".") for o in all_ops()):
            return OpNamespace(full + ".")
        if name.startswith("__"):
            raise AttributeError(name)
        return _Builder(full)  # which says that there is none

    def __dir__(self) -> list[str]:
        names = [o.name for o in all_ops() if o.name.startswith(self._prefix)]
        return sorted({n[len(self._prefix) :].split(".")[0] for n in names})


class _Builder:
    """Calls of one operator; ``__name__`` and ``__doc__`` for interactive use."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__doc__ = Op.get(name).doc or f"A call of {name}; see ``compiler.relay.call``."

    def __call__(self, *args: Any, **attrs: Any) -> Expr:
        made = call(self.__name__, *args, **attrs)
        # As Relay's builder: the mask is of no use at inference.
        if self.__name__ == "nn.dropout":
            return made[0]
        return made


op = OpNamespace()

_load, _ = lazy_names(
    __name__,
    {
        "build": 'write compiler.lower(mod, target="c")',
        "build_module": "write compiler.lower(compiler.quantize.bind_params(mod, params))",
        "create_executor": "write compiler.evaluate(mod, inputs)",
        "frontend": "compiler.frontend.from_onnx.load.load(path) gives module and parameters",
    },
)


def __getattr__(name: str) -> Any:
    """``relay.add``, ``relay.nn.conv2d``: operators as in ``op``."""
    if name in dir(op):
        return getattr(op, name)
    return _load(name)


def module(
    main: Expr | Mapping[str, Function], type_definitions: Sequence[TypeData] = ()
) -> IRModule:
    """A typed module: ``main`` (wrapped over its free variables if it is no function), or functions
    by name.

    Raises:
        TypeInferenceError: it is ill-typed.
    """
    if isinstance(main, Expr):
        mod = IRModule.from_expr(main)
    else:
        mod = IRModule(main)
    for data in type_definitions:
        mod = mod.with_type(data)
    return infer_module(mod)
