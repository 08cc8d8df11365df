"""The repository, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from qsearch.errors import StoreError
from qsearch.store.engine import open_engine
from qsearch.store.records import (
    Claims,
    Ended,
    Failure,
    LayerFigures,
    NewStudy,
    NewTrial,
    Outcome,
    Shard,
    Stage,
    StoredArtifact,
)
from qsearch.store.repository import Repository
from qsearch.store.tables import METADATA


class Clock:
    """Seconds that advance by one at each look."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def repository(storage_url: str) -> Iterator[Repository]:
    repository = Repository(open_engine(storage_url), Clock())
    yield repository
    repository.close()


def new_study(name: str = "digits") -> NewStudy:
    return NewStudy(
        name=name,
        model_name="digits.onnx",
        model_sha256="a" * 64,
        spec={"metric": "top1", "space": {"percentile": [0.999, 0.9999]}},
        spec_hash="b" * 64,
        seed=2**40,
        target_trials=8,
        code_version="c" * 16,
    )


def new_trial(number: int, batch: int = 0, work: str | None = None) -> NewTrial:
    return NewTrial(
        number=number,
        batch=batch,
        params={"calibrate_mode": "max"},
        qconfig={"calibrate_mode": "max", "skip_conv_layers": None},
        config_hash=f"{number:064x}",
        work_hash=work or f"{number + 1000:064x}",
    )


def test_a_study_comes_back_as_it_was_stored(repository: Repository) -> None:
    created = repository.create_study(new_study())
    found = repository.find_study("digits")
    assert found == created
    assert found is not None
    assert (found.spec, found.seed, found.state) == (new_study().spec, 2**40, "running")
    assert repository.find_study("other") is None


def test_a_study_name_is_taken_once(repository: Repository) -> None:
    repository.create_study(new_study())
    with pytest.raises(StoreError, match="exists already"):
        repository.create_study(new_study())


def test_a_batch_is_stored_whole_or_not_at_all(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0), new_trial(1)])
    twin = replace(new_trial(3), config_hash=new_trial(0).config_hash)
    with pytest.raises(Exception, match=r"(?i)unique"):
        repository.add_trials(study.id, [new_trial(2), twin])
    assert [trial.number for trial in repository.trials_of(study.id)] == [0, 1]


def test_an_outcome_is_stored_once_and_never_overwritten(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0)])
    trial = repository.trials_of(study.id)[0]
    outcome = Outcome(
        state="complete",
        score={"top1": 0.5, "sqnr_db": None},
        samples=400,
        outputs_sha256="d" * 64,
        peak_rss_bytes=5 * 2**30,
        seconds=0.25,
    )
    driver = repository.join(study.id, "here", "v1", 2)
    (claimed,) = repository.claim_trials(study.id, driver, 1, below=8).run
    assert [claimed] == repository.trials_of(study.id)
    assert (claimed.id, claimed.state, claimed.driver_id) == (trial.id, "running", driver)
    assert len(repository.finish_trials(study.id, [Ended(trial, outcome)])) == 1
    assert repository.finish_trials(study.id, [Ended(trial, Outcome(state="failed"))]) == []
    stored = repository.trials_of(study.id)[0]
    assert stored.outcome == outcome
    assert stored.finished_at is not None
    assert repository.count_trials(study.id).finished == 1


def test_failures_keep_what_where_and_fix(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0)])
    failure = Failure("no kernel", "node 'Conv_3'", "use another model")
    (trial,) = repository.trials_of(study.id)
    end = Ended(trial, Outcome(state="failed", failure=failure), log="its last words")
    repository.finish_trials(study.id, [end])
    assert [entry.excerpt for entry in repository.logs_of(study.id, trial=0)] == ["its last words"]
    assert repository.trials_of(study.id, states=["failed"])[0].outcome.failure == failure


def test_interrupted_trials_return_to_the_queue_with_their_attempts(
    repository: Repository,
) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0), new_trial(1)])
    driver = repository.join(study.id, "here", "v1", 2)
    first, second = repository.claim_trials(study.id, driver, 2, below=8).run
    repository.finish_trials(study.id, [Ended(second, Outcome(state="pruned", collapsed=True))])
    assert repository.requeue([driver + 1]) == 0
    assert repository.requeue([driver]) == 1
    again = repository.trials_of(study.id, states=["waiting"])
    assert [(t.number, t.outcome.attempts, t.params) for t in again] == [(0, 1, first.params)]


def test_finished_work_answers_a_trial_of_another_study(repository: Repository) -> None:
    one = repository.create_study(new_study("one"))
    done, failed = repository.add_trials(
        one.id, [new_trial(0, work="e" * 64), new_trial(1, work="f" * 64)]
    )
    end = Ended(done, Outcome(state="complete", score={"top1": 0.75}))
    repository.finish_trials(one.id, [end, Ended(failed, Outcome(state="failed"))])
    two = repository.create_study(new_study("two"))
    repository.add_trials(two.id, [new_trial(0, work="e" * 64), new_trial(1, work="f" * 64)])
    driver = repository.join(two.id, "here", "v1", 2)
    claims = repository.claim_trials(two.id, driver, 4, below=8)
    assert [trial.number for trial in claims.run] == [1]
    (answered,) = claims.answered
    assert (answered.outcome.score, answered.outcome.from_store) == ({"top1": 0.75}, True)
    assert repository.trials_of(two.id)[0].outcome.attempts == 0


def test_of_trials_with_the_same_work_one_runs_and_answers_the_others(
    repository: Repository,
) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(n, work="e" * 64) for n in range(3)])
    here, there = (repository.join(study.id, name, "v1", 2) for name in ("here", "there"))
    (first,) = repository.claim_trials(study.id, here, 3, below=8).run
    assert repository.claim_trials(study.id, there, 3, below=8) == Claims((), ())
    repository.finish_trials(study.id, [Ended(first, Outcome(state="complete", score={}))])
    claims = repository.claim_trials(study.id, there, 3, below=8)
    assert (claims.run, [t.number for t in claims.answered]) == ((), [1, 2])


def test_a_trial_whose_claim_was_lost_is_claimed_again_by_its_driver(
    repository: Repository,
) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0), new_trial(1)])
    here, there = (repository.join(study.id, name, "v1", 2) for name in ("here", "there"))
    (lost,) = repository.claim_trials(study.id, here, 1, below=8).run
    assert [t.number for t in repository.claim_trials(study.id, there, 4, below=8).run] == [1]
    assert [t.id for t in repository.claim_trials(study.id, here, 4, below=8).run] == [lost.id]
    assert repository.claim_trials(study.id, here, 4, below=8, held=[lost.id]).run == ()


def test_lost_workers_are_counted_with_the_end_of_their_logs(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0)])
    driver = repository.join(study.id, "here", "v1", 2)
    (trial,) = repository.claim_trials(study.id, driver, 1, below=8).run
    repository.count_lost_worker(study.id, trial, "worker 3", "out of memory")
    (stored,) = repository.trials_of(study.id)
    assert (stored.lost_workers, stored.outcome.attempts) == (1, 2)
    assert [entry.excerpt for entry in repository.logs_of(study.id, trial=0)] == ["out of memory"]


def test_shards_stages_layers_and_commands_come_back(repository: Repository) -> None:
    study = repository.create_study(new_study())
    (trial,) = repository.add_trials(study.id, [new_trial(0)])
    shards = tuple(Shard(n, 2, 32, {"top1": {"right": 30.0, "total": 32.0}}, 0.5) for n in (0, 1))
    repository.finish_trials(study.id, [Ended(trial, Outcome(state="complete"), shards)])
    assert repository.shards_of(study.id, 0) == list(shards)
    repository.save_stage(study.id, Stage("global", 1, "running", 32))
    repository.save_stage(study.id, Stage("sensitivity", 0, "complete", 24, {"layers": 12}))
    repository.save_stage(study.id, Stage("global", 1, "complete", 32))
    assert [(s.name, s.state) for s in repository.stages_of(study.id)] == [
        ("sensitivity", "complete"),
        ("global", "complete"),
    ]
    layers = [LayerFigures("sensitivity", f"conv{n}", n, {"sqnr_db": 40.0 - n}) for n in (0, 1)]
    repository.save_layers(study.id, layers)
    repository.save_layers(study.id, [replace(layers[1], figures={"sqnr_db": 3.0})])
    found = repository.layers_of(study.id, "sensitivity")
    assert [dict(one.figures) for one in found] == [{"sqnr_db": 40.0}, {"sqnr_db": 3.0}]
    assert repository.news_of(study.id).command == 0
    repository.add_command(study.id, "pause")
    repository.add_command(study.id, "stop")
    first, second = repository.commands_of(study.id, after=0)
    assert (first.kind, second.kind) == ("pause", "stop")
    assert repository.commands_of(study.id, after=first.id) == [second]


def test_counts_tell_states_apart(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(n) for n in range(6)])
    states = ["complete", "complete", "pruned", "failed", "infeasible"]
    ends = [
        Ended(trial, Outcome(state=state, from_store=trial.number == 0))
        for trial, state in zip(repository.trials_of(study.id), states, strict=False)
    ]
    repository.finish_trials(study.id, ends)
    counts = repository.count_trials(study.id)
    assert counts.finished == 5
    assert counts.waiting == 1
    assert counts.report() == {
        "complete": 2,
        "pruned": 1,
        "failed": 1,
        "infeasible": 1,
        "from_store": 1,
    }


def test_artifacts_are_found_by_kind_and_replaced_by_key(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.save_artifact(study.id, StoredArtifact("calibration", "k", "1" * 64, 3 * 2**31, 7.5))
    repository.save_artifact(study.id, StoredArtifact("calibration", "k", "2" * 64, 10, 7.5))
    repository.save_artifact(study.id, StoredArtifact("float_blob", "k", "3" * 64, 10, 0.0))
    assert [a.sha256 for a in repository.artifacts_of(study.id, "calibration")] == ["2" * 64]
    assert len(repository.artifacts_of(study.id)) == 2


def test_events_are_read_from_where_one_left_off(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_event(study.id, "started")
    repository.add_event(study.id, "finished", trial=3, data={"state": "complete"})
    first, second = repository.events_of(study.id)
    assert (second.kind, second.trial, second.data) == ("finished", 3, {"state": "complete"})
    assert repository.events_of(study.id, after=first.id) == [second]


def test_a_deleted_study_leaves_nothing_behind(repository: Repository) -> None:
    study = repository.create_study(new_study())
    other = repository.create_study(new_study("other"))
    repository.add_trials(study.id, [new_trial(0, work="e" * 64)])
    (trial,) = repository.trials_of(study.id)
    shard = Shard(0, 1, 32, {}, 0.5)
    repository.finish_trials(study.id, [Ended(trial, Outcome(state="complete"), (shard,), "log")])
    repository.join(study.id, "here", "v1", 2)
    repository.add_command(study.id, "stop")
    repository.delete_study(study.id)
    assert repository.studies() == [other]
    with repository.engine.connect().execution_options(reader=True) as connection:
        for table in METADATA.sorted_tables:
            left = connection.exec_driver_sql(f"SELECT count(*) FROM {table.name}").scalar()
            assert left == (1 if table.name == "qs_study" else 0), table.name
    assert repository.trials_of(study.id) == []


def test_a_claim_reads_no_trials_that_have_ended(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'study.db'}")
    repository = Repository(engine, Clock())
    study = repository.create_study(new_study())
    driver = repository.join(study.id, "here", "v1", 2)

    def steps_of_a_claim() -> int:
        steps: list[int] = []

        def counts(connection: Any, *_: Any) -> None:
            connection.set_progress_handler(lambda: steps.append(1), 10)

        event.listen(engine, "checkout", counts)
        repository.claim_trials(study.id, driver, 1, below=10_000)
        event.remove(engine, "checkout", counts)
        return len(steps)

    def end_trials(numbers: range) -> None:
        repository.add_trials(study.id, [new_trial(number) for number in numbers])
        found = repository.claim_trials(study.id, driver, len(numbers), below=10_000).run
        repository.finish_trials(study.id, [Ended(t, Outcome(state="pruned")) for t in found])

    end_trials(range(10))
    few = steps_of_a_claim()
    end_trials(range(10, 1000))
    assert 0 < steps_of_a_claim() < 2 * few
    repository.close()


def test_a_trial_of_an_unknown_state_is_told_as_damage(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0)])
    with repository.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE qs_trial SET state = 'seventh'")
    with pytest.raises(StoreError, match="the state of a trial is 'seventh'"):
        repository.count_trials(study.id)
