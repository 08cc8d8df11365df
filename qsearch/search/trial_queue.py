"""The queue of a study: proposes and stores batches, and tells the sampler how they ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from compiler.errors import CompilerError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration
from qsearch.data.prepared_data import content_hash
from qsearch.errors import ConflictError, SearchError
from qsearch.run.progress import TRIALS
from qsearch.search.context import Budget, StudyContext
from qsearch.search.known_trials import KnownTrials
from qsearch.search.sampler import Proposal, StudySampler
from qsearch.search.space import canonical_fields, config_hash, to_qconfig, value_in
from qsearch.settings.launch_settings import AUTO_PATIENCE
from qsearch.store.records import TRIED, TRIED_BATCH, NewTrial, Trial
from workers.errors import BrokenRunError

PATIENT: Final = 16
"""Trials without progress after which ``--patience auto`` ends a search."""


@dataclass(slots=True)
class TrialQueue:
    """Proposes batches of a study and stores them.

    Args:
        context: the study.
        trials: what is known of its trials.
        sampler: what to try next.
        scales: gives activation scales, which are a part of what makes two trials the same work.
        work_key: all else that decides a score beside the configuration (model, data, code,
            evaluator).
        budget: how many trials the study shall have, and the patience.
        without_effect: fields of the configuration that change nothing in the module.
    """

    context: StudyContext
    trials: KnownTrials
    sampler: StudySampler
    scales: Calibration
    work_key: Mapping[str, Any]
    budget: Budget
    without_effect: Collection[str] = ()
    exhausted: bool = False
    """The space has nothing that was not tried."""
    _next_batch: int = 0
    _told: int = 0
    _variants: set[str] = field(default_factory=set)
    _told_tried: set[int] = field(default_factory=set)

    def load(self, *, alone: bool) -> None:
        """Continue after the known trials; with other drivers the last batch belongs to them."""
        # The last batch may lack trials that an earlier, smaller budget had no room for.
        self._next_batch = max(self.trials.last_batch, 0)
        if not alone and self.trials.by_number:
            self._next_batch += 1
        self.tell()
        for batch in range(self._told, self._next_batch):
            self.sampler.add_pending(self.trials.batch(batch))
        self._variants = {measured_variant(self.sampler.start)}

    def tell(self) -> None:
        """Tell the sampler the batches that ended, in order."""
        ended = [
            trial
            for trial in self.trials.batch(TRIED_BATCH)
            if trial.finished and trial.number not in self._told_tried
        ]
        self._told_tried.update(trial.number for trial in ended)
        ended = [trial for trial in ended if self._in_space(trial)]
        while self._told < self._next_batch and self.trials.batch_ended(self._told):
            ended += self.trials.batch(self._told)
            self._told += 1
        if ended:
            self.sampler.add_history(ended)

    def fill(self, *, running: int, reserve: int) -> bool:
        """Store the next batches; whether there were any.

        Args:
            running: unfinished trials that run here.
            reserve: how many may wait, where the sampler needs no history.
        """
        stored = False
        while self._may_propose(running, reserve):
            batch = self._next_batch
            new = self._new_trials(batch)
            if not new and not self.trials.batch(batch):
                self.exhausted = True
                break
            added = self.store(new)
            if added is None:
                continue
            self._next_batch = batch + 1
            self.tell()
            stored = stored or bool(added)
        return stored

    def store(self, new: Sequence[NewTrial]) -> list[Trial] | None:
        """Store trials; None where another driver stored them, or others, first: these are read."""
        try:
            added = self.context.repository.add_trials(self.context.study.id, new)
        except ConflictError:
            self.read_new()
            return None
        self.trials.note_all(added)
        self.sampler.add_pending(added)
        return added

    def read_new(self) -> list[Trial]:
        """Take in the batches that other drivers stored; their trials that ended."""
        stored = self.context.repository.trials_of(
            self.context.study.id, first=self.trials.next_number
        )
        new = [trial for trial in stored if trial.number not in self.trials.by_number]
        if new:
            self.sampler.add_pending(new)
            self._next_batch = max(self._next_batch, new[-1].batch + 1)
        return self.trials.note_all(new)

    def scales_for(self, qconfig: QConfig) -> tuple[float, ...] | None:
        """Scales of a configuration; the progress returns to the trials after a new calibration.

        Raises:
            CompilerError: there are none.
        """
        variant = measured_variant(qconfig)
        try:
            return self.scales.scales_for(qconfig)
        finally:
            if variant not in self._variants:
                self._variants.add(variant)
                self.context.progress.phase(TRIALS, self.budget.trials, self.trials.finished)

    def ready(self, trial: Trial) -> tuple[QConfig, tuple[float, ...] | None]:
        """Configuration and scales of a trial that begins; calibration remembers the scales.

        Raises:
            CompilerError: it has none.
        """
        qconfig = QConfig.from_dict(trial.qconfig)
        return qconfig, self.scales_for(qconfig)

    @property
    def out_of_patience(self) -> bool:
        """Tell whether so many trials as patience allows ended since the last better one.

        With "auto" a search for size whose layers differ ends once the smallest size is bracketed,
        others ``PATIENT`` trials after the last better one.
        """
        patience = self.budget.patience
        last = self.trials.last_better
        if patience == AUTO_PATIENCE and self.sampler.brackets:
            return self.sampler.bracketed
        if patience == AUTO_PATIENCE:
            patience = PATIENT
        return patience is not None and self.trials.settled - 1 - last >= int(patience)

    def tried(self, fields: Mapping[str, Any]) -> NewTrial | None:
        """Return a trial of a configuration that somebody asked for; None where there is one.

        Raises:
            CompilerError: no such configuration.
        """
        qconfig = self.sampler.start.with_overrides(**fields)
        whole = qconfig.to_dict()
        key = config_hash(whole)
        if any(trial.config_hash == key for trial in self.trials.by_number.values()):
            return None
        space = self.sampler.space
        try:
            point = space.params_of(qconfig)
        except SearchError:  # the sampler could not have proposed it
            point = {p.name: value_in(whole, p.name) for p in space.parameters}
        number = self.trials.next_number
        return self._new_trial(number, TRIED_BATCH, Proposal(point, qconfig, key, TRIED))

    def _in_space(self, trial: Trial) -> bool:
        """Tell whether the sampler could have proposed the trial; it learns from no other."""
        qconfig = QConfig.from_dict(trial.qconfig)
        try:
            point = self.sampler.space.params_of(qconfig)
        except SearchError:
            return False
        same = to_qconfig(point, self.sampler.start).to_dict()
        return point == trial.params and config_hash(same) == trial.config_hash

    def _may_propose(self, running: int, reserve: int) -> bool:
        if self.exhausted or self.out_of_patience or self.trials.next_number >= self.budget.trials:
            return False
        if self.sampler.spec.needs_history:
            return self._told == self._next_batch
        return len(self.trials.unfinished) - running < reserve

    def beside(self, trial: Trial, qconfig: QConfig) -> NewTrial | None:
        """Return a trial of another configuration at this point; None where it has finished."""
        key = config_hash(qconfig.to_dict())
        known = {one.config_hash: one for one in self.trials.by_number.values()}.get(key)
        if known is not None and known.finished:
            return None
        if known is None:
            number = self.trials.next_number
        else:
            number = known.number
        proposal = Proposal(dict(trial.params), qconfig, key, trial.stage)
        return self._new_trial(number, self._next_batch, proposal)

    def _new_trial(self, number: int, batch: int, proposal: Proposal) -> NewTrial:
        return NewTrial(
            number=number,
            batch=batch,
            params=proposal.params,
            qconfig=proposal.qconfig.to_dict(),
            config_hash=proposal.config_hash,
            work_hash=self._work_of(proposal.qconfig),
            stage=proposal.stage,
        )

    def _new_trials(self, batch: int) -> list[NewTrial]:
        """The proposals of the batch that are not stored, as many as the budget has room for."""
        stored = {row.config_hash for row in self.trials.batch(batch)}
        room = self.budget.trials - self.trials.next_number
        new: list[NewTrial] = []
        for proposal in self.sampler.propose(batch, self._work_of):
            if proposal.config_hash in stored or len(new) == room:
                continue
            number = self.trials.next_number + len(new)
            new.append(self._new_trial(number, batch, proposal))
        return new

    def _work_of(self, qconfig: QConfig) -> str:
        scales = None
        with left_to_the_trial():
            scales = self.scales_for(qconfig)
        return self._work_hash(qconfig.to_dict(), scales)

    def _work_hash(self, fields: Mapping[str, Any], scales: tuple[float, ...] | None) -> str:
        """Equal for configurations that make the same module: ranges count, not their origin.

        On few samples, the maximum and a high percentile are often the same number.
        """
        decides = canonical_fields(fields)
        for name in self.without_effect:
            decides.pop(name, None)
        if decides["activation_scheme"] == "asymmetric" and not self._zero_points_matter(fields):
            decides["activation_scheme"] = "unsigned"
        if scales is not None:
            for name in ("calibrate_mode", "percentile"):
                decides.pop(name, None)
            decides["activation_scales"] = list(scales)
        return content_hash({**self.work_key, "qconfig": decides})

    def _zero_points_matter(self, fields: Mapping[str, Any]) -> bool:
        with left_to_the_trial():
            return self.scales.zero_points_matter(QConfig.from_dict(fields))
        return True


@contextlib.contextmanager
def left_to_the_trial() -> Iterator[None]:
    """Leave errors of a configuration to its trial, which reports them."""
    try:
        yield
    except BrokenRunError:
        raise
    except CompilerError:
        pass


def measured_variant(qconfig: QConfig) -> str:
    """Equal for configurations whose statistics are the same."""
    if qconfig.needs_ranges:
        graph = qconfig.calibration_fields()
    else:
        graph = None
    return content_hash([graph, qconfig.needs_channels, qconfig.weight_rounding])
