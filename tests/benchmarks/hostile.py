"""Random changes that somebody hostile might make: of bytes, text, JSON, arrays and protobufs."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
from google.protobuf.message import Message

from compiler.runtime.npy import npy_bytes
from compiler.runtime.packed import pack, unpack

NUMBERS = (
    *("0", "-0", "1", "-1", "2", "7", "8", "31", "32", "63", "64", "127", "128", "255", "256"),
    *("2147483647", "-2147483648", "4294967296", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551615", "10000000000", "99999999999", "9" * 5000, "1e999", "-1e30"),
    *("nan", "inf", "-inf", ".nan", "1e-45", "0.5", "-0.0", "16777217", "1073741951", "65505"),
)
WORDS = (
    *("int4", "int8", "uint8", "int16", "int32", "int64", "uint64", "bool", "float16", "float32"),
    *("float64", "true", "null", "[]", "{}", '""', "%x", "@main", "quantized_main", "..", "/", "~"),
    *("\0", "\ud800", "é", "[" * 3000, "(" * 3000, "-" * 3000, "{" * 3000, "&a", "*a", "<<"),
)
LOOPS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")
)
"""YAML aliases that unpack to 9^9 words."""
_DTYPES = ("|i1", "|u1", "<i2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", "|b1", "|O", "<U9", ">i4")
_SHAPES = (
    "()",
    "(0,)",
    "(1,)",
    "(-1,)",
    "(1, 1)",
    "(99999999999,)",
    "(1 << 60,)",
    "None",
    "(2**63,)",
)

Generator = np.random.Generator


def pick(rng: Generator, choices: Any) -> Any:
    """One of them."""
    return choices[int(rng.integers(len(choices)))]


def changed_bytes(data: bytes, rng: Generator) -> bytes:
    """Some bytes flipped, cut out, doubled, put in, or the end left out."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(out) + 1))
        to = min(len(out), at + int(rng.integers(1, 33)))
        kind = rng.integers(5)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del out[at:to]
        elif kind == 2:
            out[at:at] = out[at:to]
        elif kind == 3:
            out[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def changed_text(source: str, rng: Generator) -> str:
    """A number, word or line becomes another one, of the text or hostile; or some bytes change."""
    kind = rng.integers(12)
    if kind == 0:
        return changed_bytes(source.encode(errors="replace"), rng).decode(errors="replace")
    if kind < 6:
        pattern, others, hostile = r"(?<![\w%@])-?\d[\d.]*(?:e[+-]?\d+)?", NUMBERS, 0.6
    elif kind < 8:
        pattern, others, hostile = r"%\d+", WORDS, 0.02
    elif kind < 10:
        pattern, others, hostile = r"(?<![\w%])[A-Za-z_]\w*", WORDS, 0.4
    else:
        return _changed_lines(source, rng)
    found = list(re.finditer(pattern, source))
    if not found:
        return source + pick(rng, others)
    here = pick(rng, found)
    there = pick(rng, others) if rng.random() < hostile else pick(rng, found).group()
    return source[: here.start()] + there + source[here.end() :]


def _changed_lines(source: str, rng: Generator) -> str:
    lines = source.split("\n")
    a, b = (int(rng.integers(len(lines))) for _ in range(2))
    kind = rng.integers(4)
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    elif kind == 2:
        lines[a], lines[b] = lines[b], lines[a]
    else:
        lines.insert(b, LOOPS if rng.random() < 0.3 else pick(rng, WORDS))
    return "\n".join(lines)


def changed_json(data: bytes, rng: Generator) -> bytes:
    """One value becomes another one, a key goes, is doubled in text, or its text changes."""
    if rng.random() < 0.3:
        return changed_text(data.decode(errors="replace"), rng).encode(errors="replace")
    value = json.loads(data)
    places = list(_places(value))
    if not places:
        return pick(rng, (b"[]", b"0", b"null", b"[[]]", b'{"a": 1}'))
    holder, key = pick(rng, places)
    if rng.random() < 0.2:
        del holder[key]
    else:
        other, name = pick(rng, places)
        held = other[name] if name in other or isinstance(other, list) else None
        new = (None, True, -1, 0, 1e308, 2**63, 2**70, "", "é", "x" * 9999, [], {}, [[[]]], held)
        holder[key] = pick(rng, new)
    # What is put below itself has no text.
    try:
        return json.dumps(value).encode()
    except ValueError:
        return b"[" * 9999


def _places(value: Any) -> Any:
    stack = [value]
    while stack:
        top = stack.pop()
        keys = top if isinstance(top, dict) else range(len(top)) if isinstance(top, list) else ()
        for key in list(keys)[:200]:
            yield top, key
            stack.append(top[key])


def changed_npy(data: bytes, rng: Generator) -> bytes:
    """Another header, other elements, another shape or dtype."""
    if rng.random() < 0.2:
        head, mark, body = data.partition(b"\n")
        field, others = pick(
            rng, (("descr", _DTYPES), ("shape", _SHAPES), ("fortran_order", WORDS))
        )
        new = str(pick(rng, others)) if field != "descr" else f"'{pick(rng, others)}'"
        text = head.decode("latin1")
        text = re.sub(rf"('{field}': )(\([^)]*\)|'[^']*'|\w+)", lambda m: m[1] + new, text)
        length = len(text.encode("utf-8", "replace")) - 10 + 1
        header = text[10:].encode("utf-8", "replace")
        return data[:8] + (length % (1 << 16)).to_bytes(2, "little") + header + mark + body
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, MemoryError):  # a header that an earlier change wrote
        return data
    return npy_bytes(changed_array(array, rng))


def changed_tensors(data: bytes, rng: Generator) -> bytes:
    """Other bytes, or other elements, another shape or dtype of one array."""
    if rng.random() < 0.2:
        return changed_bytes(data, rng)
    arrays = unpack(data, "tensors.bin")
    name = pick(rng, sorted(arrays))
    return pack({**arrays, name: np.asarray(changed_array(arrays[name], rng))})


def changed_array(array: Any, rng: Generator) -> Any:
    """One element extreme, one step off or exchanged; all extreme; another dtype or shape."""
    flat = array.copy().reshape(-1)
    info = np.iinfo(flat.dtype) if flat.dtype.kind in "iu" else None
    extremes = (info.min, info.max, 0, 1) if info else (0, 1)
    if flat.dtype.kind == "f":
        extremes = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 3e38, 1e-30, 2.0**30)
    kind = rng.integers(7)
    with np.errstate(all="ignore"):
        if kind == 0 and flat.size:
            flat[rng.integers(flat.size)] = np.array(pick(rng, extremes)).astype(flat.dtype)
        elif kind == 1 and flat.size:
            a, b = rng.integers(flat.size, size=2)
            flat[[a, b]] = flat[[b, a]]
        elif kind == 2:
            flat[:] = np.array(pick(rng, extremes)).astype(flat.dtype)
        elif kind == 3:
            dtypes = ("int8", "uint8", "int16", "int32", "int64", "uint64", "float32", "bool")
            flat = flat.astype(pick(rng, dtypes))
        elif kind == 4:
            return pick(rng, (flat, flat[:0], flat[:1], np.append(flat, flat), flat[:-1]))
        elif flat.size and info:
            at = rng.integers(flat.size)
            flat[at] = (int(flat[at]) + int(2 ** rng.integers(31)) - info.min) % (
                info.max - info.min + 1
            ) + info.min
        elif flat.size:
            at = rng.integers(flat.size)
            flat[at] = np.nextafter(flat[at], flat.dtype.type(3)) if flat.dtype.kind == "f" else 1
    return flat.reshape(array.shape)


def change_message(message: Message, rng: Generator, words: tuple[str, ...]) -> None:
    """One field of a protobuf, or of a message in it, becomes another valid one, in place.

    Args:
        words: what a string may become.
    """
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [message]
    while stack and len(places) < 5000:
        top = stack.pop()
        for field, value in top.ListFields():
            places.append((top, field))
            if field.type == field.TYPE_MESSAGE:
                stack.extend(value if _repeated(field) else [value])
    holder, field = pick(rng, places)
    if rng.random() < 0.1:
        holder.ClearField(field.name)
        return
    if not _repeated(field):
        if field.type != field.TYPE_MESSAGE:
            setattr(holder, field.name, _scalar(field, getattr(holder, field.name), rng, words))
        return
    values = getattr(holder, field.name)
    at = int(rng.integers(len(values)))
    kind = rng.integers(3)
    if kind == 0:
        del values[at]
    elif field.type == field.TYPE_MESSAGE:
        values.add().CopyFrom(values[at])
    elif kind == 1:
        values.append(_scalar(field, values[at], rng, words))
    else:
        values[at] = _scalar(field, values[at], rng, words)


def _repeated(field: Any) -> bool:
    return bool(getattr(field, "is_repeated", False) or getattr(field, "label", 0) == 3)


def _scalar(field: Any, value: Any, rng: Generator, words: tuple[str, ...]) -> Any:
    if field.type == field.TYPE_STRING:
        return pick(rng, (*words, "", "\0", "é", "x" * 70_000, "a/b", "nan"))
    if field.type == field.TYPE_BYTES:
        return changed_bytes(value, rng)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return pick(rng, (0.0, -1.0, 1e-43, 1e38, float("inf"), float("nan"), -float("inf"), 0.5))
    if field.enum_type is not None:
        return pick(rng, [v.number for v in field.enum_type.values])
    small = (0, 1, -1, 2, 3, 5, 7, 1 << 16, (1 << 31) - 1, -(1 << 31))
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64):
        return pick(rng, (*small, 1 << 40, (1 << 63) - 1, -(1 << 63)))
    if field.type in (field.TYPE_UINT64,):
        return pick(rng, (0, 1, 1 << 40, (1 << 64) - 1))
    return pick(rng, small)
