"""A store as searches leave it, written at once."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path

from compiler.qtypes.qconfig import QConfig
from qsearch.store.engine import open_engine
from qsearch.store.records import (
    Ended,
    Failure,
    LayerFigures,
    NewStudy,
    NewTrial,
    Outcome,
    Shard,
    Stage,
    Study,
)
from qsearch.store.repository import Repository

MODES = ("max", "mse", "kl_divergence", "percentile")
SPEC = {
    "metric": "top1",
    "evaluator": "engine",
    "sampler": "auto",
    "space": [{"name": "calibrate_mode", "choices": list(MODES), "when": {}}],
}


def new_study(name: str, trials: int, model: str = "digits") -> NewStudy:
    return NewStudy(
        name=name,
        model_name=model,
        model_sha256=hashlib.sha256(model.encode()).hexdigest(),
        spec=SPEC,
        spec_hash="0" * 64,
        seed=7,
        target_trials=trials,
        code_version="test",
    )


def new_trial(number: int) -> NewTrial:
    params = {"calibrate_mode": MODES[number % 4], "keep_output_wide": number % 3 == 0}
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    qconfig = QConfig.recommended(**params).to_dict()
    return NewTrial(number, number // 4, params, qconfig, digest, digest)


def outcome(number: int) -> Outcome:
    """Complete, but for every seventh, eleventh and thirteenth trial."""
    score = {
        "top1": 0.9 + 0.05 * ((number * 37) % 101) / 101,
        "agreement": 0.95,
        "sqnr_db": 20.0 + number % 17,
        "hw_traffic": 1000.0 + 50 * ((number * 13) % 89),
    }
    done = Outcome(
        "complete", score, 64, seconds=1.5, run_cpu_s=0.5 + number % 5 / 10, compile_cpu_s=0.1
    )
    if number % 13 == 12:
        failure = Failure("the worker ran out of memory", "conv2d_3", "fewer workers")
        return replace(done, state="failed", score=None, failure=failure)
    if number % 11 == 10:
        failure = Failure("2 operators stay in float", "nn.softmax")
        return replace(done, state="infeasible", failure=failure)
    return replace(done, state="pruned", collapsed=True) if number % 7 == 6 else done


def fill(repository: Repository, study: Study, count: int, first: int = 0) -> None:
    """Trials that ended."""
    trials = repository.add_trials(study.id, [new_trial(first + i) for i in range(count)])
    ends = []
    for trial in trials:
        shard = Shard(0, 1, 64, {"sqnr": {"signal": 100.0, "noise": 1.0}}, 0.5)
        log = "connect postgresql://me:s3cret@db/x failed" if trial.number == 12 else None
        ends.append(Ended(trial, outcome(trial.number), (shard,), log))
    repository.finish_trials(study.id, ends)


def written_runs(root: Path) -> Path:
    """A folder of run folders below root, with one study of 30 trials."""
    run = root / "runs" / "digits"
    run.mkdir(parents=True)
    repository = Repository(open_engine(f"sqlite:///{run / 'study.db'}"))
    study = repository.create_study(new_study("digits", 40))
    repository.save_baseline(study.id, {"top1": 0.96, "agreement": 1.0, "sqnr_db": None})
    fill(repository, study, 30)
    repository.save_stage(study.id, Stage("global", 0, "running", 40, started_at=time.time()))
    repository.save_layers(
        study.id,
        [LayerFigures("sensitivity", f"conv_{i}", i, {"sqnr_db": 30.0 - i}) for i in range(3)],
    )
    repository.close()
    return run.parent
