"""One module on data, in this process."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.runtime.artifact import QModule, load_qmod
from compiler.runtime.pipeline import Pipeline
from qsearch.data.prepared_data import Batches, Judged, judged_output, label_note
from qsearch.data.streams import STATES, Cell
from qsearch.errors import SettingsError
from qsearch.opening.open_model import DataSource
from qsearch.run.run_folder import PathLike, evaluation_data, module_at
from qsearch.settings.launch_settings import UnknownWordError, metric_named
from qsearch.settings.parameters import (
    Eval,
    Executor,
    Module,
    Preprocess,
)
from workers.batching import batch_size, hash_outputs, rows_of
from workers.datasets.prepared import whole_inputs
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs
from workers.metrics.library import WORDS
from workers.metrics.registry import MetricSums
from workers.process import Stopwatch

log = logging.getLogger("qsearch.commands.running")


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


def run_module(
    path: Module,
    eval: Eval = None,
    *,
    preprocess: Preprocess = None,
    executor: Executor = "auto",
    metric: str | None = None,
) -> dict[str, Any]:
    """Run a .qmod, or an .onnx file that ``export`` wrote, on data, sample after sample.

    Args:
        path: a .qmod, a run folder, or an .onnx file that `export` wrote
        eval: data: .npz, .npy or a folder of images (those of the search in its run folder)
        executor: what runs a module, always with the same bits; auto: the engine, or the next in
            speed without a C compiler
        metric: what judges the outputs by the labels, as of launch (top1 where they are classes)
    Returns:
        The score by its name (``top1`` is None without classes), ``n``, ``outputs_sha256`` over
        the little-endian float32 outputs, the time it took, the ``executor`` that ran and ``why``
        it is no faster one ("" for the engine), and ``warnings`` of inputs on another scale than
        the samples that the .qmod holds.
    Raises:
        ArtifactError: the file is neither.
        CodegenError: onnxruntime gives other bits for an .onnx file than its module has.
        SettingsError, MetricError: no data, or a metric that is not known, or not for these data.
    """
    data = _or_of_search(Path(path), DataSource.of(eval, preprocess))
    try:
        name = None if metric is None else metric_named(metric)
    except UnknownWordError as error:
        raise SettingsError(str(error), where="metric", fix=error.fix) from error
    what = runnable(Path(path), executor)
    found = run_samples(what, data, metric=name)
    form, why = what.form()
    return {
        **{WORDS.get(key, key): value for key, value in found.score.items()},
        "n": found.count,
        "outputs_sha256": found.digest,
        "wall_s": round(found.wall_s, 3),
        "cpu_s": round(found.cpu_s, 3),
        "executor": form,
        "why": why,
        "warnings": list(found.warnings),
    }


def _or_of_search(path: Path, data: DataSource) -> DataSource:
    """Return the data, or those that the run folder of the file names."""
    if data.data is not None:
        return data
    known = evaluation_data(path if path.is_dir() else path.parent)
    if known is None:
        raise SettingsError(
            "no data was given, and the file lies in no run folder that names some",
            where="--eval",
            fix="--eval data.npz, or a folder of images with --preprocess",
        )
    log.info("data: %s", known[0])
    return replace(data, data=known[0], preprocess=data.preprocess or known[1])


@dataclass(frozen=True, slots=True)
class Runnable:
    """Inputs of a module or of an exported file, and what runs it on arrays of them.

    Attributes:
        seen: lowest and highest value by input, where a module holds calibration samples.
        judged: what labels are compared with; None where nothing is known.
        form: the executor that runs, and why it is no faster one.
        pipeline: what stands between the data and these inputs.
        sampled: which outputs have the samples on their leading axis; None is all of them.
        outputs: their names; none where a module does not know the model's.
    """

    inputs: tuple[InputSpec, ...]
    run: Callable[[Mapping[str, NDArray[Any]]], list[NDArray[Any]]]
    seen: Mapping[str, Span] = field(default_factory=dict)
    sampled: tuple[bool, ...] | None = None
    pipeline: Pipeline | None = None
    outputs: tuple[str, ...] = ()
    judged: Judged | None = None
    form: Callable[[], tuple[str, str]] = lambda: ("onnxruntime", "it runs exported files")

    @staticmethod
    def of(module: QModule, executor: str = "auto") -> Runnable:
        """A module."""
        pipeline = module.pipeline
        whole = module.interface if pipeline is None else pipeline.whole
        seen: dict[str, Span] = {}
        for samples, _ in module.samples if pipeline is None else ():
            _widen(seen, samples)
        judges = pipeline is None or pipeline.gives_classes
        return Runnable(
            input_specs(module.module) if pipeline is None else whole_inputs(pipeline.whole),
            partial(module.run, executor=executor),
            seen,
            None if pipeline is None else pipeline.sampled,
            outputs=() if whole is None else tuple(port.name for port in whole.outputs),
            judged=judged_output(module.module, pipeline, "") if judges else None,
            form=partial(module.form, executor),
        )


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
    """Score of a module on data.

    Attributes:
        score: of the metric, by its name; top1 is None without classes.
        count: samples.
        data_sha256: of the data.
        digest: SHA-256 over the little-endian float32 outputs.
    """

    score: Mapping[str, float | None]
    count: int
    data_sha256: str
    digest: str
    wall_s: float
    cpu_s: float
    warnings: tuple[str, ...] = ()


def run_samples(what: Runnable, given: Any, *, metric: str | None = None) -> Scored:
    """Run every sample of the data."""
    # What runs between float parts is no whole model.
    if what.pipeline is None:
        cell = partial(Cell, what.run, what.outputs, what.sampled)
    else:
        cell = None
    if what.judged is None:
        judged = None
    else:
        judged = replace(what.judged, metric=metric or "")
    if judged is not None and metric is None and judged.classes == 1:
        judged = None  # a lone number has no top-1
    source = DataSource.of(given)
    fed_back = (source.fields or {}).get(STATES) or {}  # the model's own, of any range
    seen = {name: span for name, span in what.seen.items() if name not in fed_back}
    parts = {"pipeline": what.pipeline, "cell": cell, "judged": judged}
    with tempfile.TemporaryDirectory(prefix="qsearch-") as folder:
        data = source.prepared(what.inputs, "eval", Path(folder), **parts)
        sampled = what.sampled
        note = label_note(data, metric)
        top1 = ("top1",) if data.has_labels and judged else ()
        sums = MetricSums(
            top1 if metric is None else (metric,),
            has_labels=data.has_labels if metric == "top1" else data.label_axes > 0,
            has_reference=False,
        )
        digest = hashlib.sha256()
        given_spans: dict[str, Span] = {}
        size = batch_size(what.inputs, data.whole)
        watch = Stopwatch()
        for batch in Batches(data, what.inputs).with_labels():
            _widen(given_spans, batch.inputs)
            outputs = what.run(batch.inputs)
            if sampled is not None:
                outputs = [o if own else o[None] for o, own in zip(outputs, sampled, strict=True)]
            outputs = [rows_of(out, batch.count, size) for out in outputs]
            hash_outputs(digest, outputs)
            sums.add(outputs, None, batch.labels)
        return Scored(
            ({"top1": None} if metric is None else {}) | sums.results(),
            data.count,
            data.sha256,
            digest.hexdigest(),
            watch.wall_s,
            watch.cpu_s,
            (*_other_scales(seen, given_spans), *([note] if note else [])),
        )


def runnable(path: Path, executor: str = "auto") -> Runnable:
    """Open a file for running: a .qmod, or an .onnx file that ``export`` wrote.

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
    names = tuple(port.name for port in ports.outputs)
    first = ports.outputs[0]
    judged = Judged.of(first.dims, first.dtype)
    return Runnable(specs, run, sampled=tuple(own), outputs=names, judged=judged)
