"""Models on disk, and those shipped with the package: found, cut and imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from compiler.errors import CodegenError, CompilerError, EvaluationError, OnnxImportError, nearest
from compiler.frontend.cut import (
    Parts,
    caused_by,
    cut,
    cut_around,
    logarithms,
    set_inputs,
    with_sizes,
)
from compiler.frontend.cut_graph import Graph
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.frontend.from_onnx.load import load as load_onnx
from compiler.frontend.from_onnx.model_file import read_model, read_structure
from compiler.ir.module import IRModule
from compiler.ir.walk import mentions
from compiler.ops.number_format import Array
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Diagnosis, diagnose, prerequisite_optimize
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.quantize.diagnosis import OUTSIDE, OperatorDiagnosis, why_float
from compiler.runtime.interface import KEY as INTERFACE
from compiler.runtime.interface import Interface
from compiler.runtime.pipeline import KEY as PIPELINE
from compiler.runtime.pipeline import Pipeline
from compiler.targets.ort.session import OrtExecutor
from qsearch.data.streams import Cell
from qsearch.errors import ModelFileError
from qsearch.run.run_folder import RunFolder
from qsearch.settings.launch_settings import CutAt
from workers.datasets.contents import Contents
from workers.datasets.prepared import whole_inputs
from workers.errors import DatasetError

PREREQUISITE_LEVEL: Final = 3
"""Opt level of the passes before quantization: batch norms folded, bias_add canonical."""

log = logging.getLogger("qsearch.opening.model_file")

SHIPPED: Final = {"digits": ("digits_cnn.onnx", "digits_calib.npz", "digits_dev.npz")}
"""Name → model, calibration and evaluation file in ``qsearch/models``."""

IN_FOLDER: Final = "model.onnx"
"""The model of a folder."""


@dataclass(frozen=True)
class ModelSource:
    """A model on disk.

    Attributes:
        name: what reports call it.
        path: the ONNX file.
        contents: of the file, read once.
        calib, eval: data that comes with it; None for a user's file.
        alone: read no file beside it, where those of others lie: no external data.
        parts: of a model that was cut: its core is what is imported.
        whole: inputs and outputs of a model that was cut.
    """

    name: str
    path: Path
    contents: Contents
    calib: Path | None = None
    eval: Path | None = None
    alone: bool = False
    parts: Parts | None = None
    whole: Interface | None = None

    @property
    def content(self) -> Path | bytes:
        """Source for an importer: the path, the bytes of a file that stands alone, or a core."""
        if self.parts is None:
            return self.original
        return self.parts.core

    @property
    def original(self) -> Path | bytes:
        """The whole model, as ``content`` of one that was not cut."""
        if self.alone:
            return self.path.read_bytes()
        return self.path

    @cached_property
    def declared(self) -> Interface:
        """Inputs and outputs of the whole model; the file is read for them once."""
        return declared_interface(self.original)

    @cached_property
    def structure(self) -> onnx.ModelProto:
        """The whole model without the data of its weights."""
        return read_structure(self.original)

    @property
    def interface(self) -> Interface:
        """Inputs and outputs of what is imported."""
        if self.parts is None:
            return self.declared
        return declared_interface(self.parts.core)

    @property
    def sha256(self) -> str:
        """Digest of the file as it was found."""
        return self.contents.sha256

    def check_unchanged(self) -> None:
        """Refuse a file that does not hold what was found.

        Raises:
            ModelFileError: it was replaced or deleted.
        """
        if not self.contents.is_unchanged(self.path):
            if self.path.exists():
                happened = "was changed"
            else:
                happened = "was deleted or moved"
            raise ModelFileError(
                f"the model {self.path.name} {happened} while it was in use",
                where=f"{self.path}, sha256 {self.sha256[:12]} before",
                fix="put the earlier file back and run the same command again: finished trials "
                "are kept. For another model give another folder with -o, or --fresh",
            )

    @property
    def pipeline(self) -> Pipeline | None:
        """The float parts around the core; None where the model was not cut."""
        parts = self.parts
        if parts is None or self.whole is None or (parts.before is None and parts.after is None):
            return None
        return Pipeline(self.whole, self.interface, parts.before, parts.after)

    def cell(self, module: IRModule) -> Cell:
        """The whole model in float, of which a module was imported, to be called step by step."""
        core = float_executor(module)
        pipeline = self.pipeline
        if pipeline is None:
            return Cell(core.run, tuple(port.name for port in self.interface.outputs))
        dtypes = {p.name_hint: p.tensor_type.dtype for p in module["main"].params}

        def run(given: Mapping[str, Array]) -> Sequence[Array]:
            values = pipeline.prepare(given)
            taken = {name: np.asarray(values[name], dtype) for name, dtype in dtypes.items()}
            return pipeline.finish(values, core.run(taken))

        names = tuple(port.name for port in pipeline.whole.outputs)
        return Cell(run, names, pipeline.sampled)

    @property
    def kept(self) -> dict[str, Any]:
        """Return the interface and the cut of the model for the provenance of a module."""
        found: dict[str, Any] = {INTERFACE: self.interface.to_dict()}
        if self.pipeline is not None:
            found |= {PIPELINE: self.pipeline.whole.to_dict(), "cut": str(self.parts)}
        return found

    @property
    def stem(self) -> str:
        """Name for a run folder."""
        return Path(self.name).stem


def find_model(model: str | os.PathLike[str]) -> ModelSource:
    """The model that ``--model`` names; a file goes before a shipped model of the same name.

    Raises:
        ModelFileError: there is no such file and no such shipped model.
    """
    text = os.fspath(model)
    path = Path(text)
    if path.is_file():
        return ModelSource(text, path, _contents(path))
    if text in SHIPPED:
        folder = resources.files("qsearch.models")
        onnx, calib, evaluation = (Path(str(folder / name)) for name in SHIPPED[text])
        return ModelSource(text, onnx, _contents(onnx), calib, evaluation)
    if (path / IN_FOLDER).is_file():  # as Optimum writes it, with config.json and tokenizer.json
        return ModelSource(text, path / IN_FOLDER, _contents(path / IN_FOLDER))
    if path.is_dir():
        resolved = RunFolder(path).config
        fix = "give the path of a .onnx file"
        if resolved.is_file():
            fix += f"; qsearch launch -c {resolved} -o {path} goes on with the search of the folder"
        raise ModelFileError(
            f"{text} is a folder without {IN_FOLDER}", where=str(path.absolute()), fix=fix
        )
    raise ModelFileError(
        f"there is no model {text!r}", where=str(path.absolute()), fix=_suggestion(path)
    )


def _suggestion(path: Path) -> str:
    shipped = f"shipped models: {', '.join(sorted(SHIPPED))}"
    try:
        beside = {p.stem: p.name for p in path.parent.iterdir() if p.suffix == ".onnx"}
    except OSError:
        return f"the folder {path.parent} does not exist; {shipped}"
    close = nearest(path.stem, [*beside, *SHIPPED])
    if close:
        return f"did you mean {beside.get(close[0], close[0])!r}? {shipped}"
    return f"give the path of a .onnx file; {shipped}"


def _contents(path: Path) -> Contents:
    try:
        return Contents(path)
    except DatasetError as error:
        raise ModelFileError(
            f"the model cannot be read: {error.what}", where=str(path), fix="check its permissions"
        ) from error


def load_model(
    source: ModelSource, dims: Mapping[str, int], at: CutAt
) -> tuple[ModelSource, IRModule, Mapping[str, Any]]:
    """Return the model as it was cut, its core before any pass, and the weights by name.

    A model with nodes that cannot be imported is cut around them, if products are left; one whose
    features are logarithms begins behind these.

    Raises:
        OnnxImportError, SettingsError: a model, a cut or a dimension that cannot be used.
    """
    loaded = None
    if not (at.until or at.from_ or at.set_input):
        try:
            loaded = load_onnx(source.original, dims=dims)
        except OnnxImportError as error:
            if not error.nodes:
                raise
        if loaded is not None and not mentions(loaded[0]["main"], ("log",)):
            return source, *loaded
    graph = Graph(set_inputs(read_model(source.original), at.constants), dims)
    from_, reasons = _begins(graph, at)
    if loaded is not None and not from_:
        return source, *loaded
    rest = {name: size for name, size in dims.items() if name not in graph.sized}
    if at.until or from_:
        parts: Parts | None = cut(graph, tuple(at.until), from_)
    else:
        parts = Parts(None, graph.model.SerializeToString(), None, (1, 1))
    left_out: set[str] = set()
    reason: OnnxImportError | None = None
    while parts is not None:
        if reason is not None and graph.decided(parts.before):
            break  # an option of the model, and no preparation: nobody wants one branch of it
        try:
            found = _cut_source(source, graph, replace(parts, why=caused_by(graph, reasons)))
        except (CodegenError, EvaluationError):
            _refuse_misfits_in(graph, parts.before)
            _refuse_misfits_in(graph, parts.after)
            raise
        try:
            mod, params = load_onnx(found.content, dims=rest)
        except OnnxImportError as error:
            if at.until or not error.nodes or left_out.issuperset(error.nodes):
                raise
            _refuse_misfits(graph, error)
            reason = error
            left_out.update(error.nodes)
            reasons |= {name: error.declined.get(name, "not supported") for name in error.nodes}
            parts = cut_around(graph, left_out, from_)
        else:
            if at.until and parts.after is not None:
                _refuse_misfits_in(graph, parts.after)
            return found, mod, params
    assert reason is not None
    for node, names in graph.deciders(left_out):
        options = " ".join(f"--set-input {name}=VALUE" for name in names)
        reason.add_note(f"{node} takes a branch by {', '.join(names)}: fix it with {options}")
    if parts is None:
        reason.add_note("no cut leaves a product: --until and --from name a part by hand")
    raise reason


def _refuse_misfits(graph: Graph, error: OnnxImportError) -> None:
    """Raise the error of an import where the float model does not run either: sizes that do not
    fit are no reason for a cut, because no part of the model runs with them.

    A node that onnxruntime runs is one that the importer declines for another reason.
    """
    declined = graph.places(error.declined)
    if any(map(graph.leaves_nothing, declined)):
        error.add_note("the float model does not run there either: are the sizes right?")
        raise error
    if not declined:
        return
    whole = graph.model.SerializeToString()
    ports = declared_interface(whole)
    shapes = zip(ports.inputs, whole_inputs(ports), strict=True)
    zeros = {port.name: np.zeros(spec.shape, port.dtype) for port, spec in shapes}
    try:
        OrtExecutor(whole, optimize=False).run(zeros)
    except CodegenError as refused:  # by sizes alone, and maybe by those that follow
        said = str(refused)
        suspects = graph.below(declined)
    except EvaluationError as failed:
        said = str(failed)
        suspects = declined
    else:
        return
    for name in (graph.nodes[place].name for place in suspects):
        if f"Name:'{name}'" in said or f"Node ({name})" in said:
            error.add_note(f"the float model does not run at {name} either: are the sizes right?")
            raise error


def _refuse_misfits_in(graph: Graph, part: bytes | None) -> None:
    """``_refuse_misfits`` for a float part of a cut by hand, which nothing else imports."""
    if part is None:
        return
    try:
        load_onnx(part)
    except OnnxImportError as error:
        _refuse_misfits(graph, error)


_OF_LOGARITHMS: Final = (
    "the arguments of logarithms span decades, which 8 bits do not; --from {} takes them in"
)


def _begins(graph: Graph, at: CutAt) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the nodes that the core begins with, and the reasons by node: nodes of the user, or
    those behind logarithms of the inputs, which are the reasons."""
    if at.from_ or at.until:
        return tuple(at.from_), {}
    found, begins = logarithms(graph)
    return tuple(begins), dict.fromkeys(found, _OF_LOGARITHMS.format(graph.inputs[0]))


def _cut_source(source: ModelSource, graph: Graph, parts: Parts) -> ModelSource:
    """The model in parts; the part in front runs once, for the sizes of what it makes.

    Raises:
        CodegenError, EvaluationError: onnxruntime refuses a float part.
    """
    whole = declared_interface(graph.model.SerializeToString())
    found = replace(source, parts=parts, whole=whole)
    if parts.after is not None:
        OrtExecutor(parts.after, optimize=False)
    pipeline = found.pipeline
    if pipeline is None or pipeline.before is None:
        return found
    zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in whole_inputs(whole)}
    sizes = {name: array.shape for name, array in pipeline.prepare(zeros).items()}
    firsts = [port.dims[0] for port in whole.inputs if port.dims]
    leading = next((dim for dim in firsts if isinstance(dim, str) and dim != "?"), "")
    return replace(found, parts=replace(parts, core=with_sizes(parts.core, sizes, leading)))


def without_floats(
    source: ModelSource, diagnosis: Diagnosis, dims: Mapping[str, int], at: CutAt
) -> tuple[ModelSource, IRModule, Diagnosis] | None:
    """Cut a model around what would stay in float; None where no cut helps.

    Args:
        source: the model as it was cut before.
        diagnosis: of its module.
    """
    graph = Graph(set_inputs(read_model(source.original), at.constants), dims)
    rest = {name: size for name, size in dims.items() if name not in graph.sized}
    left_out: set[str] = set()
    why: tuple[str, ...] = ()
    if source.parts is not None:
        why = source.parts.why
        kept = {node.name for node in read_model(source.parts.core).graph.node}
        left_out = {node.name for node in graph.nodes} - kept
    from_, _ = _begins(graph, at)
    found = diagnosis
    reasons = dict[str, str]()
    for _ in range(_ROUNDS):
        roots = filter(_root, found.operators)
        more = {name: why_float(one.reason) for one in roots for name in one.onnx_nodes}
        if more.keys() <= reasons.keys():
            break
        reasons |= more
        parts = cut_around(graph, left_out | reasons.keys(), from_)
        if parts is None:
            break
        try:
            parts = replace(parts, why=(*why, *caused_by(graph, reasons)))
            cut_source = _cut_source(source, graph, parts)
            mod, params = load_onnx(cut_source.content, dims=rest)
            made = optimized(mod, params)
        except CompilerError:
            break
        found = diagnose(made, QConfig.recommended())
        if found.fully_integral:
            return cut_source, made, found
    return None


def optimized(mod: IRModule, params: Mapping[str, Any]) -> IRModule:
    """Return an imported model as the quantizer takes it."""
    return prerequisite_optimize(mod, params, opt_level=PREREQUISITE_LEVEL, simplify=True)


_ROUNDS: Final = 4


def _root(one: OperatorDiagnosis) -> bool:
    return one.status != "integer" and one.because_of is None and one.reason not in OUTSIDE
