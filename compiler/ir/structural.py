"""Structural equality with the path of the first difference, and the hash that goes with it.

Graph nodes are compared one to one, so that a shared node differs from two equal ones; variables
are compared by the place that binds them. Source: Relay v0.10 node/structural_equal.cc.

The hash is blake2b over a byte stream that is the same in every process. Every graph node writes
one record that names its operands by the order in which they were finished, so a shared node
differs from two equal ones; constants write a digest of their bytes. Relay's hash has 64 bits and
is stable for closed terms only; this one has 128 bits.
"""

from __future__ import annotations

import itertools
import struct
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from compiler.ir.adt import (
    Clause,
    Constructor,
    Match,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    RefCreate,
    RefRead,
    RefWrite,
    TypeData,
)
from compiler.ir.attrs import Attrs, DictAttrs
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    by_name,
)
from compiler.ir.garbage import collector_rests
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.ty import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
)
from compiler.ir.walk import post_order

__all__ = ["assert_structural_equal", "structural_equal", "structural_hash"]

Subject = Expr | Type | IRModule | Any


@collector_rests
def structural_equal(a: Subject, b: Subject, map_free_vars: bool = False) -> bool:
    """True when the two are the same up to names of local variables, spans and checked types.

    Args:
        a: an expression, type or module; None equals only None.
        b: the other one.
        map_free_vars: free variables may stand for each other one to one (same annotation).
    """
    return Comparison(map_free_vars).first_difference(a, b) is None


def assert_structural_equal(a: Subject, b: Subject, map_free_vars: bool = False) -> None:
    """Raise unless structurally equal.

    Raises:
        AssertionError: with the access path of the first mismatch and both texts there.
    """
    found = Comparison(map_free_vars).first_difference(a, b)
    if found is not None:
        raise AssertionError(
            f"not structurally equal at {found.path or 'the root'}: {found.why}\n"
            f"  left:  {_short(found.left)}\n  right: {_short(found.right)}"
        )


def _short(value: Any, limit: int = 400) -> str:
    from compiler.ir.inference.errors import call_text

    shown = call_text(value) if isinstance(value, Expr) else str(value)
    if len(shown) <= limit:
        return shown
    return shown[: limit - 1] + "…"


# The walk -----------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """First difference: access path, reason, and the two values there."""

    path: str
    why: str
    left: Any
    right: Any


class _Path(NamedTuple):
    """Access path as a linked list: rendered only when a difference is found."""

    parent: _Path | None
    step: str

    def __str__(self) -> str:
        steps: list[str] = []
        at: _Path | None = self
        while at is not None:
            steps.append(at.step)
            at = at.parent
        return "".join(reversed(steps)).removeprefix(".")


class _Pair(NamedTuple):
    left: Any
    right: Any
    path: _Path | None
    phase: int


COMPARE = 0
ENTER_MAP = 1
DEFINE = 2

_GRAPH_KINDS = (Var, Call, Let, If, Function, Match, RefCreate, RefRead, RefWrite)

# Fields in comparison order; a name ending in "!" is a place that defines variables.
_FIELDS: dict[type, tuple[str, ...]] = {
    Tuple: ("fields",),
    TupleGetItem: ("tuple", "index"),
    Call: ("op", "args", "attrs", "type_args"),
    # Type parameters before the parameters whose annotations name them.
    Function: ("type_params!", "params!", "ret_type", "attrs", "body"),
    Let: ("var!", "value", "body"),
    If: ("cond", "true_branch", "false_branch"),
    RefCreate: ("value",),
    RefRead: ("ref",),
    RefWrite: ("ref", "value"),
    Match: ("data", "clauses", "complete"),
    TensorType: ("shape", "dtype"),
    TupleType: ("fields",),
    FuncType: ("type_params!", "arg_types", "ret_type"),
    RefType: ("value",),
    TypeCall: ("func", "args"),
    TypeData: ("header", "type_vars!", "constructors"),
    GlobalTypeVar: ("name_hint",),
    Constructor: ("name_hint", "belong_to"),
    PatternConstructor: ("constructor", "patterns"),
    PatternTuple: ("patterns",),
    PatternVar: ("var!",),
    PatternWildcard: (),
    Clause: ("lhs", "rhs"),
}


class Comparison:
    """One comparison: the one-to-one maps between left and right objects, and the work stack."""

    def __init__(self, map_free_vars: bool) -> None:
        self._map_free_vars = map_free_vars
        self._to_right: dict[Any, Any] = {}
        self._to_left: dict[Any, Any] = {}
        self._stack: list[_Pair] = []

    def first_difference(self, a: Any, b: Any) -> Mismatch | None:
        """The first mismatch in comparison order, or None."""
        if isinstance(a, IRModule) and isinstance(b, IRModule):
            return self._modules(a, b)
        return self._run(a, b, None)

    def _modules(self, a: IRModule, b: IRModule) -> Mismatch | None:
        for name in ("type_definitions", "functions"):
            left, right = (
                {key.name_hint: value for key, value in getattr(side, name).items()}
                for side in (a, b)
            )
            if left.keys() != right.keys():
                return Mismatch(name, "different names", sorted(left), sorted(right))
            for key in left:
                # Each definition has maps of its own: sharing between functions has no meaning.
                self._to_right = {}
                self._to_left = {}
                path = _Path(None, f'{name}["{key}"]')
                found = self._run(left[key], right[key], path)
                if found is not None:
                    return found
        return self._run(a.attrs, b.attrs, _Path(None, "attrs"))

    def _run(self, a: Any, b: Any, path: _Path | None) -> Mismatch | None:
        stack = self._stack = [_Pair(a, b, path, COMPARE)]
        while stack:
            pair = stack.pop()
            if pair.phase == ENTER_MAP:
                self._map(pair.left, pair.right)
                continue
            why = self._compare(pair)
            if why is not None:
                where = "" if pair.path is None else str(pair.path)
                return Mismatch(where, why, pair.left, pair.right)
        return None

    def _map(self, left: Any, right: Any) -> None:
        self._to_right[left] = right
        self._to_left[right] = left

    def _compare(self, pair: _Pair) -> str | None:
        """Reason of a difference at this very pair; parts of it are pushed."""
        left = pair.left
        right = pair.right
        cls = type(left)
        if cls is not type(right):
            return f"{cls.__name__} against {type(right).__name__}"
        if cls is TensorType:
            if left == right:
                return None
            return "different types"
        if cls is Var or cls is TypeVar:
            return self._variables(pair)
        if isinstance(left, _GRAPH_KINDS) or (cls is Tuple and left.fields):
            mapped = self._to_right.get(left)
            if mapped is not None or right in self._to_left:
                if mapped is right:
                    return None
                return "shared on one side only"
            self._stack.append(pair._replace(phase=ENTER_MAP))
            self._push_fields(pair)
            return None
        if cls is Constant:
            return _constants(left, right)
        if cls is GlobalVar:
            if left.name_hint == right.name_hint:
                return None
            return "different global names"
        if cls is Op or cls is IncompleteType:
            if left is right:
                return None
            return f"{left} against {right}"
        if cls in _FIELDS:
            self._push_fields(pair)
            if cls is TypeData:
                # A constructor's inputs are part of the definition, not of every place it is named.
                inputs = [tuple(c.inputs for c in side.constructors) for side in (left, right)]
                step = _Path(pair.path, ".inputs")
                self._stack.insert(0, _Pair(inputs[0], inputs[1], step, COMPARE))
            return None
        return self._values(pair)

    def _push_fields(self, pair: _Pair) -> None:
        left, right, path, _ = pair
        todo = []
        for field in _FIELDS[type(left)]:
            name = field.rstrip("!")
            if name == "type_args" and _ignores_type_args(left, right):
                continue
            phase = COMPARE if name == field else DEFINE
            mine = getattr(left, name)
            theirs = getattr(right, name)
            if mine is None and theirs is None:
                continue
            todo.append(_Pair(mine, theirs, _Path(path, "." + name), phase))
        self._stack.extend(reversed(todo))

    def _variables(self, pair: _Pair) -> str | None:
        left, right, path, phase = pair
        mapped = self._to_right.get(left)
        if mapped is not None or right in self._to_left:
            if mapped is right:
                return None
            return "different variables"
        if phase != DEFINE and not self._map_free_vars:
            if left is right:
                return None
            return "different free variables"
        if isinstance(left, TypeVar):
            if left.kind != right.kind:
                return "type variables of different kind"
        else:
            if left.virtual_device != right.virtual_device:
                return "variables on different virtual devices"
            annotations = left.type_annotation, right.type_annotation
            self._stack.append(_Pair(*annotations, _Path(path, ".type_annotation"), COMPARE))
        self._map(left, right)
        return None

    def _values(self, pair: _Pair) -> str | None:
        left, right, path, phase = pair
        if isinstance(left, (tuple, list)):
            if len(left) != len(right):
                return f"{len(left)} items against {len(right)}"
            self._stack.extend(
                _Pair(left[i], right[i], _Path(path, f"[{i}]"), phase)
                for i in reversed(range(len(left)))
            )
            return None
        if isinstance(left, (dict, DictAttrs)):
            left = by_name(left)
            right = by_name(right)
            if set(left) != set(right):
                return f"keys {sorted(left)} against {sorted(right)}"
            self._stack.extend(
                _same_object_pair(left[k], right[k], _Path(path, f'["{k}"]'), k)
                for k in sorted(left, reverse=True)
            )
            return None
        if isinstance(left, Attrs):
            theirs = dict(right.items())
            self._stack.extend(
                _Pair(value, theirs[name], _Path(path, "." + name), COMPARE)
                for name, value in reversed(list(left.items()))
            )
            return None
        if isinstance(left, float):
            same = struct.pack("<d", left) == struct.pack("<d", right)
            if same:
                return None
            return f"{left!r} against {right!r}"
        if isinstance(left, LoweredFunction):
            if left.digest() == right.digest():
                return None
            return "different lowered functions"
        if isinstance(left, (Expr, Type)):
            if left is right:
                return None
            return "different objects of a kind without content"
        if left == right:
            return None
        return f"{left!r} against {right!r}"


def _same_object_pair(left: Any, right: Any, path: _Path, key: str) -> _Pair:
    # Runtime modules have no content to compare: both sides hold the very objects.
    if key == "external_mods" and left is not right:
        return _Pair(tuple(map(id, left)), tuple(map(id, right)), path, COMPARE)
    return _Pair(left, right, path, COMPARE)


def _ignores_type_args(left: Call, right: Call) -> bool:
    op = left.op
    return isinstance(op, Op) or (
        isinstance(op, Function)
        and isinstance(right.op, Function)
        and op.has_nonzero_attr("Primitive")
    )


def _constants(left: Constant, right: Constant) -> str | None:
    a = left.data
    b = right.data
    if a is b:
        return None
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
    # Bits, not values: -0.0 is not 0.0, and NaN is NaN.
    flat_a = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    flat_b = np.ascontiguousarray(b).reshape(-1).view(np.uint8)
    if np.array_equal(flat_a, flat_b):
        return None
    return "different values"


# ---- the hash ------------------------------------------------------------------------------------


LOCAL = "local:"

# Caches on objects that cannot hold more fields; an entry goes with its object.
_constant_digests: WeakKeyDictionary[Constant, bytes] = WeakKeyDictionary()
_local_numbers: WeakKeyDictionary[Expr, int] = WeakKeyDictionary()
_next_local = itertools.count()


@collector_rests
def structural_hash(subject: Expr | Type | IRModule | Any, map_free_vars: bool = False) -> str:
    """32 hex digits; equal for structurally equal subjects, on every machine and Python version.

    With free variables and without ``map_free_vars`` the text starts with "local:" and means
    something in this process only.
    """
    if isinstance(subject, IRModule):
        return _module_hash(subject)
    return _Digest(map_free_vars).of(subject)


def constant_digest(constant: Constant) -> bytes:
    """16 bytes over dtype, shape and contents."""
    held = _constant_digests.get(constant)
    if held is None:
        data = constant.data
        state = blake2b(f"{data.dtype.str}{data.shape}".encode(), digest_size=16)
        if data.size:
            state.update(data.reshape(-1).view("u1").data)
        held = _constant_digests[constant] = state.digest()
    return held


def _module_hash(mod: IRModule) -> str:
    state = blake2b(digest_size=16)
    local = ""
    parts: list[tuple[str, Any]] = [
        *((f"type {t.name_hint}", d) for t, d in mod.type_definitions.items()),
        *((f"def {g.name_hint}", f) for g, f in mod.functions.items()),
    ]
    attrs = {k: v for k, v in mod.attrs.items() if k != "external_mods"}
    for name, part in [*parts, ("attrs", DictAttrs(attrs))]:
        text = _Digest(map_free_vars=False).of(part)
        local = LOCAL if text.startswith(LOCAL) else local
        state.update(f"{name}={text};".encode())
    return local + state.hexdigest()


class _Digest:
    """One hash in progress."""

    def __init__(self, map_free_vars: bool) -> None:
        self._map_free_vars = map_free_vars
        self._state = blake2b(digest_size=16)
        self._ref: dict[Any, bytes] = {}
        self._count = 0
        self._local = False

    def of(self, subject: Any) -> str:
        """The hash of ``subject`` and everything below it."""
        self._state.update(self._value(subject))
        return (LOCAL if self._local else "") + self._state.hexdigest()

    def _visit(self, root: Expr) -> bytes:
        """Reference to ``root`` after writing a record per graph node below it."""
        ref = self._ref
        for node in post_order(root, self._open):
            if node not in ref:
                ref[node] = self._record(node)
        return ref[root]

    def _open(self, node: Expr) -> tuple[Expr, ...]:
        """Define what ``node`` binds; return the operands to visit, in comparison order."""
        if node in self._ref:
            return ()
        if isinstance(node, Function):
            for type_param in node.type_params:
                self._define(type_param)
            for param in node.params:
                self._define(param)
            return (node.body,)
        if isinstance(node, Let):
            self._define(node.var)
            return (node.value, node.body)
        if isinstance(node, Match):
            for clause in node.clauses:
                self._value(clause.lhs)
        return node.operands()

    def _define(self, var: Var | TypeVar) -> None:
        if var not in self._ref:
            what = self._annotation(var) if isinstance(var, Var) else var.kind.encode()
            self._ref[var] = self._number(b"V" + what)

    def _annotation(self, var: Var) -> bytes:
        return self._value(var.type_annotation) + repr(var.virtual_device).encode()

    def _number(self, record: bytes) -> bytes:
        self._state.update(b"%d:%b;" % (len(record), record))
        self._count += 1
        return b"#%d" % self._count

    def _record(self, node: Expr) -> bytes:
        ref = self._ref
        if isinstance(node, Call):
            record = b"C%b(%b)" % (ref[node.op], b",".join([ref[a] for a in node.args]))
            record += self._value(node.attrs)
            if not isinstance(node.op, (Op, Function)):
                record += self._value(node.type_args)
            return self._number(record)
        if isinstance(node, Constant):
            return b"K" + constant_digest(node)
        if isinstance(node, Op):
            return b"O" + node.name.encode()
        if isinstance(node, TupleGetItem):
            return b"G%d" % node.index + blake2b(ref[node.tuple], digest_size=16).digest()
        if isinstance(node, Tuple):
            fields = b"T(%b)" % b",".join([ref[f] for f in node.fields])
            if node.fields:
                return self._number(fields)
            return fields
        if isinstance(node, Var):
            return self._free(node)
        if isinstance(node, GlobalVar):
            return b"@" + node.name_hint.encode()
        if isinstance(node, Constructor):
            return self._fields(node)
        if type(node) in _FIELDS:
            return self._number(self._fields(node))
        self._local = True
        return b"X%d" % _local_number(node)

    def _fields(self, item: Any) -> bytes:
        """The kind of a node, type or pattern, and what it holds; defines what it binds."""
        parts = [type(item).__name__.encode()]
        for field in _FIELDS[type(item)]:
            name = field.rstrip("!")
            value = getattr(item, name)
            if name != field:
                for var in value if isinstance(value, tuple) else (value,):
                    self._define(var)
            parts.append(self._value(value))
        return b"(%b)" % b",".join(parts)

    def _free(self, var: Var) -> bytes:
        if self._map_free_vars:
            return self._number(b"V" + self._annotation(var))
        self._local = True
        return b"X%d" % _local_number(var)

    def _value(self, value: Any) -> bytes:
        """Bytes of a type, an attribute value or a record; recurses over their nesting only."""
        if type(value) in (bool, int, str):
            return _scalar(value)
        if isinstance(value, Expr):
            return self._visit(value)
        if isinstance(value, TensorType):
            return b"t" + str(value).encode()
        if isinstance(value, Type):
            return self._type(value)
        if isinstance(value, Attrs):
            fields = [n.encode() + b"=" + self._value(v) for n, v in value.items()]
            return b"a%b{%b}" % (value.type_key.encode(), b",".join(fields))
        if isinstance(value, (dict, DictAttrs)):
            named = by_name(value)
            items = [k.encode() + b"=" + self._value(named[k]) for k in sorted(named)]
            return b"d{%b}" % b",".join(items)
        if isinstance(value, (tuple, list)):
            return b"s[%b]" % b",".join([self._value(v) for v in value])
        if isinstance(value, float):
            return b"f" + struct.pack("<d", value)
        if isinstance(value, LoweredFunction):
            return b"P" + value.digest()
        if type(value) in _FIELDS:
            return self._fields(value)
        return _scalar(value)

    def _type(self, ty: Type) -> bytes:
        if isinstance(ty, TypeVar):
            if ty not in self._ref:
                if self._map_free_vars:
                    self._define(ty)
                else:
                    self._local = True
                    return b"?" + ty.name_hint.encode()
            return self._ref[ty]
        if isinstance(ty, TypeData):
            return self._fields(ty) + b"".join([self._value(c.inputs) for c in ty.constructors])
        if type(ty) in _FIELDS:
            return self._fields(ty)
        assert isinstance(ty, IncompleteType)
        self._local = True
        return b"_"


def _scalar(value: Any) -> bytes:
    text = str(value).encode()
    return b"%b%d:%b" % (type(value).__name__.encode(), len(text), text)


def _local_number(node: Expr) -> int:
    number = _local_numbers.get(node)
    if number is None:
        number = _local_numbers[node] = next(_next_local)
    return number
