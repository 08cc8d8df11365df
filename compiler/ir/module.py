"""IRModule: a persistent map from names to functions, with type definitions and attributes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from compiler.errors import CompilerError, check_known
from compiler.ir.adt import TypeData, free_vars
from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Op, text_for_people
from compiler.ir.ty import FuncType, GlobalTypeVar
from compiler.ir.walk import nodes_of
from compiler.text_output import abbreviated, html_table

# A Function, or a LoweredFunction, which the IR holds without looking inside.
BaseFunc = Any
T = TypeVar("T")


INTEGER_WEIGHTS: Final = "integer_weights"
"""Attribute of a module whose weights came as integers."""


class IRModule:
    """Functions by GlobalVar, in name order. Every ``with_*`` method returns a new module.

    Args:
        functions: GlobalVar (or name) → Function; names are unique.
        type_definitions: algebraic data types.
        attrs: module attributes.
    """

    __slots__ = ("_attrs", "_functions", "_types", "_views")

    def __init__(
        self,
        functions: Mapping[GlobalVar, BaseFunc] | Mapping[str, BaseFunc] | None = None,
        type_definitions: Mapping[GlobalTypeVar, TypeData] | None = None,
        attrs: DictAttrs | Mapping[str, Any] | None = None,
    ) -> None:
        self._views: dict[Any, Any] = {}
        self._functions: dict[str, tuple[GlobalVar, BaseFunc]] = {}
        self._types: dict[str, TypeData] = {
            header.name_hint: data for header, data in (type_definitions or {}).items()
        }
        if isinstance(attrs, DictAttrs):
            self._attrs = attrs
        elif attrs:
            self._attrs = DictAttrs(attrs)
        else:
            self._attrs = NO_ATTRS
        for key, function in (functions or {}).items():
            gv = key if isinstance(key, GlobalVar) else GlobalVar(key)
            if gv.name_hint in self._functions:
                raise CompilerError(f"two definitions of @{gv.name_hint}")
            self._functions[gv.name_hint] = gv, function

    @staticmethod
    def from_expr(expr: Expr) -> IRModule:
        """A module whose @main is ``expr``, wrapped over its free variables if no function."""
        if isinstance(expr, Function):
            main = expr
        else:
            main = Function(tuple(free_vars(expr)), expr)
        return IRModule({"main": main})

    @property
    def functions(self) -> dict[GlobalVar, BaseFunc]:
        """All functions, in name order."""
        return dict(self._functions[name] for name in sorted(self._functions))

    @property
    def type_definitions(self) -> dict[GlobalTypeVar, TypeData]:
        """All algebraic data types, in name order."""
        return {self._types[n].header: self._types[n] for n in sorted(self._types)}

    @property
    def attrs(self) -> DictAttrs:
        """Module attributes."""
        return self._attrs

    def view(self, make: Callable[[IRModule], T]) -> T:
        """Return ``make(self)``, computed once for this version of the module."""
        if make not in self._views:
            self._views[make] = make(self)
        found: T = self._views[make]
        return found

    def _definition(self, name: str) -> tuple[GlobalVar, BaseFunc]:
        check_known(name, self._functions, f"the module has no function @{name}")
        return self._functions[name]

    def __getitem__(self, key: GlobalVar | str) -> BaseFunc:
        return self._definition(key if isinstance(key, str) else key.name_hint)[1]

    def contains(self, name: str) -> bool:
        """True when a function of this name is there."""
        return name in self._functions

    __contains__ = contains

    def __iter__(self) -> Iterator[GlobalVar]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self._functions)

    def get_global_var(self, name: str) -> GlobalVar:
        """The one GlobalVar object of this name.

        Raises:
            CompilerError: there is none.
        """
        return self._definition(name)[0]

    def get_type(self, name: str) -> TypeData:
        """Definition of an algebraic data type.

        Raises:
            CompilerError: there is none.
        """
        check_known(name, self._types, f"the module has no type {name}")
        return self._types[name]

    def with_function(self, key: GlobalVar | str, function: BaseFunc) -> IRModule:
        """A copy in which ``key`` names ``function``; a GlobalVar already there is kept."""
        return self.updated({key if isinstance(key, GlobalVar) else GlobalVar(key): function})

    def updated(self, functions: Mapping[GlobalVar, BaseFunc]) -> IRModule:
        """A copy in which these names have these definitions, and all others the one they had.

        One copy for many: ``with_function`` in a loop costs the square of the functions.
        """
        copy = self._copy()
        for gv, function in functions.items():
            held, _ = copy._functions.get(gv.name_hint, (gv, None))
            copy._functions[gv.name_hint] = held, function
        return copy

    def with_functions(self, functions: Mapping[GlobalVar, BaseFunc]) -> IRModule:
        """A copy with exactly these functions."""
        return IRModule(functions, self.type_definitions, self._attrs)

    def without(self, key: GlobalVar | str) -> IRModule:
        """A copy without one function."""
        name = key if isinstance(key, str) else key.name_hint
        copy = self._copy()
        copy._functions.pop(name, None)
        return copy

    def with_type(self, data: TypeData) -> IRModule:
        """A copy with one more algebraic data type."""
        copy = self._copy()
        copy._types[data.header.name_hint] = data
        return copy

    def with_attr(self, key: str, value: Any) -> IRModule:
        """A copy with one module attribute set."""
        copy = self._copy()
        copy._attrs = self._attrs.with_attr(key, value)
        return copy

    def add(self, key: GlobalVar | str, function: BaseFunc, *, update: bool = False) -> GlobalVar:
        """In place, for builders: define a function and return its GlobalVar.

        Raises:
            CompilerError: the name is taken and ``update`` is False.
        """
        name = key if isinstance(key, str) else key.name_hint
        if name in self._functions and not update:
            raise CompilerError(f"@{name} is defined already", fix="pass update=True to replace it")
        new = key if isinstance(key, GlobalVar) else GlobalVar(name)
        gv, _ = self._functions.get(name, (new, None))
        self._functions[name] = gv, function
        self._views.clear()
        return gv

    def __setitem__(self, key: GlobalVar | str, function: BaseFunc) -> None:
        """``add`` with ``update``: ``mod["main"] = function``."""
        self.add(key, function, update=True)

    def _copy(self) -> IRModule:
        copy = IRModule.__new__(IRModule)
        copy._views = {}
        copy._functions = dict(self._functions)
        copy._types = dict(self._types)
        copy._attrs = self._attrs
        return copy

    def __repr__(self) -> str:
        return f"<IRModule {', '.join('@' + n for n in sorted(self._functions))}>"

    def __str__(self) -> str:
        """Relay text with large constants described, for people; its repr where it has no text."""
        return text_for_people(self)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return self.html()

    def html(self, title: str = "IRModule") -> str:
        """A row per function: its parameters, its result, how many calls of which operators."""
        rows = [(f"@{name}", *_function_row(self[name])) for name in sorted(self._functions)]
        return html_table(title, ("function", "takes", "gives", "calls"), rows)


_COMMONEST: Final = 3
_SHOWN: Final = 4


def _function_row(function: object) -> tuple[str, str, str]:
    if not isinstance(function, Function):
        return "", "", type(function).__name__
    inferred = function.checked_type_or_none
    gives = inferred.ret_type if isinstance(inferred, FuncType) else function.ret_type
    takes = [f"{p.name_hint}: {p.type_annotation or 'any'}" for p in function.params]
    calls = [node for node in nodes_of(function) if isinstance(node, Call)]
    names = Counter(call.op.name if isinstance(call.op, Op) else "functions" for call in calls)
    common = ", ".join(f"{count} {name}" for name, count in names.most_common(_COMMONEST))
    more = "" if len(names) <= _COMMONEST else ", …"
    return (
        abbreviated(takes, _SHOWN),
        str(gives or "not inferred"),
        f"{len(calls)}" + (f" ({common}{more})" if calls else ""),
    )
