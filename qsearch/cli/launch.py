"""``qsearch launch``: search, and write the best module."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from qsearch.choices import COSTS, JUDGES, METRICS, POOLS, SAMPLERS
from qsearch.cli.arguments import (
    Parser,
    add_dims,
    add_hardware,
    add_model,
    add_verbosity,
    verbosity_of,
)


def add_arguments(parser: Parser) -> None:
    """Flags of launch; each is also a key of ``-c`` files and a QSEARCH_ variable."""
    add = parser.add_argument
    add_model(parser)
    add("--calib", metavar="C", help="calibration data: .npz, .npy or a folder of images")
    add("--eval", metavar="E", help="evaluation data of the same kinds, with labels if you can")
    add("-o", "--out", "--output", metavar="DIR", help="run folder (default runs/<model>)")
    add("--trials", metavar="N", help="trials of the study in total, over all runs (32)")
    add("--timeout", metavar="S", help="start no trial after so many seconds")
    add("--storage", metavar="URL", help="sqlite:///… or postgresql://… (default in the folder)")
    add("--artifacts", metavar="URL", help="shared files, as fsspec spells it: s3://… (local only)")
    add("--study", metavar="NAME", help="name in the storage (default: the folder's)")
    add("--workers", metavar="N", help="processes that evaluate (default: one per core)")
    add("--pool", metavar="|".join(POOLS), help="where workers run (ray)")
    add("--address", metavar="A", help="Ray cluster to join (default: one of its own)")
    add("--seed", metavar="S", help="of the sampler and of synthetic data (0)")
    add(
        "--metric",
        metavar="|".join(METRICS),
        help="what to maximise (top1 with labels, or sqnr); costs are minimised",
    )
    add("--minimize", metavar="|".join(COSTS), help="costs beside it: a Pareto front")
    add("--max-size", metavar="B", help="most bytes of weights the winner may have: 300k, 2M")
    add(
        "--at-most",
        metavar="COST=N",
        action="append",
        help="limit of another cost: hw_groups=39, latency=5 (ms); repeatable",
    )
    add("--space", metavar="FILE", help="what is searched (see qsearch doctor --space-out)")
    add("--patience", metavar="K", help="end after K trials in a row that brought nothing better")
    add("--prune", metavar="A", help="chance to stop a trial as worse that is not; 0: never (0.05)")
    add_hardware(parser)
    add("--max-drop", metavar="D", help="accuracy that may be lost: 0.01, or 1%% of the baseline")
    add("--judge", metavar="|".join(JUDGES), help="who scores candidates (grid)")
    add("--allow-float", action="store_true", default=None, help="also try modules with float")
    add("--preprocess", metavar="P", help="yaml: resize, crop, channel_order, layout, mean, std")
    add_dims(parser)
    add("--sampler", metavar="|".join(SAMPLERS), help="what proposes trials (auto)")
    add("--batch", metavar="N", help="trials proposed at a time (4, or one per worker)")
    add("--passes", metavar="P", action="append", help="own pass, module:Class; repeatable")
    add("--worker-cpus", metavar="N", help="cores of a worker (1)")
    add("--worker-gpus", metavar="N", help="GPUs of a worker on a Ray cluster (0)")
    add("--worker-memory", metavar="B", help="memory of a worker: 2G (any)")
    add("--trial-timeout", metavar="S", help="a worker silent for so long is dead (3600)")
    add("--dashboard", action="store_true", help="show the search in a browser while it runs")
    add("--dry-run", action="store_true", default=None, help="say what would be done, and stop")
    add("--fresh", action="store_true", default=None, help="forget the folder's study first")
    add("--json", action="store_true", default=None, help="one JSON object as last line of stdout")
    add("-c", "--config", metavar="FILE", help="yaml, toml or json with the same names as flags")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Search; the exit code says whether the accuracy was kept."""
    from qsearch.errors import SettingsError
    from qsearch.interrupts import interrupts_kept
    from qsearch.settings import Settings, resolve

    # An orderly stop, like Ctrl-C: running trials return to the queue, the best is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Own code beside the command; behind all else, so that it hides no installed module.
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    names = {field for field in Settings.__dataclass_fields__ if hasattr(args, field)}
    flags = {name: getattr(args, name) for name in names}
    flags["verbosity"] = verbosity_of(args)
    resolved = resolve(flags, config_file=args.config)
    if not resolved.settings.model:
        raise SettingsError(
            "no model was given",
            where="qsearch launch",
            fix="--model m.onnx, or --model digits for the one that ships with the package",
        )
    with interrupts_kept():
        from qsearch import api
        from qsearch.progress import make_progress
        from qsearch.search import launch  # noqa: F401  what the search imports, imported now

    if resolved.settings.dry_run:
        plan = api.plan_launch(resolved)
        print(json.dumps(plan) if resolved.settings.json else _lines(plan))
        return 0
    with api.dashboard_beside(resolved.settings, args.dashboard):
        progress = make_progress(resolved.settings.verbosity)
        result = api.launch_resolved(resolved, progress=progress)
    if resolved.settings.json:
        print(json.dumps(result.summary))
        return int(result.exit_code)
    print(result.text())
    if resolved.settings.verbosity >= 0:
        from qsearch.cli.next_steps import after_launch

        own = resolved.settings.storage is None
        print(after_launch(result.folder, result.summary, result.exit_code, own))
    return int(result.exit_code)


def _lines(plan: dict[str, object]) -> str:
    width = max(len(key) for key in plan)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in plan.items())
