"""What a notebook shows of a module: a small table; every text in it is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function, Op
from compiler.ir.ty import FuncType

if TYPE_CHECKING:
    from compiler.ir.module import IRModule

_COMMONEST = 3


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; names inside come from models, so they are text and never markup."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<table><caption>{escape(title)}</caption>{top}<tbody>{body}</tbody></table>"


def module_table(mod: IRModule, title: str = "IRModule") -> str:
    """A row per function: its parameters, its result, how many calls of which operators."""
    rows = [
        (f"@{gv.name_hint}", *_function_row(function)) for gv, function in mod.functions.items()
    ]
    return html_table(title, ("function", "takes", "gives", "calls"), rows)


def _function_row(function: object) -> tuple[str, str, str]:
    if not isinstance(function, Function):
        return "", "", type(function).__name__
    inferred = function.checked_type_or_none
    gives = inferred.ret_type if isinstance(inferred, FuncType) else function.ret_type
    takes = [f"{p.name_hint}: {p.type_annotation or 'any'}" for p in function.params]
    calls = [node for node in post_order(function.body) if isinstance(node, Call)]
    names = Counter(call.op.name if isinstance(call.op, Op) else "functions" for call in calls)
    common = ", ".join(f"{count} {name}" for name, count in names.most_common(_COMMONEST))
    more = "" if len(names) <= _COMMONEST else ", …"
    return (
        _shortened(takes),
        str(gives or "not inferred"),
        f"{len(calls)}" + (f" ({common}{more})" if calls else ""),
    )


def _shortened(names: Sequence[str], limit: int = 4) -> str:
    left = len(names) - limit
    return ", ".join(names[:limit]) + (f", and {left} more" if left > 0 else "")
