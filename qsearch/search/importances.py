"""How much each searched parameter decides a measure, by PED-ANOVA.

Source of the method: Watanabe, Bansal, Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter
Importance in Arbitrary Subspaces", IJCAI 2023, as Optuna computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import create_trial

from qsearch.search.replica import quiet_optuna

LEAST: Final = 8
"""Trials below which nothing is said."""
MOST: Final = 3000
"""Of more trials an even choice is looked at."""


def importances(
    trials: Sequence[tuple[Mapping[str, Any], float]], *, smaller_is_better: bool = False
) -> dict[str, float]:
    """Importance of the parameters that every trial has and that differ; they add up to one.

    Args:
        trials: parameters and value of complete trials.
    Returns:
        Empty where there are too few trials, or all values are the same.
    """
    trials = trials[:: -(-len(trials) // MOST)] if trials else trials
    if len(trials) < LEAST or len({value for _, value in trials}) < 2:
        return {}
    shared = set.intersection(*(set(params) for params, _ in trials))
    choices = {
        name: tuple(dict.fromkeys(params[name] for params, _ in trials)) for name in sorted(shared)
    }
    known: dict[str, BaseDistribution] = {
        n: CategoricalDistribution(c) for n, c in choices.items() if len(c) > 1
    }
    if not known:
        return {}
    with quiet_optuna():
        study = optuna.create_study(direction="minimize" if smaller_is_better else "maximize")
        study.add_trials(
            [
                create_trial(
                    params={name: params[name] for name in known}, distributions=known, value=value
                )
                for params, value in trials
            ]
        )
        found = optuna.importance.get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator()
        )
    return {name: float(value) for name, value in found.items()}
