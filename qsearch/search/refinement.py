"""What to change at the best trials so far: the changes a surrogate expects most of.

Candidates differ from one of the best trials in one value or two; of two, one may pay only with
the other. They are ranked by expected improvement. The next of a batch is chosen as if the ones
before it had scored what is expected of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from compiler.qtypes.qconfig import QConfig
from qsearch.search.objectives import Objective
from qsearch.search.space import Params, Space, Value, config_hash, to_qconfig
from qsearch.search.surrogate import Surrogate
from qsearch.store.records import Trial

_CENTRES: Final = 3
_PAIRS: Final = 256
"""Changes of two values that are looked at, for each of the best trials."""
_MOST_KEPT: Final = 96
"""Trials a surrogate is fitted to: so many of the best, and as many of the latest."""


class Refinement:
    """Proposes changes of what was best.

    Args:
        space: of the trials.
        start: configuration the points change.
        objective: which trials are good.
    """

    def __init__(self, space: Space, start: QConfig, objective: Objective) -> None:
        self.space = space
        self.start = start
        self.objective = objective
        self._trials: list[Trial] = []
        self._surrogate: Surrogate | None = None

    def note(self, trial: Trial) -> None:
        """Take in a trial that ended."""
        self._trials.append(trial)
        self._surrogate = None

    def propose(self, seen: Collection[str], seed: int) -> Params | None:
        """An unseen point; asked again before the next trial ends, another one.

        Args:
            seen: hashes of configurations that must not be proposed.
            seed: of the random choices.
        Returns:
            None where nothing was completed, or all changes were seen.
        """
        complete = [t for t in self._trials if t.state == "complete" and t.outcome.score]
        if not complete:
            return None
        ranked = sorted(complete, key=self._rank, reverse=True)
        if self._surrogate is None:
            self._surrogate = self._fitted(ranked)
        rng = np.random.default_rng(seed)
        found: dict[tuple[object, ...], Params] = {}
        for centre in ranked[:_CENTRES]:
            for point in self._changed(centre.params, rng):
                found.setdefault(tuple(point.items()), point)
        points = list(found.values())
        if not points:
            return None
        gain = self._surrogate.improvement(points)
        # Machines differ in the last bits; what is equal up to them keeps the order of the space.
        gain = np.round(gain / max(float(gain.max()), 1e-300), 6)
        for place in np.argsort(-gain, kind="stable"):
            point = points[int(place)]
            if config_hash(to_qconfig(point, self.start).to_dict()) not in seen:
                self._surrogate.believe(point)
                return point
        return None

    def _fitted(self, ranked: list[Trial]) -> Surrogate:
        kept = {t.number: t for t in (*ranked[:_MOST_KEPT], *self._trials[-_MOST_KEPT:])}
        trials = [kept[number] for number in sorted(kept)]
        broken = [self._broken(t) for t in trials]
        least = min(b for t, b in zip(trials, broken, strict=True) if t.state == "complete")
        scores = [
            self.objective.value(t.outcome.score)
            if t.outcome.score and b <= max(least, 0.0)
            else -math.inf
            for t, b in zip(trials, broken, strict=True)
        ]
        return Surrogate(self.space, [self.space.effective(t.params) for t in trials], scores)

    def _changed(self, params: Mapping[str, Value], rng: np.random.Generator) -> list[Params]:
        """Points with one value changed, and with two."""
        alone = self.space.changed(params, rng)
        pairs = []
        for point in alone:
            pairs += self.space.changed(point, rng)
        chosen = rng.permutation(len(pairs))[:_PAIRS]
        return alone + [pairs[int(place)] for place in np.sort(chosen)]

    def _broken(self, trial: Trial) -> float:
        violations = self.objective.violations(trial.outcome.score or {})
        return sum(max(amount, 0.0) for amount in violations.values())

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        return self.objective.rank(trial.outcome.score or {}, trial.number)
