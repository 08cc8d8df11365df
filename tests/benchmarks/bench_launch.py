"""What ``qsearch launch`` costs, phase by phase, in passes of the float model.

    python -m tests.benchmarks.bench_launch [--models NAME …] [--trials N] [--seed N] [--images N]
        [--calib N] [--minimize size] [--data ../shared/data] [--stacks FILE] [--json FILE]

A pass is one run of the float model over all evaluation images by onnxruntime, on one thread in
this process: before the launch, after every trial and after the launch; the median counts. The
launch runs its trials in this process. A timer of CPU time (SIGPROF) looks at the stack every
few milliseconds and gives the CPU seconds since its last look to a phase; what the looks cost is
left out. ``--stacks`` writes the stacks with their CPU milliseconds, as flame graph tools read
them. The bytecode of the packages is written first, as pip does where it installs them.

Goals for EfficientNet-Lite0 with 16 trials, 100 calibration and 300 evaluation images: the whole
command at most 25 passes, all beside the trials at most 9, the median of the candidates with
nearest rounding at most 0.20 above the engine's own pass.
"""

from __future__ import annotations

import argparse
import compileall
import functools
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

GOALS = {"whole": 25.0, "beside_the_trials": 9.0}
BIG = "efficientnet_lite0"
_LEAST_S = 0.2
"""CPU seconds of one look at the float model; small models run several passes."""

FLOAT_PASSES = "float passes"
# A sample belongs to the first phase all of whose functions are on the stack.
PHASES: list[tuple[str, tuple[str, ...]]] = [
    (FLOAT_PASSES, ("float_pass",)),
    ("prepare", ("prepare_study",)),
    ("final check", ("winner.py:check",)),
    ("winner: fits", ("build_winner", "corrected")),
    ("winner: build", ("build_winner",)),
    ("winner: write", ("winner.py:write",)),
    ("baseline", ("baseline.py:_run",)),
    ("examination", ("examine",)),
    ("calibration: channels", ("merged_channels",)),
    ("calibration: sample", ("with_sample",)),
    ("calibration: tensors", ("merged_points",)),
    ("calibration: plan", ("_measured_together",)),
    ("scales", ("_stored_scales",)),
    ("first choice", ("session.py:_first",)),
    ("trials: spot check", ("evaluation.py:spot_check",)),
    ("trials: fits", ("evaluation.py:run", "corrected")),
    ("trials: mark", ("evaluation.py:run", "mark")),
    ("trials: bind", ("evaluation.py:run", "bind_scales")),
    ("trials: realize", ("evaluation.py:run", "build_candidate")),
    ("trials: plan and pack", ("evaluation.py:run", "_executor")),
    ("trials: build, rest", ("evaluation.py:run", "candidates.py:_make")),
    ("trials: run", ("evaluation.py:run",)),
    ("proposals", ("trial_queue.py:fill",)),
]


class Profile:
    """CPU seconds by phase, by looking at the stack of the main thread while it works."""

    def __init__(self, every_s: float = 0.004) -> None:
        self._every_s = every_s
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.stacks: defaultdict[str, float] = defaultdict(float)
        self._last = 0.0
        self._own = self.own_s = 0.0

    def __enter__(self) -> Profile:
        self._last = time.process_time()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, self._every_s, self._every_s)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        began, now = time.perf_counter(), time.process_time()
        passed, self._last = now - self._last - self._own, now
        names: list[str] = []
        while frame is not None:
            names.append(_name_of(frame.f_code))
            frame = frame.f_back
        known = {*names, *(name.partition(":")[2] for name in names)}
        phase = next((p for p, needed in PHASES if known.issuperset(needed)), "rest")
        self.seconds[phase] += passed
        self.stacks[";".join([phase, *reversed(names)])] += passed
        # The clock of CPU time is too coarse for one look.
        self._own = time.perf_counter() - began
        self.own_s += self._own * (phase != FLOAT_PASSES)


@functools.cache
def _name_of(code: CodeType) -> str:
    return f"{os.path.basename(code.co_filename)}:{code.co_name}"


def measure(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One launch, and passes of the float model beside it."""
    import numpy as np  # reads OPENBLAS_NUM_THREADS, which main() sets

    from tests.benchmarks import onnxruntime_peers as peers
    from tests.benchmarks.bench_accuracy import on_onnxruntime, outputs_of
    from tests.benchmarks.machine import machine
    from tests.benchmarks.real_models import batch_of, read_split

    batch = batch_of(model.stem)
    calib = read_split(args.data, model.stem, "calib", args.calib, batch)
    dev = read_split(args.data, model.stem, "dev", args.images, batch)
    passes: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-launch-") as name:
        folder = Path(name)
        session = on_onnxruntime(peers.prepare(model, folder))

        elsewhere = 0.0
        repeats = 1

        def float_pass(_trial: object = None) -> None:
            nonlocal elsewhere
            begin = time.process_time()
            for _ in range(repeats):
                outputs_of(session, dev, batch)
            spent = time.process_time() - begin
            passes.append(spent / repeats)
            elsewhere += spent

        files = {}
        for split, data in (("calib", calib), ("eval", dev)):
            files[split] = folder / f"{split}.npz"
            np.savez(files[split], input=data.images, labels=data.labels)
        float_pass()
        repeats = min(max(round(_LEAST_S / max(passes.pop(), 1e-3)), 1), 50)
        float_pass()
        elsewhere = 0.0
        profile = Profile()
        begin = time.process_time()
        with profile:
            import qsearch

            found = qsearch.launch(
                model,
                calib=files["calib"],
                eval=files["eval"],
                dim={"N": batch},
                trials=args.trials,
                seed=args.seed,
                minimize=args.minimize,
                pool="inline",
                out=folder / "run",
                callbacks=[float_pass],
            )
        whole = time.process_time() - begin - elsewhere - profile.own_s
        float_pass()
    one = median(passes)
    ordered = sorted(profile.seconds.items(), key=lambda phase: -phase[1])
    phases = {phase: s / one for phase, s in ordered if phase != FLOAT_PASSES}
    in_trials = sum(value for phase, value in phases.items() if phase.startswith("trials:"))
    trials = [(t.outcome.compile_cpu_s or 0.0, t.outcome.run_cpu_s or 0.0) for t in found.trials]
    nearest = [
        sum(cost) / one
        for t, cost in zip(found.trials, trials, strict=True)
        if t.qconfig["weight_rounding"] == "nearest" and t.outcome.samples == len(dev)
    ]
    if args.stacks:
        lines = (f"{stack} {round(1e3 * s)}" for stack, s in profile.stacks.items())
        args.stacks.write_text("\n".join(lines) + "\n")
    scores = [t.outcome.score or {} for t in found.trials]
    best = scores[[t.number for t in found.trials].index(found.best_trial.number)]
    return {
        "model": model.stem,
        "machine": machine(),
        "trials": args.trials,
        "seed": args.seed,
        "images": len(dev),
        "calibration_images": len(calib),
        "float_pass_cpu_s": round(one, 3),
        "whole_cpu_s": round(whole, 2),
        "whole": round(whole / one, 2),
        "beside_the_trials": round(whole / one - in_trials, 2),
        "phases": {phase: round(value, 2) for phase, value in phases.items()},
        "stopped_early": sum(t.outcome.samples != len(dev) for t in found.trials),
        "candidate_with_nearest_rounding": round(median(nearest), 3) if nearest else None,
        "each_trial": [
            [round(build / one, 2), round(run / one, 2), t.qconfig["weight_rounding"]]
            for t, (build, run) in zip(found.trials, trials, strict=True)
        ],
        "winner": {name: best.get(name) for name in ("top1", "sqnr_db")},
        "best_sqnr_db": max((s.get("sqnr_db") or float("-inf") for s in scores), default=None),
        "outputs_sha256": [(t.outcome.outputs_sha256 or "")[:10] for t in found.trials],
    }


def main() -> int:
    """Print the phases; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--models", nargs="+", default=[BIG])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, help="evaluation images per model (all)")
    parser.add_argument("--calib", type=int, default=100, help="calibration images per model")
    parser.add_argument("--minimize", action="append", default=[], help="as of launch")
    parser.add_argument("--stacks", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for package in ("compiler", "workers", "qsearch"):
        compileall.compile_dir(Path(__file__).resolve().parents[2] / package, quiet=1)
    rows = []
    for name in args.models:
        rows.append(measure(args.data / f"{name}.onnx", args))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    missed = [
        f"not met: {row['model']} {goal}: {row[goal]} passes (at most {bound})"
        for row in rows
        for goal, bound in GOALS.items()
        if row["model"] == BIG and args.trials == 16 and not args.minimize and row[goal] > bound
    ]
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
