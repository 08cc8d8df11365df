"""Views of a model or module: text, drawings, groups on an accelerator, differences of two."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from compiler.difference import Difference, compare_modules
from compiler.drawing import FORMATS, draw
from compiler.errors import CompilerError, NotFullyIntegralError, check_known
from compiler.fusion.hardware.command_list import register_command_list
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.preparation import group_for_hardware
from compiler.fusion.hardware.report import HardwareReport, hw_report
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_text import split_passes
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, bind_params, without_data
from compiler.runtime.artifact import QModule, load_qmod
from compiler.runtime.pipeline import Pipeline
from compiler.transform import FuseOps
from qsearch.data.prepared_data import Batches
from qsearch.errors import ModelFileError, SettingsError
from qsearch.opening.model_file import SHIPPED, find_model, load_model
from qsearch.opening.open_model import DataSource, dims_with, named_dims, open_model
from qsearch.run.run_folder import PathLike, RunFolder, module_at
from qsearch.settings.launch_settings import NO_CUT, CutAt
from qsearch.settings.parameters import (
    Count,
    Dims,
    Eval,
    File,
    From,
    Hardware,
    Preprocess,
    SetInput,
    Until,
)
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs
from workers.process import other_versions

log = logging.getLogger("qsearch.commands.views")


def show(
    path: File,
    format: Literal["text", "dot", "json"] = "text",
    *,
    full: bool = False,
    after: str | None = None,
    dim: Dims = (),
    until: Until = (),
    from_: From = (),
    set_input: SetInput = (),
    hw: Hardware = None,
) -> str:
    """Return a model or module as text, as a drawing, or as its groups on an accelerator.

    Args:
        path: an .onnx, .qmod or .relay file, a run folder, or a shipped model
        format: text; dot for Graphviz; json: boxes and edges, or the report of --hw
        full: with types, sources and every constant; it can be parsed
        after: run these passes first: FoldConstant,FuseOps{max_depth=2}
    Raises:
        CompilerError: the file or the description cannot be used, or there is no such format.
    """
    check_known(format, ("text", *FORMATS), f"there is no format {format!r}", SettingsError)
    at = CutAt(until, from_, set_input)
    file = Path(path)
    if hw is not None:
        return _on_hardware(_typed_module(file, after, dim, at), read_hardware(str(hw)), format)
    module = read_module(file, dims=named_dims(dim), after=after, at=at)
    if format != "text":
        return draw(layers_of(module) if after is None else module, format)
    if full:
        return text(module)
    return text(module, show_types=False, show_spans=False, brief_constants=True)


def _on_hardware(module: IRModule, hdfg: HDFG, format: str) -> str:
    if format == "text":
        return str(hw_report(module, hdfg))
    if format == "json":
        return json.dumps(hw_report(module, hdfg).to_dict())
    return draw(group_for_hardware(module, hdfg), format)


def layers_of(module: IRModule) -> IRModule:
    """Return a module with a kernel of FuseOps for each layer.

    A module without types, or with open dimensions, is returned as it is.
    """
    try:
        return FuseOps()(module)
    except CompilerError:
        return module


def read_hardware(hw: str) -> HDFG:
    """The description that ``--hw`` names; its groups can be compiled to command lists.

    Raises:
        HDFGError: it is wrong or not there.
    """
    hdfg = load_hdfg(hw)
    register_command_list(hdfg.name)
    return hdfg


def _typed_module(path: Path, after: str | None, dim: Any, at: CutAt) -> IRModule:
    """A file's module with its weights as constants, norms folded unless passes were named."""
    is_model = path.suffix not in (".qmod", ".relay") and not RunFolder(path).module.is_file()
    if after is None and is_model:
        return open_model(find_model(path), DataSource(), dim, at).module
    return read_module(path, dims=named_dims(dim), after=after, closed=True, at=at)


def read_module(
    path: Path,
    *,
    dims: Mapping[str, int],
    after: str | None = None,
    closed: bool = False,
    at: CutAt = NO_CUT,
    data: Any = None,
) -> IRModule:
    """The typed module of a .qmod, a .relay text, an .onnx file or a shipped model.

    Args:
        path: the file, a run folder (its winner), or the name of a shipped model.
        dims: sizes of named dimensions of an ONNX model.
        after: passes to run on it, as text.
        closed: weights of an ONNX model become constants, so that only inputs are parameters.
        at: where an ONNX model is cut.
        data: arrays that tell the sizes of other axes.
    Raises:
        CompilerError: the file cannot be used, or a pass fails.
    """
    if RunFolder(path).module.is_file() or str(path) not in SHIPPED:
        path = module_at(path)
    if path.suffix == ".qmod":
        module = load_qmod(path).module
    elif path.suffix == ".relay":
        module = infer_module(parse(_text(path)))
    else:
        source = find_model(path)
        _, module, params = load_model(source, dims_with(data, source, dims), at)
        if closed:
            module = bind_params(module, params)
    if after:
        from compiler.transform import run_named

        try:
            module = run_named(module, split_passes(after), "show")
        except CompilerError as error:
            error.add_note(f"while running --after {after}")
            raise
    return module


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is not UTF-8 text"
        raise ModelFileError(
            f"{path} cannot be read: {reason}",
            where=str(path.absolute()),
            fix="give the path of a .relay file",
        ) from error


def report_without_data(module: IRModule, qconfig: QConfig, hw: str) -> HardwareReport:
    """The groups of a model once it is quantized, before there are data to quantize it with.

    Ranges decide numbers, and hardly which operators there are; so ``global_scale`` stands in.

    Args:
        module: the float module after prerequisite_optimize.
        qconfig: what it will be quantized with; fields that need data are not looked at.
        hw: as ``--hw``.

    Raises:
        HDFGError: the description is wrong or not there.
        CompilerError: the model cannot be quantized.
    """
    hdfg = read_hardware(hw)
    plain = without_data(qconfig)
    calibration = Calibration(module)
    try:
        candidate = calibration.candidate(plain)
    except NotFullyIntegralError:
        candidate = calibration.candidate(plain.uncut)
    return hw_report(candidate.module, hdfg)


# Two modules on the same data -------------------------------------------------------------------


def diff(
    a: File,
    b: File,
    eval: Eval = None,
    *,
    preprocess: Preprocess = None,
    samples: Count = 4,
    rtol: float = 0.0,
    atol: float = 0.0,
    dim: Dims = (),
    until: Until = (),
    from_: From = (),
    set_input: SetInput = (),
) -> Difference:
    """Run two modules on the same inputs; which node differs first, and how far each is off.

    Without a cut, an .onnx is cut as the model of the other file was.

    Args:
        a: the reference: .onnx, .qmod or .relay
        b: the module that is compared with it
        eval: data: .npz, .npy or a folder of images (the samples in the .qmod, else synthetic)
        samples: number of samples
        rtol: |a-b| <= atol + rtol·|a| counts as equal; zero asks for the same bits
        atol: as of --rtol
    Raises:
        CompilerError: a file or the data cannot be used, or inputs and outputs do not match.
    """
    if samples < 1:
        raise SettingsError(f"samples is {samples}", where="samples", fix="one or more")
    found = [(path, _artifact(path)) for path in (a, b)]
    artifacts = [one for _, one in reversed(found) if one is not None]
    for path, one in found:
        if one is not None and (told := other_versions(one.provenance.get("libraries"))):
            log.warning("%s was %s", path, told)
    dims = named_dims(dim)
    at = CutAt(until, from_, set_input)
    if not (until or from_ or set_input):
        at = next((_ends(one.pipeline) for one in artifacts if one.pipeline is not None), at)
    source = DataSource.of(eval, preprocess)
    held = next((dict(inputs) for one in artifacts for inputs, _ in one.samples), None)
    sizes = held if source.data is None else source.data
    first, second = (
        read_module(Path(path), dims=dims, closed=True, at=at, data=sizes)
        if one is None
        else one.module
        for path, one in found
    )
    inputs = input_specs(first)
    stored: list[Mapping[str, NDArray[Any]]] = []
    if source.data is None:
        stored = next(filter(None, (_stored(one, inputs) for one in artifacts)), [])
    if stored:
        return compare_modules(first, second, stored[:samples], rtol=rtol, atol=atol)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as folder:
        batches = Batches(source.prepared(inputs, "eval", Path(folder)), inputs, samples)
        return compare_modules(first, second, batches, rtol=rtol, atol=atol)


def _artifact(path: PathLike) -> QModule | None:
    """A .qmod, or the winner of a run folder; None of other files."""
    found = Path(path)
    if found.suffix == ".qmod" or RunFolder(found).module.is_file():
        return load_qmod(module_at(found))
    return None


def _ends(pipeline: Pipeline) -> CutAt:
    """Cut of a model into the float parts of a module."""
    given = {port.name for port in pipeline.whole.inputs}
    return CutAt(
        until=[port.name for port in pipeline.core.outputs],
        from_=[port.name for port in pipeline.core.inputs if port.name not in given],
    )


def _stored(artifact: QModule, specs: Sequence[InputSpec]) -> list[Mapping[str, NDArray[Any]]]:
    """Inputs of the samples that a .qmod holds, where they fit."""
    taken = {spec.name: spec.shape for spec in specs}
    inputs: list[Mapping[str, NDArray[Any]]] = [given for given, _ in artifact.samples]
    fit = all({n: a.shape for n, a in each.items()} == taken for each in inputs)
    if fit:
        return inputs
    return []
