"""Datasets by kind.

To add one: a file beside this one with a function ``open(options, inputs) -> Dataset`` under
``@datasets.register(kind)``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from compiler.ir.expr import Call, Expr
from compiler.ir.module import IRModule
from compiler.ir.walk import behind, nodes_of
from compiler.lru_cache import LRUCache
from compiler.named_table import NamedTable
from workers.datasets.contents import Contents, PinnedDataset, changed
from workers.datasets.labels import Relabelled
from workers.datasets.protocol import Dataset, InputSpec
from workers.errors import DatasetError
from workers.messages import DatasetRef

LABELS: Final = "labels"
"""Option of every kind: the fields of ``workers.datasets.labels``."""

OpenDataset = Callable[..., Dataset]
"""``open(inputs, **options)``: the dataset for a model with these inputs; raises DatasetError."""

datasets: NamedTable[OpenDataset] = NamedTable(
    "dataset kind", DatasetError, filled_by="workers.datasets.builtin"
)


def input_specs(mod: IRModule) -> tuple[InputSpec, ...]:
    """Inputs of @main, in order."""
    # All operators come with it, and who only lists studies needs none.
    from compiler.ops.transform.take import TakeAttrs
    from compiler.quantize import masked_inputs

    # The integers of a quantized module saturate.
    saturates = "quantize_inputs" in mod
    if saturates:
        masked = mod["main"].params
    else:
        masked = masked_inputs(mod["main"])
    rows: dict[Expr, int] = {}
    for node in nodes_of(mod["main"]):
        # A place beyond the rows is an error in ONNX; here it would count around.
        if not isinstance(node, Call) or not isinstance(take := node.attrs, TakeAttrs):
            continue
        if take.mode == "wrap":
            table, places = node.args
            sizes = table.tensor_type.concrete_shape
            size = prod(sizes) if take.axis is None else sizes[take.axis]
            source = behind(places, ("reshape", "expand_dims", "squeeze", "cast"))[1]
            rows[source] = min(size, rows.get(source, size))
    return tuple(
        InputSpec(
            param.name_hint,
            param.tensor_type.concrete_shape,
            param.tensor_type.dtype,
            rows=rows.get(param, 0),
            masked=param in masked,
        )
        for param in mod["main"].params
    )


def open_dataset(
    ref: DatasetRef, inputs: Sequence[InputSpec], contents: Contents | None = None
) -> Dataset:
    """Open the dataset that ``ref`` names, for a model with these inputs.

    Args:
        ref: where it has a hash, the files must hold what the hash was taken of, now and whenever
            samples are read.
        contents: of its files, where they were read already.
    Raises:
        DatasetError: unknown kind, missing or empty data, or data that does not fit.
        DataChangedError: the files do not have the hash of ``ref``.
    """
    options: dict[str, Any] = dict(ref.options)
    fields = options.pop(LABELS, {})
    path = Path(options.get("path", ""))
    options |= {"path": path} if "path" in options else {}
    if ref.sha256 and contents is None:
        if not path.exists():
            raise changed(path)
        contents = Contents(path)
    if contents is not None and contents.sha256 != ref.sha256:
        raise changed(path)
    dataset = datasets.require(ref.kind)(inputs, **options)
    if contents is not None:
        dataset = PinnedDataset(dataset, contents)
    return Relabelled(dataset, fields, str(path))


_OPEN = 2
"""Calibration and evaluation data of one study."""


class OpenDatasets:
    """Opens a dataset at its first use, and hashes its files then where the ref has a hash."""

    def __init__(self) -> None:
        self._open: LRUCache[Dataset] = LRUCache(_OPEN)

    def open(self, ref: DatasetRef, inputs: Sequence[InputSpec]) -> Dataset:
        """The dataset that ``ref`` names, for a model with these inputs.

        Raises:
            DatasetError: see ``open_dataset``.
        """
        key = (ref.kind, json.dumps(dict(ref.options), sort_keys=True), ref.sha256, tuple(inputs))
        return self._open.get(key, lambda: open_dataset(ref, inputs))
