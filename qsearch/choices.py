"""Legal values of options that are words. Imports nothing, so that ``--help`` stays quick."""

from __future__ import annotations

from typing import Final

HARDWARE_METRICS: Final = ("hw_groups", "hw_traffic", "hw_cycles", "hw_host_calls")
COSTS: Final = ("size", "bit_operations", "latency", *HARDWARE_METRICS)
"""What ``--minimize`` may name, and ``--metric`` with less being better."""
METRICS: Final = ("top1", "agreement", "sqnr", *COSTS)
JUDGES: Final = ("grid", "simulated")
POOLS: Final = ("ray", "process", "inline")
SAMPLERS: Final = ("auto", "tpe", "nsga2", "random", "grid")
TRIAL_STATES: Final = ("waiting", "running", "complete", "pruned", "failed", "infeasible")
