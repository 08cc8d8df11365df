"""Changes to the best trials with the largest expected improvement by a Gaussian process.

Candidates differ from one of the best trials in one value or two; of two, one may pay only with
the other. They are ranked by expected improvement. The next of a batch is chosen as if the ones
before it had scored what is expected of them.

The covariance of two configurations is

    k(x, y) = variance * exp(-sum over parameters p of weight[p] * distance[p](x, y))

where the distance of one parameter is 0 or 1; for numbers 0, or from 1/2 to 1. Weights, variance
and noise have the greatest posterior density given what was seen. With small weights the effects
of parameters add up, with large ones combinations have a score of their own; a few dozen points
tell which. Scores far below the median count as one: how far a module has collapsed says nothing
about good ones.

Sources: Hutter, Hoos, Leyton-Brown, "Sequential model-based optimization for general algorithm
configuration", LION 2011 (the covariance for categories); Jones, Schonlau, Welch, "Efficient
global optimization of expensive black-box functions", 1998 (expected improvement); Ginsbourger, Le
Riche, Carraro, "Kriging is well-suited to parallelize optimization", 2010 (``believe``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import scipy  # loads its parts when they are first used
from numpy.typing import NDArray

from compiler.qtypes.qconfig import QConfig
from qsearch.search.objectives import Objective
from qsearch.search.space import Parameter, Params, Space, Value, config_hash, to_qconfig
from qsearch.store.records import Trial

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Point = Mapping[str, Value]

# Mean and deviation of the logarithm before anything is seen.
_WEIGHT: Final = (-1.5, 1.5)
_VARIANCE: Final = (0.0, 1.0)
_NOISE: Final = (-5.0, 1.0)
_ITERATIONS: Final = 60
_JITTER: Final = 1e-8
_LEAST_VARIANCE: Final = 1e-12


class Surrogate:
    """Fitted to the points that were tried; equal points and scores give equal answers.

    Args:
        space: of the points.
        points: tried ones, at least one.
        scores: of the points, greater is better; minus infinity where there is none.
    """

    def __init__(self, space: Space, points: Sequence[Point], scores: Sequence[float]) -> None:
        self._space = space
        self._values = standardized(np.asarray(scores, np.float64))
        self._best = float(self._values.max())
        self._rows = encoded(space, points)
        self._apart = distances(space, self._rows, self._rows)
        self._theta = _fitted(self._apart, self._values)
        self._condition()

    def believe(self, point: Point) -> None:
        """Treat a pending point as evaluated with its expected score."""
        mean, _ = self.predict([point])
        self._best = max(self._best, float(mean[0]))
        new = encoded(self._space, [point])
        beside = distances(self._space, self._rows, new)
        self._rows = np.concatenate([self._rows, new])
        self._values = np.append(self._values, mean)
        itself = np.zeros((len(beside), 1, 1))
        self._apart = np.block([[self._apart, beside], [beside.transpose(0, 2, 1), itself]])
        self._condition()

    def predict(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        """Mean and deviation, shape (points,) each, in deviations of the scores seen."""
        apart = distances(self._space, encoded(self._space, points), self._rows)
        cross = _covariance(self._theta, apart)
        mean: Floats = self._mean + cross @ self._weighted
        explained = np.einsum("pr,rp->p", cross, scipy.linalg.cho_solve(self._factor, cross.T))
        variance = np.maximum(np.exp(self._theta[-2]) - explained, _LEAST_VARIANCE)
        return mean, np.sqrt(variance)

    def improvement(self, points: Sequence[Point]) -> Floats:
        """Expected improvement over the best seen, shape (points,), in the unit of ``predict``."""
        mean, deviation = self.predict(points)
        above = mean - self._best
        ratio = above / deviation
        density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
        found: Floats = above * scipy.special.ndtr(ratio) + deviation * density
        return found

    def _condition(self) -> None:
        matrix = _covariance(self._theta, self._apart)
        matrix[np.diag_indices_from(matrix)] += np.exp(self._theta[-1]) + _JITTER
        self._factor = scipy.linalg.cho_factor(matrix, lower=True)
        self._mean = float(self._values.mean())
        self._weighted: Floats = scipy.linalg.cho_solve(self._factor, self._values - self._mean)


def encoded(space: Space, points: Sequence[Point]) -> Ints:
    """The place of every parameter's choice, -1 without effect, shape (points, parameters)."""
    columns = []
    for parameter in space.parameters:
        places = {choice: place for place, choice in enumerate(parameter.choices)}
        named = [(parameter.name in point, point.get(parameter.name)) for point in points]
        columns.append([places.get(value, -1) if has else -1 for has, value in named])
    found: Ints = np.asarray(columns, np.int64).reshape(len(space.parameters), len(points)).T
    return found


def distances(space: Space, rows: Ints, others: Ints) -> Floats:
    """Return the distances between points, shape (parameters, rows, others); see ``encoded``."""
    one = rows.T[:, :, None]
    other = others.T[:, None, :]
    found: Floats = (one != other).astype(np.float64)
    for place, parameter in enumerate(space.parameters):
        if _is_numeric(parameter):
            steps = np.abs(one[place] - other[place]) / (len(parameter.choices) - 1)
            active = (one[place] >= 0) & (other[place] >= 0)
            found[place] *= np.where(active, (1 + steps) / 2, 1.0)
    return found


def standardized(scores: Floats) -> Floats:
    """Scores with mean 0 and deviation 1, those far below the median raised to one floor.

    Args:
        scores: any numbers, or minus infinity, which stands at the floor.
    """
    seen = scores[np.isfinite(scores)]
    if not len(seen):
        return np.zeros_like(scores)
    top = float(seen.max())
    middle = float(np.median(seen))
    # The floor is as far below the median as the best is above it.
    reach = top - middle or top - float(seen.min()) or 1.0
    kept = np.maximum(scores, middle - reach)
    spread = float(kept.std())
    found: Floats = (kept - kept.mean()) / (spread or 1.0)
    return found


def _is_numeric(parameter: Parameter) -> bool:
    """Return whether more than two choices are numbers, and at most one is None."""
    numbers = [c for c in parameter.choices if isinstance(c, int | float) and c is not True]
    others = set(parameter.choices) - set(numbers)
    return len(numbers) > 2 and others <= {None}


def _covariance(theta: Floats, apart: Floats) -> Floats:
    found: Floats = np.exp(theta[-2] - np.tensordot(np.exp(theta[:-2]), apart, 1))
    return found


def _fitted(apart: Floats, values: Floats) -> Floats:
    """Logarithms of the weights, the variance and the noise."""
    centre = np.asarray([_WEIGHT[0]] * len(apart) + [_VARIANCE[0], _NOISE[0]])
    spread = np.asarray([_WEIGHT[1]] * len(apart) + [_VARIANCE[1], _NOISE[1]])
    target = values - values.mean()
    eye = np.eye(len(values))

    def loss(theta: Floats) -> tuple[float, Floats]:
        """Negative logarithm of the posterior density, and its gradient."""
        smooth = _covariance(theta, apart)
        factor = scipy.linalg.cho_factor(smooth + (np.exp(theta[-1]) + _JITTER) * eye, lower=True)
        inverse = scipy.linalg.cho_solve(factor, eye)
        weighted = inverse @ target
        pull = (theta - centre) / spread
        value = 0.5 * target @ weighted + np.log(np.diag(factor[0])).sum() + 0.5 * pull @ pull
        slope = 0.5 * (inverse - np.outer(weighted, weighted))
        gradient = np.empty_like(theta)
        gradient[:-2] = -np.exp(theta[:-2]) * np.tensordot(apart, slope * smooth, 2)
        gradient[-2] = (slope * smooth).sum()
        gradient[-1] = np.exp(theta[-1]) * np.trace(slope)
        return float(value), gradient + pull / spread

    found: Floats = scipy.optimize.minimize(
        loss,
        centre,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(centre - 4 * spread, centre + 4 * spread, strict=True)),
        options={"maxiter": _ITERATIONS},
    ).x
    return found


_CENTRES: Final = 3
_PAIRS: Final = 256
"""Changes of two values that are looked at, for each of the best trials."""
_MOST_KEPT: Final = 96
"""Trials a surrogate is fitted to: so many of the best, and as many of the latest."""


@dataclass(slots=True)
class Refinement:
    """Proposes changes to the best trials.

    Args:
        space: of the trials.
        start: configuration the points change.
        objective: which trials are good.
    """

    space: Space
    start: QConfig
    objective: Objective
    _best: list[tuple[tuple[float, ...], Trial]] = field(default_factory=list)
    _latest: deque[Trial] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    _surrogate: Surrogate | None = None

    def note(self, trial: Trial) -> None:
        """Take in a trial that ended; those are kept that a surrogate may be fitted to."""
        self._latest.append(trial)
        self._surrogate = None
        if trial.state == "complete" and trial.score:
            rank = self.objective.rank(trial.score, trial.number)
            ranked = sorted([*self._best, (rank, trial)], key=lambda one: one[0], reverse=True)
            self._best = ranked[:_MOST_KEPT]

    def propose(self, seen: Container[str], seed: int) -> Params | None:
        """An unseen point; asked again before the next trial ends, another one.

        Args:
            seen: hashes of configurations that must not be proposed.
            seed: of the random choices.
        Returns:
            None where nothing was completed, or all changes were seen.
        """
        if not self._best:
            return None
        if self._surrogate is None:
            self._surrogate = self._fitted()
        rng = np.random.default_rng(seed)
        found: dict[tuple[object, ...], Params] = {}
        for _, centre in self._best[:_CENTRES]:
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
            if config_hash(to_qconfig(point, self.start).to_dict()) in seen:
                continue
            self._surrogate.believe(point)
            return point
        return None

    def _fitted(self) -> Surrogate:
        kept = {t.number: t for t in (*(best for _, best in self._best), *self._latest)}
        trials = [kept[number] for number in sorted(kept)]
        broken = [self.objective.excess(trial.score) for trial in trials]
        least = min(b for t, b in zip(trials, broken, strict=True) if t.state == "complete")
        scores = [
            self.objective.ranking(t.score) if t.score and b <= max(least, 0.0) else -math.inf
            for t, b in zip(trials, broken, strict=True)
        ]
        points = [self.space.effective(t.params) for t in trials]
        return Surrogate(self.space, points, scores)

    def _changed(self, params: Mapping[str, Value], rng: np.random.Generator) -> list[Params]:
        """Points with one value changed, and with two."""
        alone = self.space.changed(params, rng)
        pairs = []
        for point in alone:
            pairs += self.space.changed(point, rng)
        chosen = rng.permutation(len(pairs))[:_PAIRS]
        return alone + [pairs[int(place)] for place in np.sort(chosen)]
