"""The trials of a study in memory, as the store has them: counted in constant time a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from qsearch.search.objectives import Objective
from qsearch.store.records import Trial


@dataclass(frozen=True, slots=True)
class _Rival:
    """A trial that later ones are compared with, its rank and its costs."""

    trial: Trial
    rank: tuple[float, ...]
    costs: tuple[float, ...]

    def replaces(self, other: _Rival) -> bool:
        """True where this one is the better rival wherever the other may be one."""
        if self.trial.batch > other.trial.batch or self.rank <= other.rank:
            return False
        return all(mine <= theirs for mine, theirs in zip(self.costs, other.costs))


def _reaches(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """True where one is as good in every objective."""
    return all(a >= b for a, b in zip(one, other))


@dataclass(slots=True)
class KnownTrials:
    """Trials of a study, as a driver knows them.

    Attributes:
        objective: says which trial is the best.
        by_number: trials by their numbers.
        finished: how many of them are.
        best: the best complete trial.
        most: the largest value of the metric within all limits, by luck or not.
        settled: how many ended from number 0 on without a gap, whatever the order they ended in.
        last_better: number of the newest of these that no earlier one beat or equalled.
        unfinished: numbers of the trials that wait or run.
    """

    objective: Objective
    by_number: dict[int, Trial] = field(default_factory=dict)
    finished: int = 0
    best: Trial | None = None
    most: float = -math.inf
    settled: int = 0
    last_better: int = 0
    unfinished: set[int] = field(default_factory=set)
    _batches: dict[int, list[int]] = field(default_factory=dict)
    _open: dict[int, int] = field(default_factory=dict)
    _next: int = 0
    _best_rank: tuple[float, ...] = ()
    _settled_rank: tuple[float, ...] = ()
    _front: list[tuple[float, ...]] = field(default_factory=list)
    _rivals: list[_Rival] = field(default_factory=list)

    def note(self, trial: Trial) -> bool:
        """Take in how a trial stands; whether it ended only now."""
        before = self.by_number.get(trial.number)
        self.by_number[trial.number] = trial
        if trial.finished:
            self.unfinished.discard(trial.number)
        else:
            self.unfinished.add(trial.number)
        if before is None:
            self._batches.setdefault(trial.batch, []).append(trial.number)
            self._open[trial.batch] = self._open.get(trial.batch, 0) + 1
        if not trial.finished or (before is not None and before.finished):
            return False
        self.finished += 1
        self._open[trial.batch] -= 1
        if trial.state == "complete":
            self._compare(trial)
        while (first := self.by_number.get(self.settled)) is not None and first.finished:
            self._weigh(first)
            self.settled += 1
        return True

    def _compare(self, trial: Trial) -> None:
        """A trial that is complete, with those before it."""
        score = trial.score
        rank = self.objective.rank(score, trial.number)
        if trial.outcome.score is not None and rank > self._best_rank:
            self.best = trial
            self._best_rank = rank
        if self.objective.feasible(score):
            if (value := self.objective.shown(score)) is not None:
                self.most = max(self.most, value)
            self._contend(_Rival(trial, rank, self.objective.rival_costs(score)))

    def _weigh(self, trial: Trial) -> None:
        """Compare a trial with all of lower numbers, and update the front of those within all
        limits."""
        score = trial.outcome.score
        if trial.state != "complete" or score is None:
            return
        rank = self.objective.rank(score, trial.number)
        better = rank > self._settled_rank
        self._settled_rank = max(rank, self._settled_rank)
        if self.objective.feasible(score):
            values = self.objective.rankings(score)
            better = not any(_reaches(held, values) for held in self._front)
            if better:
                self._front = [held for held in self._front if not _reaches(values, held)]
                self._front.append(values)
        if better:
            self.last_better = trial.number

    def _contend(self, new: _Rival) -> None:
        """Keep a trial as a rival of later ones, unless an earlier one is better and no dearer."""
        if not any(held.replaces(new) for held in self._rivals):
            self._rivals = [*(held for held in self._rivals if not new.replaces(held)), new]

    def before(self, batch: int) -> list[Trial]:
        """Complete trials of earlier batches within all limits that may be the best.

        The best of all that cost no more than a given trial is among them, whatever it costs.
        """
        return [held.trial for held in self._rivals if held.trial.batch < batch]

    def note_all(self, trials: Iterable[Trial]) -> list[Trial]:
        """Take in several; those that ended only now."""
        return [trial for trial in trials if self.note(trial)]

    @property
    def next_number(self) -> int:
        """The first number that is not known here: where new trials, ours or others', begin."""
        while self._next in self.by_number:
            self._next += 1
        return self._next

    @property
    def last_batch(self) -> int:
        """The newest batch; -1 when there is none."""
        return max(self._batches, default=-1)

    def batch(self, number: int) -> list[Trial]:
        """The trials of a batch, by number."""
        return [self.by_number[trial] for trial in sorted(self._batches.get(number, ()))]

    def batch_ended(self, number: int) -> bool:
        """True where the batch has trials and all are finished."""
        return self._open.get(number) == 0
