"""The ``#[metadata]`` section: what has no literal, by kind and number.

Constants are ``{"dtype", "shape", "b64"}`` (little-endian bytes), or ``{"npz": key}`` when the
array is kept in a file. A mapping keeps them all: ``meta[3]`` is its array ``k3``, without an entry
of the section. In brief they are comments for people: dtype, shape, the first digits of the
SHA-256 of the bytes, the first values.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import CompilerError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Array, Constant, dtype_name
from compiler.ir.op import all_ops
from compiler.ir.ty import DTYPES, MAX_NESTING
from compiler.ir.virtual_device import VirtualDevice

CONSTANT = "relay.Constant"
EXTERNAL_BYTES = 1 << 20

_BRIEF_VALUES = 8
_BRIEF_DIGITS = 12
_BRIEF_HEAD = "// constants in brief; all their bytes: qsearch show --full, or compiler.text"

Arrays = Mapping[str, Array]
AttrValues = Callable[[dict[str, str]], dict[str, Any]]
ExternalData = str | Path | MutableMapping[str, Array]


class MetadataWriter:
    """Numbers objects by first use, one entry per object.

    Args:
        external_data: where arrays go that are not written into the text: an .npz path takes
            arrays above EXTERNAL_BYTES, a mapping takes all.
        brief: describe constants instead of writing them.
    """

    def __init__(self, external_data: ExternalData | None = None, brief: bool = False) -> None:
        self._brief: list[str] | None = [] if brief else None
        self._entries: dict[str, list[Any]] = {}
        self._numbers: dict[Any, str] = {}
        self._external = external_data
        self._arrays: dict[str, Array] = {}
        self._held_arrays: dict[int, Constant] = {}

    def constant(self, constant: Constant) -> str:
        """Reference to a constant."""
        held = self._numbers.get(constant)
        if held is None and self._brief is not None:
            held = self._numbers[constant] = f"meta[{CONSTANT}][{len(self._brief)}]"
            self._brief.append(f"// {held}: {_described(constant.data)}")
        elif held is None and isinstance(self._external, MutableMapping):
            held = self._numbers[constant] = f"meta[{len(self._arrays)}]"
            self._arrays[f"k{len(self._arrays)}"] = constant.data
        elif held is None:
            index = len(self._entries.get(CONSTANT, ()))
            held = self._add(CONSTANT, constant, self._array(constant.data, index))
        return held

    def array(self, data: Array) -> str:
        """Reference to an array that no Constant holds, such as a weight of a lowered function."""
        held = self._held_arrays.get(id(data))
        if held is None:
            held = self._held_arrays[id(data)] = Constant(data)
        return self.constant(held)

    def device(self, device: VirtualDevice) -> str:
        """Reference to a virtual device."""
        held = self._numbers.get(device)
        return held or self._add("VirtualDevice", device, dataclasses.asdict(device))

    def attrs(self, attrs: Attrs, fields: dict[str, str]) -> str:
        """Reference to an attribute record inside another; ``fields`` holds values as text."""
        held = self._numbers.get(attrs)
        return held or self._add("Attrs", attrs, {"type_key": attrs.type_key, "fields": fields})

    def _add(self, kind: str, item: Any, entry: Any) -> str:
        entries = self._entries.setdefault(kind, [])
        entries.append(entry)
        self._numbers[item] = f"meta[{kind}][{len(entries) - 1}]"
        return self._numbers[item]

    def _array(self, data: Array, index: int) -> dict[str, Any]:
        if self._external is not None and data.nbytes > EXTERNAL_BYTES:
            self._arrays[f"k{index}"] = data
            return {"npz": f"k{index}"}
        return {
            "dtype": dtype_name(data.dtype),
            "shape": list(data.shape),
            "b64": base64.b64encode(little_endian(data)).decode("ascii"),
        }

    def finish(self) -> str:
        """The section, "" when nothing was referred to; arrays kept outside are written now."""
        if isinstance(self._external, (str, Path)):
            if self._arrays:
                # The stub fears that a name is "allow_pickle"; ours are k0, k1, …
                np.savez(self._external, **self._arrays)  # type: ignore[arg-type]
        elif self._external is not None:
            self._external.update(self._arrays)
        if self._brief:
            section = "\n".join((_BRIEF_HEAD, *self._brief)) + "\n"
        else:
            section = ""
        if self._entries:
            section += "#[metadata]\n" + json.dumps(self._entries, separators=(",", ":")) + "\n"
        return section


def little_endian(data: Array) -> bytes:
    """The values of an array, in C order."""
    return data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()


def _described(data: Array) -> str:
    """``int8 (4, 1, 3, 3), sha256 12 digits, first values``; all values where they are few."""
    values = [str(value) for value in data.flat[:_BRIEF_VALUES]]
    if data.size > _BRIEF_VALUES:
        more = [f"… of {data.size}"]
    else:
        more = []
    digest = hashlib.sha256(little_endian(data)).hexdigest()[:_BRIEF_DIGITS]
    return f"{data.dtype} {data.shape}, sha256 {digest}, values {' '.join(values + more)}"


class MetadataReader:
    """Objects of a parsed section, made once per entry.

    Args:
        section: the JSON text, or "" for none.
        external_data: the .npz file or mapping the text was printed with.

    Raises:
        CompilerError: the section is not JSON.
    """

    def __init__(self, section: str, external_data: str | Path | Arrays | None = None) -> None:
        try:
            found = json.loads(section) if section.strip() else {}
        except (ValueError, RecursionError) as error:
            raise CompilerError(f"the metadata section is not JSON: {error}") from error
        lists = isinstance(found, dict) and all(isinstance(v, list) for v in found.values())
        if not lists:
            raise CompilerError("the metadata section is no map from kinds to lists of entries")
        self._entries: dict[str, list[Any]] = found
        self._external = external_data
        self._made: dict[tuple[str, int], Any] = {}
        self._making: list[tuple[str, int]] = []

    def get(self, kind: str, index: int, attr_values: AttrValues) -> Any:
        """The object ``meta[kind][index]``; ``attr_values`` reads the fields of attribute records.

        Raises:
            CompilerError: there is no such entry, it is ill-formed or holds itself, or its array
                is not in ``external_data``.
        """
        if (kind, index) not in self._made:
            if (kind, index) in self._making or len(self._making) >= MAX_NESTING:
                raise CompilerError(
                    f"meta[{kind}][{index}] refers to itself, or more than {MAX_NESTING} deep"
                )
            entries = self._entries.get(kind, [])
            key = f"k{index}"
            held = self._external
            if kind == CONSTANT and isinstance(held, Mapping) and key in held:
                self._made[kind, index] = Constant(held[key])
                return self._made[kind, index]
            if index >= len(entries):
                raise CompilerError(
                    f"meta[{kind}][{index}] is not in the metadata section",
                    fix=f"it has {len(entries)} entries of this kind; "
                    "a text printed without constants, or with constants in brief, cannot be "
                    "parsed: print it with `qsearch show --full`, or compiler.text(module)",
                )
            self._making.append((kind, index))
            try:
                self._made[kind, index] = self._make(kind, entries[index], attr_values)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CompilerError(
                    f"meta[{kind}][{index}] is ill-formed: {type(error).__name__}: {error}"
                ) from error
            finally:
                self._making.pop()
        return self._made[kind, index]

    def _make(self, kind: str, entry: Any, attr_values: AttrValues) -> Any:
        if kind == CONSTANT:
            return Constant(self._array(entry))
        if kind == "VirtualDevice":
            return VirtualDevice(**entry)
        if kind == "Attrs":
            return attrs_class(entry["type_key"]).make(**attr_values(entry["fields"]))
        raise CompilerError(f"metadata of kind {kind!r} is not known here")

    def _array(self, entry: dict[str, Any]) -> Array:
        if "npz" in entry:
            return self._external_array(entry["npz"])
        if entry["dtype"] not in DTYPES:
            raise CompilerError(f"{entry['dtype']!r} is no dtype of a constant")
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        data = np.frombuffer(base64.b64decode(entry["b64"]), dtype).reshape(entry["shape"])
        return data.astype(dtype.newbyteorder("="), copy=False)

    def _external_array(self, key: str) -> Array:
        if isinstance(self._external, (str, Path)):
            with np.load(self._external, allow_pickle=False) as archive:
                self._external = {k: archive[k] for k in archive.files}
        if self._external is None or key not in self._external:
            raise CompilerError(
                f"array {key!r} is kept outside the text",
                fix="give parse the same external_data that text was given",
            )
        data: Array = self._external[key]
        return data


def attrs_class(type_key: str) -> type[Attrs]:
    """The attribute record of this type_key among the registered operators.

    Raises:
        CompilerError: no operator has it.
    """
    for op in all_ops():
        if op.attrs_type is not None and op.attrs_type.type_key == type_key:
            return op.attrs_type
    raise CompilerError(f"no operator has attributes of type {type_key!r}")
