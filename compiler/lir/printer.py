"""The text of loops, which ``compiler.lir.parser`` reads back.

    @m_fused_add = primfn(p0: int32[1, 4]) -> (o0: int8[1, 4]) attrs={target="c"} {
      const c0: int32[4] = meta[relay.Constant][0]
      o0[i, j] for (i<1, j<4) = int8(min(max(p0[i, j] + c0[j], -127), 127))
    }

Literals carry their dtype: ``0`` is int32, ``0i8`` int8, ``0u8`` uint8, ``0f`` float32, ``0f64``
float64. ``int8(x)`` is a cast. Inside brackets arithmetic stands without blanks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.errors import LoweringError
from compiler.ir.lowered_function import Array
from compiler.ir.text import literals
from compiler.lir.nodes import Block, Extern, PrimFunc
from compiler.lir.scalars import (
    Acc,
    Axis,
    Bin,
    BoolImm,
    Buffer,
    Cast,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Scalar,
    Select,
    Un,
)

INFIX = {
    "or": ("||", 1), "and": ("&&", 2),
    "==": ("==", 3), "!=": ("!=", 3), "<": ("<", 3), "<=": ("<=", 3), ">": (">", 3),
    ">=": (">=", 3), "|": ("|", 4), "^": ("^", 5), "&": ("&", 6), "<<": ("<<", 7),
    ">>": (">>", 7), "+": ("+", 8), "-": ("-", 8), "*": ("*", 9), "/": ("/", 9),
}  # fmt: skip
"""Operation → symbol and how tightly it binds; all others are written as functions."""

INT_SUFFIX = {
    "int32": "", "int8": "i8", "int16": "i16", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}  # fmt: skip
FLOAT_SUFFIX = {"float32": "f", "float16": "f16", "float64": "f64"}
_ATOM = 99


def definition(func: PrimFunc, name: str, constant: Callable[[Array], str]) -> str:
    """``@name = primfn(…) -> (…) attrs={…} {``, a line per declaration and block, ``}``.

    Args:
        func: any.
        name: name of the global, quoted if it has to be.
        constant: the text that stands for an array.
    """
    attrs = f" attrs={attributes(func.attrs)}" if func.attrs else ""
    heads = [_buffers(func.params), _buffers(func.outputs)]
    lines = [f"@{name} = primfn({heads[0]}) -> ({heads[1]}){attrs} {{"]
    lines += [f"  const {_declared(b)} = {constant(content)}" for b, content in func.consts]
    lines += [f"  temp {_declared(buffer)}" for buffer in func.temps]
    lines += [f"  {block_text(block)}" for block in func.blocks]
    return "\n".join([*lines, "}"])


def block_text(block: Block) -> str:
    """One line."""
    if isinstance(block, Extern):
        outs = ", ".join(buffer.name for buffer in block.outs)
        ins = ", ".join(buffer.name for buffer in block.ins)
        if block.attrs:
            attrs = f" attrs={attributes(block.attrs)}"
        else:
            attrs = ""
        return f"{outs} = extern {literals.string(block.symbol)}({ins}){attrs}"
    where = ", ".join(scalar_text(index, tight=True) for index in block.out_index)
    hints = "".join(f" {hint}" for hint in block.hints)
    head = f"{block.out.name}[{where}] for ({_loops(block.axes)}){hints} ="
    if block.init is None:
        return f"{head} {scalar_text(block.expr)}"
    start = f"{block.combiner}({scalar_text(block.init)}; {_loops(block.raxes)})"
    if block.post is None:
        post = ""
    else:
        post = f" |> {scalar_text(block.post)}"
    return f"{head} {start} {scalar_text(block.expr)}{post}"


def attributes(attrs: Any) -> str:
    """``{key=value, …}`` of numbers, strings, bools and (nested) tuples of them."""
    return "{" + ", ".join(f"{literals.key(k)}={_value(v)}" for k, v in attrs.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return literals.shortest(value) + "f64"
    if isinstance(value, str):
        return literals.string(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise LoweringError(f"an attribute of loops cannot be a {type(value).__name__}")


def _declared(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _buffers(buffers: Sequence[Buffer]) -> str:
    return ", ".join(map(_declared, buffers))


def _loops(axes: Sequence[Axis]) -> str:
    return ", ".join(f"{axis.name}<{axis.extent}" for axis in axes)


def scalar_text(root: Scalar, tight: bool = False) -> str:
    """An expression, written out as a tree.

    Args:
        root: the expression.
        tight: without blanks around operators, as inside brackets.
    """
    done: list[tuple[str, int]] = []
    stack: list[tuple[Scalar, bool, bool]] = [(root, tight, False)]
    while stack:
        node, close, operands_done = stack.pop()
        operands = node.operands()
        if operands and not operands_done:
            stack.append((node, close, True))
            inside = close or isinstance(node, Load)
            stack.extend((operand, inside, False) for operand in reversed(operands))
            continue
        parts = done[len(done) - len(operands) :]
        del done[len(done) - len(operands) :]
        done.append(_text(node, parts, close))
    return done[0][0]


def _text(node: Scalar, parts: list[tuple[str, int]], tight: bool) -> tuple[str, int]:
    if isinstance(node, Bin) and node.op in INFIX:
        symbol, level = INFIX[node.op]
        (left, left_level), (right, right_level) = parts
        # Comparisons do not chain; everything else groups from the left.
        if left_level < level or (level == 3 and left_level == 3):
            left = f"({left})"
        if right_level <= level:
            right = f"({right})"
        gap = "" if tight else " "
        return f"{left}{gap}{symbol}{gap}{right}", level
    words = [text for text, _ in parts]
    if isinstance(node, Load):
        return f"{node.buffer.name}[{', '.join(words)}]", _ATOM
    if isinstance(node, Intrin) and node.to is not None:
        words = [node.to, *words]
    if isinstance(node, Bin | Un | Cast | Select | Intrin):
        return f"{_function(node)}({', '.join(words)})", _ATOM
    return _leaf(node), _ATOM


def _function(node: Scalar) -> str:
    if isinstance(node, Bin | Un):
        return node.op
    if isinstance(node, Cast):
        return node.to
    if isinstance(node, Intrin):
        return node.name
    return "select"


def _leaf(node: Scalar) -> str:
    if isinstance(node, IntImm):
        return f"{node.value}{INT_SUFFIX[node.dtype]}"
    if isinstance(node, FloatImm):
        return literals.shortest(node.value, node.dtype) + FLOAT_SUFFIX[node.dtype]
    if isinstance(node, BoolImm):
        return str(node.value)
    if isinstance(node, Axis):
        return node.name
    assert isinstance(node, Acc)
    return "acc"
