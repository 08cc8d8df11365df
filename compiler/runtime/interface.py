"""Interface of a model: names, order, dtypes and sizes of inputs and outputs.

A module computes in float32, for one sample; the model that it was made from may take float16 and
any number of samples. The ``provenance`` of a .qmod keeps the model's side under ``interface``, and
``QModule.run`` and the exporters give it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from compiler.ir.ty import DTYPES

Converted: TypeAlias = "np.dtype[Any] | None"

KEY = "interface"
CONVERTED: Final = ("float16", "float64")
"""Dtypes of models that a module has float32 for."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of the model.

    Attributes:
        name: as the file has it.
        dtype: element type.
        dims: per axis a size, the name of a dimension, or "?" for one without a name.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs of the model, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            kind: [{**asdict(port), "dims": list(port.dims)} for port in ports]
            for kind, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        }

    @staticmethod
    def of(provenance: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> Interface | None:
        """Read the interface from a module's provenance; None where there is none, or it is of
        another module.

        Args:
            provenance: of a .qmod; nothing in it is trusted.
            inputs: names of the module's parameters.
            outputs: how many results it has.
        """
        found = Interface.read(provenance.get(KEY))
        if found is None:
            return None
        names = {port.name for port in found.inputs}
        fits = names.issuperset(inputs) and len(found.outputs) == outputs
        if fits:
            return found
        return None

    @staticmethod
    def read(found: Any) -> Interface | None:
        """From plain values, which are not trusted; None where they are no interface."""
        try:
            taken, given = (tuple(_port(p) for p in found[kind]) for kind in ("inputs", "outputs"))
        except (KeyError, TypeError, ValueError):
            return None
        if len({p.name for p in taken}) == len(taken):
            return Interface(taken, given)
        return None

    def converted(self, names: Sequence[str]) -> tuple[list[Converted], list[Converted]]:
        """The dtypes of these inputs, and of the outputs, where the module has float32 for them."""
        dtypes = {port.name: port.dtype for port in self.inputs}
        taken = [_converted(dtypes[name]) for name in names]
        return taken, [_converted(port.dtype) for port in self.outputs]


def _converted(dtype: str) -> Converted:
    if dtype in CONVERTED:
        return np.dtype(dtype)
    return None


def _port(found: Mapping[str, Any]) -> Port:
    name = found["name"]
    dtype = found["dtype"]
    dims = tuple(found["dims"])
    known = isinstance(name, str) and dtype in (*DTYPES, *CONVERTED)
    if not known or not all(isinstance(dim, (int, str)) for dim in dims):
        raise ValueError(f"not an input or output: {found!r}")
    return Port(name, dtype, dims)
