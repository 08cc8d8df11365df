"""News of trials for people: the log, progress, the store and callbacks."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Final

from qsearch.run.progress import CHECKS, TRIALS
from qsearch.search.context import Budget, Control, StudyContext
from qsearch.search.stages import StageTracker
from qsearch.search.trial_queue import PATIENT, TrialQueue
from qsearch.settings.launch_settings import AUTO_PATIENCE
from qsearch.store.records import TRIED, Trial
from workers.metrics.registry import by_option

log = logging.getLogger("qsearch.search.driver")

DIFFERS: Final = "scores_differ"
"""Kind of the event of a trial whose outputs are not those of the exact reference."""
OUT_OF_PATIENCE: Final = "nothing better"


@dataclass(slots=True)
class TrialNews:
    """Tells of trials that ended in this run.

    Args:
        context: the study.
        queue: knows its trials.
        budget: trials that are wanted.
        control: callbacks.
        stages: records which stage has begun.
    """

    context: StudyContext
    queue: TrialQueue
    budget: Budget
    control: Control
    stages: StageTracker | None
    finished_here: int = 0
    _begun: float = math.inf
    _estimated: bool = False

    def begin(self) -> None:
        """Count from the trials that are finished already."""
        finished = self.queue.trials.finished
        self.context.progress.phase(TRIALS, self.budget.trials, finished)
        self._begun = time.monotonic()

    def ended(self, trial: Trial, differs: bool) -> None:
        """Tell of one trial; ``differs``: an executor computed other integers than the reference.

        The first trials of each worker tell how long the others will take.
        """
        outcome = trial.outcome
        self.finished_here += 1
        if outcome.failure is not None:
            why = f": {outcome.failure}"
        else:
            why = ""
        if differs:
            self._differing(trial)
        log.info("trial %d %s %s%s", trial.number, outcome.state, outcome.score or "", why)
        if self.stages is not None and trial.stage != TRIED:
            self.stages.begin(trial.stage)
        self.context.progress.advance(1, self.best_note(trial.stage))
        self._estimate()
        self.control.on_trial(trial)

    def out_of_patience(self) -> str:
        """Say why no trial follows that could be better."""
        if self.budget.patience != AUTO_PATIENCE:
            return f"{OUT_OF_PATIENCE} in {self.budget.patience} trials"
        if self.queue.sampler.brackets:
            return "the smallest size is bracketed: no fewer bits are left to try"
        return f"{OUT_OF_PATIENCE} in {PATIENT} trials"

    def best_note(self, stage: str | None = None) -> str:
        """Describe the best trial so far, "" before there is one."""
        best = self.queue.trials.best
        if best is None or best.outcome.score is None:
            return ""
        plan = self.queue.sampler.plan
        objective = self.queue.sampler.objective
        where = f"{stage} stage, " if stage and plan is not None else ""
        score = best.outcome.score
        found = objective.described(score)
        most = self.queue.trials.most
        value = objective.shown(score)
        luck = ""
        if objective.decides(score) != objective.metric and value is not None and most > value:
            luck = f"; {by_option(objective.metric).formatted(most)} elsewhere is luck"
        return f"{where}best {found} (trial {best.number}{luck})"

    def _differing(self, trial: Trial) -> None:
        """Say that an executor computed other integers than the reference."""
        failure = trial.outcome.failure
        if failure is None:
            told = ""
        else:
            told = f"{failure.what} ({failure.where}); {failure.fix}"
        self.context.repository.add_event(
            self.context.study.id, DIFFERS, trial=trial.number, data={"error": told}
        )
        self.context.progress.message(f"warning: trial {trial.number}: {told}")

    def _estimate(self) -> None:
        """Say how long the other trials will take, once each worker has ended one."""
        done = self.finished_here
        left = self.budget.trials - self.queue.trials.finished
        if self._estimated or left <= 0 or done < self.context.pool.num_workers:
            return
        self._estimated = True
        took = time.monotonic() - self._begun
        if done > 1:
            first = f"the first {done} took"
        else:
            first = "the first took"
        others = f"the {left} other trial{'s' if left > 1 else ''} and the checks of the best"
        self.context.progress.expect(
            took / done * (left + CHECKS), f"{others}, as {first} {took:.1f} s"
        )
