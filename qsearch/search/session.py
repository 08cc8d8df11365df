"""One run of one study, from the study's row to the written winner.

    calibration → baseline → trials → best.qmod, qconfig.json → final check → report.json

Each step leaves what it made in the store or among the artefacts, so the same command goes on
wherever a kill, Ctrl-C or a timeout ended the last one. ``FirstTrials`` has the facts in front of
the first trial: where a search begins, and what it can gain at most.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from compiler.errors import CalibrationError, CompilerError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, fields_without_effect
from compiler.runtime.interface import KEY as INTERFACE
from compiler.runtime.pipeline import AFTER, BEFORE
from qsearch.errors import StoreError
from qsearch.report.build import Costs
from qsearch.run.run_folder import RunFolder
from qsearch.search.audit import AUDIT
from qsearch.search.baseline import Baseline, examination
from qsearch.search.calibration import (
    MEASUREMENTS,
    FirstChoice,
    PooledData,
    StoredStatistics,
    statistics_key,
    variants_of,
)
from qsearch.search.context import (
    TIMEOUT,
    Budget,
    Control,
    PreparedStudy,
    StudyArtifacts,
    StudyContext,
)
from qsearch.search.driver import STOPPED, Driver
from qsearch.search.known_trials import KnownTrials
from qsearch.search.layer_space import LayerPlan
from qsearch.search.optuna_study import AUTO
from qsearch.search.preparation import SOMETIMES_SCORED
from qsearch.search.pruner import SignFlipPruner
from qsearch.search.result import SearchResult, finish
from qsearch.search.running_trials import RunningTrials
from qsearch.search.sampler import SamplerSpec, StudySampler, first_points
from qsearch.search.scoring import Scorer, costs_of, study_scorer
from qsearch.search.shipped import INPUTS, sample_inputs
from qsearch.search.space import Params, input_layer, to_qconfig
from qsearch.search.space_file import faster_layers
from qsearch.search.stages import Base, Sensitivities, StageTracker
from qsearch.search.trial_queue import TrialQueue, left_to_the_trial
from qsearch.search.winner import Winner
from qsearch.settings.launch_settings import is_import_path
from qsearch.store.artifacts import artifact_store
from qsearch.store.records import LAYERS, SENSITIVITY, STAGES, StudyState, Trial
from workers.metrics.library import AGAINST_FLOAT, WORDS
from workers.process import Stopwatch, code_version

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger("qsearch.search.session")

EXAMINED = "examined"
"""Kind of the event that holds what is doubtful about the float model's score."""
FLOAT_MODULE = "float_module"
INTERRUPTED = "interrupted"
_DECIDES = (
    "module_sha256",
    "calib_sha256",
    "eval_sha256",
    "labels",
    "evaluator",
    "percentiles",
    "collapse_after",
)
"""Parts of the spec that always decide scores."""


class Session:
    """Drives one run.

    Args:
        prepared: what is to be done.
        folder: where files go; prepared already.
        context: the study, made or found.
        watch: started with the command.
        control: callbacks of trials, and events that stop the search.
        signer: signs the module that is written; None leaves it unsigned.
    """

    def __init__(
        self,
        prepared: PreparedStudy,
        folder: RunFolder,
        context: StudyContext,
        watch: Stopwatch,
        control: Control,
        signer: Ed25519PrivateKey | None = None,
    ) -> None:
        settings = prepared.settings
        pool = context.pool
        self._prepared = prepared
        self._folder = folder
        self._context = context
        self._watch = watch
        self._control = control
        self._rows = context.repository
        self._study_id = context.study.id
        # Trials of earlier audits are none of those that the user asks for.
        audits = self._rows.events_of(self._study_id, kind=AUDIT)
        mended = {e.data["trial"] for e in audits if e.data and "trial" in e.data}
        trials = settings.trials + len(mended)
        self._budget = Budget(trials, settings.timeout, patience=settings.patience)
        files = artifact_store(folder.artifacts, settings.artifacts)
        self._artifacts = StudyArtifacts(self._rows, self._study_id, files)
        blob = pool.put(prepared.blob.data)
        self._calib_data = PooledData(context, blob, prepared.calib.ref, prepared.calib.samples)
        key = statistics_key(prepared.spec, code_version())
        self._calibration = Calibration(
            prepared.module,
            self._calib_data,
            percentiles=tuple(prepared.spec["percentiles"]),
            store=StoredStatistics(self._artifacts, key, self._calib_data),
            variants=variants_of(prepared.space),
        )
        own = (prepared.metric,) if is_import_path(prepared.metric) else ()
        if WORDS.get(prepared.metric) in AGAINST_FLOAT and not prepared.evaluation.label_axes:
            own = ()  # the float model has no error against itself
        metrics = (*(("top1",) if prepared.has_labels else ()), *own)
        pipeline = prepared.source.pipeline
        head = None if pipeline is None else pool.put(pipeline.pack())
        self._baseline = Baseline(
            context,
            self._artifacts,
            blob,
            prepared.evaluation,
            metrics,
            prepared.decides,
            head,
        )
        self._winner = Winner(prepared, folder, context, self._calibration, signer)
        self._first = FirstTrials(context, prepared, self._calibration)
        self._stages = StageTracker(self._rows, self._study_id)
        self._driver: Driver | None = None
        self._warnings = [*prepared.warnings]
        self._worker_cpu_s = self._trials_wall_s = 0.0

    def run(self) -> SearchResult:
        """Search until the budget ends, then check and write the winner.

        Raises:
            SearchFailedError: no trial was completed; ``report.json`` says why.
        """
        interrupted = False
        log.info("study %s, spec %s", self._context.study.name, self._prepared.spec_hash[:12])
        try:
            self._keep_float_module()
            self._keep_inputs()
            self._search()
        except KeyboardInterrupt:
            interrupted = True
            self._context.pool.cancel_all()
            log.warning("interrupted; writing the best so far")
            self._rows.set_study_state(self._study_id, "stopped", INTERRUPTED)
            self._rows.add_event(self._study_id, INTERRUPTED)
        except StoreError:
            raise  # it cannot be noted there
        except Exception as error:
            self._note_failure(error)
            raise
        try:
            return self._finish(interrupted)
        except KeyboardInterrupt:
            if interrupted:
                raise
            return self._finish(interrupted=True)

    def _note_failure(self, error: Exception) -> None:
        """Store that the search ended, and why, unless other drivers continue."""
        if self._rows.drivers_of(self._study_id, running=True):
            return
        if isinstance(error, CompilerError):
            why = error.what
        else:
            why = f"{type(error).__name__}: {error}"
        self._rows.set_study_state(self._study_id, "failed", why)
        self._rows.add_event(self._study_id, "failed", data={"stopped": why})

    def _search(self) -> None:
        prepared = self._prepared
        scales = self._calibration.scales_for(prepared.start)
        outputs = self._baseline.outputs()
        self._doubt(outputs)
        scorer = study_scorer(
            prepared,
            self._context,
            (self._baseline.blob, self._baseline.head),
            outputs,
            lambda qconfig: self._calib_data.channels_handle(self._calibration.channels(qconfig)),
        )
        plan = self._plan_layers(scorer, scales)
        for prediction in self._first.predictions():
            self._tell(prediction)
        self._driver = self._make_driver(scorer, plan)
        begin = time.monotonic()
        try:
            stopped = self._driver.run()
        finally:
            self._trials_wall_s = time.monotonic() - begin
        ended = stopped not in (TIMEOUT, STOPPED)
        if ended:
            self._mend_winner(self._driver)
        if differing := self._driver.running.differing:
            told = f"outputs of trials {sorted(differing)} are not those of the exact reference"
            self._warnings.append(f"{told}: other scores may be wrong as well")
        if best := self._prepared.objective.best(self._rows.trials_of(self._study_id)):
            self._control.check()
            for finding in self._winner.check(best, scorer, outputs):
                self._tell(f"warning: `qsearch verify` will refuse it: {finding}")
        for stage in STAGES:
            self._stages.end(stage)
        state: StudyState = "complete" if ended else "stopped"
        self._rows.set_study_state(self._study_id, state, stopped)
        self._rows.add_event(self._study_id, state, data={"stopped": stopped})

    def _tell(self, message: str) -> None:
        self._context.progress.message(message)

    def _doubt(self, outputs: tuple[Any, ...]) -> None:
        """Warn of a float model whose score is not plausible; once, and of what was found then."""
        known = self._rows.events_of(self._study_id, kind=EXAMINED)
        if known:
            warnings = tuple((known[0].data or {})["warnings"])
        else:
            pool = self._context.pool
            blob = self._baseline.blob
            found = examination(self._prepared, pool, blob).examine(outputs)
            warnings = () if found is None else found.warnings
            self._rows.add_event(self._study_id, EXAMINED, data={"warnings": list(warnings)})
            if found is not None:
                self._tell(f"float model: {found.summary}")
        for warning in warnings:
            self._tell(f"warning: {warning}")
        self._warnings += warnings

    def _plan_layers(self, scorer: Scorer, scales: tuple[float, ...] | None) -> LayerPlan | None:
        """Measure what the stage of the layers is built on; None where there is no such stage."""
        prepared = self._prepared
        layers = self._prepared.layers
        if layers is None:
            why = "layers do not differ in this search; see --space, --minimize and --max-size"
            self._stages.plan({SENSITIVITY: why, LAYERS: why})
            return None
        self._stages.plan({})
        bases = [(prepared.start, scales), *self._first.guesses()]
        measured = Sensitivities(
            self._context,
            scorer,
            layers,
            [(layers.within(base), ranges) for base, ranges in bases],
            self._calibration.scales_for,
            "flash" in prepared.objective.limited,
        )
        self._stages.begin(SENSITIVITY, len(layers.elements))
        damage = measured.damages()
        self._worker_cpu_s += measured.cpu_s
        self._stages.end(SENSITIVITY, {"layers": len(damage), "cpu_s": round(measured.cpu_s, 3)})
        most = prepared.objective.most_bytes
        full = prepared.start.nbit_weight
        weights = None if most is None else most - measured.other_bytes
        return LayerPlan(layers, damage, weights, full)

    def _make_driver(self, scorer: Scorer, plan: LayerPlan | None) -> Driver:
        prepared = self._prepared
        context = self._context
        settings = prepared.settings
        trials = KnownTrials(prepared.objective)
        alpha = float(prepared.spec["prune"])
        pruner = SignFlipPruner(
            prepared.objective,
            trials,
            self._rows.shards_behind,
            alpha,
            scorer.parts,
            settings.seed,
            costs_of,
        )
        spec = SamplerSpec(
            settings.sampler,
            settings.seed,
            int(context.study.spec["batch"]),
            enumerate_all=plan is None
            and prepared.space.size(settings.trials + 1) <= settings.trials,
            waits=alpha > 0,
        )
        chosen = None if spec.enumerates else self._first.chosen
        sampler = StudySampler(
            prepared.space, prepared.start, prepared.objective, spec, plan, chosen
        )
        queue = TrialQueue(
            context,
            trials,
            sampler,
            self._calibration,
            work_key(prepared),
            self._budget,
            fields_without_effect(prepared.module),
        )
        prunes = pruner if alpha > 0 else None
        roundings = self._winner.roundings
        running = RunningTrials(context.pool, scorer, prunes, roundings, queue.trials)
        return Driver(
            context,
            queue,
            running,
            self._budget,
            self._control,
            self._stages,
            keep_failed=settings.keep_failed,
        )

    def _keep_float_module(self) -> None:
        blob = self._prepared.blob
        self._artifacts.keep(FLOAT_MODULE, blob.sha256, blob.data)
        source = self._prepared.source
        self._artifacts.keep(INTERFACE, source.sha256, json.dumps(source.kept).encode())
        for name, part in zip((BEFORE, AFTER), source.parts.around if source.parts else ()):
            if part is not None:
                self._artifacts.keep(name.removesuffix(".onnx"), source.sha256, part)

    def _keep_inputs(self) -> None:
        prepared = self._prepared
        if not self._rows.artifacts_of(self._study_id, INPUTS):
            inputs = sample_inputs(prepared.calib, prepared.inputs)
            self._artifacts.keep(INPUTS, prepared.calib.sha256, inputs)

    def _mend_winner(self, driver: Driver) -> None:
        """Audit the module of the best trial; what mends it is one more trial, scored as all are.

        An earlier run of the command has looked at it already where the event says so.
        """
        best = driver.queue.trials.best
        audits = self._rows.events_of(self._study_id, kind=AUDIT)
        if best is None or best.number in {event.trial for event in audits}:
            return
        self._control.check()
        found = self._winner.audited(best)
        if found is None or not (told := found.to_dict()):
            return
        if found.repairs:
            new = driver.queue.beside(best, found.qconfig)
        else:
            new = None
        note = partial(self._rows.add_event, self._study_id, AUDIT, trial=best.number, data=told)
        if new is None:
            note()
            return
        told["trial"] = new.number
        mends = f"audit: trial {new.number} mends trial {best.number}"
        self._tell(f"{mends}: {'; '.join(told['repairs'])}")
        driver.run_also(new, note)

    def _finish(self, interrupted: bool) -> SearchResult:
        self._control.check()
        trials = self._rows.trials_of(self._study_id)
        best = self._prepared.objective.best(trials)
        emitted = None if best is None else self._winner.finished(best)
        self._context.progress.close()
        return finish(
            self._context,
            replace(self._prepared, warnings=tuple(self._warnings)),
            self._folder,
            self._winner.float_ops,
            emitted,
            self._costs(trials),
            interrupted=interrupted,
        )

    def _costs(self, trials: list[Trial]) -> Costs:
        kept = self._rows.artifacts_of(self._study_id)
        driver = self._driver
        cpu_s = self._watch.cpu_s
        if self._prepared.settings.pool != "inline":  # there our own clock holds the work already
            cpu_s += self._calib_data.worker_cpu_s + self._baseline.cpu_s
            cpu_s += self._worker_cpu_s + self._winner.cpu_s
            cpu_s += driver.worker_cpu_s if driver is not None else 0.0
        return Costs(
            wall_s=self._watch.wall_s,
            cpu_s=cpu_s,
            calibration_cpu_s=sum(a.cpu_s for a in kept if a.kind in MEASUREMENTS),
            trials_here=driver.news.finished_here if driver is not None else 0,
            trials_wall_s=self._trials_wall_s,
            worker_peak_rss_bytes=max((t.outcome.peak_rss_bytes or 0 for t in trials), default=0),
        )


def work_key(prepared: PreparedStudy) -> dict[str, Any]:
    """All that decides a score beside the configuration: data, model, evaluator, code."""
    decides = (*_DECIDES, *SOMETIMES_SCORED)
    key = {name: prepared.spec[name] for name in decides if name in prepared.spec}
    if is_import_path(prepared.metric):
        key["metric"] = prepared.metric
    return {**key, "code": code_version()}


_FEW_TRIALS: Final = 32
_WORTH_A_SEARCH_DB: Final = 1.0


@dataclass(eq=False)
class FirstTrials:
    """The first points of a study, by its statistics.

    Args:
        context: the study in the store.
        prepared: what is searched.
        calibration: of the float model.
    """

    context: StudyContext
    prepared: PreparedStudy
    calibration: Calibration

    @cached_property
    def chosen(self) -> QConfig | None:
        """Configuration that the statistics suggest; stored and printed where the study is new."""
        return FirstChoice.of(self.context, self.prepared, self.calibration).qconfig

    def guesses(self) -> list[Base]:
        """The first good guess of the space and its ranges, where there are both."""
        start = self.prepared.space.params_of(self.prepared.start)
        points = [point for point in self._points() if point != start][:1]
        with left_to_the_trial():
            guesses = self._quick(points)
            return [(guess, self.calibration.scales_for(guess)) for guess in guesses]
        return []

    def predictions(self) -> Iterator[str]:
        """Yield sentences: which layers fewer bits make faster; that a short search of 8 bits can
        only repeat ``compile``."""
        prepared = self.prepared
        goal = self.prepared.objective
        settings = self.prepared.settings
        if "latency" in goal.minimize and settings.measure is None:
            faster = ", ".join(faster_layers(prepared.module)) or "no layer"
            yield (
                f"prediction: 4 bits can make {faster} faster on this machine; they do so in "
                "products of one row by many weights"
            )
        more_bits = any(input_layer(p.name) for p in prepared.space.parameters)
        other = prepared.layers is not None or goal.minimize or more_bits
        other = other or settings.sampler != AUTO
        if self.chosen is None or other or settings.trials > _FEW_TRIALS:
            return
        try:
            first, *others = self.calibration.predicted_db(self._quick(self._points()))
        except CalibrationError:
            return  # its trial will tell
        if max(others, default=first) < first + _WORTH_A_SEARCH_DB:
            yield (
                "prediction: a search of 8 bits can hardly do more than repeat "
                "what compile chooses; --minimize size finds smaller modules"
            )

    def _points(self) -> Sequence[Params]:
        return first_points(self.prepared.space, self.prepared.start, self.chosen)

    def _quick(self, points: Sequence[Params]) -> list[QConfig]:
        """Configurations without sequential rounding: they are quick to build."""
        found = [to_qconfig(point, self.prepared.start) for point in points]
        corrected = {"weight_rounding": "corrected"}
        return [one.with_overrides(**corrected) if one.sequential else one for one in found]
