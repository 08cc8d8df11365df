"""The residual stream: values that adds join keep 16 bits.

Each layer norm looks at small differences of large sums; on 8 bits their error is several steps of
its result. So such a value, where it is read more than once or by a layer norm, gets a quantize
point of 16 bits instead of 8. With wide ``<sums>`` in ``layers`` the values that
any add of two computed values joins are treated alike: every block rounds the stream of a residual
network once more, and what the blocks round away adds up. Layers read such a value through a point
of their own bits.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, TupleGetItem, is_op_call
from compiler.ir.loops import END, STATE
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize
from compiler.ops.rules.axes import SHAPES
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind

_MOST_HEADROOM = 4.0
_TABLE_HEADROOM = 2.0

_NORMS = ("nn.layer_norm", "nn.rms_norm")
_MOVES = frozenset((*SHAPES, "annotation.cast_hint", "annotation.stop_fusion", "transpose"))
_CUTS = ("split", "strided_slice", "take")


def residual_stream(fn: Function, sums: bool = False) -> frozenset[Expr]:
    """Computed values that reach a layer norm through adds and moves only.

    Args:
        fn: a function in front of annotation.
        sums: whether the sums of two computed values belong to it as well, and what they join.
    """
    if not sums and not mentions(fn, _NORMS):
        return frozenset()
    found: set[Expr] = set()
    for node in reversed(nodes_of(fn)):
        if not isinstance(node, Call):
            continue
        if is_op_call(node, *_NORMS):
            reached: Sequence[Expr] = node.args[:1]
        elif is_op_call(node, "add") and (node in found or (sums and _joins(node))):
            found.add(node)
            reached = node.args
        elif node in found and isinstance(node.op, Op) and node.op.name in _MOVES:
            reached = node.args[:1]
        else:
            continue
        found.update(arg for arg in reached if not isinstance(arg, Constant))
    return frozenset(found)


def last_states(fn: Function) -> frozenset[Expr]:
    """Moves of last states of loops, through which a function gives them to its caller: they keep
    their integers, since a stream gives them back in the next call. O(edges)."""
    if not mentions(fn, (END,)):
        return frozenset()
    nodes = nodes_of(fn)
    held: set[Expr] = set()
    for node in nodes:
        if _is_last_state(node) or (is_op_call(node, *_MOVES) and node.args[0] in held):
            held.add(node)
    given: set[Expr] = {fn.body}
    for node in reversed(nodes):
        if node in given and (node in held or isinstance(node, Tuple)):
            given.update(node.operands())
    return frozenset(node for node in held & given if isinstance(node, Call))


def _is_last_state(node: Expr) -> bool:
    if not isinstance(node, TupleGetItem) or not isinstance(node.tuple, Call):
        return False
    end = node.tuple
    return is_op_call(end, END) and node.index < len(end.args[0].operands())


def first_states(fn: Function) -> frozenset[Expr]:
    """Return the nodes of which only first states of loops are made, by moves and slices, such as
    those of all layers in one input. O(edges)."""
    if not mentions(fn, (STATE,)):
        return frozenset()
    found: set[Expr] = set()
    elsewhere: set[Expr] = {fn.body}
    for node in reversed(nodes_of(fn)):
        cut = isinstance(node, TupleGetItem) or is_op_call(node, *_MOVES, *_CUTS)
        alone = node in found and node not in elsewhere and cut
        (found if alone or is_op_call(node, STATE) else elsewhere).update(node.operands())
    return frozenset(found - elsewhere)


def sums_for_norms(fn: Function) -> frozenset[Expr]:
    """Return sums that keep 16 bits in a module of stored values, whose products and windows give
    8: those of the residual stream, and those that are the next state of a loop."""
    found = {node for node in residual_stream(fn) if is_op_call(node, "add")}
    for node in nodes_of(fn):
        if isinstance(node, Call) and is_op_call(node, END) and isinstance(node.args[1], Tuple):
            found.update(state for state in node.args[1].fields if is_op_call(state, "add"))
    return frozenset(
        node
        for node in found
        if isinstance(node, Call) and (_joins(node) or any(map(varies, node.args)))
    )


def stored_sums(fn: Function, wide: Set[Expr]) -> frozenset[Expr]:
    """Sums of two computed values in 8 bits: but for those of ``wide`` values, and results of the
    function, which nothing rounds. O(edges)."""
    results: list[Expr] = []
    waiting = [fn.body]
    while waiting:
        node = waiting.pop()
        handed = isinstance(node, Tuple) or is_op_call(node, *_MOVES)
        (waiting if handed else results).extend(node.operands() if handed else [node])
    return frozenset(
        node
        for node in set(nodes_of(fn)).difference(results)
        if isinstance(node, Call)
        and is_op_call(node, "add")
        and _joins(node)
        and wide.isdisjoint((node, *node.args))
    )


def varies(arg: Expr) -> bool:
    """Return whether it is a constant that varies along several axes, no bias of a product."""
    return isinstance(arg, Constant) and sum(size > 1 for size in arg.data.shape) > 1


def _joins(call: Call) -> bool:
    return not any(isinstance(arg, Constant) for arg in call.args)


def wide_headroom(nbit: int, usual: int = 8, tabulated: bool = False) -> float:
    """Return the factor by which a point of more bits than usual reaches beyond the calibrated
    range.

    Room for outliers that calibration has not seen, but not at the cost of fine steps.

    Args:
        tabulated: whether tables of functions alone read it.
    """
    if tabulated and nbit > usual:
        return _TABLE_HEADROOM
    return min(max(2.0 ** (nbit - usual - 2), 1.0), _MOST_HEADROOM)


def wide_point(data: Expr, ctx: QuantizeContext) -> Expr:
    """The point of 16 bits of a value; all its readers share it."""
    return attach_simulated_quantize(data, QAnnotateKind.ACTIVATION, context=ctx, bits=WIDE_BITS)
