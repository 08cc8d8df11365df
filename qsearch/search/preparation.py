"""Parts of a study, before anything is stored or run: model, data, space, objective.

``spec`` names all that decides which trials are made and what they score. Two runs with equal
specs are one study; what only decides how long it takes (workers, pool, trials) is not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.ir.blob import ModuleBlob
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Diagnosis, given_note, measured_points, ungiven_weights
from compiler.quantize.candidate import recommended_mark
from compiler.text_output import abbreviated
from qsearch.data.prepared_data import (
    PreparedData,
    judged_output,
    label_note,
    natural_metric,
    read_preprocess,
)
from qsearch.data.streams import STATES
from qsearch.errors import ConflictError, RunFolderError, SettingsError
from qsearch.opening.import_check import check_import
from qsearch.opening.model_file import ModelSource
from qsearch.opening.open_model import DataSource, OpenedModel, open_model
from qsearch.run.progress import Progress
from qsearch.run.run_folder import RunFolder
from qsearch.search import scoring
from qsearch.search.baseline import doubtful_data
from qsearch.search.calibration import percentiles_of
from qsearch.search.context import PreparedStudy
from qsearch.search.last_function import with_last_in_float
from qsearch.search.objectives import top1_step, weighs_accuracy
from qsearch.search.optuna_study import AUTO, HISTORY_FREE, own_sampler
from qsearch.search.pruner import DEFAULT_ALPHA
from qsearch.search.space_file import searched_space
from qsearch.settings.launch_settings import AUTO_PATIENCE, MaxDrop, Settings, is_import_path
from qsearch.settings.user_code import check_imports, run_user_passes
from qsearch.store.records import NewStudy, Study
from workers.datasets.labels import FIELDS as LABELLED
from workers.metrics.costs import TIMED
from workers.metrics.custom import custom_metric
from workers.metrics.library import AGAINST_FLOAT, LIBRARY, WORDS
from workers.metrics.size import DEFAULT_FORM
from workers.process import code_version
from workers.user_code import code_behind, hashes, import_user_code

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

SOMETIMES_SCORED = ("cut", "hw", "for", "ram", *TIMED, "max_drop", "imports", "metric_code")
"""Parts of the spec that decide scores where they are there: the accelerator of ``--hw``, the form
whose bytes count, whether memory is counted, the machine that latency is measured on, the accuracy
that may be lost, the user's modules, and the module of a metric."""


def prepare_study(
    settings: Settings,
    source: ModelSource,
    *,
    calib: Any = None,
    evaluation: Any = None,
    objects_folder: Path | None = None,
    progress: Progress | None = None,
) -> PreparedStudy:
    """Import the model, open the data, and decide what the study searches.

    The last function of the model stays in float where the metric gains by it; see
    ``with_last_in_float``.

    Args:
        settings: checked options.
        source: the model.
        calib, evaluation: Python objects that go before the paths of the settings.
        objects_folder: where Python objects are written.
        progress: of what is measured for it.
    Raises:
        OnnxImportError, DatasetError, DataError, SettingsError, MetricError: see there.
    """
    if is_import_path(settings.sampler):
        own_sampler(settings.sampler)
    fields = read_preprocess(settings.preprocess)
    rest = (fields, objects_folder)
    given = _first(calib, settings.calib)
    judged = _first(evaluation, settings.eval)
    study = _prepared(settings, source, given, judged, *rest)
    if settings.until or settings.allow_float or settings.passes or STATES in (fields or {}):
        return study

    # Objects may have been read to their end, and lie in files now.
    given = given if calib is None else Path(study.calib.path)
    if evaluation is None:
        judged = judged
    else:
        judged = Path(study.evaluation.path)

    def cut(until: str, begins: Sequence[str]) -> PreparedStudy:
        words = {"until": (until,), "from_": settings.from_ or tuple(begins)}
        return _prepared(settings.model_copy(update=words), source, given, judged, *rest)

    return with_last_in_float(study, cut, progress or Progress())


def _prepared(
    settings: Settings,
    source: ModelSource,
    calib: Any,
    evaluation: Any,
    fields: Mapping[str, Any] | None,
    folder: Path | None,
) -> PreparedStudy:
    """The study of the model as the settings cut it.

    Args:
        calib, evaluation: paths or Python objects.
        fields: of the preprocess file.
    """
    given = DataSource(_first(calib, source.calib), fields, settings.seed)
    opened = open_model(source, given, settings.dim, settings.cut_at, folder)
    source.check_unchanged()
    settings = settings.model_copy(update={"dim": tuple(opened.dims.items())})
    if settings.passes:
        opened = replace(opened, module=run_user_passes(opened.module, settings.passes))
    _refuse_quantized(opened)
    floats = settings.allow_float or bool(settings.passes)
    opened, diagnosis = opened.on_integers(QConfig.recommended(), floats)
    source = opened.source
    module = opened.module
    inputs = opened.inputs
    if {STATES, *LABELLED}.intersection(fields or ()):
        used = None
    else:
        used = settings.preprocess
    calib_data = eval_data = opened.data(given, "calib")
    if not settings.passes:
        check_import(opened, calib_data)
    if (evaluation := _first(evaluation, source.eval)) is not None:
        judged = judged_output(module, source.pipeline, settings.metric or "")
        eval_data = opened.data(replace(given, data=evaluation), "eval", judged)
    asked_metric = settings.metric or natural_metric(eval_data)
    if is_import_path(asked_metric or ""):
        own_metric = asked_metric
    else:
        own_metric = None
    if own_metric:
        custom_metric(own_metric)
    has_labels = eval_data is not calib_data and eval_data.has_labels
    if source.pipeline is None and (judged := judged_output(module, None, "")) is not None:
        has_labels = has_labels and judged.classes != 1
    if source.pipeline is not None and source.pipeline.after is not None:
        has_labels = has_labels and not own_metric and source.pipeline.gives_classes
    if own_metric:
        has_labels = has_labels and eval_data.label_axes == 1
    metric = _metric(asked_metric, eval_data, has_labels)
    settings = _answering(settings, eval_data.count, has_labels or metric == "agreement")
    code = import_user_code(settings.imports)
    asked = searched_space(settings, module, metric, diagnosis.fully_integral, code)
    costs = (metric, *settings.minimize, *dict(settings.at_most))
    costs += TIMED[:1] if settings.measure else ()
    scoring.check_core(settings, costs)
    evaluator = scoring.evaluator_of_flag(settings.evaluator)
    study = PreparedStudy(
        settings=settings,
        source=source,
        module=module,
        blob=ModuleBlob.pack(module),
        inputs=inputs,
        calib=calib_data,
        evaluation=eval_data,
        has_labels=has_labels,
        metric=metric,
        space=asked.space,
        start=asked.start,
        spec={},
        warnings=(
            *_float_warning(diagnosis, asked.start),
            *_warnings(calib_data, eval_data, has_labels, metric),
            *scoring.slow_evaluator(evaluator),
            *doubtful_data(calib_data, eval_data, used),
            *(() if asked.layers is None else asked.layers.doubt(settings.max_size)),
        ),
        hardware=scoring.hardware_of(settings, costs),
        layers=asked.layers if settings.sampler == AUTO else None,
        code=code,
    )
    timed: dict[str, Any] = {
        name: scoring.timed_on(settings, name) for name in TIMED if name in costs
    }
    # A core adds all of them, and is a part of the spec itself.
    if "ram" in costs:
        timed["ram"] = True
    layers: dict[str, Any] = {} if asked.layers is None else {"layers": asked.layers.to_dict()}
    return replace(study, spec={**_spec(study, evaluator), **layers, **timed})


def _refuse_quantized(opened: OpenedModel) -> None:
    """Refuse a model that is quantized already, and leaves nothing to search for."""
    if note := given_note(opened.module):
        annotated = opened.module.view(recommended_mark)[0]
        if not measured_points(annotated) and not ungiven_weights(annotated):
            raise SettingsError(
                f"{opened.source.name}: {note}; it leaves nothing to search for",
                fix="write its integer module with `qsearch compile`, or search the float model",
            )


def _metric(asked: str | None, data: PreparedData, has_labels: bool) -> str:
    """Metric to maximise; without ``--metric`` top-1 where there are labels, else SQNR."""
    metric = asked or ("top1" if has_labels else "sqnr")
    label_note(data, asked)
    if metric == "top1" and not has_labels:
        raise SettingsError(
            "the metric top1 needs labels that are classes",
            where=f"evaluation data: {data.described}",
            fix="give --eval with labels (an array `labels`, or class folders), "
            "or use --metric agreement|sqnr",
        )
    own_labels = data.label_axes or WORDS.get(metric) in AGAINST_FLOAT
    if metric in LIBRARY.values() and not own_labels:
        raise SettingsError(
            f"the metric {metric.partition(':')[2]} needs labels",
            where=f"evaluation data: {data.described}",
            fix="give --eval with labels: an array `labels`, a column `label`, class folders, or "
            "boxes and masks in the preprocess file",
        )
    return metric


def _spec(study: PreparedStudy, evaluator: str) -> dict[str, Any]:
    """Plain values that decide the trials and their scores."""
    settings = study.settings
    spec: dict[str, Any] = {
        "model_sha256": study.source.sha256,
        "module_sha256": study.blob.sha256,
        "dim": dict(settings.dim),
        "calib_sha256": study.calib.sha256,
        "eval_sha256": study.evaluation.sha256,
        "labels": study.has_labels,
        "metric": study.metric,
        "evaluator": evaluator,
        "seed": settings.seed,
        "sampler": settings.sampler,
        "batch": settings.batch_size,
        "space": study.space.to_dict(),
        "start": study.start.to_dict(),
        "percentiles": percentiles_of(study.space),
        "collapse_after": scoring.COLLAPSE_AFTER,
        "prune": _prune(settings),
    }
    if is_import_path(study.metric):
        own = code_behind(study.metric)
    else:
        own = None
    weighs = weighs_accuracy(study.metric, settings.minimize, study.has_labels)
    hardware = study.hardware and hashlib.sha256(study.hardware[0].encode()).hexdigest()
    optional = {
        "cut": study.source.parts and study.source.parts.sha256,
        "imports": hashes(study.code),
        "metric_code": own and own.sources and own.sha256,
        "minimize": list(settings.minimize),
        "max_size": settings.max_size,
        "for": settings.for_ != DEFAULT_FORM and settings.for_,
        "at_most": dict(settings.at_most),
        "max_drop": weighs and str(settings.max_drop),
        "hw": hardware,
    }
    return spec | {name: value for name, value in optional.items() if value}


def _answering(settings: Settings, samples: int, answers: bool) -> Settings:
    """Settings of a search that is asked for a small module only: it may lose all that luck
    explains, and ends by itself.

    Args:
        answers: the model's answers are compared, on so many samples.
    """
    told = {"max_drop", "trials"} & settings.model_fields_set
    if "size" not in settings.minimize or settings.max_size is not None or told:
        return settings
    found: dict[str, Any] = {"patience": settings.patience or AUTO_PATIENCE}
    if answers:
        found["max_drop"] = MaxDrop(round(top1_step(samples), 6))
    return settings.model_copy(update=found)


def _prune(settings: Settings) -> float:
    """Without history there is nothing to compare a trial with, unless the user asks for it."""
    if settings.prune is not None:
        return settings.prune
    if settings.sampler in HISTORY_FREE:
        return 0.0
    return DEFAULT_ALPHA


def _first(*given: Any) -> Any:
    return next((value for value in given if value is not None), None)


def _warnings(
    calib: PreparedData, evaluation: PreparedData, has_labels: bool, metric: str
) -> tuple[str, ...]:
    found = []
    if calib.synthetic:
        found.append(
            "no calibration data was given: activation ranges come from random inputs and will "
            "not fit real ones; give --calib before using the result"
        )
    if evaluation is calib:
        found.append(
            "no evaluation data was given: the score is agreement with the float model and SQNR "
            f"on the {'random' if calib.synthetic else 'calibration'} inputs, not accuracy"
        )
    elif note := label_note(evaluation, metric):
        found.append(note)
    elif WORDS.get(metric) in AGAINST_FLOAT and not evaluation.label_axes:
        found.append(
            f"the evaluation data has no labels: {WORDS[metric]} is the error against the outputs "
            "of the float model, in their unit"
        )
    elif evaluation.label_axes and not has_labels and metric == "sqnr":
        found.append(
            "the labels are numbers, which the score does not use: give --metric mae, rmse or r2, "
            "or one of your own"
        )
    elif not has_labels and not evaluation.label_axes:
        found.append(
            "the evaluation data has no labels: the score is SQNR, how near the outputs are to "
            "those of the float model, not accuracy"
        )
    return tuple(found)


def _float_warning(diagnosis: Diagnosis, start: QConfig) -> tuple[str, ...]:
    """Warning of a model that is not fully integral, before calibration."""
    if diagnosis.fully_integral:
        return ()
    causes = [
        f"{row['op']} {row['onnx_nodes'][0]!r}" if row["onnx_nodes"] else row["op"]
        for row in diagnosis.causes()
    ]
    shown = f"{abbreviated(causes, 3)} in float" if causes else ""
    why = shown or diagnosis.obstacles[0].splitlines()[0]
    if start.partition_conversions != "fully_integral":
        outlook = "modules with float parts are tried first"
    else:
        outlook = "its trials will be infeasible; --allow-float admits modules with float parts"
    return (f"the model will not be on integers only ({why}; see qsearch doctor): {outlook}",)


def open_study(
    repository: Repository, prepared: PreparedStudy, folder: RunFolder, progress: Progress
) -> Study:
    """The study to go on with, or a new one.

    Raises:
        RunFolderError: the study of this name is about another model, data or search.
    """
    settings = prepared.settings
    name = study_name(settings, folder)
    version = code_version()
    found = repository.find_study(name)
    if found is not None and settings.fresh:
        repository.delete_study(found.id)
        found = None
    if found is None:
        new = NewStudy(
            name=name,
            model_name=prepared.source.name,
            model_sha256=prepared.source.sha256,
            spec=prepared.spec,
            spec_hash=prepared.spec_hash,
            seed=settings.seed,
            target_trials=settings.trials,
            code_version=version,
        )
        try:
            found = repository.create_study(new)
        except ConflictError:  # another driver of this study was quicker by a moment
            found = repository.study(name)
        else:
            repository.add_event(found.id, "started")
            return found
    check_same_study(found, prepared, folder, batch_told=settings.batch is not None)
    if found.code_version != version:
        progress.message("note: the code changed since this study began; finished trials are kept")
        repository.set_code_version(found.id, version)
    repository.set_target(found.id, settings.trials)
    repository.set_study_state(found.id, "running")
    repository.add_event(found.id, "resumed")
    return repository.study(name)


def study_name(settings: Settings, folder: RunFolder) -> str:
    """Name of the study in the storage: ``--study``, or the name of the folder."""
    return settings.study or folder.path.absolute().name


def check_same_study(
    found: Study, prepared: PreparedStudy, folder: RunFolder, *, batch_told: bool = True
) -> None:
    """Refuse to resume a study of another model, other data or other settings.

    Args:
        batch_told: False lets a study keep its batch size on a machine of another size.
    Raises:
        RunFolderError: another model, other data, or another search.
    """
    if found.spec_hash == prepared.spec_hash:
        return
    if found.model_sha256 != prepared.source.sha256:
        raise RunFolderError(
            f"the study {found.name!r} belongs to another model: {found.model_name}",
            where=f"{folder.path} (sha256 {found.model_sha256[:12]}, this one "
            f"{prepared.source.sha256[:12]})",
            fix="choose another folder with -o (or another --study), or start over with --fresh",
        )
    differing = sorted(
        name
        for name in {*found.spec, *prepared.spec}
        if found.spec.get(name) != prepared.spec.get(name)
    )
    if not differing or (differing == ["batch"] and not batch_told):
        return
    check_imports(found.name, found.spec, prepared.code)
    changes = ", ".join(
        f"{name}: {_short(found.spec.get(name))} → {_short(prepared.spec.get(name))}"
        for name in differing
    )
    raise RunFolderError(
        f"the study {found.name!r} was begun with other settings: {changes}",
        where="; ".join([str(folder.path), *_now_given(prepared, differing)]),
        fix="give the same settings to resume, choose another folder with -o, or use --fresh",
    )


def _now_given(prepared: PreparedStudy, differing: Sequence[str]) -> list[str]:
    """The data that differ from those of the study, with the names of their files."""
    given = {
        "calib_sha256": ("calibration", prepared.calib),
        "eval_sha256": ("evaluation", prepared.evaluation),
    }
    return [
        f"the {words} data are now {data.described}"
        for name, (words, data) in given.items()
        if name in differing
    ]


def _short(value: Any) -> str:
    text = json.dumps(value)
    if len(text) <= 24:
        return text
    return f"{text[:20]}…"
