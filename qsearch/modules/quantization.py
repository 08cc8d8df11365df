"""One configuration without a search, and one module on data: all in this process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import NotFullyIntegralError, legal_names
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.ir.blob import module_sha256
from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Decision, diagnose
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.runtime.artifact import QModule, Sample, load_qmod
from compiler.runtime.pipeline import Pipeline
from qsearch.errors import SettingsError
from qsearch.frameworks import model_at
from qsearch.model_file import ModelSource, dims_with, import_model, without_floats
from qsearch.modules.data_source import Batches, DataSource
from qsearch.run_folder import module_at
from qsearch.search.winner import build_winner, recorded_proof, samples_of
from qsearch.settings import CutAt
from workers.batching import batch_size, rows_of
from workers.datasets.prepared import whole_inputs
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs
from workers.metrics.registry import MetricSums, measure
from workers.metrics.size import RESTRICTED, fields_of
from workers.process import code_version
from workers.user_code import hashes, imported_code

PathLike = str | os.PathLike[str]


log = logging.getLogger("qsearch.modules.quantization")

_FAR_DB: Final = 10.0
"""Below it a tenth of the outputs' power is noise."""

AUTO: Final = "auto"
"""The configuration that the statistics of the data suggest."""


def load(path: PathLike) -> QModule:
    """A module written by ``launch``, ``compile`` or ``QModule.save``.

    Args:
        path: of the file, or of a run folder.
    Raises:
        RunFolderError: no module was written to this run folder.
        ArtifactError: the file is missing, damaged, or no .qmod.
    """
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(
            f"a module of type {type(path).__name__} cannot be loaded",
            where="path",
            fix="give the path of a .qmod, or of a run folder",
        )
    return load_qmod(module_at(Path(path)))


def quantize(
    model: Any,
    calib: Any = None,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    dim: Mapping[str, int] | Sequence[str] = (),
    until: Sequence[str] = (),
    from_: Sequence[str] = (),
    set_input: Sequence[str] | Mapping[str, Any] = (),
) -> QModule:
    """Quantize with one configuration, without a search, in this process.

    Args:
        model: as for ``launch``.
        calib: as for ``launch``, or a ``DataSource``; None is synthetic inputs, and not needed for
            global_scale.
        qconfig: None or "auto" chooses from the statistics of the data, and the module's
            provenance gives the reasons (``compiler.quantize.choose``); "auto,k=v" changes fields
            of what is chosen. A QConfig is taken as it is; a mapping, ``"k=v,k=[v]"`` or the path
            of a qconfig.json changes ``QConfig.recommended()``.
        dim: sizes of named dimensions.
        until, from_, set_input: where the model is cut by hand, as of ``CutAt``. A model with nodes
            that have no integer form is cut around them: they stay in float in front of the module
            or behind it, and ``run`` runs all of them.
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    changes = changes_of_auto(qconfig)
    config = resolve_qconfig(qconfig) if changes is None else None
    at = CutAt(until, from_, set_input)
    given = DataSource.of(calib)
    with model_at(model, given.data) as (found, samples):
        given = replace(given, data=found.calib if samples is None else samples)
        dim = dims_with(given.data, found, dim)
        source, module = import_model(found, dim, at)
        try:
            return _quantized(source, module, given, config, changes)
        except NotFullyIntegralError:
            diagnosis = diagnose(module, config or QConfig.recommended())
            cut, module, _ = without_floats(source, module, diagnosis, dim, at)
            if cut is source:
                raise
        return _quantized(cut, module, given, config, changes)


def _quantized(
    source: ModelSource,
    module: IRModule,
    given: DataSource,
    config: QConfig | None,
    changes: Mapping[str, Any] | None,
) -> QModule:
    """The module of a model that was imported; ``config`` None chooses, with the changes."""
    inputs = input_specs(module)
    with given.opened(inputs, "calib", source.pipeline) as data:
        # Both hold the whole model for a moment: before calibration holds more.
        kept = source.kept
        digest = module_sha256(module)
        calibration = Calibration(module, Batches(data, inputs))
        decisions: tuple[Decision, ...] = ()
        if config is None:
            chosen, decisions = calibration.choose()
            config = chosen.with_overrides(**(changes or {}))
            decisions = tuple(one for one in decisions if one.field not in (changes or {}))
        if calibration.scales_for(config) and data.synthetic:
            log.warning(
                "no calibration data was given: activation ranges come from random inputs "
                "and will not fit real ones"
            )
        shipped = build_winner(calibration, config)
        for call in shipped.float_ops:
            log.info("stays float: %s", call)
        before, after = (None, None) if source.parts is None else source.parts.around
        samples = samples_of(shipped.module, data, inputs)
        return QModule(
            shipped.module,
            config,
            provenance={
                **_closeness(module, samples),
                "model_sha256": source.sha256,
                "module_sha256": digest,
                "calib_sha256": data.sha256,
                "seed": int(given.seed),
                **({"decisions": [str(one) for one in decisions]} if decisions else {}),
                **({"imports": hashes(code)} if (code := imported_code()) else {}),
                **kept,
                **({} if source.pipeline is None else {"cut": str(source.parts)}),
                "code_version": code_version(),
                **shipped.provenance,
            },
            samples=samples,
            proof=recorded_proof(shipped.module),
            before=before,
            after=after,
        )


def _closeness(module: IRModule, samples: Sequence[Sample]) -> dict[str, float]:
    """SQNR in dB of the float outputs of stored samples against the float model's; nothing for a
    model without float outputs."""
    float_model = float_executor(module)
    sums = MetricSums(("sqnr",), has_labels=False, has_reference=True)
    compared = 0
    for inputs, outputs in samples:
        pairs = zip(outputs, float_model.run(inputs), strict=True)
        floats = [pair for pair in pairs if pair[1].dtype.kind == "f"]
        compared += len(floats)
        sums.add([ours for ours, _ in floats], [theirs for _, theirs in floats], None)
    if not compared:
        return {}
    sqnr_db = measure("sqnr_db").finite(sums.results()["sqnr"])
    assert sqnr_db is not None  # equal outputs have the finite number of infinity
    if sqnr_db < _FAR_DB:
        log.warning(
            "the outputs are hardly those of the float model: %.1f dB on %d samples. `qsearch "
            "insight` names the layers that lose; --until and --from leave parts in float",
            sqnr_db,
            len(samples),
        )
    return {"sqnr_db": round(sqnr_db, 1)}


def changes_of_auto(given: QConfig | Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """The fields that differ from the automatic choice; None where it was not asked for.

    ``auto,for=ryzenai`` are the fields of every module whose file that form is.

    Raises:
        UnknownConfigKeyError, ConfigValueError: a field or value that QConfig does not have.
        SettingsError: a form that asks for no fields.
    """
    if given is None or given == AUTO:
        return {}
    if not isinstance(given, str) or not given.startswith(f"{AUTO},"):
        return None
    changes = QConfig.parse_overrides(given.removeprefix(f"{AUTO},"), ("for",))
    form = changes.pop("for", None)
    if form is not None and form not in RESTRICTED:
        raise SettingsError(
            f"no form {form!r} asks for fields of its own",
            where=f"qconfig {given}",
            fix=legal_names(str(form), RESTRICTED),
        )
    if form is not None:
        changes = {**fields_of(form), **changes}
    if form is not None or changes.get("requantization") == "tflite":
        # What would be chosen has 16 bits at some layers; these files have not.
        changes.setdefault("layers", {})
    return changes


def resolve_qconfig(given: QConfig | Mapping[str, Any] | str | None) -> QConfig:
    """A QConfig as it is; anything else changes ``QConfig.recommended()``.

    Raises:
        UnknownConfigKeyError, ConfigValueError: a field or value that QConfig does not have.
        SettingsError: a qconfig.json that cannot be read.
    """
    if isinstance(given, QConfig):
        return given
    if given is None:
        return QConfig.recommended()
    if isinstance(given, Mapping):
        return QConfig.recommended(**given)
    if not isinstance(given, str):
        raise SettingsError(
            f"a configuration of type {type(given).__name__} cannot be used",
            where="qconfig",
            fix="give a QConfig, a mapping, 'k=v,…', or the path of a qconfig.json",
        )
    if given.endswith(".json"):
        try:
            fields = json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingsError(
                f"the configuration {given} cannot be read: {error}",
                where="qconfig",
                fix="give a qconfig.json as `qsearch launch` writes it, or k=v,…",
            ) from error
        if not isinstance(fields, dict):
            raise SettingsError(
                f"{given} holds no mapping of fields",
                where="qconfig",
                fix='write {"calibrate_mode": "max"}',
            )
        return QConfig.recommended(**fields)
    return QConfig.recommended(**QConfig.parse_overrides(given))


def run_module(path: PathLike, data: Any, *, executor: str = "auto") -> dict[str, Any]:
    """Run a .qmod, or an .onnx file that ``export`` wrote, on data, sample after sample.

    Args:
        data: as ``eval`` of ``launch``, or a ``DataSource``.
        executor: as for ``QModule.run``; every executor gives the same bits. An .onnx file is run
            by onnxruntime with default session options.
    Returns:
        ``top1`` (None without labels), ``n``, ``outputs_sha256`` over the little-endian float32
        outputs, the time it took, the ``executor`` that ran and ``why`` it is no faster one
        ("" for the engine), and ``warnings`` of inputs on another scale than the samples that
        the .qmod holds.
    Raises:
        ArtifactError: the file is neither.
        CodegenError: onnxruntime gives other bits for an .onnx file than its module has.
    """
    what = runnable(Path(path), executor)
    found = run_samples(what, data, kept=False)
    form, why = what.form()
    return {
        "top1": found.top1,
        "n": found.count,
        "outputs_sha256": found.digest,
        "wall_s": round(found.wall_s, 3),
        "cpu_s": round(found.cpu_s, 3),
        "executor": form,
        "why": why,
        "warnings": list(found.warnings),
    }


@dataclass(frozen=True, slots=True)
class Runnable:
    """Inputs of a module or of an exported file, and what runs it on arrays of them.

    Attributes:
        seen: lowest and highest value by input, where a module holds calibration samples.
        judged: whether labels judge the first output.
        form: the executor that runs, and why it is no faster one.
        pipeline: what stands between the data and these inputs.
        sampled: which outputs have the samples on their leading axis; None is all of them.
    """

    inputs: tuple[InputSpec, ...]
    run: Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]
    seen: Mapping[str, Span] = field(default_factory=dict)
    sampled: tuple[bool, ...] | None = None
    pipeline: Pipeline | None = None
    judged: bool = True
    form: Callable[[], tuple[str, str]] = lambda: ("onnxruntime", "it runs exported files")

    @staticmethod
    def of(module: QModule, executor: str = "auto") -> Runnable:
        """A module."""
        seen: dict[str, Span] = {}

        def form() -> tuple[str, str]:
            return module.form(executor)

        pipeline = module.pipeline
        if pipeline is not None:
            specs = whole_inputs(pipeline.whole)
            own = pipeline.sampled
            run = Runnable(specs, lambda inputs: module.run(inputs, executor), seen, own)
            return replace(run, judged=pipeline.gives_classes, form=form)
        for inputs, _ in module.samples:
            _widen(seen, inputs)
        specs = input_specs(module.module)
        return Runnable(specs, lambda inputs: module.run(inputs, executor), seen, form=form)


Span = tuple[float, float]
_OTHER_SCALE: Final = 10.0
"""The few samples of a module do not have the whole range of its data."""


def _widen(spans: dict[str, Span], inputs: Mapping[str, NDArray[Any]]) -> None:
    for name, array in inputs.items():
        low, high = spans.get(name, (np.inf, -np.inf))
        spans[name] = min(low, float(array.min())), max(high, float(array.max()))


def _other_scales(seen: Mapping[str, Span], given: Mapping[str, Span]) -> tuple[str, ...]:
    """A sentence for each input whose values lie on another scale than those it was made with."""
    found = []
    for name, ours in seen.items():
        theirs = given[name]
        least, most = sorted((ours[1] - ours[0], theirs[1] - theirs[0]))
        negative = [low < -0.3 * high for low, high in (ours, theirs)]
        if most > _OTHER_SCALE * least or (negative == [True, False] and theirs[0] >= 0):
            found.append(
                f"{name!r} has values from {theirs[0]:.4g} to {theirs[1]:.4g}; the samples that "
                f"the module was made with have {ours[0]:.4g} to {ours[1]:.4g}: prepare both alike"
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Scored:
    """What data gave.

    Attributes:
        top1: None without labels.
        count: samples.
        data_sha256: of the data.
        digest: SHA-256 over the little-endian float32 outputs.
        outputs: of all samples; () where they were not kept.
    """

    top1: float | None
    count: int
    data_sha256: str
    digest: str
    outputs: tuple[NDArray[Any], ...]
    wall_s: float
    cpu_s: float
    warnings: tuple[str, ...] = ()


def run_samples(what: Runnable, given: Any, *, kept: bool = True) -> Scored:
    """Run every sample of the data; ``kept`` keeps the outputs."""
    with DataSource.of(given).opened(what.inputs, "eval", what.pipeline) as data:
        sampled = what.sampled
        sums = MetricSums(
            ("top1",) if data.has_labels and what.judged else (),
            has_labels=data.has_labels,
            has_reference=False,
        )
        digest = hashlib.sha256()
        gathered: list[list[NDArray[Any]]] = []
        given_spans: dict[str, Span] = {}
        size = batch_size(what.inputs, data.whole)
        begin, begin_cpu = time.monotonic(), time.process_time()
        for batch in Batches(data, what.inputs).with_labels():
            _widen(given_spans, batch.inputs)
            outputs = what.run(batch.inputs)
            if sampled is not None:
                outputs = [o if own else o[None] for o, own in zip(outputs, sampled, strict=True)]
            outputs = [rows_of(out, batch.count, size) for out in outputs]
            for sample in range(batch.count):
                for out in outputs:
                    if len(out) > sample:
                        digest.update(np.ascontiguousarray(out[sample], "<f4").tobytes())
            sums.add(outputs, None, batch.labels)
            if kept:
                gathered.append(outputs)
        return Scored(
            sums.results().get("top1"),
            data.count,
            data.sha256,
            digest.hexdigest(),
            tuple(map(_concatenated, zip(*gathered, strict=True))),
            time.monotonic() - begin,
            time.process_time() - begin_cpu,
            _other_scales(what.seen, given_spans),
        )


def _concatenated(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One array of all; samples that differ in their sizes are joined as rows of numbers."""
    if len({part.shape[1:] for part in parts}) > 1:
        return np.concatenate([part.reshape(-1) for part in parts])
    return np.concatenate(parts)


def runnable(path: Path, executor: str = "auto") -> Runnable:
    """What a file holds: a .qmod, or an .onnx file that ``export`` wrote.

    Raises:
        ArtifactError: the file is neither.
        CodegenError: onnxruntime gives other bits for an .onnx file than its module has.
    """
    if path.suffix != ".onnx":
        return Runnable.of(load(path), executor)
    from compiler.targets.ort.exported import open_exported

    session = open_exported(path)
    dtypes = {name: dtype for name, dtype, _ in session.inputs}
    specs = tuple(
        InputSpec(
            name,
            tuple(dim if isinstance(dim, int) else 1 for dim in dims),
            "float32" if dtype.startswith("float") else dtype,
        )
        for name, dtype, dims in session.inputs
    )

    def run(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        return session.run({name: array.astype(dtypes[name]) for name, array in inputs.items()})

    ports = declared_interface(path)
    firsts = {port.dims[0] for port in ports.inputs if port.dims}
    counted = [bool(p.dims) and isinstance(p.dims[0], str) for p in ports.outputs]
    own = (not n or p.dims[0] in firsts for n, p in zip(counted, ports.outputs, strict=True))
    return Runnable(specs, run, sampled=tuple(own))
