"""The scaling of pixels inside a model, which a preprocess file must not repeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from qsearch.errors import DataError

_KEEPS: Final = ("Cast", "Identity", "Transpose")
_PIXELS: Final = 50.0
"""A divisor from here on brings pixels 0..255 to about 0..1."""
_CHANNELS: Final = 4


def refuse_twice(fields: Mapping[str, Any], model: onnx.ModelProto) -> None:
    """Refuse a mean that the model subtracts, or a std that it divides by, once more.

    Args:
        fields: of the preprocess file, with ``mean`` or ``std``; nothing in them was checked.
        model: as the user gave it.
    Raises:
        DataError: both would act; the node is named.
    """
    subtracts, divides = _of_first_input(model.graph)
    twice = {"mean": (subtracts, "subtracts a mean", 1e-9), "std": (divides, "divides", _PIXELS)}
    for name, (node, does, least) in twice.items():
        given = fields.get(name)
        levels = given if isinstance(given, list | tuple) else [given]
        if node and any(abs(one) >= least for one in levels if isinstance(one, int | float)):
            raise DataError(
                f"the model {does} itself (node {node!r}), and the preprocess file would again",
                where=f"{name} of the preprocess file",
                fix=f"leave {name} out: the model takes the values in front of this node",
            )


def _of_first_input(graph: onnx.GraphProto) -> tuple[str, str]:
    """Return the nodes at the only input that subtract a constant and divide by a large one."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    value = next((one.name for one in graph.input if one.name not in constants), "")
    subtracts = divides = ""
    while True:
        readers = [node for node in graph.node if value in node.input]
        if len(readers) != 1:
            return subtracts, divides
        (node,) = readers
        others = [constants[name] for name in node.input if name in constants]
        if node.op_type in ("Sub", "Add", "Mul", "Div") and others:
            levels = np.abs(numpy_helper.to_array(others[0]).astype(np.float64))
            if levels.size > _CHANNELS:
                return subtracts, divides
            if node.op_type in ("Sub", "Add"):
                subtracts = subtracts or node.name or node.output[0]
            elif (
                levels if node.op_type == "Div" else 1 / np.maximum(levels, 1e-30)
            ).min() >= _PIXELS:
                divides = node.name or node.output[0]
        elif node.op_type not in _KEEPS:
            return subtracts, divides
        value = node.output[0]
