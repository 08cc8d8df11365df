"""Changes of one thing in the members of a module file."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from compiler.runtime.artifact import TENSORS
from compiler.runtime.packed import pack, unpack

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"activation_scheme": "asymmetric", "rounding": "TONEAREST", "weight_granularity": "tensor"},
    {"calibrate_mode": "max", "requantization": "power_of_two", "avg_pool_round": False},
)
Members = dict[str, bytes]


def change(members: Members, rng: np.random.Generator) -> str:
    """Change one thing in place; what it was."""
    kinds = (_element, _element, _exchange, _dtype, change_word, change_edge)
    return kinds[rng.integers(len(kinds))](members, rng)


def _tensor(members: Members, rng: np.random.Generator) -> tuple[str, np.ndarray[Any, Any]]:
    tensors = unpack(members[TENSORS], TENSORS)
    name = sorted(tensors)[rng.integers(len(tensors))]
    return name, tensors[name]


def _replace(members: Members, name: str, array: np.ndarray[Any, Any]) -> None:
    members[TENSORS] = pack({**unpack(members[TENSORS], TENSORS), name: array})


def _element(members: Members, rng: np.random.Generator) -> str:
    """By one step; a float by its last bit."""
    name, array = _tensor(members, rng)
    flat = array.copy().reshape(-1)
    place = rng.integers(flat.size)
    if flat.dtype.kind == "f":
        flat[place] = np.nextafter(flat[place], flat.dtype.type(np.inf))
    elif flat.dtype == bool:
        flat[place] = ~flat[place]
    else:
        step = flat.dtype.type(1)
        flat[place] = flat[place] - step if flat[place] > 0 else flat[place] + step
    _replace(members, name, flat.reshape(array.shape))
    return f"element {place} of {name} {array.dtype}{array.shape}"


def _exchange(members: Members, rng: np.random.Generator) -> str:
    """Two elements change places."""
    name, array = _tensor(members, rng)
    flat = array.copy().reshape(-1)
    a, b = rng.integers(flat.size, size=2)
    flat[[a, b]] = flat[[b, a]]
    _replace(members, name, flat.reshape(array.shape))
    return f"elements {a} and {b} of {name} {array.dtype}{array.shape}"


def _dtype(members: Members, rng: np.random.Generator) -> str:
    """A wider or narrower dtype with the same values where they fit."""
    name, array = _tensor(members, rng)
    others = [d for d in ("int8", "int16", "int32", "int64") if d != str(array.dtype)]
    dtype = others[rng.integers(len(others))]
    _replace(members, name, array.astype(dtype))
    return f"dtype of {name} {array.dtype} to {dtype}"


def change_word(members: Members, rng: np.random.Generator) -> str:
    """A number or a word of the text becomes another one of its kind."""
    source = members["module.relay"].decode()
    pattern = (r"(?<![\w.%@])-?\d+(?![\w.])", r"(?<=\")[a-z]+\d*(?=\")", r"[a-z_]+(?=\()")
    found = list(re.finditer(pattern[rng.integers(len(pattern))], source))
    here, there = (found[i] for i in rng.integers(len(found), size=2))
    members["module.relay"] = (
        source[: here.start()] + there.group() + source[here.end() :]
    ).encode()
    return f"{here.group()!r} to {there.group()!r} in the text"


def change_edge(members: Members, rng: np.random.Generator) -> str:
    """An operand becomes another value."""
    source = members["module.relay"].decode()
    found = list(re.finditer(r"(?<=[(, ])%\d+(?=[,)])", source))
    here, there = (found[i] for i in rng.integers(len(found), size=2))
    members["module.relay"] = (
        source[: here.start()] + there.group() + source[here.end() :]
    ).encode()
    return f"operand {here.group()} to {there.group()}"
