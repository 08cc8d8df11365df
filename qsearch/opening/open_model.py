"""Open a model and its data: what a command does before it quantizes, searches or explains.

    source → sizes of open axes → cut → import → diagnosis → inputs → data

``launch`` and its dry run, ``compile``, ``insight``, ``doctor``, ``submit`` and ``show`` open a
model here.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.errors import OnnxImportError, raised_as
from compiler.frontend.from_onnx.convert.normalization import training_note
from compiler.frontend.from_onnx.model_file import read_model
from compiler.ir.expr import Call, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.ty import tensor_fields
from compiler.ir.walk import behind, nodes_of
from compiler.ops.number_format import Array
from compiler.ops.rules.product_shape import FQProductShape
from compiler.proof.work import refusal_expected
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Diagnosis, diagnose, given_note
from compiler.ranges.reals import LAYOUT
from qsearch.data.prepared_data import Judged, PreparedData, prepare_data, read_preprocess
from qsearch.data.streams import STATES
from qsearch.errors import DataError, SettingsError
from qsearch.opening.frameworks import model_file
from qsearch.opening.model_file import (
    ModelSource,
    find_model,
    load_model,
    optimized,
    without_floats,
)
from qsearch.opening.open_axes import open_axes, sizes_of_arrays, sizes_of_files, sizes_of_model
from qsearch.run.run_folder import PathLike
from qsearch.settings.launch_settings import NO_CUT, CutAt, parse_dims
from workers.datasets.prepared import whole_inputs
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs

log = logging.getLogger("qsearch.opening.open_model")

_CONFIGURED: Final = ("skipped_layer", "skipped_dense", "stopped", "guard")
"""Reasons of a diagnosis that are fields of the configuration."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Data and how they are read, for the ``calib`` and ``eval`` of every function but ``launch``.

    ``launch`` has the settings ``preprocess`` and ``seed``.

    Attributes:
        data: a path or Python objects, as for ``launch``; None is synthetic inputs.
        preprocess: path of the file that says how an image becomes the input, or its fields.
        seed: of synthetic inputs.
    """

    data: Any = None
    preprocess: PathLike | Mapping[str, Any] | None = None
    seed: int = 0

    @classmethod
    def of(cls, given: Any, preprocess: Any = None, seed: int = 0) -> DataSource:
        """Return a source as it is; anything else is the data of one."""
        if isinstance(given, cls):
            return given
        return cls(given, preprocess, seed)

    @property
    def fields(self) -> Mapping[str, Any] | None:
        """Fields of the preprocess file; raises as ``read_preprocess``."""
        if isinstance(self.preprocess, Mapping):
            return self.preprocess
        return read_preprocess(self.preprocess)

    def prepared(
        self, inputs: Sequence[InputSpec], name: str, folder: Path | None, **parts: Any
    ) -> PreparedData:
        """Open the data and check them.

        Args:
            inputs: of the model.
            name: "calib" or "eval", for messages.
            folder: where Python objects are written.
            parts: ``pipeline``, ``cell`` and ``judged`` of ``prepare_data``.
        Raises:
            DataError, DatasetError: as ``prepare_data``.
        """
        own: dict[str, Any] = {"preprocess": self.fields, "seed": int(self.seed)}
        return prepare_data(self.data, inputs, name=name, objects_folder=folder, **own, **parts)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A float model as the quantizer takes it.

    Attributes:
        source: the model as it was cut.
        module: its core, after ``prerequisite_optimize``.
        dims: sizes of named dimensions.
        at: where the user cuts it.
        folder: where data that are Python objects are written; None where there are none.
    """

    source: ModelSource
    module: IRModule
    dims: Mapping[str, int]
    at: CutAt
    folder: Path | None

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Inputs of the core."""
        return tuple(input_specs(self.module))

    @property
    def whole_inputs(self) -> tuple[InputSpec, ...]:
        """Inputs of the whole model, which data are for."""
        pipeline = self.source.pipeline
        if pipeline is None:
            return self.inputs
        return tuple(whole_inputs(pipeline.whole))

    def data(self, given: DataSource, name: str, judged: Judged | None = None) -> PreparedData:
        """Open data of the whole model, as the core takes them; see ``DataSource.prepared``."""
        cell = partial(self.source.cell, self.module)
        parts = {"pipeline": self.source.pipeline, "cell": cell, "judged": judged}
        return given.prepared(self.inputs, name, self.folder, **parts)

    def on_integers(self, config: QConfig, floats: bool = False) -> tuple[OpenedModel, Diagnosis]:
        """Cut the model around what would stay in float, where a cut helps; and diagnose it.

        Floats stay where the user wants them: told so (``floats``), in a configuration that leaves
        the module in one piece or some layers in float, and behind an end by hand.
        """
        found = diagnose(self.module, config)
        if (
            floats
            or found.fully_integral
            or config.partition_conversions != "fully_integral"
            or self.at.until
            or any(one.reason.partition(":")[0] in _CONFIGURED for one in found.operators)
        ):
            return self, found
        made = without_floats(self.source, found, self.dims, self.at)
        if made is None:
            return self, found
        source, module, diagnosis = made
        return replace(self, source=source, module=module), diagnosis


def open_model(
    source: ModelSource,
    data: DataSource,
    dim: Any = (),
    at: CutAt = NO_CUT,
    folder: Path | None = None,
) -> OpenedModel:
    """Import a model, with the sizes that its data have along open axes.

    Args:
        source: the model.
        data: calibration data.
        dim: ``NAME=N`` words, or sizes by name.
        at: where it is cut by hand.
        folder: of ``OpenedModel``.
    Raises:
        OnnxImportError, SettingsError: a model, a cut or a dimension that cannot be used.
    """
    dims = dims_with(data.data, source, dim, data.fields)
    cut, mod, params = load_model(source, dims, at)
    _refuse_empty(mod, params)
    _refuse_infinite(mod, params)
    module = optimized(mod, params)
    training = training_note(source.structure)
    for note in (training, given_note(module), refusal_expected(module)):
        if note:
            log.warning("%s", note)
    return OpenedModel(cut, module, dims, at, folder)


@contextlib.contextmanager
def found_model(model: Any, data: Any = None) -> Iterator[tuple[ModelSource, DataSource, Path]]:
    """Find a model of any kind, and its data: those that come with it where none are given.

    Args:
        model: as for ``launch``.
        data: as for ``launch``, or a ``DataSource``.
    Returns:
        the model on disk while the block runs, its data, and a folder for those in memory.
    """
    given = DataSource.of(data)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as name:
        folder = Path(name)
        path, samples = model_file(model, given.data, folder)
        source = find_model(path)
        samples = source.calib if samples is None else samples
        yield source, replace(given, data=samples, preprocess=given.fields), folder


def named_dims(dim: Any) -> dict[str, int]:
    """``NAME=N`` words or a mapping.

    Raises:
        SettingsError: a word of another form.
    """
    what = f"dim cannot be {dim!r}"
    fix = "NAME=N, for example batch=1"
    with raised_as(SettingsError, what, TypeError, ValueError, where="dim", fix=fix):
        return dict(parse_dims(dim))


def dims_with(
    data: Any, source: ModelSource, dim: Any, preprocess: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """``named_dims``, and along other open axes the sizes that the data or the model have.

    Args:
        preprocess: fields of the preprocess file.
    """
    given = named_dims(dim)
    fields = preprocess or {}
    if {"mean", "std"}.intersection(fields):
        _refuse_twice(fields, read_model(source.original))
    ports = source.declared.inputs
    found = sizes_of_arrays(data, ports, given, STATES in fields)
    if isinstance(data, str | os.PathLike):
        found = sizes_of_files(Path(data), ports, given | found, fields) | found
    if open_axes(ports, given | found):
        found = sizes_of_model(read_model(source.original), ports, given | found) | found
    return found | given


def _refuse_empty(mod: IRModule, params: Mapping[str, Any]) -> None:
    """Refuse a model that takes or gives tensors without elements: they have no range and no score.

    Args:
        mod, params: an imported model and its weights.
    Raises:
        OnnxImportError: an input or an output has a dimension of size 0.
    """
    main = mod["main"]
    taken = {p.name_hint: p.tensor_type for p in main.params if p.name_hint not in params}
    given = {f"output {n}": t for n, t in enumerate(tensor_fields(main.body.checked_type))}
    for name, ty in {**{f"input {n!r}": t for n, t in taken.items()}, **given}.items():
        if 0 in ty.shape:
            raise OnnxImportError(
                f"{name} has a dimension of size 0: {list(ty.shape)}",
                where="the model; there is nothing in it to quantize or to score",
                fix="export the model with sizes from 1 up, or with free axes, which --dim sets",
            )


_ARITHMETIC: Final = ("add", "subtract", "multiply", "divide")


def _refuse_infinite(mod: IRModule, params: Mapping[str, Array]) -> None:
    """Refuse weights that hold NaN, and infinite ones of products: nothing that reads them has a
    range. An infinite addend may be a mask.

    Args:
        mod, params: an imported model and its weights.
    Raises:
        OnnxImportError: the initializer and what it holds.
    """
    for node in nodes_of(mod["main"]):
        if not isinstance(node, Call):
            continue
        product = FQProductShape.get(node.op) is not None
        for arg in node.args if product or is_op_call(node, *_ARITHMETIC) else ():
            name = getattr(behind(arg, LAYOUT)[1], "name_hint", "")
            array = params.get(name)
            if array is None or array.dtype.kind != "f":
                continue
            with np.errstate(all="ignore"):  # the sum takes no memory, and tells of either
                total = float(array.sum(dtype=np.float64))
            if math.isfinite(total) or not (product or np.isnan(array).any()):
                continue
            raise OnnxImportError(
                f"initializer {name!r} holds {'NaN' if np.isnan(array).any() else 'infinity'}",
                where=str(node.span),
                fix="train the model again, or give a checkpoint from before it diverged",
            )


# Scaling of pixels inside a model ---------------------------------------------------------------

_SAME_VALUES: Final = ("Cast", "Identity", "Transpose")
_PIXELS: Final = 50.0
"""A divisor from here on brings pixels 0..255 to about 0..1."""
_CHANNELS: Final = 4


def _refuse_twice(fields: Mapping[str, Any], model: onnx.ModelProto) -> None:
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
        elif node.op_type not in _SAME_VALUES:
            return subtracts, divides
        value = node.output[0]
