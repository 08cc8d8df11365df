"""Carry out what people ask of a running study: stop, pause, resume, try a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.errors import CompilerError
from qsearch.errors import ConflictError
from qsearch.search.context import Budget, StudyContext
from qsearch.search.trial_queue import TrialQueue
from qsearch.search.trying import TRY, wishes
from qsearch.store.records import TRIED_BATCH, StudyState, Trial
from workers.errors import BrokenRunError


@dataclass(slots=True)
class Orders:
    """Commands of the store, as one driver carries them out.

    Args:
        context: the study.
        queue: stores the trials that are asked for.
        budget: grows by them.
        paused: whether no further trial may begin.
    """

    context: StudyContext
    queue: TrialQueue
    budget: Budget
    paused: bool = False
    _seen_command: int = 0
    _seen_wishes: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Leave out the commands of earlier runs."""
        news = self.context.repository.news_of(self.context.study_id)
        self._seen_command = news.command

    def stop(self, newest: int) -> bool:
        """Carry out the commands up to ``newest`` that are new; whether one says to stop."""
        if newest <= self._seen_command:
            return False
        rows, study_id = self.context.repository, self.context.study_id
        for command in rows.commands_of(study_id, self._seen_command):
            self._seen_command = command.id
            if command.kind == TRY:
                self.take_wishes()
            elif command.kind == "stop":
                return True
            else:
                self.paused = command.kind == "pause"
                state: StudyState = "paused" if self.paused else "running"
                rows.set_study_state(study_id, state)
                self.context.progress.message(f"the study is {state}, as was asked for")
        return False

    @property
    def tried(self) -> list[Trial]:
        """Trials that people asked for."""
        return self.queue.trials.batch(TRIED_BATCH)

    def take_wishes(self) -> None:
        """Store what people want tried as the next trials, the budget notwithstanding."""
        for event in wishes(self.context.repository, self.context.study_id):
            if event.id not in self._seen_wishes:
                self._seen_wishes.add(event.id)
                try:
                    self._add((event.data or {})["qconfig"])
                except BrokenRunError:
                    raise
                except CompilerError as error:
                    self.context.progress.message(f"warning: cannot be tried: {error}")
        numbers = [trial.number + 1 for trial in self.tried if not trial.finished]
        self.budget.trials = max(self.budget.trials, max(numbers, default=0))

    def _add(self, fields: dict[str, object]) -> None:
        queue, rows = self.queue, self.context.repository
        while (new := queue.tried(fields)) is not None:
            try:
                queue.trials.note_all(rows.add_trials(self.context.study_id, [new]))
            except ConflictError:
                queue.read_new()  # another driver stored it, or a batch, first
                continue
            queue.sampler.add_pending([queue.trials.by_number[new.number]])
            self.context.progress.message(f"trial {new.number} is one that was asked for")
