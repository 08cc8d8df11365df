"""Moves of accumulators that are narrowed behind them anyway: they are narrowed in front of them.

    before                                      after
    simulated_quantize(transpose(%acc))         transpose(simulated_quantize(%acc))

Narrow integers are cheaper to move, and one scale per channel, which a move cannot keep, goes to
one scale in the same step that narrows.
"""

from __future__ import annotations

from compiler.ir.expr import Call, Constant, Expr, Function, Op, TupleGetItem, is_op_call
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.rules.axes import SHAPES
from compiler.ops.rules.pass_through import MOVES as MOVED

MOVES = frozenset((*MOVED, *SHAPES, "nn.pad", "strided_slice", "take", "transpose")) - {"repeat"}
_NARROW = frozenset(
    {
        "annotation.cast_hint",
        "max",
        "mean",
        "min",
        "nn.avg_pool2d",
        "nn.batch_matmul",
        "nn.conv2d",
        "nn.dense",
        "nn.global_avg_pool2d",
        "nn.global_max_pool2d",
        "nn.matmul",
        "nn.max_pool2d",
        "nn.softmax",
        "sum",
        "unary_formula",
    }
)


def narrow_moves(fn: Function, every: bool = False) -> frozenset[Expr]:
    """Moves all of whose readers, further moves looked through, take narrow integers.

    Args:
        every: whatever their readers take; splits of products too.
    """
    if every:
        return frozenset(node for node in nodes_of(fn) if _moves(node) or _splits(node))
    if not mentions(fn, {*MOVES, "split"}):
        return frozenset()
    kept: set[Expr] = {fn.body}  # the result is read from outside
    found: set[Expr] = set()
    for node in reversed(nodes_of(fn)):
        if (_moves(node) or _splits_table(node)) and node not in kept:
            found.add(node)
        elif is_op_call(node, "multiply") and not _reads_constant(node):
            kept.update(arg for arg in node.operands() if not isinstance(arg, TupleGetItem))
        elif isinstance(node, TupleGetItem) and node not in kept:
            pass  # what reads the piece takes it narrow
        elif not is_op_call(node, *_NARROW):
            kept.update(node.operands())
    return frozenset(found)


def _reads_constant(node: Expr) -> bool:
    return any(isinstance(arg, Constant) for arg in node.operands())


def _splits_table(node: Expr) -> bool:
    """Return whether parts of a table are taken, such as the gates of a cell: it can have entries
    of their bits, which is one rounding less for each of them."""
    return (
        isinstance(node, Call)
        and is_op_call(node, "split")
        and is_op_call(node.args[0], "unary_formula")
    )


def _splits(node: Expr) -> bool:
    """Return whether parts of a product, rather than of a sum of two values, are taken."""
    if not isinstance(node, Call) or not is_op_call(node, "split"):
        return False
    (data,) = node.args
    return not is_op_call(data, "add") or _reads_constant(data)


def _moves(node: Expr) -> bool:
    if not isinstance(node, Call) or not isinstance(node.op, Op) or node.op.name not in MOVES:
        return False
    if node.op.name == "take":
        # What picks few elements is cheaper in front, and their own range is smaller.
        return node.tensor_type.num_elements >= node.args[0].tensor_type.num_elements
    if node.op.name != "nn.pad":
        return True
    # Another value than 0 may lie outside of what the data reach.
    return isinstance(node.args[1], Constant) and not node.args[1].data.any()
