"""Samplers by name. A sampler is made anew for each batch, from a seed that names the batch.

So what is proposed depends on the seed and on the trials of earlier batches, never on how many
workers there were, in which order they finished, or how often the driver was killed.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any, Final

from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from compiler.errors import legal_names
from qsearch.errors import SettingsError
from qsearch.import_path import is_import_path, load_object

MakeSampler = Callable[[int], BaseSampler]
_SAMPLERS: dict[str, MakeSampler] = {}

HISTORY_FREE: Final = frozenset({"random", "grid"})
"""Samplers that propose the same whatever came of earlier trials."""

TPE_UP_TO: Final = 2000
"""Trials from which on NSGA-II proposes: asking TPE costs 0.2 s of CPU at 10,000 trials."""
POPULATION: Final = 24
GENERATION: Final = "NSGAIISampler:generation"
"""Where Optuna keeps the generation of a trial."""

# A third of the default study starts at random: TPE on fewer points follows noise.
_STARTUP_TRIALS = 10


def register_sampler(name: str) -> Callable[[MakeSampler], MakeSampler]:
    """Add a sampler: a function from a seed (0 … 2^32-1) to an Optuna sampler."""

    def register(make: MakeSampler) -> MakeSampler:
        if name in _SAMPLERS:
            raise ValueError(f"sampler {name!r} is registered twice")
        _SAMPLERS[name] = make
        return make

    return register


def sampler_names() -> tuple[str, ...]:
    """Legal names, sorted."""
    return tuple(sorted(_SAMPLERS))


def make_sampler(name: str, seed: int, batch: int) -> BaseSampler:
    """The sampler that proposes batch number ``batch`` of a study with this seed."""
    if is_import_path(name):
        make, chance = own_sampler(name), batch_seed(seed, batch)
        # The first parameter of Optuna's own classes is another.
        named = "seed" in inspect.signature(make).parameters
        sampler = make(seed=chance) if named else make(chance)
        if not isinstance(sampler, BaseSampler):
            raise SettingsError(
                f"sampler {name} gave {sampler!r}",
                where="sampler",
                fix="a function from a seed to an Optuna sampler",
            )
        return sampler
    if name not in _SAMPLERS:
        raise SettingsError(
            f"unknown sampler {name!r}", where="sampler", fix=legal_names(name, _SAMPLERS)
        )
    return _SAMPLERS[name](batch_seed(seed, batch))


def own_sampler(path: str) -> Any:
    """The user's function from a seed to a sampler, or class of samplers.

    Raises:
        SettingsError: there is none at this import path.
    """
    found = load_object(path, "sampler")
    if not callable(found):
        raise SettingsError(
            f"sampler {path} is {found!r}",
            where="sampler",
            fix="a function from a seed to an Optuna sampler",
        )
    return found


def batch_seed(seed: int, batch: int, slot: int = 0) -> int:
    """A 32-bit seed for one batch (and one place in it) of a study."""
    digest = hashlib.sha256(f"{seed}/{batch}/{slot}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


@register_sampler("tpe")
def tpe(seed: int) -> BaseSampler:
    """Tree-structured Parzen estimator over all parameters at once; the default."""
    return TPESampler(
        seed=seed,
        multivariate=True,
        constant_liar=True,
        n_startup_trials=_STARTUP_TRIALS,
    )


@register_sampler("nsga2")
def nsga2(seed: int) -> BaseSampler:
    """Elitist genetic algorithm; the default's successor from ``TPE_UP_TO`` trials on."""
    return NSGAIISampler(seed=seed, population_size=POPULATION)


def sampler_beyond(name: str, trials: int) -> str:
    """The sampler that goes on after so many trials: TPE gives way to NSGA-II."""
    return "nsga2" if name == "tpe" and trials >= TPE_UP_TO else name


@register_sampler("random")
def random(seed: int) -> BaseSampler:
    """Every parameter uniformly at random."""
    return RandomSampler(seed=seed)


@register_sampler("grid")
def grid(seed: int) -> BaseSampler:
    """Every point of the space in order; the proposer enumerates and never asks this sampler."""
    return RandomSampler(seed=seed)
