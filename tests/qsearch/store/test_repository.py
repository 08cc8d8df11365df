"""The repository, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from qsearch.errors import StoreError
from qsearch.store.engine import open_engine
from qsearch.store.records import Failure, NewStudy, NewTrial, Outcome, StoredArtifact
from qsearch.store.repository import Repository


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
    repository.start_trial(trial.id)
    assert repository.finish_trial(trial.id, outcome)
    assert not repository.finish_trial(trial.id, Outcome(state="failed"))
    stored = repository.trials_of(study.id)[0]
    assert stored.outcome == outcome
    assert stored.finished_at is not None
    assert repository.count_trials(study.id).finished == 1


def test_failures_keep_what_where_and_fix(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0)])
    failure = Failure("no kernel", "node 'Conv_3'", "use another model")
    repository.finish_trial(
        repository.trials_of(study.id)[0].id, Outcome(state="failed", failure=failure)
    )
    assert repository.trials_of(study.id, states=["failed"])[0].outcome.failure == failure


def test_interrupted_trials_return_to_the_queue_with_their_attempts(
    repository: Repository,
) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(0), new_trial(1)])
    first, second = repository.trials_of(study.id)
    repository.start_trial(first.id)
    repository.start_trial(second.id)
    repository.finish_trial(second.id, Outcome(state="pruned", collapsed=True))
    assert repository.requeue_running(study.id) == 1
    again = repository.trials_of(study.id, states=["waiting"])
    assert [(t.number, t.outcome.attempts, t.params) for t in again] == [(0, 1, first.params)]


def test_finished_work_is_found_again_in_another_study(repository: Repository) -> None:
    one = repository.create_study(new_study("one"))
    repository.add_trials(one.id, [new_trial(0, work="e" * 64), new_trial(1, work="f" * 64)])
    done, failed = repository.trials_of(one.id)
    repository.finish_trial(done.id, Outcome(state="complete", score={"top1": 0.75}))
    repository.finish_trial(failed.id, Outcome(state="failed"))
    answers = repository.answered_work(["e" * 64, "f" * 64, "0" * 64])
    assert list(answers) == ["e" * 64]
    assert answers["e" * 64].outcome.score == {"top1": 0.75}


def test_counts_tell_states_apart(repository: Repository) -> None:
    study = repository.create_study(new_study())
    repository.add_trials(study.id, [new_trial(n) for n in range(6)])
    states = ["complete", "complete", "pruned", "failed", "infeasible"]
    for trial, state in zip(repository.trials_of(study.id), states, strict=False):
        repository.finish_trial(trial.id, Outcome(state=state, from_store=trial.number == 0))
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
    repository.finish_trial(repository.trials_of(study.id)[0].id, Outcome(state="complete"))
    repository.add_event(study.id, "started")
    repository.delete_study(study.id)
    assert repository.studies() == [other]
    assert repository.answered_work(["e" * 64]) == {}
    assert repository.trials_of(study.id) == []
