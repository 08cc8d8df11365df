"""From the trials of earlier batches to the next batch: Optuna's replica, duplicates, grids."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from compiler.qtypes.qconfig import QConfig
from qsearch.search.objectives import Objective
from qsearch.search.samplers import HISTORY_FREE, batch_seed, make_sampler
from qsearch.search.space import Params, Space, config_hash, first_points, to_qconfig
from qsearch.store.records import Trial

_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "infeasible": TrialState.PRUNED,  # so that the sampler learns to stay away
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point of the space, not yet tried in this study."""

    params: Params
    qconfig: QConfig
    config_hash: str
    stage: str = "global"


class Proposer:
    """Proposes batch after batch; equal histories and seeds give equal proposals.

    Args:
        space: what may be proposed.
        start: configuration the points change, and the study's first trial; good guesses follow.
        objective: what the sampler maximises.
        sampler: name in ``samplers``.
        seed: of the study.
        batch_size: trials per batch.
        enumerate_all: visit the whole space in order instead of asking the sampler.
    """

    def __init__(
        self,
        space: Space,
        start: QConfig,
        objective: Objective,
        *,
        sampler: str,
        seed: int,
        batch_size: int,
        enumerate_all: bool,
    ) -> None:
        self.space = space
        self.start = start
        self.objective = objective
        self.batch_size = batch_size
        self._sampler = sampler
        self._seed = seed
        self._enumerate = enumerate_all or sampler == "grid"
        self._distributions = distributions_of(space)
        self._seen: set[str] = set()
        self._asked: dict[str, optuna.Trial] = {}
        with quiet_optuna():
            self.study = optuna.create_study(direction="maximize")

    @property
    def needs_history(self) -> bool:
        """Whether a batch depends on how earlier ones ended; if not, none waits for another."""
        return not (self._enumerate or self._sampler in HISTORY_FREE)

    def add_pending(self, trials: Iterable[Trial]) -> None:
        """Say that these configurations are on their way and must not be proposed again."""
        self._seen.update(trial.config_hash for trial in trials)

    def add_history(self, trials: Iterable[Trial]) -> None:
        """Tell how the trials of a batch ended, in order of their numbers."""
        with quiet_optuna():
            for trial in trials:
                self._seen.add(trial.config_hash)
                asked = self._asked.pop(trial.config_hash, None)
                frozen = frozen_trial(trial, self._distributions, self.objective)
                if asked is None:
                    self.study.add_trial(frozen)
                    continue
                self.study.tell(asked, frozen.value, state=frozen.state)

    def propose(self, batch: int) -> list[Proposal]:
        """The proposals of batch number ``batch``; fewer than a batch when the space ends."""
        if self._enumerate:
            return self._enumerated()
        seen = set(self._seen)
        proposals: list[Proposal] = []
        first = first_points(self.space, self.start)
        with quiet_optuna():
            self.study.sampler = make_sampler(self._sampler, self._seed, batch)
            for slot in range(self.batch_size):
                place = batch * self.batch_size + slot
                if place < len(first):
                    self.study.enqueue_trial(dict(first[place]))
                proposal = self._ask(batch, slot, seen)
                if proposal is None:
                    break
                seen.add(proposal.config_hash)
                proposals.append(proposal)
        return proposals

    def _ask(self, batch: int, slot: int, seen: set[str]) -> Proposal | None:
        trial = self.study.ask()
        proposal = self._proposal(self.space.suggest(trial))
        if proposal.config_hash not in seen:
            self._asked[proposal.config_hash] = trial
            return proposal
        # Telling the known value again, or only FAIL, leaves TPE on the same point for ever.
        self.study.tell(trial, state=TrialState.FAIL)
        seed = batch_seed(self._seed, batch, slot + 1)
        params = self.space.unseen_near(proposal.params, seen, self.start, seed)
        if params is None:
            return None
        self.study.enqueue_trial(dict(params))
        trial = self.study.ask()
        proposal = self._proposal(self.space.suggest(trial))
        self._asked[proposal.config_hash] = trial
        return proposal

    def _enumerated(self) -> list[Proposal]:
        proposals: list[Proposal] = []
        seen = set(self._seen)
        for params in (self.space.params_of(self.start), *self.space.points()):
            proposal = self._proposal(params)
            if proposal.config_hash not in seen:
                seen.add(proposal.config_hash)
                proposals.append(proposal)
            if len(proposals) == self.batch_size:
                break
        return proposals

    def _proposal(self, params: Params) -> Proposal:
        qconfig = to_qconfig(params, self.start)
        return Proposal(params, qconfig, config_hash(qconfig.to_dict()))


Distributions = dict[str, BaseDistribution]


def distributions_of(space: Space) -> Distributions:
    """What Optuna samples from: the parameters with a choice, by name."""
    choosing = [p for p in space.parameters if len(p.choices) > 1]
    return {p.name: CategoricalDistribution(p.choices) for p in choosing}


def frozen_trial(trial: Trial, distributions: Distributions, objective: Objective) -> FrozenTrial:
    """A finished trial of the store as Optuna's record of it."""
    params = {name: value for name, value in trial.params.items() if name in distributions}
    state = _STATES[trial.state]
    score = trial.outcome.score
    return create_trial(
        state=state,
        value=objective.value(score or {}) if state == TrialState.COMPLETE else None,
        params=params,
        distributions={name: distributions[name] for name in params},
        user_attrs={
            "number": trial.number,
            "state": trial.state,
            "score": dict(score) if score is not None else None,
            "config_hash": trial.config_hash,
        },
    )


def replica(trials: Sequence[Trial], space: Space, objective: Objective) -> optuna.Study:
    """An in-memory Optuna study that holds the finished trials, for plots and analysis."""
    with quiet_optuna():
        study = optuna.create_study(direction="maximize")
        known = distributions_of(space)
        study.add_trials([frozen_trial(t, known, objective) for t in trials if t.finished])
    return study


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's log lines and experimental warnings off the user's terminal."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        logger.setLevel(level)
