"""A converter's signature is ONNX's: the inputs of a node in their order, then its attributes.

    def converter(node: OnnxNode, x: Expr, shape: list[int], *, axis: int = -1, mode: Literal[…]) …

An annotation says how a value is read.

    Expr, Expr | None       an input; None where it is not given
    Input, Input | None     an input that is read when it is asked: a weight in another form
    Array, list[int], …     an input that must be constant
    *data: Expr             all further inputs
    keyword                 an attribute, with ONNX's default; Literal: one of these texts
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array

Converted = Expr | Sequence[Expr]


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """An input of a node that is not read yet: a weight may become a parameter of another form."""

    node: OnnxNode
    index: int

    @property
    def expr(self) -> Expr:
        """The input as it is."""
        return self.node.arg(self.index)

    @property
    def known(self) -> Array | None:
        """Its content where it is constant."""
        return self.node.known(self.index)

    @property
    def is_stored(self) -> bool:
        """Return whether it is made of initializers alone."""
        return self.node.values.is_stored(self.node.proto.input[self.index])

    @property
    def shape(self) -> tuple[int, ...]:
        """Its static shape; a stored weight is not made a parameter by asking."""
        known = self.known
        if known is None:
            return self.node.shape(self.expr)
        return known.shape

    def weight(self, form: str, derive: Callable[[Array], Array]) -> Expr | None:
        """A derived form of a constant; None where it is computed."""
        return self.node.weight(self.index, form, derive)


_Reader = Callable[[OnnxNode], Any]


def by_signature(function: Callable[..., Converted]) -> Callable[[OnnxNode], Converted]:
    """Return a converter that reads what the signature of ``function`` names."""
    ordered: list[_Reader] = []
    named: dict[str, _Reader] = {}
    rest: int | None = None
    inputs = 0
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.annotation in (OnnxNode, parameter.empty):
            ordered.append(lambda node: node)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = _attribute(name, parameter)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            rest = inputs
        else:
            ordered.append(_input(inputs, name, parameter.annotation))
            inputs += 1

    def convert(node: OnnxNode) -> Converted:
        given = [read(node) for read in ordered]
        if rest is not None:
            given += [node.arg(index) for index in range(rest, node.num_inputs)]
        return function(*given, **{name: read(node) for name, read in named.items()})

    return convert


def _input(index: int, name: str, annotation: Any) -> _Reader:
    kinds = get_args(annotation)
    optional = NoneType in kinds
    if optional:
        kind = next(k for k in kinds if k is not NoneType)
    else:
        kind = annotation
    read = _reader(index, f"the {name.replace('_', ' ')}", kind)
    if optional:
        return lambda node: read(node) if node.has_input(index) else None
    return read


def _reader(index: int, what: str, kind: Any) -> _Reader:
    if kind is Expr:
        return lambda node: node.arg(index)
    if kind is Input:
        return lambda node: Input(node, index)
    if kind is int:
        return lambda node: node.ints(index, what)[0]
    if kind == list[int]:
        return lambda node: node.ints(index, what)
    if kind == list[float]:
        return lambda node: node.floats(index, what)
    assert get_origin(kind) is np.ndarray, f"{kind} is no kind of an input"
    return lambda node: node.require_known(index, what)


def _attribute(name: str, parameter: inspect.Parameter) -> _Reader:
    kind = parameter.annotation
    if get_origin(kind) is Literal:
        legal = get_args(kind)
        return lambda node: node.choice(name, legal)
    default = parameter.default
    if default is parameter.empty:
        return lambda node: node.attr(name)
    if kind is bool:
        return lambda node: bool(node.attr(name, default))
    return lambda node: node.attr(name, default)
