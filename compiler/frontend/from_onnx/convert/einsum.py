"""Einsum of any number of operands, by diagonals, sums and batched products of two operands.

Operands are folded from the left. A letter is kept as long as the output or a later operand has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

Letters = tuple[str, ...]


@from_onnx("Einsum", since=12)
def einsum(node: OnnxNode) -> Expr:
    """Sum over products of elements, indexed by the letters of the equation."""
    terms, output = _read_equation(node)
    remaining = Counter(letter for term in terms for letter in set(term))
    value: Expr | None = None
    letters: Letters = ()
    for index, term in enumerate(terms):
        remaining.subtract(set(term))
        operand, term = _diagonals(node, node.arg(index), term)
        later = {c for c, count in remaining.items() if count > 0} | set(output)
        if value is None:
            value, letters = _sum_out(node, operand, term, later)
        else:
            value, letters = _sum_out(node, value, letters, later | set(term))
            operand, term = _sum_out(node, operand, term, later | set(letters))
            value, letters = _product(node, value, letters, operand, term, later)
    assert value is not None
    if letters == output:
        return value
    return node.call("transpose", value, axes=tuple(letters.index(c) for c in output))


def _read_equation(node: OnnxNode) -> tuple[list[Letters], Letters]:
    """Letters per operand and of the output; an ellipsis becomes letters of its own.

    Raises:
        OnnxImportError: letters and ranks do not fit.
    """
    equation = node.attr("equation").replace(" ", "")
    inputs, arrow, right = equation.partition("->")
    texts = inputs.split(",")
    if len(texts) != node.num_inputs:
        raise node.error(f"equation {equation!r} is for {len(texts)} operands")
    ranks = [node.rank(node.arg(i)) for i in range(len(texts))]
    most = max(rank - len(text.replace("...", "")) for text, rank in zip(texts, ranks))
    terms = [_letters(node, text, rank, equation) for text, rank in zip(texts, ranks)]
    dots = _dots(most) if "..." in inputs else ()
    if arrow:
        before, found, after = right.partition("...")
        output = (*before, *(dots if found else ()), *after)
    else:
        once = Counter(c for text in texts for c in text.replace("...", ""))
        output = (*dots, *sorted(c for c, count in once.items() if count == 1))
    known = {c for term in terms for c in term}
    if len(set(output)) != len(output) or not known.issuperset(output):
        raise node.error(f"the output of equation {equation!r} does not fit its inputs")
    return terms, tuple(output)


def _dots(count: int) -> Letters:
    """Letters of an ellipsis over ``count`` axes; the last axis is always ``.0``."""
    return tuple(f".{i}" for i in reversed(range(count)))


def _letters(node: OnnxNode, text: str, rank: int, equation: str) -> Letters:
    before, found, after = text.partition("...")
    hidden = rank - len(before) - len(after)
    legal = all(c.isalpha() for c in before + after)
    if hidden < 0 or (hidden and not found) or not legal:
        raise node.error(f"{text!r} of equation {equation!r} does not fit rank {rank}")
    return (*before, *(_dots(hidden) if found else ()), *after)


def _diagonals(node: OnnxNode, value: Expr, letters: Letters) -> tuple[Expr, Letters]:
    """A letter that stands twice in one term picks the diagonal of its axes."""
    while len(set(letters)) < len(letters):
        letter = next(c for c, count in Counter(letters).items() if count > 1)
        first = letters.index(letter)
        second = letters.index(letter, first + 1)
        others = [i for i in range(len(letters)) if i not in (first, second)]
        shape = node.shape(value)
        size = shape[first]
        if shape[second] != size:
            raise node.error(f"letter {letter!r} has sizes {size} and {shape[second]}")
        value = node.call("transpose", value, axes=(*others, first, second))
        kept = tuple(shape[i] for i in others)
        value = node.call("reshape", value, newshape=(*kept, size * size))
        diagonal = node.const(np.arange(size, dtype=np.int64) * (size + 1))
        value = node.call("take", value, diagonal, axis=len(kept))
        letters = (*(letters[i] for i in others), letter)
    return value, letters


def _sum_out(node: OnnxNode, value: Expr, letters: Letters, kept: set[str]) -> tuple[Expr, Letters]:
    """Sum over the letters that are not in ``kept``."""
    axes = tuple(i for i, c in enumerate(letters) if c not in kept)
    if not axes:
        return value, letters
    total = node.call("sum", value, axis=axes, keepdims=False)
    return total, tuple(c for c in letters if c in kept)


def _product(
    node: OnnxNode, lhs: Expr, left: Letters, rhs: Expr, right: Letters, later: set[str]
) -> tuple[Expr, Letters]:
    """One batched matrix product: shared kept letters, rows, columns, and the summed ones."""
    lhs, left = _without_ones(node, lhs, left, rhs, right)
    rhs, right = _without_ones(node, rhs, right, lhs, left)
    sizes = dict(zip(left, node.shape(lhs)))
    for letter, size in zip(right, node.shape(rhs)):
        if sizes.setdefault(letter, size) != size:
            raise node.error(f"letter {letter!r} has sizes {sizes[letter]} and {size}")
    shared = [c for c in left if c in right]
    batch = [c for c in shared if c in later]
    summed = [c for c in shared if c not in later]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]

    def size_of(letters: Sequence[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    def arranged(value: Expr, letters: Letters, middle: list[str]) -> Expr:
        order = batch + middle + summed
        axes = tuple(letters.index(c) for c in order)
        if len(axes) > 1:
            turned = node.call("transpose", value, axes=axes)
        else:
            turned = value
        shape = (size_of(batch), size_of(middle), size_of(summed))
        return node.call("reshape", turned, newshape=shape)

    result = node.call(
        "nn.batch_matmul",
        arranged(lhs, left, rows),
        arranged(rhs, right, columns),
        transpose_a=False,
        transpose_b=True,
    )
    letters = (*batch, *rows, *columns)
    return node.call("reshape", result, newshape=tuple(sizes[c] for c in letters)), letters


def _without_ones(
    node: OnnxNode, value: Expr, letters: Letters, other: Expr, others: Letters
) -> tuple[Expr, Letters]:
    """Axes of an ellipsis that are 1 here and larger on the other side broadcast by absence."""
    shape = node.shape(value)
    sizes = dict(zip(others, node.shape(other)))
    gone = tuple(
        i
        for i, c in enumerate(letters)
        if c.startswith(".") and shape[i] == 1 and sizes.get(c, 1) != 1
    )
    if not gone:
        return value, letters
    kept = tuple(c for i, c in enumerate(letters) if i not in gone)
    return node.call("squeeze", value, axis=gone), kept
