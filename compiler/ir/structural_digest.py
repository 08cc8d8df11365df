"""structural_hash: blake2b over a byte stream that is the same in every process.

Every graph node writes one record that names its operands by the order in which they were
finished, so a shared node differs from two equal ones; constants write a digest of their bytes.
Relay's hash has 64 bits and is stable for closed terms only; this one has 128 bits.
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
    digest = _Digest(map_free_vars)
    digest.add(subject)
    return digest.hex()


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
        digest = _Digest(map_free_vars=False)
        digest.add(part)
        text = digest.hex()
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

    def hex(self) -> str:
        """The hash so far."""
        return (LOCAL if self._local else "") + self._state.hexdigest()

    def add(self, subject: Any) -> None:
        """Write ``subject`` and everything below it."""
        self._state.update(self._value(subject))

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
                self._pattern(clause.lhs)
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
            return self._number(fields) if node.fields else fields
        if isinstance(node, Var):
            return self._free(node)
        if isinstance(node, GlobalVar):
            return b"@" + node.name_hint.encode()
        return self._rare(node)

    def _rare(self, node: Expr) -> bytes:
        ref = self._ref
        if isinstance(node, Function):
            parts = [ref[p] for p in (*node.params, *node.type_params)]
            head = self._value(node.ret_type) + self._value(node.attrs)
            return self._number(b"F(%b)%b%b" % (b",".join(parts), head, ref[node.body]))
        if isinstance(node, Let):
            return self._number(b"L" + b",".join([ref[c] for c in node.operands()]))
        if isinstance(node, (If, RefCreate, RefRead, RefWrite)):
            kind = type(node).__name__.encode()
            return self._number(kind + b",".join([ref[c] for c in node.operands()]))
        if isinstance(node, Match):
            clauses = [self._pattern(c.lhs) + b"=>" + ref[c.rhs] for c in node.clauses]
            head = b"M%d" % node.complete + ref[node.data]
            return self._number(head + b",".join(clauses))
        if isinstance(node, Constructor):
            return self._constructor(node)
        self._local = True
        return b"X%d" % _local_number(node)

    def _free(self, var: Var) -> bytes:
        if self._map_free_vars:
            return self._number(b"V" + self._annotation(var))
        self._local = True
        return b"X%d" % _local_number(var)

    def _pattern(self, pattern: Any) -> bytes:
        if isinstance(pattern, PatternWildcard):
            return b"_"
        if isinstance(pattern, PatternVar):
            self._define(pattern.var)
            return self._ref[pattern.var]
        parts = b",".join([self._pattern(p) for p in pattern.patterns])
        if isinstance(pattern, PatternConstructor):
            return self._constructor(pattern.constructor) + b"(%b)" % parts
        assert isinstance(pattern, PatternTuple)
        return b"(%b)" % parts

    def _constructor(self, con: Constructor) -> bytes:
        return f"c{con.name_hint}/{con.belong_to.name_hint}".encode()

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
        if isinstance(value, Clause):
            return self._pattern(value.lhs) + self._value(value.rhs)
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
        if isinstance(ty, FuncType):
            for param in ty.type_params:
                self._define(param)
            head = b"%d" % len(ty.type_params) + self._value(ty.arg_types)
            return b"fn" + head + self._value(ty.ret_type)
        if isinstance(ty, TypeData):
            for param in ty.type_vars:
                self._define(param)
            cons = [self._constructor(c) + self._value(c.inputs) for c in ty.constructors]
            return b"D" + ty.header.name_hint.encode() + b",".join(cons)
        if isinstance(ty, TupleType):
            return b"u" + self._value(ty.fields)
        if isinstance(ty, RefType):
            return b"r" + self._value(ty.value)
        if isinstance(ty, TypeCall):
            return b"y" + ty.func.name_hint.encode() + self._value(ty.args)
        if isinstance(ty, GlobalTypeVar):
            return b"g" + ty.name_hint.encode()
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
