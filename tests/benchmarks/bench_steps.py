"""What single steps of the forms find, and what running them costs.

    python -m tests.benchmarks.bench_steps [MODULE.qmod …] [--rounds N]

Every mended defect of ``tests/compiler/mends.py`` is put back, one at a time: a row says whether
narrower bounds or other numbers show it, in which form. Of modules it tells findings, and CPU
seconds of the replay and of the steps. Goals: every defect is found, no honest module has a
finding, and steps take no more CPU time than the replay, which compiles: name an empty folder in
QSEARCH_CACHE_DIR, and a module twice, because the first also builds the engine.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

from compiler.pipeline import C_LOWERING
from compiler.proof.derive import derive_static
from compiler.proof.replay import c_flags, replay
from compiler.proof.steps import built_in_c, check_forms, rounds_of
from compiler.proof.work import declared_work, replay_inputs
from compiler.runtime.artifact import load_qmod
from tests.compiler.inner_values import ENGINE, ONNX
from tests.compiler.mends import DEFECTS, put_back


def found_of(what: str, rounds: int) -> list[str]:
    """What shows a defect that is put back."""
    mod = (ENGINE | ONNX)[what].mod
    with put_back(DEFECTS[what]):
        findings = check_forms(mod, rounds, seed=0)[1]
    kinds = {
        ("bounds" if "takes it to be" in one.what else "numbers", one.what.split(" takes ")[0])
        for one in findings
    }
    return sorted(f"{kind} of {form.split(' computes ')[0]}" for kind, form in kinds)


def costs(path: str) -> tuple[float, float, int]:
    """CPU seconds of the replay, of the steps, and how many findings both have."""
    module = load_qmod(path)
    mod, work = module.module, declared_work(module.module)
    most = replay_inputs(work)
    bounds = [(low, high) for _, low, high in derive_static(mod).inputs]
    begin = _cpu_s()
    rng = np.random.default_rng(0)
    in_c = built_in_c(mod, c_flags(mod), C_LOWERING)
    _, replayed = replay(mod, bounds, module.samples, rng, in_c, most)
    middle = _cpu_s()
    _, stepped = check_forms(mod, rounds_of(work), 0, in_c)
    return middle - begin, _cpu_s() - middle, len(replayed) + len(stepped)


def _cpu_s() -> float:
    """Of this process and of compilers that it ran."""
    return sum(os.times()[:4])


def main() -> int:
    """Print both tables; 1 where a goal is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--rounds", type=int, default=16)
    args = parser.parse_args()
    missed = 0
    for what in DEFECTS:
        found = found_of(what, args.rounds)
        missed += not found
        print(f"{what}: {'; '.join(found) or 'NOT FOUND'}")
    for path in args.modules:
        replayed, stepped, findings = costs(path)
        missed += bool(findings) + (stepped > replayed)
        print(f"{path}: replay {replayed:.2f} CPU s, steps {stepped:.2f}, findings {findings}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
