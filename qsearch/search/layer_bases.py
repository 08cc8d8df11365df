"""The stage "layers": trials that points of single layers are built on, and the bytes these leave.

A base is a trial of the global stage; a point of layers gives each of its weights a number of bits.
Where a limit of bytes binds or bytes are minimized, bases of several kinds stay: kinds differ in
bytes beside weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from compiler.qtypes.qconfig import QConfig
from qsearch.search.layer_space import BUDGET, FLIPS, NO_FLIP, LayerPlan
from qsearch.search.objectives import Objective
from qsearch.search.space import Params, Space, Value
from qsearch.store.records import LAYERS, Trial

_BESIDE_WEIGHTS: Final = "weight_granularity"
"""Parameter that decides most about the bytes beside weights: a scale and a bias each."""

_SMALLER: Final = 0.99
"""A share of the fewest bytes so far: more is no progress in size."""


@dataclass(slots=True)
class LayerBases:
    """Bases for bits of single layers, and what trials say of them.

    Args:
        plan: bits of single layers; its limit of bytes is that of all weights.
        objective: what the search maximises.
        space: of the global stage.
        plain: the configuration that points change.
    """

    plan: LayerPlan
    objective: Objective
    space: Space
    plain: QConfig
    start: QConfig = field(init=False)
    """``plain`` within the limit, as far as it is known."""
    _bases: dict[Value, Trial] = field(default_factory=dict)
    _leads: Trial | None = None
    _budgets: dict[Value, dict[float, bool | None]] = field(default_factory=dict)
    _beside: dict[Value, float] = field(default_factory=dict)
    _smallest: tuple[float, Value, float] | None = None
    """Bytes, kind and budget of the smallest trial within all limits without a moved layer."""
    _plans: dict[Value, LayerPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = self.plan.within(self.plain)

    @property
    def halves(self) -> bool:
        """Tell whether budgets of bits are halved: bytes are minimized, and have no limit."""
        return bool(self.objective.minimize) and self.plan.most is None

    @property
    def pays(self) -> bool:
        """Tell whether bits of weights pay for bytes: these are minimized, or have a limit that
        binds."""
        return self.plan.breaks or self.halves

    @property
    def keeps_limits(self) -> bool:
        """Tell whether a trial is within all limits."""
        return self._smallest is not None

    @property
    def _kinds(self) -> list[Value]:
        """Kinds of bases that keep the limits which bits hardly change, the best first."""
        keeps = self.objective.beside_bits.fits
        kinds = [kind for kind, base in self._bases.items() if keeps(base.score)]
        return kinds or [*self._bases][:1] or [None]

    def _kept(self, kind: Value) -> dict[float, bool | None]:
        """Return the budgets of a kind that were tried, and those that cannot be clearly smaller
        than the smallest trial."""
        kept = self._budgets.get(kind, {})
        if self._smallest is None or kind not in self._beside:
            return kept
        return self.plan.above(_SMALLER * self._smallest[0] - self._beside[kind]) | kept

    def note(self, trial: Trial) -> None:
        """Take in how a trial ended."""
        kind = self._kind_of(trial)
        self._note_budget(trial, kind)
        if trial.stage == LAYERS:
            self._leads = self._better(self._leads, trial)
        elif best := self._better(self._bases.get(kind), trial):
            bases = [*(self._bases | {kind: best}).values()]
            first = self._better(*bases)
            bases.sort(key=lambda base: base is not first)
            self._bases = {self._kind_of(base): base for base in bases}
        self._note_bytes(trial, kind)

    def paid(self, trial: Trial) -> Trial:
        """The trial as global stages compare it: bits may pay for its bytes."""
        score = trial.outcome.score
        if score is None or not self.pays:
            return trial
        paid = self.objective.paid_in_bits(score, self.plan.layers.weights)
        return replace(trial, outcome=replace(trial.outcome, score=paid))

    def kinds_at(self, place: int) -> list[Value]:
        """Kinds of bases for a point of layers: each that may win in turn, then that of the best;
        behind it the others, for where it has no new point."""
        kinds = self._kinds
        turn = kinds[0 if self.halves else min(place, len(kinds) - 1)]
        if place >= len(kinds) and self._leads is not None:
            turn = self._kind_of(self._leads)
        return [turn, *(kind for kind in kinds if kind != turn)]

    def points(self, kinds: list[Value]) -> Iterator[tuple[Value, Params]]:
        """Yield kinds, and points of bits on their bases that are tried without asking Optuna.

        Where budgets are halved: those of one kind after the other, then the smallest trial with
        fewer bits in a single layer. Else those of the first kind.
        """
        if not self.halves:
            yield from ((kinds[0], point) for point in self._plan_for(kinds[0]).largest())
            return
        for kind in kinds:
            yield from ((kind, point) for point in self.plan.halved(self._kept(kind)))
        if self._smallest is not None and self._smallest[1] in kinds:
            _, kind, budget = self._smallest
            yield from ((kind, point) for point in self.plan.fewer(budget))

    def on_base(self, point: Params, kind: Value) -> Params:
        """The point for all layers that is the base of bits, with a point of the plan on top."""
        base = self._bases.get(kind)
        known = self.space.params_of(self.start) if base is None else base.params
        return {**known, **point, **self._plan_for(kind).params_of(point)}

    def _plan_for(self, kind: Value) -> LayerPlan:
        """The plan with the bytes that the base of a kind leaves to weights."""
        return self._plans.get(kind, self.plan)

    def _kind_of(self, trial: Trial) -> Value:
        if self.pays:
            return trial.params.get(_BESIDE_WEIGHTS)
        return None

    def _better(self, *trials: Trial | None) -> Trial | None:
        return self.objective.base_for_bits(filter(None, trials), self.plan.layers.weights)

    def _note_budget(self, trial: Trial, kind: Value) -> None:
        """Note whether a budget keeps the limits, where no single layer is moved, and the smallest
        trial that does."""
        if any(trial.params.get(flip, NO_FLIP) != NO_FLIP for flip in FLIPS):
            return
        score = trial.score
        budget = float(trial.params.get(BUDGET) or 1.0)
        fits = trial.state == "complete" and self.objective.feasible(score)
        if trial.stage == LAYERS:
            self._budgets.setdefault(kind, {})[budget] = fits
        size = self.objective.bytes_of(score)
        if fits and size is not None and (self._smallest is None or size < self._smallest[0]):
            self._smallest = size, kind, budget

    def _note_bytes(self, trial: Trial, kind: Value) -> None:
        """Leave weights the bytes that a limit leaves beside what modules of a base have: code,
        tables and biases are known once one is built."""
        most = self.objective.most_bytes
        score = trial.outcome.score
        if score is None or trial.state != "complete":
            return
        found = self.objective.bytes_of(score)
        of_layers = trial.stage == LAYERS
        if found is None or not (of_layers or trial is self._bases.get(kind)):
            return
        others = found - self.plan.layers.packed(QConfig.stored(trial.qconfig))
        self._beside[kind] = others
        if most is None:
            return
        left = max(most - others, self.plan.layers.least)
        if kind in self._plans:
            known = self._plan_for(kind).most
        else:
            known = None
        if of_layers and known is not None:
            left = min(left, known)
        self._plans[kind] = replace(self.plan, most=left)
        self.start = self._plan_for(next(iter(self._bases), kind)).within(self.plain)
