"""LoweredFunction: what an IRModule holds beside Relay functions, without looking inside.

The loop-level form (``compiler.lir``) derives its PrimFunc from it and registers the reader of its
text, so that modules with lowered functions are printed, parsed, compared, typed and evaluated here
although this package knows no loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Array as Array
from compiler.ir.ty import FuncType
from compiler.named_table import NamedTable

if TYPE_CHECKING:
    from compiler.ir.text.lexer import Source


class LoweredFunction(ABC):
    """A function of a module that is no Relay expression any more; equal by content.

    Attributes:
        name: of the global it is, or will be; no part of its content.
        attrs: hold ``target``, the canonical text of the Target it was lowered for.
    """

    __slots__ = ()

    name: str
    attrs: DictAttrs

    @property
    @abstractmethod
    def func_type(self) -> FuncType:
        """Tensors in, a tensor or a tuple of tensors out."""

    @abstractmethod
    def with_attr(self, key: str, value: Any) -> Self:
        """A copy with one attribute set."""

    @abstractmethod
    def definition(self, name: str, constant: Callable[[Array], str]) -> str:
        """``@name = primfn(…) -> (…) attrs={…} {``, its lines, and ``}`` alone on the last line.

        Args:
            name: name of the global, quoted if it has to be.
            constant: the text ``meta[relay.Constant][i]`` that stands for an array.
        """

    @abstractmethod
    def evaluate(self, args: Sequence[Array]) -> list[Array]:
        """The outputs for one array per parameter, computed with numpy."""

    @abstractmethod
    def digest(self) -> bytes:
        """16 bytes over everything that makes two of them different, the same in every process."""


DefinitionParser = Callable[["Source", int, int, Callable[[int], Array]], LoweredFunction]
"""``parse(source, start, end, constant)``: the definition between two offsets of a text; ``start``
is that of ``primfn``, ``constant(i)`` the array of ``meta[relay.Constant][i]``."""

lowered_parsers: NamedTable[DefinitionParser] = NamedTable("kind of definition")
"""Keyword → the reader of definitions that start with ``@name = <keyword>(``."""

register_lowered_parser = lowered_parsers.register
