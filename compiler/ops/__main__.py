"""`python -m compiler.ops [substring]`: the table operator × rule, one row per operator.

Tables of exporters and of the proof are shown too, so their packages are loaded here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from compiler.ir.op import OpPattern, all_ops, rule_tables
from compiler.text_output import show

# Named as text: operators must not import the passes that use their rules (import layers).
ASKING = (
    "compiler.export.to_onnx.float.model",
    "compiler.export.to_onnx.integer.model",
    "compiler.export.to_onnx.qdq.model",
    "compiler.ranges.analysis",
)
"""Modules that define rule tables of their own and load what fills them."""

_LETTERS = {
    OpPattern.ELEMWISE: "E",
    OpPattern.BROADCAST: "B",
    OpPattern.INJECTIVE: "I",
    OpPattern.COMM_REDUCE: "R",
    OpPattern.OUT_ELEMWISE_FUSABLE: "O",
    OpPattern.TUPLE: "T",
    OpPattern.OPAQUE: "X",
}


def matrix(substring: str = "") -> str:
    """The table as text: name, fusion pattern, a mark per rule table the operator answers.

    Args:
        substring: only operators whose name contains it.
    """
    for module in ASKING:
        importlib.import_module(module)
    tables = rule_tables()
    names = sorted(tables)
    ops = [op for op in all_ops() if substring in op.name]
    width = max((len(op.name) for op in ops), default=8)
    lines = ["Rules, the pass that uses each, and the file of each:"]
    lines += [
        f"  {k:>2}  {n}, {tables[n].asked_by}, {tables[n].defined_in}"
        for k, n in enumerate(names, start=1)
    ]
    lines += [
        "",
        "pat: E elemwise, B broadcast, I injective, R reduce, O out-ewise-fusable, X opaque",
    ]
    numbers = " ".join(f"{k:>2}" for k in range(1, len(names) + 1))
    lines.append(f"{'operator':<{width}}  pat  {numbers}")
    for op in ops:
        if op.pattern is None:
            letter = "-"
        else:
            letter = _LETTERS[OpPattern(op.pattern)]
        marks = " ".join(" x" if op in tables[n] else " ." for n in names)
        lines.append(f"{op.name:<{width}}   {letter}   {marks}")
    lines.append(f"{len(ops)} operators")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the first argument, if any, filters names."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    show(matrix(given[0] if given else ""))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
