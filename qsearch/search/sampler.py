"""From the trials of earlier batches to the next batch: guesses, stages, duplicates, grids.

``auto`` is the default. It tries good guesses first. Then a Gaussian process makes the proposals;
from trial 16 on TPE makes one of eight. The other samplers are Optuna's alone, and start from the
first configuration of the study.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from compiler.qtypes.qconfig import QConfig
from qsearch.search.layer_bases import LayerBases
from qsearch.search.layer_space import PLAN_NAMES, LayerPlan
from qsearch.search.objectives import Objective
from qsearch.search.optuna_study import (
    AUTO,
    HISTORY_FREE,
    Distributions,
    batch_seed,
    distributions_of,
    frozen_trial,
    make_sampler,
    new_study,
    quiet_optuna,
)
from qsearch.search.space import (
    Params,
    Space,
    Value,
    config_hash,
    input_layer,
    is_layer_weight,
    to_qconfig,
    value_in,
)
from qsearch.search.surrogate import Refinement
from qsearch.store.records import GLOBAL, LAYERS, TRIED, Trial

WARM_UP: Final = 8
"""Trials of the global stage before layers differ: what holds for all layers decides most."""
_EXPLORES: Final = 8
"""TPE makes one proposal in so many; the Gaussian process makes the others."""
_EXPLORES_FROM: Final = 16
"""Trial from which on TPE proposes: of fewer trials it learns nothing."""
_COSTLY_AT: Final = (15, 63, 255)
"""Places of trials that are the best one with a costly choice: the last of 16, two further ones."""
_AGAIN: Final = 32
"""Proposals of a batch whose modules were tried already; then it ends."""
_FINE: Final[Params] = {"calibrate_mode": "mse", "weight_scale": "mse"}
_ASYMMETRIC: Final[Params] = {**_FINE, "activation_scheme": "asymmetric"}
_REPAIRING: Final[Params] = {**_ASYMMETRIC, "weight_rounding": "sequential"}
_NEAREST: Final[Params] = {**_ASYMMETRIC, "weight_rounding": "corrected"}
_GOOD_GUESSES: Final[tuple[Params, ...]] = (
    {**_REPAIRING, "smooth_alpha": 0.5},
    {**_REPAIRING, "smooth_alpha": 0.75, "weight_scale": "max"},
    {**_REPAIRING, "smooth_alpha": 0.75},
    {**_NEAREST, "smooth_alpha": 0.5},
    _NEAREST,
)
"""The best first, by SQNR on small CNNs and a vision transformer: outliers in activations need
smoothing, other models gain from sequential rounding. A guess has the most bits that the space has
for what layers read. The last ones are for spaces without sequential rounding."""
_SMALL: Final[tuple[Params, ...]] = ({"weight_granularity": "tensor"}, {"weight_scale": "power2"})
"""Changes of a good guess that leave fewer bytes beside weights: these are a quarter of a module
of few bits."""
_GUESSES: Final = 3
"""Trials that the surrogate proposes gain more than further guesses."""


WorkOf = Callable[[QConfig], str | None]


def first_points(space: Space, start: QConfig, chosen: QConfig | None = None) -> list[Params]:
    """Points tried before the sampler proposes: ``chosen``, ``start``, then good guesses.

    Args:
        chosen: what the statistics suggest, costly choices too; fields that the space lacks are
            left out.
    Raises:
        SearchError: ``start`` is not a point of the space.
    """
    points = [space.params_of(start)]
    known = {p.name: p.usual for p in space.parameters}
    wide = {p.name: p.usual[-1] for p in space.parameters if input_layer(p.name)}
    for guess in _GOOD_GUESSES:
        if all(value in known.get(name, ()) for name, value in guess.items()):
            points.append(space.effective({**points[0], **guess, **wide}))
    del points[1 + _GUESSES :]
    if chosen is not None:
        usual = QConfig.recommended().to_dict()
        fields = chosen.to_dict()
        choices = {p.name: p.choices for p in space.parameters}
        decided = {name: value_in(fields, name) for name in known}
        fitting = {n: v for n, v in decided.items() if v in choices[n] and v != value_in(usual, n)}
        first = space.effective({**points[0], **fitting})
        points = [first, *(point for point in points if point != first)]
    return points


@dataclass(frozen=True, slots=True)
class Proposal:
    """A point of the space, not yet tried in this study."""

    params: Params
    qconfig: QConfig
    config_hash: str
    stage: str = GLOBAL


@dataclass(slots=True)
class _StageSampler:
    """One of Optuna's studies with the space it samples."""

    study: optuna.Study
    space: Space
    name: str
    distributions: Distributions = field(init=False)
    asked: dict[str, optuna.Trial] = field(default_factory=dict)
    told: int = 0

    def __post_init__(self) -> None:
        self.distributions = distributions_of(self.space, costly=False)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Configurations of earlier batches, and those of this one."""

    before: Container[str]
    now: set[str] = field(default_factory=set)

    def __contains__(self, config_hash: object) -> bool:
        return config_hash in self.before or config_hash in self.now


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that is proposed.

    Attributes:
        seen: configurations, and work, that are proposed no more.
        asked: makes points.
        given: takes points that are given. Optuna asks it all the same, and TPE takes long over
            many trials.
    """

    number: int
    seen: _Seen
    asked: BaseSampler
    given: BaseSampler


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """Method of the proposals of a study.

    Attributes:
        sampler: a name of ``settings.SAMPLERS``, or an import path.
        seed: of the study.
        batch_size: trials per batch.
        enumerate_all: visit the whole space in order instead of asking the sampler.
        waits: whether batches wait for earlier ones even where the sampler needs no history.
    """

    sampler: str
    seed: int
    batch_size: int
    enumerate_all: bool = False
    waits: bool = False

    @property
    def enumerates(self) -> bool:
        """True where the space is visited in order."""
        return self.enumerate_all or self.sampler == "grid"

    @property
    def needs_history(self) -> bool:
        """True where a batch depends on how earlier ones ended; else none waits for another."""
        return self.waits or not (self.enumerates or self.sampler in HISTORY_FREE)


class StudySampler:
    """Proposes batch after batch; equal histories and seeds give equal proposals.

    Only the sampler ``auto`` has stages. Once ``WARM_UP`` trials of the global stage are over,
    batches of the stage "layers" come in between, where there is a plan for them.

    Args:
        space: what may be proposed.
        start: configuration the points change, and the study's first trial; good guesses follow.
        objective: what the sampler maximises.
        spec: name of the sampler, seed and batches.
        plan: bits of single layers, for the stage "layers". Where its limit of bytes binds, all
            trials have such bits: what is too large cannot win.
        chosen: what the statistics suggest: the study's first trial.
    """

    def __init__(
        self,
        space: Space,
        start: QConfig,
        objective: Objective,
        spec: SamplerSpec,
        plan: LayerPlan | None = None,
        chosen: QConfig | None = None,
    ) -> None:
        self._guesses = first_points(space, start, chosen)
        if spec.sampler != AUTO:
            self._guesses = [space.without_costly(self._guesses[0])]
        self._plain = start
        self.space = space
        self.objective = objective
        self.plan = plan
        self.spec = spec
        if plan is None:
            self._bases = None
        else:
            self._bases = LayerBases(plan, objective, space, start)
        if self._bases is not None and self._bases.halves and spec.sampler == AUTO:
            usual = {p.name: p.usual for p in space.parameters}
            small = [one for one in _SMALL if all(v in usual.get(n, ()) for n, v in one.items())]
            self._guesses += [space.effective({**self._guesses[-1], **one}) for one in small]
        self._seen: set[str] = set()
        self._points = chain(map(space.params_of, [self.start]), space.points())
        self._next: list[Proposal] = []
        self._best: Trial | None = None
        pays = self._bases is not None and self._bases.pays
        refined = objective.beside_bits if pays else objective
        self._refinement = Refinement(space, self.start, refined)
        with quiet_optuna():
            self._global = _StageSampler(new_study(objective), space, GLOBAL)
            if plan is None:
                self._layers = None
            else:
                self._layers = _StageSampler(new_study(objective), plan.space, LAYERS)

    @property
    def start(self) -> QConfig:
        """The configuration that points change, within the limit of bytes."""
        if self._bases is None:
            return self._plain
        return self._bases.start

    @property
    def brackets(self) -> bool:
        """Tell whether bits of layers are tried until the smallest size is bracketed."""
        return self._bases is not None and self._bases.halves and "size" in self.objective.minimize

    @property
    def bracketed(self) -> bool:
        """Tell whether a trial is within all limits, and no bits of layers are left that may be
        smaller."""
        bases = self._bases
        stage = self._layers
        seen = _Seen(self._seen)
        if bases is None or stage is None or not bases.keeps_limits:
            return False
        points = bases.points(bases.kinds_at(0))
        return not any(self._is_new(stage, point, kind, seen) for kind, point in points)

    def add_pending(self, trials: Iterable[Trial]) -> None:
        """Say that these configurations are on their way and must not be proposed again."""
        for trial in trials:
            self._seen.update((trial.config_hash, trial.work_hash))

    def add_history(self, trials: Iterable[Trial]) -> None:
        """Tell how the trials of batches ended, in order of their numbers."""
        with quiet_optuna():
            for trial in trials:
                self._seen.update((trial.config_hash, trial.work_hash))
                of_layers = trial.stage == LAYERS and self._layers is not None
                stage = self._layers if of_layers else self._global
                assert stage is not None
                self._tell(stage, trial)
                if not of_layers:
                    if not self.space.is_costly(trial.params):
                        self._best = self.objective.best(filter(None, (self._best, trial)))
                    if self.spec.sampler == AUTO:
                        paid = trial if self._bases is None else self._bases.paid(trial)
                        self._refinement.note(paid)
                if self._bases is not None:
                    self._bases.note(trial)

    def stage_of(self, batch: int) -> str:
        """The stage a batch belongs to. Where layers count as much as all else, two of three; where
        bytes are minimized, all while bits of layers are known that may be smaller."""
        warm = -(-WARM_UP // self.spec.batch_size)
        if self._layers is None or self.spec.enumerates or batch < warm:
            return GLOBAL
        limits_kept = self._bases is not None and self._bases.keeps_limits
        if self.brackets and limits_kept and not self.bracketed:
            return LAYERS
        if (batch - warm) % 3 == 2:
            return GLOBAL
        return LAYERS

    def propose(self, batch: int, work_of: WorkOf = lambda _: None) -> list[Proposal]:
        """The proposals of batch number ``batch``; fewer than a batch when the space ends.

        Args:
            work_of: the hash of a configuration's work; of equal ones, only the first is proposed.
        """
        if self.spec.enumerates:
            return self._enumerated()
        stages = [self._global]
        if self._layers is not None:
            stages.insert(0 if self.stage_of(batch) == LAYERS else 1, self._layers)
        # A stage that has nothing new leaves its turn to the other.
        return next(filter(None, (self._asked_of(stage, batch, work_of) for stage in stages)), [])

    def _asked_of(self, stage: _StageSampler, number: int, work_of: WorkOf) -> list[Proposal]:
        """The proposals of a stage for a batch."""
        if self.spec.needs_history:
            place = stage.told
        else:
            place = number * self.spec.batch_size
        name = "tpe" if self.spec.sampler == AUTO else self.spec.sampler
        proposals: list[Proposal] = []
        with quiet_optuna():
            asked, given = (make_sampler(n, self.spec.seed, number) for n in (name, "random"))
            batch = _Batch(number, _Seen(self._seen), asked, given)
            if self.spec.sampler in HISTORY_FREE:
                stage.asked.clear()
                stage.study = new_study(self.objective)
            again = 0
            while (slot := len(proposals)) < self.spec.batch_size and again < _AGAIN:
                proposal = self._next_of(stage, batch, place + slot, slot)
                if proposal is None:
                    break
                batch.seen.now.add(proposal.config_hash)
                work = work_of(proposal.qconfig)
                if work in batch.seen:
                    again += 1
                    if (trial := stage.asked.pop(proposal.config_hash, None)) is not None:
                        stage.study.tell(trial, state=TrialState.FAIL)
                    continue
                batch.seen.now.update([work] if work else ())
                proposals.append(proposal)
        return proposals

    def _next_of(
        self, stage: _StageSampler, batch: _Batch, place: int, slot: int
    ) -> Proposal | None:
        """The proposal for one place: a costly choice where one is due, else the first new point
        of the kinds in turn; None where a stage has nothing new."""
        costly = self._costly(stage, place, batch.seen)
        if costly is not None:
            return costly
        for kind, given in self._turns(stage, batch, place, slot):
            if given is None:
                stage.study.sampler = batch.asked
            else:
                stage.study.sampler = batch.given
            if given is not None:
                stage.study.enqueue_trial(dict(given))
            proposal = self._ask(stage, kind, batch, slot)
            if proposal is not None:
                return proposal
        return None

    def _turns(
        self, stage: _StageSampler, batch: _Batch, place: int, slot: int
    ) -> Iterator[tuple[Value, Params | None]]:
        """Yield kinds of bases, with the point that is tried without asking Optuna, if any."""
        if stage.name != LAYERS or self._bases is None:
            yield None, self._given(batch, place, slot)
            return
        kinds = self._bases.kinds_at(place)
        while kinds:
            points = self._bases.points(kinds)
            new = ((k, p) for k, p in points if self._is_new(stage, p, k, batch.seen))
            kind, given = next(new, (kinds[0], None))
            kinds.remove(kind)
            yield kind, given

    def _tell(self, stage: _StageSampler, trial: Trial) -> None:
        asked = stage.asked.pop(trial.config_hash, None)
        stage.told += trial.stage != TRIED
        if self.spec.sampler in HISTORY_FREE or stage.space.is_costly(trial.params):
            return
        frozen = frozen_trial(trial, stage.distributions, self.objective)
        if asked is None:
            stage.study.add_trial(frozen)
        else:
            for name, amount in frozen.constraints.items():
                asked.set_constraint(name, amount)
            stage.study.tell(asked, frozen.values, state=frozen.state)

    def _costly(self, stage: _StageSampler, place: int, seen: _Seen) -> Proposal | None:
        """A guess with a costly choice, or the best trial with one, where it is its turn; Optuna
        does not see it."""
        points = self._guesses[place : place + 1]
        if self.spec.sampler != AUTO or stage.name != GLOBAL:
            return None
        if place in _COSTLY_AT and self._best is not None:
            points = self.space.with_costly(self._best.params)
        elif not any(map(self.space.is_costly, points)):
            return None
        proposals = (self._proposal(stage, point) for point in points)
        return next((one for one in proposals if one.config_hash not in seen), None)

    def _is_new(self, stage: _StageSampler, point: Params, kind: Value, seen: _Seen) -> bool:
        return self._proposal(stage, point, kind).config_hash not in seen

    def _given(self, batch: _Batch, place: int, slot: int) -> Params | None:
        """The point for all layers that is tried without asking Optuna; None asks Optuna."""
        if place < len(self._guesses):
            return self._guesses[place]
        explores = place % _EXPLORES == _EXPLORES - 1
        if self.spec.sampler != AUTO or (explores and place >= _EXPLORES_FROM):
            return None
        chance = batch_seed(self.spec.seed, batch.number, self.spec.batch_size + slot)
        return self._refinement.propose(batch.seen, chance)

    def _ask(self, stage: _StageSampler, kind: Value, batch: _Batch, slot: int) -> Proposal | None:
        trial = stage.study.ask()
        point = stage.space.suggest(trial)
        proposal = self._proposal(stage, point, kind)
        if proposal.config_hash not in batch.seen:
            stage.asked[proposal.config_hash] = trial
            return proposal
        # Telling the known value again, or only FAIL, leaves TPE on the same point for ever.
        stage.study.tell(trial, state=TrialState.FAIL)
        seed = batch_seed(self.spec.seed, batch.number, slot + 1)
        unseen = stage.space.unseen_near(
            point, lambda p: not self._is_new(stage, p, kind, batch.seen), seed
        )
        if unseen is None:
            return None
        stage.study.enqueue_trial(dict(unseen))
        trial = stage.study.ask()
        proposal = self._proposal(stage, stage.space.suggest(trial), kind)
        stage.asked[proposal.config_hash] = trial
        return proposal

    def _enumerated(self) -> list[Proposal]:
        self._next = [one for one in self._next if one.config_hash not in self._seen]
        seen = _Seen(self._seen, {one.config_hash for one in self._next})
        while len(self._next) < self.spec.batch_size:
            params = next(self._points, None)
            if params is None:
                break
            proposal = self._proposal(self._global, params)
            if proposal.config_hash not in seen:
                seen.now.add(proposal.config_hash)
                self._next.append(proposal)
        return [*self._next]

    def _proposal(self, stage: _StageSampler, point: Params, kind: Value = None) -> Proposal:
        bases = self._bases if stage.name == LAYERS else None
        if bases is None:
            params = dict(point)
        else:
            params = bases.on_base(point, kind)
        fields = {n: v for n, v in params.items() if n not in PLAN_NAMES}
        # A point of layers gives each its bits, whatever the limit gave it before.
        qconfig = to_qconfig(fields, self._plain if stage.name == LAYERS else self.start)
        shown = {n: v for n, v in params.items() if stage.name == GLOBAL or not is_layer_weight(n)}
        return Proposal(shown, qconfig, config_hash(qconfig.to_dict()), stage.name)
