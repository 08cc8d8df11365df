"""Goals of a search: a metric to maximise, costs to minimise, limits to keep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from qsearch.settings.launch_settings import MaxDrop
from qsearch.store.records import Trial
from workers.metrics.library import LIBRARY, SHARES, WORDS
from workers.metrics.registry import by_option, known_measures, measure
from workers.metrics.size import WIDE_SHARE

Score = Mapping[str, float | None]
"""Metric name → value: ``top1`` and ``agreement`` as fractions 0..1, ``sqnr_db`` in dB.

None: ``top1`` is absent without labels; ``sqnr_db`` is infinite (outputs equal the float model's).
``model_bytes`` are bytes of packed constants, ``bit_operations`` those of a run; where they are
asked for, ``ram_bytes`` is the arena of the C, ``flash_bytes`` and ``instructions`` are what it
takes on the core of ``--for``, ``latency_ms`` and ``c_latency_ms`` the CPU time of
a sample on the worker's machine, by the engine and in C. With ``--hw`` also
``hw_groups``, ``hw_traffic`` (bytes), ``hw_cycles`` and ``hw_host_calls``. Metrics of libraries
are under their word, those of the user under their import path.
"""

KEEPS_ACCURACY: Final = "keeps_accuracy"
"""In a score of a search that weighs it: 1.0 where the accuracy stays within ``--max-drop``."""

FLOAT_TOP1: Final = "top1_float"
"""In a score with labels: top-1 of the float model on all samples, 0..1."""

FLOAT_METRIC: Final = "metric_float"
"""In a score with a metric of a library: its value for the float model on all samples."""

TOP1_STEP: Final = "top1_step"
"""In a score with labels: the loss of top-1 up to which luck explains it, see ``top1_step``."""

FIRST_DB: Final = "first_db"
"""In a score of a later batch: SQNR of trial 0 in dB."""

WORST_OUTPUT: Final = "worst_output"
"""In a score of a model with several outputs: the place of the one with the least SQNR."""

COMPARISONS: Final = frozenset(
    (
        KEEPS_ACCURACY,
        FLOAT_TOP1,
        FLOAT_METRIC,
        TOP1_STEP,
        FIRST_DB,
        WIDE_SHARE,
        WORST_OUTPUT,
    )
)
"""Keys of a score that are no measures: what the float model makes of it, which output is meant."""

UNCERTAIN: Final = "_error"
"""After the name of a score: its standard error."""

# Below every cost that a module can have: what loses accuracy ranks behind what keeps it.
_LOST_ACCURACY: Final = -1e18
# A module without a cost (a trial of older code) ranks behind those that have one.
_SIZE_STEPS: Final = 128
"""Steps of the size of a module, at least, that trials are told apart by."""
_NO_COST: Final = -1e18

_SIGNAL: Final = "sqnr_db"
_LEAST_STEP: Final = 4.0
_CHANGED_ANSWERS: Final = 0.01
_MOST_DB: Final = 100.0
_SQNR_IN_STEP: Final = 0.01
_DB_OF_A_BIT: Final = 6.02
_WIDE_IN_STEP: Final = 0.3
_FAR_IN_STEP: Final = 0.5
_SAME_SHARE: Final = 0.02
"""Shares of wide multiplications that differ by less take the same time."""
_FAR_DB: Final = 3.0
_GOOD_DB: Final = 30.0
"""Time counts among modules that have so much SQNR, and are not ``_FAR_DB`` below trial 0."""

# Begins the name of a limit on a cost other than size.
_AT_MOST: Final = "at_most "


def sqnr_value(score: Score) -> float:
    """SQNR in dB as a finite number."""
    sqnr = measure("sqnr_db")
    value = sqnr.finite(score.get(sqnr.name))
    assert value is not None
    return value


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric, and optionally costs and limits.

    Ties go to the lower costs, so that the best lies on the front; then to SQNR, agreement, and the
    earlier trial.

    Top-1 as the metric ranks as no more than the float model's, and below it in steps of what luck
    explains (``top1_step``): one right answer more on a few hundred samples says less of a module
    than its SQNR does. The steps are the same for all trials of a study, so the order is total, and
    a trial with higher top-1 and SQNR than another is always before it. Other metrics of labels
    rank as no more than the float model's, too: what a module has more of them is luck.
    Of modules that keep top-1 alike, have 30 dB, and are not far below trial 0, the one that
    multiplies fewer data of more than 8 bits goes first, where no cost or limit was asked for.

    Accuracy and SQNR are maximised. A cost as the metric is minimised among the modules that keep
    their accuracy; behind them the rest, by accuracy.

    Attributes:
        metric: what decides the winner among the trials that violate nothing.
        minimize: costs that span a Pareto front with it.
        max_size: most bytes of constants; None is any number.
        at_most: the most that other costs may be.
    """

    metric: str
    minimize: tuple[str, ...] = ()
    max_size: float | None = None
    at_most: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def of(spec: Mapping[str, Any]) -> Objective:
        """The objective of a study, by its spec."""
        limit = spec.get("max_size")
        return Objective(
            str(spec["metric"]),
            tuple(spec.get("minimize", ())),
            None if limit is None else float(limit),
            tuple(sorted(spec.get("at_most", {}).items())),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Words of the metric and the costs, in the order of ``values`` and ``rankings``."""
        return (WORDS.get(self.metric, self.metric), *self.minimize)

    @property
    def limited(self) -> tuple[str, ...]:
        """The costs that have a limit."""
        return (*(() if self.max_size is None else ("size",)), *(name for name, _ in self.at_most))

    @property
    def most_bytes(self) -> float | None:
        """The limit of what weights with fewer bits make smaller; flash goes before size."""
        return dict(self.at_most).get("flash", self.max_size)

    def bytes_of(self, score: Score) -> float | None:
        """Return the bytes that ``most_bytes`` limits."""
        return score.get(score_key("flash" if "flash" in self.limited else "size"))

    def goal(self, max_drop: MaxDrop) -> str:
        """Describe the goal of the search, in a sentence with every limit."""
        metric = by_option(self.metric)
        verb = "least" if metric.smaller_is_better else "most"
        also = "".join(f", least {name}" for name in self.minimize)
        explained = {
            "top1": " (share of right answers); where luck explains the difference "
            + ("most SQNR" if also or self.limited else "fewest 16-bit products, then most SQNR"),
            "sqnr": " (power of the float outputs by that of the errors, dB: higher is better)",
            "agreement": " (share of answers equal to the float model's)",
        }.get(self.metric, "")
        if self.max_size is None:
            size = []
        else:
            size = [f"--max-size {self.max_size:g}"]
        limits = [f"--max-drop {max_drop}", *size]
        limits += [f"--at-most {name}={limit:g}" for name, limit in self.at_most]
        return f"{verb} {self.names[0]}{explained}{also}; limits: {', '.join(limits)}"

    @property
    def limits(self) -> list[str]:
        """Limits that a winner must keep, as the options of the command line."""
        size = [] if self.max_size is None else ["--max-size"]
        return ["--max-drop", *size, *(option_of(f"{_AT_MOST}{name}") for name, _ in self.at_most)]

    def ranking(self, score: Score) -> float:
        """Return the value that the sampler maximises in place of the metric: top-1 in steps, costs
        negative."""
        metric = by_option(self.metric)
        if metric.smaller_is_better:
            cost = score.get(metric.name)
            if cost is None or not score.get(KEEPS_ACCURACY):
                return _LOST_ACCURACY * (1.0 + lost(*accuracy_of(score), 1.0))
            return -_compared(self.metric, cost)
        value = metric.finite(score.get(metric.name))
        if value is None:
            return _LOST_ACCURACY
        steps = self._steps_lost(score)
        if steps is None:
            before = score.get(FLOAT_METRIC)
            if before is None or metric.name not in LIBRARY:
                return value
            return min(value, before)
        value = score[FLOAT_TOP1] or 0.0
        step = score[TOP1_STEP] or 0.0
        value -= steps * step
        far, wide = self._time(score)
        value -= (far * _FAR_IN_STEP + wide * _WIDE_IN_STEP) * step
        if not self.minimize:
            missing = 1.0 - min(max(sqnr_value(score) / _MOST_DB, 0.0), 1.0)
            value -= missing * _SQNR_IN_STEP * step
        return value

    def _time(self, score: Score) -> tuple[bool, float]:
        """Return whether SQNR decides before time, of a module that lacks it, and the share of the
        multiplications that take long; (False, 0) where time does not count."""
        wide = score.get(WIDE_SHARE)
        if not self.counts_time or wide is None or self._steps_lost(score) is None:
            return False, 0.0
        first = score.get(FIRST_DB)
        found = sqnr_value(score)
        if first is None or found < max(first - _FAR_DB, _GOOD_DB):
            return True, 0.0
        return False, _steps_of_share(wide)

    def _steps_lost(self, score: Score) -> int | None:
        """Whole steps by which top-1 is below the float model's; None where steps do not count."""
        top1 = score.get("top1")
        before = score.get(FLOAT_TOP1)
        step = score.get(TOP1_STEP)
        if self.metric != "top1":
            return None
        if top1 is None or before is None or step is None:
            return None
        # Fractions of a few hundred samples: the last bit of the subtraction must not decide.
        return max(math.ceil((before - top1) / step - 1e-9) - 1, 0)

    def decides(self, score: Score) -> str:
        """The metric of which a trial must have more to rank before one of this score.

        Of a trial that costs no less: SQNR where top-1 counts as the float model's, which is the
        most.
        """
        if self._steps_lost(score) == 0:
            return "sqnr"
        return self.metric

    def rankings(self, score: Score) -> tuple[float, ...]:
        """One number per objective; greater is better, so costs are negative."""
        return (self.ranking(score), *(-cost for cost in self._compared_costs(score)))

    def _compared_costs(self, score: Score) -> tuple[float, ...]:
        return tuple(map(_compared, self.minimize, self.costs(score)))

    def values(self, score: Score) -> tuple[float, ...]:
        """The metric and the costs as they were measured; see ``smaller_is_better``."""
        metric = self.shown(score)
        if metric is None:
            if by_option(self.metric).smaller_is_better:
                metric = -_NO_COST
            else:
                metric = _LOST_ACCURACY
        return (metric, *self.costs(score))

    @property
    def smaller_is_better(self) -> tuple[bool, ...]:
        """True for each of the ``values`` of which less is better."""
        return (by_option(self.metric).smaller_is_better, *(True for _ in self.minimize))

    def rival_costs(self, score: Score) -> tuple[float, ...]:
        """The costs that a module must not exceed to be a rival: those of ``minimize``, or time."""
        wide = _steps_of_share(score.get(WIDE_SHARE) or 0.0) if self.counts_time else 0.0
        return (*self.costs(score), wide)

    @property
    def counts_time(self) -> bool:
        """Return whether of modules of equal top-1 the faster one is better."""
        return self.metric == "top1" and not self.minimize and not self.limited

    def costs(self, score: Score) -> tuple[float, ...]:
        """The costs of ``minimize``; less is better."""
        found = (score.get(score_key(name)) for name in self.minimize)
        return tuple(-_NO_COST if cost is None else float(cost) for cost in found)

    def violations(self, score: Score) -> dict[str, float]:
        """Return the excess over each limit, by its name; none is broken at 0 or below."""
        found: dict[str, float] = {}
        kept = score.get(KEEPS_ACCURACY)
        if kept is not None and not by_option(self.metric).smaller_is_better:
            found["max_drop"] = 1.0 - kept
        if self.max_size is not None:
            found["max_size"] = _excess(score.get("model_bytes"), self.max_size)
        for name, limit in self.at_most:
            found[_AT_MOST + name] = _excess(score.get(score_key(name)), limit)
        return found

    def feasible(self, score: Score) -> bool:
        """Return whether nothing is broken."""
        return self.excess(score) == 0

    def excess(self, score: Score) -> float:
        """Return the sum of the excesses over limits that are broken."""
        return sum(max(amount, 0.0) for amount in self.violations(score).values())

    def fits(self, score: Score) -> bool:
        """Return whether its costs stay within ``max_size`` and ``at_most``."""
        violations = self.violations(score)
        return all(violations[name] <= 0 for name in violations if name != "max_drop")

    def shown(self, score: Score) -> float | None:
        """The metric as people read it: a cost as it is, not its negative."""
        metric = by_option(self.metric)
        return metric.finite(score.get(metric.name))

    def described(self, score: Score) -> str:
        """The metric and the costs in words, for a line of progress."""
        parts = []
        for place, name in enumerate(self.names):
            if place:
                value = score.get(score_key(name))
            else:
                value = self.shown(score)
            if value is None:
                told = "unknown"
            else:
                told = by_option(name).formatted(value)
            parts.append(f"{name} {told}")
            if not place and self.decides(score) != self.metric:
                parts.append(f"sqnr {measure('sqnr_db').formatted(sqnr_value(score))}")
        return ", ".join(parts)

    def rank(self, score: Score, number: int) -> tuple[float, ...]:
        """Greater is better; what breaks a limit is behind what breaks none."""
        ties = (sqnr_value(score), score.get("agreement") or 0.0)
        return (-self.excess(score), *self.rankings(score), *ties, -number)

    @property
    def beside_bits(self) -> Objective:
        """The objective without costs and limits that bits of weights pay for, such as flash."""
        kept = tuple((name, limit) for name, limit in self.at_most if name != "flash")
        return replace(self, minimize=(), max_size=None, at_most=kept)

    def paid_in_bits(self, score: Score, weights: int) -> Score:
        """The score where bits of weights have paid for bytes, of which each bit is worth 6 dB.

        Args:
            weights: their number.
        """
        found = self.bytes_of(score) or weights
        paid = sqnr_value(score) - _DB_OF_A_BIT * 8 * (found - weights) / weights
        return {**score, "sqnr_db": paid}

    def base_for_bits(self, trials: Iterable[Trial], weights: int) -> Trial | None:
        """The complete trial on which fewer bits of single layers should be tried.

        The most accurate one of those that keep the limits which bits hardly change, such as RAM,
        once bits have paid for its bytes.

        Args:
            weights: their number.
        """

        def worth(trial: Trial) -> tuple[float, ...]:
            score = self.paid_in_bits(trial.score, weights)
            return self.beside_bits.rank(score, trial.number)

        complete = (t for t in trials if t.state == "complete" and t.outcome.score is not None)
        return max(complete, key=worth, default=None)

    def best(self, trials: Iterable[Trial]) -> Trial | None:
        """The best complete trial."""
        complete = [t for t in trials if t.state == "complete" and t.outcome.score is not None]
        return max(complete, key=lambda t: self.rank(t.score, t.number), default=None)

    def explained(self, best: int, scores: Mapping[int, Score]) -> str | None:
        """Explain in a sentence why a trial with more right answers than the best did not win.

        Args:
            best: number of the best trial.
            scores: of the complete trials, by number.
        """
        won = scores.get(best)
        if not won or self.decides(won) == self.metric:
            return None
        top1 = won.get("top1") or 0.0
        costs = self._compared_costs(won)
        luckier = [
            number
            for number, score in scores.items()
            if (score.get("top1") or 0.0) > top1
            and self._compared_costs(score) == costs
            and self.feasible(score)
        ]
        if not luckier:
            return None
        luckiest = max(luckier, key=lambda number: scores[number].get("top1") or 0.0)
        score = scores[luckiest]
        more = (score.get("top1") or 0.0) - top1
        told = f"trial {luckiest} has {100 * more:.2f} points more top-1 than trial {best}, "
        told += "which luck explains"
        less = sqnr_value(won) - sqnr_value(score)
        if less >= 0.05:
            told += f", and {less:.1f} dB less SQNR"
        return told


def _compared(name: str, cost: float) -> float:
    """A cost as trials are ranked by it: bytes in steps of about a two-hundredth.

    Constants beside the weights differ by some bytes from trial to trial, which say nothing.
    """
    if name != "size" or cost < _SIZE_STEPS:
        return cost
    step = 2.0 ** (math.frexp(cost)[1] - _SIZE_STEPS.bit_length())
    return round(cost / step) * step


def _steps_of_share(wide: float) -> float:
    return round(wide / _SAME_SHARE) * _SAME_SHARE


def option_of(limit: str) -> str:
    """The option of the command line that sets a limit named as in ``Objective.violations``."""
    if limit.startswith(_AT_MOST):
        return f"--at-most {limit.removeprefix(_AT_MOST)}"
    return f"--{limit.replace('_', '-')}"


def _excess(cost: float | None, limit: float) -> float:
    """Return the excess of a cost over its limit, as a share of the limit; an unknown cost is above
    it."""
    if cost is None:
        return 1.0
    return (cost - limit) / (limit or 1.0)


def score_key(name: str) -> str:
    """The key of a score under which a metric or cost is found."""
    return by_option(name).name


def accuracies_in(score: Score) -> dict[str, float | None]:
    """Return the accuracies of a score, by key: every known metric, then the user's own."""
    usual = {
        m.name: score.get(m.name)
        for m in known_measures()
        if not m.smaller_is_better and (m.option or m.name in score)
    }
    return usual | own_scores(score)


def own_scores(score: Score) -> dict[str, float | None]:
    """Return the scores of libraries' metrics, by word, and of the user's: by import path, further
    values as ``function.key``."""
    return {
        name: value
        for name, value in score.items()
        if (name in LIBRARY or ":" in name or "." in name) and not is_uncertainty(name, score)
    }


EXPECTED: Final = "_expected"
"""Behind the name of a measure: its value on all samples, as expected of a trial stopped early."""


def expected_scores(part: Score, rival_part: Score, rival: Score) -> dict[str, float]:
    """Return the expected scores of a trial on all samples, by its difference to a better rival.

    No score is above the rival's: a few more right answers on a part of the samples are luck.

    Args:
        part, rival_part: scores of both on the same samples.
        rival: score on all samples.
    """
    return {
        name + EXPECTED: whole + min(mine - theirs, 0.0)
        for name, mine in accuracies_in(part).items()
        if mine is not None
        and (theirs := rival_part.get(name)) is not None
        and (whole := rival.get(name)) is not None
    }


def expected_in(score: Score) -> dict[str, float]:
    """Return what ``expected_scores`` added to a score, by measure."""
    return {
        name.removesuffix(EXPECTED): value
        for name, value in score.items()
        if name.endswith(EXPECTED) and value is not None
    }


def is_uncertainty(name: str, score: Score) -> bool:
    """Return whether a name of a score is the standard error of another, and no measure of its
    own."""
    return name.endswith(UNCERTAIN) and name.removesuffix(UNCERTAIN) in score


def weighs_accuracy(metric: str, minimize: tuple[str, ...], has_labels: bool) -> bool:
    """Return whether ``--max-drop`` decides which trials count: where accuracy alone does not.

    Without labels accuracy is the agreement with the float model, which SQNR stands for.
    """
    return (
        by_option(metric).smaller_is_better
        or bool(minimize)
        or (metric in ("sqnr", "top1") and has_labels)
    )


def top1_step(samples: int) -> float:
    """The loss of top-1 that luck explains, as a fraction of ``samples``.

    Four answers, since McNemar's test on paired answers calls no loss of four or fewer significant
    (all four of four changed answers are lost with a probability of 1/16); or two standard errors
    of the difference if one answer in a hundred changes, which is more above 400 samples.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions",
    1947.
    """
    return max(_LEAST_STEP, 2.0 * math.sqrt(_CHANGED_ANSWERS * samples)) / max(samples, 1)


def comparisons(
    score: Score, baseline: Score, samples: int, max_drop: MaxDrop | None
) -> dict[str, float]:
    """Compare the float model with the module, as figures of a score.

    Args:
        baseline: score of the float model on all samples.
        samples: that were scored.
        max_drop: accuracy that may be lost, where the search weighs it.
    """
    found = {}
    if max_drop is not None:
        found[KEEPS_ACCURACY] = float(keeps_accuracy(score, baseline, max_drop))
    for name in LIBRARY.keys() & score.keys():
        if (value := baseline.get(name)) is not None:
            found[FLOAT_METRIC] = float(value)
    before = baseline.get("top1")
    if score.get("top1") is not None and before is not None:
        found |= {FLOAT_TOP1: float(before), TOP1_STEP: top1_step(samples)}
    return found


def accuracy_of(score: Score) -> tuple[str, float]:
    """Return the accuracy that ``--max-drop`` looks at: the metric of a library that was asked for,
    top-1 where there are labels, else agreement; SQNR where the output is a lone number."""
    for name in LIBRARY.keys() & score.keys():
        return name, -math.inf if (value := score[name]) is None else value
    for name in ("top1", "agreement"):
        if (value := score.get(name)) is not None:
            return name, value
    return _SIGNAL, sqnr_value(score)


def lost(name: str, value: float, before: float) -> float:
    """Return the loss of an accuracy; of SQNR the noise as a share of the signal."""
    return 10.0 ** (-value / 10.0) if name == _SIGNAL else before - value


def keeps_accuracy(score: Score, baseline: Score, max_drop: MaxDrop) -> bool:
    """True if ``score`` stays within ``max_drop`` of the float model.

    Without labels outputs that are near the float model's are enough: which of several numbers is
    the highest says something of classes only.
    """
    name, value = accuracy_of(score)
    unlabelled = name == "agreement" or (name != _SIGNAL and baseline.get(name) is None)
    if unlabelled and lost(_SIGNAL, sqnr_value(score), 0.0) <= max_drop.amount:
        return True
    before = float(baseline.get(name) or 0.0)
    whole = 1.0 if name == _SIGNAL else abs(before)
    relative = max_drop.relative or (name in LIBRARY and name not in SHARES)
    # Fractions of a few hundred samples: the last bit of the subtraction must not decide.
    return lost(name, value, before) <= max_drop.amount * (whole if relative else 1.0) + 1e-9
