"""Structural hash, and the equality that goes with it: equal hashes.

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
from typing import Any
from weakref import WeakKeyDictionary

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


def structural_equal(a: Subject, b: Subject, map_free_vars: bool = False) -> bool:
    """True when the two are the same up to names of local variables, spans and checked types.

    Args:
        a: an expression, type or module; None equals only None.
        b: the other one.
        map_free_vars: free variables may stand for each other one to one (same annotation).
    """
    same = structural_hash(a, map_free_vars) == structural_hash(b, map_free_vars)
    return same and _external_modules(a) == _external_modules(b)


def _external_modules(subject: Subject) -> list[int]:
    """Runtime modules have no content to compare: both sides hold the very objects."""
    if not isinstance(subject, IRModule):
        return []
    return [id(module) for module in subject.attrs.get("external_mods", ())]


def assert_structural_equal(a: Subject, b: Subject, map_free_vars: bool = False) -> None:
    """Raise unless structurally equal.

    Raises:
        AssertionError: with the path of the first node that differs, and both texts there.
    """
    if structural_equal(a, b, map_free_vars):
        return
    path = ""
    if isinstance(a, IRModule) and isinstance(b, IRModule):
        path, a, b = _differing_part(a, b)
    left, right = (_Digest(map_free_vars) for _ in range(2))
    left.of(a)
    right.of(b)
    for (mine, record), (theirs, other) in zip(left.records, right.records):
        if record != other:
            path += _path_to(mine, a)
            a = mine
            b = theirs
            break
    raise AssertionError(
        f"not structurally equal at {path.removeprefix('.') or 'the root'}\n"
        f"  left:  {_short(a)}\n  right: {_short(b)}"
    )


def _differing_part(a: IRModule, b: IRModule) -> tuple[str, Any, Any]:
    """Return the path of the first part of two modules that differs, and the parts."""
    for name in ("type_definitions", "functions"):
        left, right = (
            {key.name_hint: value for key, value in getattr(mod, name).items()} for mod in (a, b)
        )
        if left.keys() != right.keys():
            return name, sorted(left), sorted(right)
        for key in left:
            if not structural_equal(left[key], right[key]):
                return f'{name}["{key}"]', left[key], right[key]
    return "attrs", a.attrs, b.attrs


def _path_to(part: Any, root: Any) -> str:
    """Return the fields that lead from a node to a part of it."""
    waiting = [(root, "")]
    seen: set[int] = set()
    while waiting:
        value, path = waiting.pop()
        if value is part:
            return path
        if isinstance(value, tuple):
            waiting += [(item, f"{path}[{index}]") for index, item in enumerate(value)]
        elif type(value) in _FIELDS and id(value) not in seen:
            seen.add(id(value))
            names = (field.rstrip("!") for field in _FIELDS[type(value)])
            waiting += [(getattr(value, name), f"{path}.{name}") for name in names]
    return ""


def _short(value: Any, limit: int = 400) -> str:
    from compiler.ir.inference.errors import call_text

    if isinstance(value, Expr):
        shown = call_text(value)
    else:
        shown = str(value)
    if len(shown) <= limit:
        return shown
    return shown[: limit - 1] + "…"


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
    """One hash in progress.

    Attributes:
        records: graph nodes and variables with their bytes, operands before users.
    """

    def __init__(self, map_free_vars: bool) -> None:
        self._map_free_vars = map_free_vars
        self._state = blake2b(digest_size=16)
        self.records: list[tuple[Any, bytes]] = []
        self._ref: dict[Any, bytes] = {}
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
            if isinstance(var, Var):
                what = self._annotation(var)
            else:
                what = var.kind.encode()
            self._ref[var] = self._number(var, b"V" + what)

    def _annotation(self, var: Var) -> bytes:
        return self._value(var.type_annotation) + repr(var.virtual_device).encode()

    def _number(self, node: Any, record: bytes) -> bytes:
        self._state.update(b"%d:%b;" % (len(record), record))
        self.records.append((node, record))
        return b"#%d" % len(self.records)

    def _record(self, node: Expr) -> bytes:
        ref = self._ref
        if isinstance(node, Call):
            record = b"C%b(%b)" % (ref[node.op], b",".join([ref[a] for a in node.args]))
            record += self._value(node.attrs)
            if not isinstance(node.op, (Op, Function)):
                record += self._value(node.type_args)
            return self._number(node, record)
        if isinstance(node, Constant):
            return b"K" + constant_digest(node)
        if isinstance(node, Op):
            return b"O" + node.name.encode()
        if isinstance(node, TupleGetItem):
            return b"G%d" % node.index + blake2b(ref[node.tuple], digest_size=16).digest()
        if isinstance(node, Tuple):
            fields = b"T(%b)" % b",".join([ref[f] for f in node.fields])
            if node.fields:
                return self._number(node, fields)
            return fields
        if isinstance(node, Var):
            return self._free(node)
        if isinstance(node, GlobalVar):
            return b"@" + node.name_hint.encode()
        if isinstance(node, Constructor):
            return self._fields(node)
        if type(node) in _FIELDS:
            return self._number(node, self._fields(node))
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
            return self._number(var, b"V" + self._annotation(var))
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
