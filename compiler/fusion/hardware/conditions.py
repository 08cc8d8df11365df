"""Conditions: what must hold of a call for a unit to take it, such as ``attr(groups, ==, 1)``.

Each condition is a function of its arguments that returns a test of a DFG node; to add one, write
it here under ``@conditions.register``, or a test under ``@_without_arguments``. A test sees typed
nodes and never raises.

The text of a condition is parsed, never evaluated: an argument is a number, ``true``, ``false``,
``none``, a quoted or bare word, one of the operators ``== != <= >= in``, or a list of arguments in
square brackets.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from compiler.errors import HDFGError, UnknownOpError, check_known, legal_names
from compiler.fusion.hardware.dfg import Node
from compiler.ir.expr import Expr, Op
from compiler.ir.op import RESHAPE
from compiler.ir.pass_text import number_or_word
from compiler.ir.ty import DTYPES, TensorType, Type, bits, is_dynamic, tensor_fields
from compiler.named_table import NamedTable

_WORDS = {"true": True, "false": False, "none": None}
_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[\[\],]) | "(?P<quoted>[^"]*)" | '(?P<single>[^']*)'
        | (?P<bare>[^\s\[\],"']+))\s*""",
    re.VERBOSE,
)


def split_condition(text: str) -> tuple[str, list[Any]]:
    """``attr(groups, ==, 1)`` → ``("attr", ["groups", "==", 1])``.

    Raises:
        HDFGError: the text is not of this form.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise HDFGError(f"{text!r} is no condition", fix="write name, or name(argument, …)")
    name, inside = found.groups()
    return name, [] if inside is None else _arguments(inside, text)


def _arguments(inside: str, text: str) -> list[Any]:
    lists: list[list[Any]] = [[]]
    place = 0
    after_value = False
    while place < len(inside):
        token = _TOKEN.match(inside, place)
        if token is None:
            raise _malformed(text, f"{inside[place:]!r} cannot be read")
        place = token.end()
        mark = token["mark"]
        if mark == ",":
            if not after_value:
                raise _malformed(text, "a comma has nothing before it")
            after_value = False
            continue
        if mark == "]":
            if len(lists) == 1:
                raise _malformed(text, "a ] closes nothing")
            closed = lists.pop()
            lists[-1].append(closed)
        elif after_value:
            raise _malformed(text, f"a comma is missing before {token[0].strip()!r}")
        elif mark == "[":
            lists.append([])
            continue
        else:
            lists[-1].append(_value(token))
        after_value = True
    if len(lists) > 1:
        raise _malformed(text, "a [ is not closed")
    return lists[0]


def _value(token: re.Match[str]) -> Any:
    if token["bare"] is None:
        if token["quoted"] is not None:
            return token["quoted"]
        return token["single"]
    word = token["bare"]
    if word in _WORDS:
        return _WORDS[word]
    return number_or_word(word)


def _malformed(text: str, why: str) -> HDFGError:
    return HDFGError(
        f"condition {text!r} is malformed: {why}", fix="write name(argument, [list, of, them], …)"
    )


Test = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as written, and its test."""

    text: str
    holds: Test


ConditionMaker = Callable[[Sequence[Any], Op], Test]

conditions: NamedTable[ConditionMaker] = NamedTable("condition", HDFGError)
"""Name → function of the arguments and of the operator the condition is written for."""


@contextmanager
def located(where: str, key: tuple[str | int, ...] = ()) -> Iterator[None]:
    """Errors inside the block are of this place of a description, unless they name one."""
    try:
        yield
    except HDFGError as error:
        error.key = error.key or key
        error.where = error.where or where
        raise


def parse_condition(text: str, op: Op) -> Condition:
    """The condition that ``text`` names, for calls of ``op``.

    Raises:
        HDFGError: unknown condition, or arguments it does not take.
    """
    name, args = split_condition(text)
    with located(f"condition {text!r} of {op.name}"):
        return Condition(text, conditions.require(name)(args, op))


def _exactly(count: int, args: Sequence[Any], form: str) -> None:
    if len(args) != count:
        raise HDFGError(
            f"{form.partition('(')[0]} takes {count} arguments, got {len(args)}",
            fix=f"write {form}",
        )


def _without_arguments(test: Test) -> Test:
    """Register a test under its own name; the condition takes no arguments."""

    def made(args: Sequence[Any], op: Op) -> Test:
        _exactly(0, args, test.__name__)
        return test

    conditions.register(test.__name__)(made)
    return test


def _whole(args: Sequence[Any], form: str) -> int:
    """The one argument of a condition, a whole number."""
    _exactly(1, args, form)
    (value,) = args
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise HDFGError(f"{value!r} is no whole number", fix=f"write {form}")
    return value


def _words(args: Sequence[Any]) -> list[Any]:
    """``(a, b)`` and ``([a, b])`` are the same."""
    if len(args) == 1 and isinstance(args[0], list):
        return list(args[0])
    return list(args)


def tensor_of(expr: Expr) -> TensorType | None:
    """The type of a tensor-valued expression; None for anything else."""
    ty = expr.checked_type_or_none
    if isinstance(ty, TensorType):
        return ty
    return None


def static_shape(ty: TensorType | None) -> tuple[int, ...] | None:
    """The shape of a tensor of known size; None otherwise."""
    if ty is None or is_dynamic(ty):
        return None
    return ty.concrete_shape


def channel_axis(rank: int) -> int:
    """Return the axis of channels: axis 1 of images (NCHW) and of higher ranks, the last of lower
    ones."""
    if rank >= 4:
        return 1
    return rank - 1


def bytes_of(ty: Type | None) -> int | None:
    """Size of a value in bytes, tuples summed; None where it is not known."""
    if ty is None or is_dynamic(ty):
        return None
    parts = tensor_fields(ty)
    return sum(part.num_elements * max(1, bits(part.dtype) // 8) for part in parts)


@conditions.register("const_operand")
def const_operand(args: Sequence[Any], op: Op) -> Test:
    """``const_operand(i)``: operand i is constant; ``const_operand(any)``: one of them is."""
    form = 'const_operand(1), or const_operand("any")'
    if list(args) == ["any"]:
        return lambda node: any(pred.constant for pred in node.preds)
    place = _whole(args, form)
    return lambda node: place < len(node.preds) and node.preds[place].constant


@_without_arguments
def no_const_operand(node: Node) -> bool:
    """No operand is constant."""
    return not any(pred.constant for pred in node.preds)


@_without_arguments
def distinct_operands(node: Node) -> bool:
    """No value is used twice, in another shape neither: a reshape makes no second operand."""
    return len(set(map(_unshaped, node.preds))) == len(node.preds)


def _unshaped(node: Node) -> Node:
    """The value that ``node`` has in another shape; ``node`` itself where it is no reshape."""
    while node.op_name is not None and RESHAPE in Op.get(node.op_name).flags:
        node = node.preds[0]
    return node


@_without_arguments
def same_shape_operands(node: Node) -> bool:
    """All operands are tensors of one known shape."""
    shapes = {static_shape(tensor_of(pred.ref)) for pred in node.preds}
    return len(shapes) == 1 and None not in shapes


@_without_arguments
def scalar_const(node: Node) -> bool:
    """Some operand is constant, and every constant operand has one element."""
    return _all_constants(node, lambda shape, result: all(d == 1 for d in shape))


@_without_arguments
def scalar_or_channel_const(node: Node) -> bool:
    """Some operand is constant; every constant has one element, or one per channel of the result.

    The channel axis is that of ``channel_axis``.
    """

    def per_channel(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
        if all(d == 1 for d in shape):
            return True
        channel = channel_axis(len(result))
        lead = len(result) - len(shape)
        return lead >= 0 and all(d == 1 or lead + axis == channel for axis, d in enumerate(shape))

    return _all_constants(node, per_channel)


def _all_constants(node: Node, test: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> bool:
    result = static_shape(tensor_of(node.ref))
    shapes = [static_shape(tensor_of(pred.ref)) for pred in node.preds if pred.constant]
    if result is None or not shapes:
        return False
    return all(shape is not None and test(shape, result) for shape in shapes)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "in": lambda value, legal: value in legal,
}


@conditions.register("attr")
def attr(args: Sequence[Any], op: Op) -> Test:
    """``attr(name, op, value)``: an attribute of the call compares so; ``in`` takes a list."""
    _exactly(3, args, "attr(groups, ==, 1), with one of == != <= >= in")
    name, comparison, wanted = args
    fields = getattr(op.attrs_type, "__dataclass_fields__", {})
    names = [field for field in fields if field != "type_key"]
    if name not in names:
        if names:
            fix = legal_names(str(name), names)
        else:
            fix = f"{op.name} has no attributes"
        raise HDFGError(f"{op.name} has no attribute {name!r}", fix=fix)
    compare = _COMPARISONS.get(comparison)
    if compare is None:
        raise HDFGError(f"{comparison!r} compares nothing", fix=f"one of: {' '.join(_COMPARISONS)}")
    is_number = isinstance(wanted, (int, float)) and not isinstance(wanted, bool)
    if (comparison == "in" and not isinstance(wanted, list)) or (
        comparison in ("<=", ">=") and not is_number
    ):
        raise HDFGError(
            f"attr(…, {comparison}, …) cannot compare with {wanted!r}",
            fix="give a list after in, a number after <= and >=",
        )
    if comparison == "in":
        expected = [_as_value(v) for v in wanted]
    else:
        expected = _as_value(wanted)

    def holds(node: Node) -> bool:
        value = _as_value(getattr(node.call.attrs, name, None))
        try:
            return compare(value, expected)
        except TypeError:  # an attribute that is unset, or a list, against a number
            return False

    return holds


def _as_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_as_value, value))
    return value


@conditions.register("dtype_in")
def dtype_in(args: Sequence[Any], op: Op) -> Test:
    """Every tensor that the call reads or gives has one of these dtypes."""
    wanted = _words(args)
    for dtype in wanted or [""]:
        check_known(dtype, DTYPES, f"unknown dtype {dtype!r}", HDFGError)
    legal = frozenset(wanted)

    def holds(node: Node) -> bool:
        types = [expr.checked_type_or_none for expr in (node.ref, *node.call.args)]
        return all(t is not None and {f.dtype for f in tensor_fields(t)} <= legal for t in types)

    return holds


@_without_arguments
def spatial_pad_only(node: Node) -> bool:
    """The two leading axes, batch and channel, are not padded, and nothing is cut off."""
    width = getattr(node.call.attrs, "pad_width", ())
    padded = all(size >= 0 for pair in width for size in pair)
    return len(width) > 2 and padded and all(tuple(pair) == (0, 0) for pair in width[:2])


@conditions.register("sole_consumer_in")
def sole_consumer_in(args: Sequence[Any], op: Op) -> Test:
    """Exactly one node uses the result, and it calls one of these operators."""
    wanted = _words(args)
    for name in wanted or [""]:
        require_op(name)
    legal = frozenset(wanted)

    def holds(node: Node) -> bool:
        users = set(node.succs)
        return not node.extern and len(users) == 1 and users.pop().op_name in legal

    return holds


@conditions.register("max_const_bytes")
def max_const_bytes(args: Sequence[Any], op: Op) -> Test:
    """The constant operands together take at most so many bytes."""
    limit = _whole(args, "max_const_bytes(65536)")

    def holds(node: Node) -> bool:
        sizes = [bytes_of(p.ref.checked_type_or_none) for p in node.preds if p.constant]
        return all(size is not None for size in sizes) and sum(filter(None, sizes)) <= limit

    return holds


def require_op(name: object) -> Op:
    """The operator a description names.

    Raises:
        HDFGError: there is none; the nearest names are listed.
    """
    try:
        return Op.get(str(name))
    except UnknownOpError as error:
        raise HDFGError(error.what, fix=error.fix) from None
