"""Legal values of options that are words. Imports nothing, so that ``--help`` stays quick."""

from __future__ import annotations

from typing import Final

METRICS: Final = ("top1", "agreement", "sqnr")
JUDGES: Final = ("grid", "simulated")
POOLS: Final = ("ray", "process", "inline")
SAMPLERS: Final = ("tpe", "random", "grid")
TRIAL_STATES: Final = ("waiting", "running", "complete", "pruned", "failed", "infeasible")
