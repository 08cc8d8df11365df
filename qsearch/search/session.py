"""One run of one study, from the study's row to the written winner.

    calibration → baseline → trials → final check → best.qmod, qconfig.json, report.json

Each step leaves what it made in the store or among the artefacts, so the same command goes on
wherever a kill, Ctrl-C or a timeout ended the last one.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from compiler.errors import CompilerError
from compiler.qtypes.qconfig import QConfig
from qsearch.errors import StoreError
from qsearch.import_path import is_import_path
from qsearch.progress import Progress
from qsearch.report.build import Costs
from qsearch.run_folder import RunFolder
from qsearch.search.baseline import Baseline
from qsearch.search.budget import Budget, Control, Stopwatch
from qsearch.search.calibration import MEASUREMENTS, Calibrator
from qsearch.search.driver import STOPPED, TIMEOUT, Driver
from qsearch.search.evaluator import EVALUATOR_OF_FLAG, Evaluator, costs_of, metric_names, score_of
from qsearch.search.layer_space import LayerPlan
from qsearch.search.objectives import Objective, keeps_accuracy
from qsearch.search.pruner import SignFlipPruner
from qsearch.search.result import SearchResult, hand_over
from qsearch.search.sampler import StudySampler
from qsearch.search.space import first_points, to_qconfig
from qsearch.search.stages import LAYERS, SENSITIVITY, STAGES, Base, Sensitivities, StageBook
from qsearch.search.study import SOMETIMES_SCORED, PreparedStudy, leaves_ranges, open_study
from qsearch.search.trials import StudyHistory, StudyTrials
from qsearch.search.winner import INPUTS, build_winner, check_winner, sample_inputs, write_winner
from qsearch.settings import Settings
from qsearch.store.records import StoredArtifact, StudyState, Trial
from qsearch.store.remote_artifacts import artifact_store
from qsearch.store.repository import Repository
from workers.batching import batch_size
from workers.code_version import code_version
from workers.errors import BrokenRunError
from workers.parts import parts_of
from workers.pool.protocol import WorkerPool

log = logging.getLogger("qsearch.search.session")

FLOAT_MODULE = "float_module"
INTERRUPTED = "interrupted"
_HASHED_BYTES = 64 << 20


class Session:
    """Drives one run.

    Args:
        settings, prepared: what is to be done.
        folder: where files go; prepared already.
        repository: the store.
        pool: workers; closed by whoever made it.
        progress: what the user sees.
        watch: started with the command.
        control: who is told of trials, and who may stop the search.
    """

    def __init__(
        self,
        settings: Settings,
        prepared: PreparedStudy,
        folder: RunFolder,
        repository: Repository,
        pool: WorkerPool,
        progress: Progress,
        watch: Stopwatch,
        control: Control | None = None,
    ) -> None:
        self._watch = watch
        self._control = control or Control()
        self._budget = Budget(settings.trials, settings.timeout, patience=settings.patience)
        self._settings = settings
        self._prepared = prepared
        self._folder = folder
        self._repository = repository
        self._pool = pool
        self._progress = progress
        self._artifacts = artifact_store(folder.artifacts, settings.artifacts)
        self._objective = Objective.of(prepared.spec)
        self._study = open_study(repository, settings, prepared, folder, progress)
        self._blob = pool.put(prepared.blob.data)
        self._calibrator = self._make_calibrator()
        self._baseline = Baseline(
            repository=repository,
            artifacts=self._artifacts,
            study_id=self._study.id,
            pool=pool,
            blob=self._blob,
            data=prepared.evaluation,
            has_labels=prepared.has_labels,
            metric=prepared.metric,
            progress=progress,
        )
        self._stages = StageBook(repository, self._study.id)
        self._driver: Driver | None = None
        self._trials_wall_s = 0.0
        self._check_cpu_s = 0.0
        self._sensitivity_cpu_s = 0.0

    def run(self) -> SearchResult:
        """Search until the budget ends, then check and write the winner.

        Raises:
            SearchFailedError: no trial was completed; ``report.json`` says why.
        """
        interrupted = False
        log.info("study %s, spec %s", self._study.name, self._prepared.spec_hash[:12])
        try:
            self._keep_float_module()
            self._keep_inputs()
            self._search()
        except KeyboardInterrupt:
            interrupted = True
            self._pool.cancel_all()
            log.warning("interrupted; writing the best so far")
            self._repository.set_study_state(self._study.id, "stopped", INTERRUPTED)
            self._repository.add_event(self._study.id, INTERRUPTED)
        except StoreError:
            raise  # it cannot be noted there
        except Exception as error:
            self._note_failure(error)
            raise
        return self._finish(interrupted)

    def _note_failure(self, error: Exception) -> None:
        """Say in the store that nobody searches any more, and why, unless others go on."""
        if self._repository.drivers_of(self._study.id, running=True):
            return
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, CompilerError):
            why = error.what
        self._repository.set_study_state(self._study.id, "failed", why)
        self._repository.add_event(self._study.id, "failed", data={"stopped": why})

    def _search(self) -> None:
        scales = self._calibrator.scales_for(self._prepared.start)
        evaluator = self._make_evaluator(self._baseline.outputs())
        plan = self._plan_layers(evaluator, scales)
        self._driver = self._make_driver(evaluator, plan)
        begin = time.monotonic()
        try:
            stopped = self._driver.run()
        finally:
            self._trials_wall_s = time.monotonic() - begin
        self._check_winner(evaluator)
        for stage in STAGES:
            self._stages.end(stage)
        state: StudyState = "stopped" if stopped in (TIMEOUT, STOPPED) else "complete"
        self._repository.set_study_state(self._study.id, state, stopped)
        self._repository.add_event(self._study.id, state, data={"stopped": stopped})

    def _make_calibrator(self) -> Calibrator:
        prepared = self._prepared
        percentiles = tuple(prepared.spec["percentiles"])
        return Calibrator(
            repository=self._repository,
            artifacts=self._artifacts,
            study_id=self._study.id,
            pool=self._pool,
            blob=self._blob,
            key={
                "module": prepared.blob.sha256,
                "calib": prepared.calib.sha256,
                "code": code_version(),
                "percentiles": list(percentiles),
            },
            dataset=prepared.calib.ref,
            samples=prepared.calib.samples,
            percentiles=percentiles,
            progress=self._progress,
            grams=prepared.space.asks_for_grams or prepared.start.needs_grams,
            leaves_ranges=leaves_ranges(prepared.module),
        )

    def _make_evaluator(self, reference: tuple[Any, ...]) -> Evaluator:
        prepared = self._prepared
        baseline = self._repository.study(self._study.name).baseline or {}
        return Evaluator(
            blob=self._blob,
            dataset=prepared.evaluation.ref,
            samples=prepared.evaluation.samples,
            name=EVALUATOR_OF_FLAG[self._settings.judge],
            metrics=metric_names(prepared.has_labels, prepared.metric),
            reference=self._pool.put(reference),
            score_of=score_of,
            channels=(
                self._calibrator.channels_handle(prepared.start)
                if prepared.space.asks_for_channels or prepared.start.needs_channels
                else None
            ),
            parts=self._parts(reference),
            hardware=prepared.hardware,
            latency="latency" in (*self._objective.names, *self._objective.limited),
            keeps=(
                (lambda score: keeps_accuracy(score, baseline, self._settings.max_drop))
                if "max_drop" in prepared.spec
                else None
            ),
        )

    def _parts(self, reference: tuple[Any, ...]) -> int:
        """Parts return their outputs to be hashed in order; large ones stay where they are."""
        if sum(output.nbytes for output in reference) > _HASHED_BYTES:
            return 1
        prepared = self._prepared
        return parts_of(len(prepared.evaluation.samples), batch_size(prepared.inputs))

    def _plan_layers(
        self, evaluator: Evaluator, scales: tuple[float, ...] | None
    ) -> LayerPlan | None:
        """What the stage of the layers is built on; None where there is no such stage."""
        prepared = self._prepared
        layers = prepared.layers
        if layers is None:
            why = "layers do not differ in this search; see --space, --minimize and --max-size"
            self._stages.plan({SENSITIVITY: why, LAYERS: why})
            return None
        self._stages.plan({})
        measured = Sensitivities(
            self._repository,
            self._study.id,
            self._pool,
            evaluator,
            layers,
            [(prepared.start, scales), *self._first_guess()],
            self._progress,
            self._calibrator.scales_for,
        )
        self._stages.begin(SENSITIVITY, len(layers.elements))
        damage = measured.damages()
        self._sensitivity_cpu_s = measured.cpu_s
        self._stages.end(SENSITIVITY, {"layers": len(damage), "cpu_s": round(measured.cpu_s, 3)})
        return LayerPlan(layers, damage, self._objective.max_size)

    def _first_guess(self) -> list[Base]:
        """The first good guess of the space and its ranges, where there are both."""
        prepared = self._prepared
        points = first_points(prepared.space, prepared.start)[1:2]
        try:
            guesses = [to_qconfig(point, prepared.start) for point in points]
            return [(guess, self._calibrator.scales_for(guess)) for guess in guesses]
        except BrokenRunError:
            raise
        except CompilerError:
            return []  # its trial will tell

    def _make_driver(self, evaluator: Evaluator, plan: LayerPlan | None) -> Driver:
        prepared, settings = self._prepared, self._settings
        trials = StudyTrials(self._objective)
        alpha = float(prepared.spec["prune"])
        pruner = SignFlipPruner(
            self._objective,
            StudyHistory(trials, self._repository, self._study.id),
            alpha,
            evaluator.parts,
            settings.seed,
            costs_of,
        )
        decides = ("module_sha256", "calib_sha256", "eval_sha256", "labels", "evaluator")
        return Driver(
            repository=self._repository,
            study=self._study,
            sampler=StudySampler(
                prepared.space,
                prepared.start,
                self._objective,
                sampler=settings.sampler,
                seed=settings.seed,
                batch_size=int(self._study.spec["batch"]),
                enumerate_all=plan is None
                and prepared.space.size(settings.trials + 1) <= settings.trials,
                plan=plan,
                waits=alpha > 0,
            ),
            pool=self._pool,
            scales=self._calibrator,
            evaluator=evaluator,
            objective=self._objective,
            work_key={
                **{
                    k: prepared.spec[k]
                    for k in (*decides, "percentiles", "collapse_after", *SOMETIMES_SCORED)
                    if k in prepared.spec
                },
                **({"metric": prepared.metric} if is_import_path(prepared.metric) else {}),
                "code": code_version(),
            },
            budget=self._budget,
            progress=self._progress,
            pruner=pruner,
            trials=trials,
            stages=self._stages,
            stop=self._control.stop,
            on_trial=self._control.on_trial,
            check=self._control.check,
        )

    def _keep_float_module(self) -> None:
        blob = self._prepared.blob
        kept = self._artifacts.put(blob.data)
        self._repository.save_artifact(
            self._study.id,
            StoredArtifact(FLOAT_MODULE, blob.sha256, kept.sha256, kept.bytes, 0.0),
        )

    def _keep_inputs(self) -> None:
        prepared = self._prepared
        if self._repository.artifacts_of(self._study.id, INPUTS):
            return
        kept = self._artifacts.put_arrays(sample_inputs(prepared.calib, prepared.inputs))
        self._repository.save_artifact(
            self._study.id,
            StoredArtifact(INPUTS, prepared.calib.sha256, kept.sha256, kept.bytes, 0.0),
        )

    def _check_winner(self, evaluator: Evaluator) -> None:
        """Run the winner by the exact integers, unless this very winner was checked before."""
        best = self._objective.best(self._repository.trials_of(self._study.id))
        if best is None or self._checked(best) is not None:
            return
        emitted = check_winner(
            self._pool,
            evaluator,
            self._baseline.outputs(),
            best,
            self._calibrator.scales_for(QConfig.from_dict(best.qconfig)),
            self._progress,
        )
        self._check_cpu_s += emitted.cpu_s
        self._repository.save_emitted(
            self._study.id,
            {**emitted.report(), "config_hash": best.config_hash, "code": code_version()},
        )

    def _checked(self, best: Trial) -> dict[str, Any] | None:
        """What the final check of this winner by this code found, if it took place."""
        emitted = dict(self._repository.study(self._study.name).emitted or {})
        mine = emitted.pop("config_hash", None) == best.config_hash
        same_code = emitted.pop("code", None) == code_version()
        return emitted if mine and same_code else None

    def _finish(self, interrupted: bool) -> SearchResult:
        self._control.check()
        trials = self._repository.trials_of(self._study.id)
        best = self._objective.best(trials)
        emitted: dict[str, Any] | None = None
        float_ops: tuple[str, ...] = ()
        clipped: tuple[str, ...] = ()
        if best is not None:
            qconfig = QConfig.from_dict(best.qconfig)
            scales = self._calibrator.scales_for(qconfig)
            channels = self._calibrator.channels_for(qconfig)
            module, float_ops = build_winner(self._prepared.module, qconfig, scales, channels)
            clipped = self._calibrator.clipping_of(qconfig)
            emitted = self._checked(best)
            digest = None if emitted is None else emitted.get("outputs_sha256")
            write_winner(self._folder, module, qconfig, self._prepared, digest)
        self._progress.close()
        return hand_over(
            self._repository,
            self._repository.study(self._study.name),
            self._prepared,
            self._settings,
            self._folder,
            costs=self._costs(trials),
            emitted=emitted,
            float_ops=float_ops,
            clipped=clipped,
            interrupted=interrupted,
        )

    def _costs(self, trials: list[Trial]) -> Costs:
        kept = self._repository.artifacts_of(self._study.id)
        driver = self._driver
        cpu_s = self._watch.cpu_s
        if self._settings.pool != "inline":  # there our own clock holds the work already
            cpu_s += self._calibrator.worker_cpu_s + self._baseline.cpu_s + self._check_cpu_s
            cpu_s += self._sensitivity_cpu_s
            cpu_s += driver.worker_cpu_s if driver is not None else 0.0
        return Costs(
            wall_s=self._watch.wall_s,
            cpu_s=cpu_s,
            calibration_cpu_s=sum(a.cpu_s for a in kept if a.kind in MEASUREMENTS),
            trials_here=driver.finished_here if driver is not None else 0,
            trials_wall_s=self._trials_wall_s,
            worker_peak_rss_bytes=max((t.outcome.peak_rss_bytes or 0 for t in trials), default=0),
        )
