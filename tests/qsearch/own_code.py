"""What a user brings along: a metric, a sampler, passes; found by import path, in workers too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna

from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, module_pass
from compiler.transform import FoldConstant

SAMPLERS_MADE: list[int] = []
PASSES_RUN: list[str] = []


def margin(outputs: Sequence[Any], labels: Any) -> dict[str, float]:
    """A dictionary: the first value is searched for."""
    top = np.sort(outputs[0], axis=1)
    return {"margin": float(top[:, -1].mean() - top[:, -2].mean()), "largest": float(top.max())}


def correct(outputs: Sequence[Any], labels: Any, reference: Any) -> Any:
    """One value per sample."""
    assert reference is None or len(reference[0]) == len(outputs[0])
    return outputs[0].argmax(axis=1) == labels


def without_number(outputs: Sequence[Any], labels: Any, reference: Any) -> float:
    """NaN of everything but the float model."""
    return -1.0 if reference is None else float("nan")


def broken(outputs: Sequence[Any], labels: Any) -> float:
    """Fails."""
    raise RuntimeError("no such column")


def my_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Random, and remembered."""
    SAMPLERS_MADE.append(seed)
    return optuna.samplers.RandomSampler(seed=seed)


class ShyTPE(optuna.samplers.TPESampler):
    """A class whose first parameter is not the seed, as Optuna's own."""

    def __init__(self, gamma: Any = None, seed: int | None = None) -> None:
        super().__init__(seed=seed, n_startup_trials=2)


@module_pass(opt_level=0, name="RemembersThatItRan")
def my_pass(mod: IRModule, ctx: PassContext) -> IRModule:
    """Changes nothing."""
    PASSES_RUN.append("my_pass")
    return mod


class FoldAgain(FoldConstant):
    """A class of the user."""
