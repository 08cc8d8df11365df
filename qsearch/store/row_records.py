"""From rows to records."""

from __future__ import annotations

from typing import Any

from qsearch.store.records import Failure, Outcome, Study, Trial


def study_of(row: Any) -> Study:
    """A row of qs_study as a record."""
    return Study(
        id=row.id,
        name=row.name,
        model_name=row.model_name,
        model_sha256=row.model_sha256,
        spec=_current_spec(row.spec),
        spec_hash=row.spec_hash,
        seed=row.seed,
        target_trials=row.target_trials,
        code_version=row.code_version,
        state=row.state,
        stopped=row.stopped,
        baseline=row.baseline,
        emitted=row.emitted,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _current_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec in today's words, so that a study of version 0.1 resumes with its own sampler.

    Version 0.1 said ``judge`` for ``evaluator``, and ``tpe`` for the sampler that is ``auto`` now.
    """
    if "judge" not in spec:
        return spec
    current = {("evaluator" if key == "judge" else key): value for key, value in spec.items()}
    if current.get("sampler") == "tpe":
        current["sampler"] = "auto"
    return current


def trial_of(row: Any) -> Trial:
    """A row of qs_trial as a record."""
    failure = Failure(row.error_what, row.error_where, row.error_fix) if row.error_what else None
    values = row.objective_values
    return Trial(
        id=row.id,
        study_id=row.study_id,
        number=row.number,
        batch=row.batch,
        params=row.params,
        qconfig=row.qconfig,
        config_hash=row.config_hash,
        work_hash=row.work_hash,
        stage=row.stage,
        outcome=Outcome(
            state=row.state,
            score=row.score,
            samples=row.samples,
            collapsed=bool(row.collapsed),
            outputs_sha256=row.outputs_sha256,
            failure=failure,
            attempts=row.attempts,
            from_store=bool(row.from_store),
            compile_cpu_s=row.compile_cpu_s,
            run_cpu_s=row.run_cpu_s,
            peak_rss_bytes=row.peak_rss_bytes,
            seconds=row.seconds,
            objective_values=None if values is None else tuple(values),
        ),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        driver_id=row.driver_id,
        lost_workers=row.lost_workers,
    )
