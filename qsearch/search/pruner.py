"""Stops a trial whose first parts show that it is worse than the best of earlier batches.

After 6, 12 and 24 parts the losses of a trial are paired, part by part, with those of the incumbent
on the same samples, and a one-sided sign-flip test asks whether the trial loses more: were both
equally good, every difference could as well have the other sign. Losses are those of the metric, or
of SQNR where an incumbent can only be beaten in that (``Objective.decides``). The p-value is the
share of all sign patterns (above 12 parts, of 4,095 drawn by seed) whose sum is at least the one
seen. A trial is stopped below alpha / (number of looks), so one that is as good as the incumbent is
stopped with a probability of at most alpha (Bonferroni), and what is better with less. Parts are
spread over the samples, so classes in order do no harm. The test holds where losses and gains are
spread alike; a trial that loses a little on nearly all samples and gains much on very few may be
stopped more often.

The incumbent is the best of the batches before the trial's own. So what is stopped depends on the
seed and the data, never on workers, kills, or the order of answers. Sources: R. A. Fisher, "The
Design of Experiments", 1935, section 21 (the test); Birattari et al., "A racing algorithm for
configuring metaheuristics", GECCO 2002 (racing against the incumbent).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qsearch.search.known_trials import KnownTrials
from qsearch.search.objectives import Objective, Score
from qsearch.store.records import GLOBAL, Shard, Trial
from workers.messages import EvaluationResult
from workers.metrics.registry import by_option, find_metric, merge_sums

LOOKS: Final = (6, 12, 24)
"""Parts after which a trial is looked at; six are the fewest that can decide at 5 %."""
DEFAULT_ALPHA: Final = 0.05
_EXACT_UP_TO: Final = 12
_DRAWN: Final = 4095

Sums = Mapping[str, Mapping[str, float]]


@dataclass(slots=True)
class SignFlipPruner:
    """Decides by the test, after each part of a trial, whether to evaluate the others.

    Args:
        objective: which loss is compared, and which trial is the incumbent.
        earlier: what there is to compare with.
        shards_of: the parts of a complete trial, in order; empty where they are not known.
        alpha: see the module's docstring; above 0.
        parts: of a whole trial.
        seed: of the drawn sign patterns.
        cost_of: what the parts say about costs, in the words of a score.
    """

    objective: Objective
    earlier: KnownTrials
    shards_of: Callable[[Trial], Sequence[Shard]]
    alpha: float
    parts: int
    seed: int
    cost_of: Callable[[Sequence[EvaluationResult]], Mapping[str, float]]

    def reason_to_prune(self, trial: Trial, parts: Sequence[EvaluationResult]) -> str | None:
        """Return the reason to stop after these first parts of a trial, in order; None goes on.

        It is asked once for each number of parts, whatever order they came in, so that what it
        says depends on the configuration and not on the workers.
        """
        looks = [look for look in LOOKS if look < self.parts]
        if len(parts) not in looks:
            return None
        rival = self._rival(trial, self.cost_of(parts))
        if rival is None:
            return None
        metric = self.objective.decides(rival.score)
        mine = losses(metric, [part.sums for part in parts])
        theirs = losses(metric, [shard.sums for shard in self.shards_of(rival)])
        if mine is None or theirs is None or len(theirs) != self.parts:
            return None
        difference = mine - theirs[: len(mine)]
        p = worse_by_sign_flips(difference, self.seed)
        if p >= self.alpha / len(looks):
            return None
        return (
            f"worse than trial {rival.number} on {sum(p.samples for p in parts)} samples "
            f"(p = {p:.2g}, alpha {self.alpha:g})"
        )

    def rival_of(
        self, trial: Trial, parts: Sequence[EvaluationResult]
    ) -> tuple[Sums, Score] | None:
        """Return the sums of the rival over the same parts, and its score; None without one."""
        rival = self._rival(trial, self.cost_of(parts))
        if rival is None:
            return None
        shards = self.shards_of(rival)[: len(parts)]
        return merge_sums(shard.sums for shard in shards), rival.score

    def _rival(self, trial: Trial, cost: Mapping[str, float]) -> Trial | None:
        """The best earlier trial that breaks no limit and costs no more.

        What holds for all layers is the base of bits, for which it may leave more bytes.
        """
        leaves = trial.stage == GLOBAL and self.objective.most_bytes is not None

        def costs(score: Score) -> tuple[float, ...]:
            left = ((self.objective.bytes_of(score) or 0.0),) if leaves else ()
            return (*self.objective.rival_costs(score), *left)

        mine = costs(cost)
        fit = []
        for other in self.earlier.before(trial.batch):
            score = other.score
            cheaper = all(a <= b for a, b in zip(costs(score), mine, strict=True))
            if cheaper and self.objective.feasible(score):
                fit.append(other)
        return self.objective.best(fit)


def losses(metric: str, parts: Sequence[Sums]) -> NDArray[np.float64] | None:
    """Return the loss of each part by a metric, less is better; None where parts cannot be
    compared.

    Args:
        metric: a word of ``--metric``.
        parts: sums of each part, by the name of the metric.
    """
    costs = by_option(metric).smaller_is_better
    if costs:
        loss = None
    else:
        loss = getattr(find_metric(metric), "loss", None)
    if loss is None or not parts or any(metric not in sums for sums in parts):
        return None
    return np.asarray([loss(sums[metric]) for sums in parts], np.float64)


def worse_by_sign_flips(differences: NDArray[np.float64], seed: int) -> float:
    """One-sided p-value that the differences are above zero; see the module's docstring.

    Args:
        differences: shape (parts,); not finite values count as infinitely worse.
    """
    if not np.isfinite(differences).all():
        return 0.0
    count = len(differences)
    seen = differences.sum()
    if count <= _EXACT_UP_TO:
        patterns = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        more = 0
    else:
        rng = np.random.default_rng(seed)
        patterns = rng.integers(0, 2, (_DRAWN, count))
        more = 1
    flipped = (2 * patterns - 1) @ differences
    # Sums of the same numbers in another order must count as equal.
    slack = 1e-12 * np.abs(differences).sum()
    return float((np.count_nonzero(flipped >= seen - slack) + more) / (len(patterns) + more))
