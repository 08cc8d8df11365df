"""The rules of a valid PrimFunc; checked after lowering and after parsing.

Checked: declarations and dtypes; ranks; that every index stays inside its buffer, by the ranges of
the loop variables and the guards of the Selects around it; that temps are written before they are
read, and that every output and temp is written once, at every point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from compiler.errors import LoweringError, legal_names
from compiler.lir.affine import linear_terms, sum_key
from compiler.lir.index import conjuncts
from compiler.lir.nodes import (
    COMBINERS,
    HINTS,
    Block,
    Compute,
    Extern,
    PrimFunc,
    reads_of,
    writes_of,
)
from compiler.lir.ranges import Range, value_range
from compiler.lir.routines import externs
from compiler.lir.scalars import (
    INDEX_DTYPE,
    Acc,
    Axis,
    Bin,
    BoolImm,
    Buffer,
    FloatImm,
    IntImm,
    Load,
    Scalar,
    Select,
)

Facts = Mapping[str, Range]

_FAR = (1 << 63) - 1
# What ``index op bound`` says of the index.
_SIDES: dict[str, Callable[[int], Range]] = {
    "<": lambda bound: (-_FAR, bound - 1),
    "<=": lambda bound: (-_FAR, bound),
    ">": lambda bound: (bound + 1, _FAR),
    ">=": lambda bound: (bound, _FAR),
    "==": lambda bound: (bound, bound),
}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def verify(func: PrimFunc) -> None:
    """Check every rule.

    Raises:
        LoweringError: one is broken; the message names the block and the buffer.
    """
    declared = _declarations(func)
    written: set[str] = set()
    for number, block in enumerate(func.blocks):
        where = f"@{func.name}, block {number}"
        _check_block(block, where)
        ins = reads_of(block)
        outs = writes_of(block)
        for buffer in (*ins, *outs):
            _require(
                declared.get(buffer.name) == buffer,
                f"buffer {buffer.name} is not declared as {buffer.dtype}{list(buffer.shape)}",
                where,
            )
        for buffer in ins:
            readable = buffer.scope in ("param", "const") or buffer.name in written
            _require(
                readable and buffer.scope != "out",
                f"{buffer.scope} {buffer.name} is read before it is written"
                if buffer.scope == "temp"
                else f"output {buffer.name} is read",
                where,
            )
        for buffer in outs:
            _require(
                buffer.scope in ("out", "temp"), f"{buffer.scope} {buffer.name} is written", where
            )
            _require(buffer.name not in written, f"{buffer.name} is written twice", where)
            written.add(buffer.name)
    for buffer in func.outputs:
        _require(buffer.name in written, f"output {buffer.name} is not written", f"@{func.name}")


def _require(holds: bool, what: str, where: str) -> None:
    if not holds:
        raise LoweringError(what, where=where)


def _declarations(func: PrimFunc) -> dict[str, Buffer]:
    declared: dict[str, Buffer] = {}
    where = f"@{func.name}"
    scopes = (
        ("param", func.params),
        ("out", func.outputs),
        ("temp", func.temps),
        ("const", tuple(buffer for buffer, _ in func.consts)),
    )
    for scope, buffers in scopes:
        for buffer in buffers:
            _require(buffer.scope == scope, f"{buffer.name} has scope {buffer.scope}", where)
            _require(buffer.name not in declared, f"{buffer.name} is declared twice", where)
            declared[buffer.name] = buffer
    for buffer, content in func.consts:
        fits = content.shape == buffer.shape and str(content.dtype) == buffer.dtype
        _require(fits, f"{buffer.name} holds {content.dtype}{list(content.shape)}", where)
    return declared


def _check_block(block: Block, where: str) -> None:
    if isinstance(block, Extern):
        if block.symbol not in externs:
            raise LoweringError(
                f"unknown routine {block.symbol!r}",
                where=where,
                fix=legal_names(block.symbol, list(externs.names())),
            )
        return
    where = f"{where}, which fills {block.out.name}"
    _check_loops(block, where)
    names = {axis.name for axis in block.axes}
    loops = (*block.axes, *block.raxes)
    both = names | {axis.name for axis in block.raxes}
    inside = ((block.expr, both, None), (block.post, names, block.acc_dtype))
    for root, legal, acc in inside:
        if root is not None:
            runs = all(loop.extent for loop in loops if loop.name in legal)
            _check_scalar(root, legal, acc, runs, where)
    _check_target(block, names, where)


def _check_loops(block: Compute, where: str) -> None:
    loops = (*block.axes, *block.raxes)
    names = [axis.name for axis in loops]
    _require(len(set(names)) == len(names), f"two loops of one name in {names}", where)
    _require(all(axis.extent >= 0 for axis in loops), "a loop of negative extent", where)
    for hint in block.hints:
        _require(hint in HINTS, f"unknown hint {hint!r}; {legal_names(hint, HINTS)}", where)
    given = [part is not None for part in (block.combiner, block.init)]
    if not block.raxes:
        _require(not any(given) and block.post is None, "combiner, init and post need raxes", where)
        return
    _require(all(given) and block.combiner in COMBINERS, "raxes need combiner and init", where)
    _require(
        isinstance(block.init, IntImm | FloatImm | BoolImm), "init has to be a constant", where
    )
    assert block.init is not None
    _require(
        block.init.dtype == block.expr.dtype,
        f"{block.combiner} of {block.expr.dtype} into an accumulator of {block.init.dtype}",
        where,
    )


def _check_scalar(root: Scalar, axes: set[str], acc: str | None, runs: bool, where: str) -> None:
    """Check every node of an expression under its guards."""
    seen: set[tuple[int, int]] = set()
    nothing: Facts = {}
    kept = [nothing]
    stack: list[tuple[Scalar, Facts]] = [(root, nothing)]
    while stack:
        node, facts = stack.pop()
        if (id(node), id(facts)) in seen:
            continue
        seen.add((id(node), id(facts)))
        if isinstance(node, Axis):
            _require(node.name in axes, f"no loop over {node.name} here", where)
        elif isinstance(node, Acc):
            _require(acc == node.dtype, f"no accumulator of {node.dtype} here", where)
        elif isinstance(node, Load):
            if runs:
                _check_load(node, facts, where)
            stack.extend((part, facts) for part in node.index)
        elif isinstance(node, Select):
            inner = _with_guards(node.condition, facts)
            outer = _with_opposite(node.condition, facts)
            # Facts are told apart by identity, so they have to stay alive.
            kept += [inner, outer]
            stack += [(node.condition, facts), (node.a, inner), (node.b, outer)]
        else:
            stack.extend((part, facts) for part in node.operands())


def _with_guards(condition: Scalar, facts: Facts) -> Facts:
    """Return the facts that hold where the condition does."""
    known = dict(facts)
    for node in conjuncts(condition):
        if isinstance(node, Bin) and node.op in _SIDES and isinstance(node.b, IntImm):
            name, constant = sum_key(node.a)
            before = known.get(name, (-_FAR, _FAR))
            told = _SIDES[node.op](node.b.value)
            known[name] = max(told[0] - constant, before[0]), min(told[1] - constant, before[1])
    return known


def _with_opposite(condition: Scalar, facts: Facts) -> Facts:
    """Return the facts that hold where one comparison does not."""
    if not isinstance(condition, Bin) or not isinstance(condition.b, IntImm):
        return facts
    opposite = _OPPOSITE.get(condition.op)
    if opposite is None:
        return facts
    return _with_guards(Bin(opposite, condition.a, condition.b), facts)


def _check_load(load: Load, facts: Facts, where: str) -> None:
    buffer = load.buffer
    _require(
        len(load.index) == len(buffer.shape),
        f"{buffer.name} has rank {len(buffer.shape)}, {len(load.index)} indices are given",
        where,
    )
    impossible = any(low > high for low, high in facts.values())
    low, high = facts.get("", (0, 0))  # of constants: what a sum without terms would be
    if impossible or not low <= 0 <= high:
        return  # the guards contradict each other: it is never read
    for axis, (index, size) in enumerate(zip(load.index, buffer.shape)):
        _require(index.dtype == INDEX_DTYPE, f"an index of dtype {index.dtype}", where)
        held = _reached(index, facts)
        if held is None or held[0] < 0 or held[1] >= size:
            if held is not None and held[0] > held[1]:
                continue  # the guards contradict each other: it is never read
            span = "anything" if held is None else f"{held[0]} to {held[1]}"
            raise LoweringError(
                f"axis {axis} of {buffer.name} has {size} elements, its index is {span}",
                where=where,
                fix="guard the load by a Select, or clamp the index",
            )


def _reached(index: Scalar, facts: Facts) -> Range | None:
    """Range of an index; each side of a choice counts where its condition lets it."""
    found: list[Range | None] = []
    stack = [(index, facts)]
    while stack:
        node, known = stack.pop()
        if isinstance(node, Select):
            stack.append((node.a, _with_guards(node.condition, known)))
            stack.append((node.b, _with_opposite(node.condition, known)))
        else:
            found.append(value_range(node, known))
    ranges = [held for held in found if held is not None]
    if len(ranges) < len(found):
        return None
    possible = [held for held in ranges if held[0] <= held[1]] or ranges[:1]
    return min(low for low, _ in possible), max(high for _, high in possible)


def _check_target(block: Compute, names: set[str], where: str) -> None:
    """Every element is written once: the indices are mixed-radix numbers of the loops."""
    out = block.out
    _require(len(block.out_index) == len(out.shape), f"{out.name} has another rank", where)
    used: list[str] = []
    for index, size in zip(block.out_index, out.shape):
        terms, constant = linear_terms(index)
        step = 1
        for factor, node in sorted(terms, key=lambda term: term[0]):
            legal = isinstance(node, Axis) and node.name in names and factor == step
            _require(legal, f"{out.name} is not written once everywhere", where)
            assert isinstance(node, Axis)
            used.append(node.name)
            step *= node.extent
        covers = step == size and constant == 0
        _require(covers, f"{out.name} is not written once everywhere", where)
    left = [axis.extent for axis in block.axes if axis.name not in used]
    once = len(set(used)) == len(used) and (math.prod(left) == 1 or out.size == 0)
    _require(once, f"{out.name} is not written once everywhere", where)
