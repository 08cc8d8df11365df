"""The record: what a writer puts into a .qmod as proof.json, and how a reader compares it.

A record holds the verdict and the claims of its writer, and a SHA-256 of each part of the proof and
of each function: of one row per node with the SHA-256 of its constant, its attributes and its type.
Rows are numbered by content, so that a module has the same rows before and after a round trip
through its text. A reader derives all of them again, so the file need not hold them. A record
detects a change of the module alone. It does not detect a change of module and record together; a
signature does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

from compiler.ir.attrs import Attrs
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Op,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.ty import Type
from compiler.ir.walk import nodes_of, post_order
from compiler.proof.ranges import attr_texts
from compiler.ranges.finding import Finding

FORMAT = 5
"""Raise it whenever an unchanged module gets another record."""

RecordState = Literal["agrees", "disagrees", "missing"]

_PARTS = {
    "inputs": "inputs of @quantized_main",
    "conversions": "conversions",
    "passthrough": "outputs that are copies",
    "values": "bounds of values",
    "intermediates": "bounds of intermediates",
}


def record_of(derived: Mapping[str, Any]) -> dict[str, Any]:
    """proof.json of a .qmod.

    Args:
        derived: ``Proof.to_dict()``.
    """
    parts = {title: derived[part] for part, title in _PARTS.items()}
    for row in derived["contents"]:
        parts.setdefault(row["node"].partition(",")[0], []).append(row)
    return {
        "format": FORMAT,
        "verdict": derived["verdict"],
        "claims": {claim["claim"]: claim["holds"] for claim in derived["proved"]},
        "sha256": {
            title: _sha256(json.dumps(rows, sort_keys=True)) for title, rows in parts.items()
        },
    }


def record_state(record: Mapping[str, Any] | None) -> RecordState:
    """Return the state of the record: "agrees" stands for one of this format that can be
    compared."""
    if record is None:
        return "missing"
    found = record.get("format")
    if type(found) is int and found == FORMAT:
        return "agrees"
    return "disagrees"


def compare_record(
    record: Mapping[str, Any] | None, derived: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """Name the differences between the record of a writer and ``derived``.

    Args:
        record: parsed proof.json of an untrusted file; None if the file has no record.
        derived: ``Proof.to_dict()`` of the module alone.
    Returns:
        Nothing for a record that agrees, or is missing.
    """
    state = record_state(record)
    if state == "missing":
        return ()
    assert record is not None
    where = "the recorded proof"
    if state == "disagrees":
        what = f"is of format {record.get('format')!r}; this qsearch writes {FORMAT}"
        return (Finding("record", where, f"{what}: a newer qsearch wrote it, or it was changed"),)
    findings: list[Finding] = []
    if record.get("verdict") not in ("proved", derived["verdict"]):
        findings.append(Finding("record", where, "does not say that it holds"))
    if record.get("claims") != (ours := record_of(derived))["claims"]:
        findings.append(Finding("record", where, "claims something else"))
    stated = record.get("sha256")
    if not isinstance(stated, dict):
        return (*findings, Finding("record", where, "names no digests"))
    digests: dict[str, str] = ours["sha256"]
    findings += [
        Finding(
            "record", title, f"has SHA-256 {digest[:16]}, recorded as {str(stated.get(title))[:16]}"
        )
        for title, digest in digests.items()
        if stated.get(title) != digest
    ]
    if more := sorted(set(stated) - set(digests)):
        findings.append(Finding("record", where, f"names more: {', '.join(more)[:100]}"))
    return tuple(findings)


def contents_of(mod: IRModule) -> list[dict[str, Any]]:
    """One row per function attribute, parameter, constant and node of every function.

    Rows of a function: ``node`` (what it is, for people), ``reads`` (numbers of the rows of the
    operands), ``type``, ``attrs`` and ``data``: SHA-256 in hex, each where there is one.

    Args:
        mod: typed.
    """
    attrs = {key: value for key, value in mod.attrs.items() if key != "external_mods"}
    rows: list[dict[str, Any]] = [{"node": "the module", "attrs": _attrs_sha256(attrs)}]
    for name in sorted(gv.name_hint for gv in mod.functions):
        function = mod[name]
        if isinstance(function, LoweredFunction):
            rows.append({"node": f"@{name}", "data": function.digest().hex()})
        else:
            rows.extend(_function_rows(name, function))
    return rows


def _function_rows(name: str, function: Function) -> list[dict[str, Any]]:
    """Rows in post-order; equal nodes that read the same rows are one row."""
    rows: list[dict[str, Any]] = []
    numbers: dict[Expr, int] = {}
    known: dict[Any, int] = {}
    names = {param: f"%{param.name_hint}" for param in function.params}
    for node in post_order(function):
        if isinstance(node, Op):
            continue
        reads = [numbers[one] for one in node.operands() if not isinstance(one, Op)]
        row = _row(node, names)
        # A variable is itself; everything else is what it holds.
        key = (node if isinstance(node, Var) else None, *row.values(), *reads)
        number = known.setdefault(key, len(rows))
        numbers[node] = number
        if number == len(rows):
            title = f"@{name}, row {number}: {row['node']}"
            rows.append({**row, "node": title, "reads": reads})
    return rows


def _row(node: Expr, names: Mapping[Var, str]) -> dict[str, str]:
    row: dict[str, str] = {"node": ""}
    if isinstance(node, Var):
        # The printer renames variables whose names would clash; a parameter's name is interface.
        row["node"] = f"parameter {names[node]}" if node in names else "variable"
    elif isinstance(node, Constant):
        data = node.data
        little = data.astype(data.dtype.newbyteorder("<"), copy=False)
        row["node"] = "constant"
        row["data"] = hashlib.sha256(little.tobytes()).hexdigest()
    elif isinstance(node, Call):
        row["node"] = node.op.name if isinstance(node.op, Op) else "call"
        row["attrs"] = _attrs_sha256(node.attrs)
    elif isinstance(node, Function):
        row["node"] = "function"
        row["attrs"] = _attrs_sha256(node.attrs)
    elif isinstance(node, TupleGetItem):
        row["node"] = f"field {node.index}"
    elif isinstance(node, GlobalVar):
        row["node"] = f"@{node.name_hint}"
        return row
    else:
        row["node"] = describe(node)
    row["type"] = _type_sha256(node.checked_type)
    return row


def _attrs_sha256(attrs: Any) -> str:
    """Hash the attributes that are not their defaults, so that a new attribute changes no
    record."""
    if attrs is None:
        return _NO_ATTRS
    if isinstance(attrs, Attrs):
        items = attrs.non_default_items()
    else:
        items = attrs.items()
    told = [[key, _plain(value)] for key, value in sorted(items)]
    if told:
        return _sha256(json.dumps(told))
    return _NO_ATTRS


def _plain(value: Any) -> Any:
    """A value as JSON that tells 1 from 1.0 from True; nesting is bounded where text is read."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {
            str(key): _plain(one) for key, one in sorted(value.items(), key=lambda i: str(i[0]))
        }
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, str | bool | int | None):
        return value
    return {type(value).__name__: str(value)}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_NO_ATTRS = _sha256("[]")


@lru_cache(maxsize=1024)  # the tensors of a network have few types
def _type_sha256(ty: Type) -> str:
    return _sha256(str(ty))


def conversion_record(mod: IRModule, function: str) -> Iterator[str]:
    """Every operator and constant of a function in post-order; floats to the last bit."""
    for node in nodes_of(mod[function]):
        if isinstance(node, Constant):
            numbers = node.data.reshape(-1).tolist()
            shown = (n.hex() if isinstance(n, float) else str(n) for n in numbers)
            yield f"@{function}: {node.tensor_type} {' '.join(shown)}"
        elif isinstance(node, Call):
            name = getattr(node.op, "name", describe(node.op))
            yield " ".join((f"@{function}: {name}", *attr_texts(node.attrs)))
