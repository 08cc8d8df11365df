"""Accuracy that a QDQ file loses beside the module that it was made of."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compiler.errors import CompilerError
from compiler.runtime.artifact import QModule
from qsearch.opening.model_file import find_model
from qsearch.run.run_folder import RunFolder, evaluation_data
from qsearch.search.closeness import Closeness
from qsearch.search.objectives import accuracy_of, keeps_accuracy, sqnr_value
from qsearch.search.preparation import prepare_study
from qsearch.search.scoring import baseline_score, metric_names, score_of
from qsearch.settings.config import resolve
from qsearch.settings.launch_settings import MaxDrop, Settings
from workers.evaluation import EvaluationActor
from workers.messages import Build, EvaluationRequest, EvaluatorName, Handle
from workers.metrics.registry import measure
from workers.object_store import ObjectStore

if TYPE_CHECKING:
    import onnx

MOST_DB: Final = 3.0
"""A file that loses more is refused where its study has no limit of its own."""
_TOLD_DB: Final = 0.3
_FAR_DB: Final = 15.0
"""To a module of which nothing else is known."""
_COMPARED: Final = ("agreement", "sqnr")
"""Metrics that the float model, with which they compare, does not have itself."""

Score = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a file.

    Attributes:
        told: in one sentence; "" where it loses nothing.
        refused: it loses more than it may.
    """

    told: str = ""
    refused: bool = False

    @staticmethod
    def of(
        model: onnx.ModelProto, module: QModule, place: Path, to_module: float, cure: str
    ) -> Loss:
        """Score the file on the data of the study that the module lies in the run folder of; of
        another module tell what is certain.

        Args:
            place: of the module.
            to_module: SQNR of the file's outputs to the module's, in dB.
            cure: how to make a module that loses nothing.
        """
        try:
            scores = _scores(model, module, place)
        except CompilerError:  # the model or its data are elsewhere by now
            scores = None
        if scores is not None:
            return _judged(*scores, cure)
        known = Closeness.recorded(module.provenance)
        if known is None or known.sqnr_db is None:
            far = to_module < _FAR_DB
            return Loss(f"this file has {to_module} dB to the module: {cure}" if far else "", far)
        # Errors add up to no less than the difference of their norms.
        noise = 10 ** (-to_module / 20) - 10 ** (-known.sqnr_db / 20)
        most = -20 * math.log10(noise) if noise > 0 else math.inf
        if most > known.sqnr_db - MOST_DB:
            return Loss()
        return Loss(f"module {known.sqnr_db:.1f} dB, this file at most {most:.1f}: {cure}", True)


def _judged(float_: Score, ours: Score, file: Score, limit: MaxDrop, cure: str) -> Loss:
    module_db = sqnr_value(ours)
    file_db = sqnr_value(file)
    kept, keeps = (keeps_accuracy(score, float_, limit) for score in (ours, file))
    if kept and not keeps:
        name, value = accuracy_of(file)
        told = measure(name)
        had = f"module {told.words} {told.formatted(accuracy_of(ours)[1])}"
        return Loss(f"{had}, this file {told.formatted(value)}, below the limit: {cure}", True)
    if not module_db - file_db > _TOLD_DB:
        return Loss()
    far = limit == Settings.model_fields["max_drop"].default and module_db - file_db > MOST_DB
    return Loss(f"module {module_db:.1f} dB, this file {file_db:.1f}: {cure}", far)


def _scores(
    model: onnx.ModelProto, module: QModule, place: Path
) -> tuple[Score, Score, Score, MaxDrop] | None:
    """The scores of the float model, of a module and of its file on the data of its study, and the
    study's limit; None where the module is that of no study.

    Raises:
        CompilerError: its model or its data are not there.
    """
    folder = RunFolder(place.parent)
    known = evaluation_data(place.parent)
    if known is None:
        return None
    settings = resolve({}, config_file=folder.config, environment={}).settings
    if known[1] is not None:
        settings = settings.model_copy(update={"preprocess": known[1]})
    calib = folder.data / "calib.npz"
    with tempfile.TemporaryDirectory(prefix="qsearch-") as made:
        study = prepare_study(
            settings,
            find_model(settings.model),
            calib=calib if calib.is_file() else None,
            evaluation=known[0],
            objects_folder=Path(made),
        )
        if study.spec["module_sha256"] != module.provenance.get("module_sha256"):
            return None
        pipeline = study.source.pipeline
        head = None if pipeline is None else pipeline.pack()
        stored: dict[Handle, bytes] = {}  # requests hold their values
        actor = EvaluationActor(ObjectStore(stored.__getitem__))

        names = metric_names(study.has_labels, study.metric, study.decides)
        whole = EvaluationRequest(
            build=Build(study.blob.data, {}, None, "float"),
            dataset=study.evaluation.ref,
            samples=study.evaluation.samples,
            metrics=tuple(name for name in names if name not in _COMPARED),
            return_outputs=True,
            head=head,
        )
        exact = actor.run(whole)

        def score(evaluator: EvaluatorName, data: bytes) -> Score:
            build = replace(whole.build, evaluator=evaluator, module=data)
            asked = replace(whole, build=build, metrics=names, reference=exact.outputs)
            return score_of(actor.run(asked).sums)

        float_ = baseline_score(exact.sums, study.decides)
        ours = score("engine", place.read_bytes())
        file = score("onnxruntime", model.SerializeToString())
    return float_, ours, file, settings.max_drop
