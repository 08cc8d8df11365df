"""Unification of types and the work list of type relations: the engine under InferType."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn
from weakref import WeakMethod

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.ty import (
    MAX_ALL_TYPE_PARTS,
    Dim,
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    TensorType,
    Type,
    TypeCall,
    TypeVar,
    check_parts,
    map_type,
)
from compiler.ir.ty import Any as AnyDim

RELATION_SLIPS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors of a relation that trips over a kind of type it did not foresee: a wrong argument."""


class Pending(NamedTuple):
    """A relation that lacked information: its call, argument types and result type."""

    call: Call
    types: tuple[Type, ...]


class PartsBudget:
    """Budget of the parts of nested types that one inference looks at, over all functions."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0

    def spend(self, parts: int) -> None:
        """Raises TypeInferenceError: more than MAX_ALL_TYPE_PARTS in total."""
        self._spent += parts
        if self._spent > MAX_ALL_TYPE_PARTS:
            raise TypeInferenceError(
                f"the types of all nodes hold more than {MAX_ALL_TYPE_PARTS} others",
                fix="use smaller tuples, or fewer of them",
            )


class TypeSolver:
    """Holes, what they stand for, and the relations that wait for them.

    Args:
        budget: shared by all functions of a module.
        on_error: told of a relation that failed, with its call; the solver goes on. The owner of
            the method owns the solver.
    """

    def __init__(
        self,
        budget: PartsBudget,
        on_error: WeakMethod[Callable[[Call, TypeInferenceError], object]],
    ) -> None:
        self._budget = budget
        self._bound: dict[IncompleteType, Type] = {}
        self._waiting: dict[IncompleteType, list[Pending]] = {}
        self._ready: deque[Pending] = deque()
        self._unsolved: dict[Call, Pending] = {}
        self._failed: set[IncompleteType] = set()
        self._merged = 0
        self._on_error = on_error

    def hole(self) -> IncompleteType:
        """A fresh unknown type."""
        return IncompleteType()

    def failed_hole(self) -> IncompleteType:
        """An unknown type whose reason has been reported already."""
        hole = IncompleteType()
        self._failed.add(hole)
        return hole

    def is_failed(self, ty: Type) -> bool:
        """True when ``ty`` contains a hole that an earlier error left behind."""
        return any(h in self._failed for h in self.holes(ty))

    def mark_failed(self, ty: Type) -> None:
        """Everything still unknown in ``ty`` is the consequence of an error already reported."""
        self._failed.update(self.holes(ty))

    def holes(self, ty: Type) -> list[IncompleteType]:
        """Unknowns left in ``ty``."""
        found: list[IncompleteType] = []
        # Holes share what they stand for: sixty nested pairs of holes are sixty types, not 2^60.
        seen: set[int] = set()
        stack = [ty]
        while stack:
            top = self.find(stack.pop())
            if isinstance(top, IncompleteType):
                found.append(top)
            elif not isinstance(top, TensorType) and id(top) not in seen:
                seen.add(id(top))
                parts = top.members()
                self._budget.spend(len(parts))
                stack.extend(parts)
        return found

    def find(self, ty: Type) -> Type:
        """Return the type that ``ty`` stands for, at its head only."""
        while type(ty) is IncompleteType:
            target = self._bound.get(ty)
            if target is None:
                return ty
            ty = target
        return ty

    def resolve(self, ty: Type) -> Type:
        """``ty`` with every known hole replaced; itself when it has none."""
        ty = self.find(ty)
        if isinstance(ty, (TensorType, IncompleteType, TypeVar)):
            return ty
        self._budget.spend(len(ty.members()))
        return map_type(ty, self.resolve)

    def assign(self, dst: Type, src: Type) -> None:
        """Reporter's half: make ``dst`` and ``src`` one type."""
        self.unify(dst, src)

    def _set(self, hole: IncompleteType, ty: Type) -> None:
        ty = self.find(ty)
        if ty is hole:
            return
        if not isinstance(ty, (TensorType, IncompleteType)) and hole in self.holes(ty):
            raise TypeInferenceError(f"a type would contain itself: {self.resolve(ty)}")
        self._bound[hole] = ty
        if hole in self._failed and isinstance(ty, IncompleteType):
            self._failed.add(ty)
        if self._waiting:
            self._ready.extend(self._waiting.pop(hole, ()))

    def unify(self, a: Type, b: Type) -> Type:
        """Make two types one; an unknown dimension takes the size of the other.

        Raises:
            TypeInferenceError: they differ (the message holds both), or hold too many parts.
        """
        self._merged = 0
        return self._merge(a, b, _refine)

    def merge_branches(self, a: Type, b: Type) -> Type:
        """Type of a value that is either ``a`` or ``b``: a dimension unknown in one is unknown."""
        self._merged = 0
        return self._merge(a, b, _widen)

    def _merge(self, a: Type, b: Type, dim: Callable[[Dim, Dim], Dim]) -> Type:
        head_a = self.find(a)
        head_b = self.find(b)
        if head_a is head_b:
            return head_a
        if isinstance(head_a, IncompleteType):
            self._set(head_a, head_b)
            return head_b
        if isinstance(head_b, IncompleteType):
            self._set(head_b, head_a)
            return head_a
        merged = self._merge_known(head_a, head_b, dim)
        for original, head in ((a, head_a), (b, head_b)):
            if merged is not head and type(original) is IncompleteType:
                self._rebind(original, merged)
        return merged

    def _rebind(self, hole: IncompleteType, merged: Type) -> None:
        last = hole
        while type(target := self._bound[last]) is IncompleteType:
            last = target
        self._bound[last] = merged

    def _merge_known(self, a: Type, b: Type, dim: Callable[[Dim, Dim], Dim]) -> Type:
        if type(a) is not type(b):
            self._clash(a, b)
        if isinstance(a, TensorType) and isinstance(b, TensorType):
            return _merge_tensors(a, b, dim)
        if isinstance(a, (TypeVar, GlobalTypeVar)):
            if a != b:
                self._clash(a, b)
            return a
        if isinstance(a, FuncType) and isinstance(b, FuncType):
            if len(a.type_params) != len(b.type_params):
                self._clash(a, b)
            if b.type_params:
                b = instantiate(b, dict(zip(b.type_params, a.type_params)), keep_params=True)
        if isinstance(a, TypeCall) and isinstance(b, TypeCall) and a.func != b.func:
            self._clash(a, b)
        mine = a.members()
        theirs = b.members()
        self._merged += len(mine)
        self._budget.spend(len(mine))
        check_parts(self._merged - max(a.listed, b.listed))
        if len(mine) != len(theirs):
            self._clash(a, b)
        merged = iter([self._merge(x, y, dim) for x, y in zip(mine, theirs)])
        return map_type(a, lambda _: next(merged))

    def _clash(self, a: Type, b: Type) -> NoReturn:
        raise TypeInferenceError(f"type {self.resolve(a)} does not match {self.resolve(b)}")

    def relate(self, call: Call, types: tuple[Type, ...]) -> None:
        """Run the relation of an operator call now, or when more is known."""
        self._run(Pending(call, types))
        if self._ready:
            self.solve()

    def solve(self) -> None:
        """Re-run relations until none has anything new to say."""
        while self._ready:
            item = self._ready.popleft()
            if item.call in self._unsolved:
                self._run(item)

    @property
    def unsolved(self) -> list[Pending]:
        """Relations still waiting, in program order."""
        return list(self._unsolved.values())

    def _run(self, item: Pending) -> None:
        call, types = item
        op: Any = call.op
        known = [t if type(t) is TensorType else self.resolve(t) for t in types]
        try:
            solved = op.rel(known, len(types) - 1, call.attrs, self)
        except (TypeInferenceError, *RELATION_SLIPS) as error:
            self._unsolved.pop(call, None)
            self.mark_failed(types[-1])
            if not any(self.is_failed(t) for t in types[:-1]):
                if not isinstance(error, TypeInferenceError):
                    what = f"these argument types do not fit ({type(error).__name__}: {error})"
                    error = TypeInferenceError(what)
                on_error = self._on_error()
                assert on_error is not None
                on_error(call, error)
            return
        if solved:
            self._unsolved.pop(call, None)
            return
        if any(self.is_failed(t) for t in known[:-1]):
            self.mark_failed(types[-1])
            return
        self._unsolved[call] = item
        for hole in {h for t in known for h in self.holes(t)}:
            self._waiting.setdefault(hole, []).append(item)


def instantiate(ty: Type, mapping: dict[TypeVar, Type], *, keep_params: bool = False) -> Any:
    """``ty`` with type variables replaced; a function type drops its own unless they are kept."""

    def change(part: Type) -> Type:
        if isinstance(part, TypeVar):
            return mapping.get(part, part)
        return map_type(part, change)

    if isinstance(ty, FuncType) and ty.type_params:
        if keep_params:
            params = tuple(mapping.get(p, p) for p in ty.type_params)
        else:
            params = ()
        kept = tuple(p for p in params if isinstance(p, TypeVar))
        return FuncType(tuple(map(change, ty.arg_types)), change(ty.ret_type), kept)
    return change(ty)


def _refine(a: Dim, b: Dim) -> Dim:
    if isinstance(a, AnyDim):
        return b
    return a


def _widen(a: Dim, b: Dim) -> Dim:
    if isinstance(a, AnyDim):
        return a
    return b


def _merge_tensors(a: TensorType, b: TensorType, dim: Callable[[Dim, Dim], Dim]) -> TensorType:
    if a.dtype != b.dtype:
        raise TypeInferenceError(f"dtype {a.dtype} of {a} does not match dtype {b.dtype} of {b}")
    if a.shape == b.shape:
        return a
    if len(a.shape) != len(b.shape):
        raise TypeInferenceError(
            f"rank {len(a.shape)} of {a} does not match rank {len(b.shape)} of {b}"
        )
    for axis, (x, y) in enumerate(zip(a.shape, b.shape)):
        if x != y and not isinstance(x, AnyDim) and not isinstance(y, AnyDim):
            raise TypeInferenceError(f"{a} does not match {b}: axis {axis} has sizes {x} and {y}")
    shape = tuple(dim(x, y) for x, y in zip(a.shape, b.shape))
    if shape == a.shape:
        return a
    if shape == b.shape:
        return b
    return TensorType(shape, a.dtype)
