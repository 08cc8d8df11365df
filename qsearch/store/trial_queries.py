"""Questions about trials: queue, claim, finish, count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Integer,
    Select,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from qsearch.errors import ConflictError, StoreError
from qsearch.store.database import Database
from qsearch.store.engine import shown_url
from qsearch.store.records import (
    REPEATABLE,
    TRIED,
    UNFINISHED,
    Claims,
    Counts,
    Ended,
    News,
    NewTrial,
    Outcome,
    Shard,
    Trial,
    columns_of,
    failure_columns,
    names_of,
    record_of,
)
from qsearch.store.tables import COMMAND, EVENT, LOG, SHARD, TRIAL

# Any number that no other program uses for its advisory locks.
_CLAIM_LOCK: Final = 0x71735F636C61
_MANY: Final = 500
"""Numbers in one IN list."""

# Statements that run for every trial are built once: building costs more than running them.
_TWIN = TRIAL.alias("twin")

# Of a sum no index is used: SQLite would read all trials in the order of their numbers, the ended
# ones as well, where the index of states leads to the few that have not ended.
_NUMBER: Final = TRIAL.c.number + literal_column("0")
_STANDS: Final = or_(*(TRIAL.c.state == state for state in UNFINISHED))
"""Condition of a trial that has not ended. SQLAlchemy writes a list anew whenever it runs a
statement."""

_OF_STUDY: Final = TRIAL.c.study_id == bindparam("of_study")
_FREE: Final = (
    select(TRIAL.c.id, TRIAL.c.work_hash)
    .where(
        _OF_STUDY,
        _STANDS,
        bindparam("below") > _NUMBER,
        or_(
            TRIAL.c.state == "waiting",
            (TRIAL.c.state == "running")
            & (TRIAL.c.driver_id == bindparam("driver"))
            & TRIAL.c.id.not_in(bindparam("held", expanding=True)),
        ),
        ~exists().where(
            _TWIN.c.work_hash == TRIAL.c.work_hash,
            _TWIN.c.state == "running",
            _TWIN.c.id != TRIAL.c.id,
        ),
    )
    .order_by(TRIAL.c.stage != TRIED, _NUMBER)
    .limit(bindparam("most", type_=Integer))
)
"""Trials that a driver may claim: no other runs the same work."""

_FROM: Final = (
    select(TRIAL).where(_OF_STUDY, TRIAL.c.number >= bindparam("first")).order_by(TRIAL.c.number)
)
_COMMAND: Final = select(func.max(COMMAND.c.id)).where(COMMAND.c.study_id == bindparam("of_study"))
_NEWS: Final = select(
    func.coalesce(_COMMAND.scalar_subquery(), 0),
    func.coalesce(select(func.max(TRIAL.c.number)).where(_OF_STUDY).scalar_subquery(), -1) + 1,
    select(func.count()).select_from(TRIAL).where(_OF_STUDY, _STANDS).scalar_subquery(),
)
_UNFINISHED: Final = select(TRIAL.c.number).where(_OF_STUDY, _STANDS)

_OF_IDS: Final = TRIAL.c.id.in_(bindparam("ids", expanding=True))
_BY_ID: Final = select(TRIAL).where(_OF_IDS)

_ANSWERS: Final = (
    select(TRIAL)
    .where(
        TRIAL.c.work_hash.in_(bindparam("hashes", expanding=True)),
        or_(
            *(TRIAL.c.state == state for state in REPEATABLE),
            and_(TRIAL.c.state == "pruned", TRIAL.c.collapsed),
        ),
    )
    .order_by(TRIAL.c.id)
)
"""Trials of any study that did exactly this work; a failure may end otherwise next time, and what
was stopped as worse was so beside the other trials of its study."""

_LEASE: Final = (
    update(TRIAL)
    .where(_OF_IDS)
    .values(
        state="running",
        driver_id=bindparam("driver"),
        attempts=TRIAL.c.attempts + 1,
        started_at=bindparam("now"),
    )
    .returning(TRIAL)
)

_OPEN: Final = select(TRIAL.c.id).where(_OF_IDS, _STANDS).order_by(TRIAL.c.id).with_for_update()
"""Those of some trials that have not ended; no other driver ends them before this one has."""

_ENDED: Final = columns_of(Outcome("complete")).keys() - {"attempts"} | {"finished_at"}
"""Columns that the end of a trial sets; attempts are added to those before."""
_FINISH: Final = (
    update(TRIAL)
    .where(TRIAL.c.id == bindparam("trial_id"))
    .values(
        attempts=TRIAL.c.attempts + bindparam("more_attempts"),
        **{name: bindparam(f"new_{name}") for name in sorted(_ENDED)},
    )
)
_NEW_TRIALS: Final = insert(TRIAL).returning(TRIAL, sort_by_parameter_order=True)
_NEW_EVENT = insert(EVENT)
_NEW_SHARD = insert(SHARD)
_NEW_LOG = insert(LOG)


class TrialQueries(Database):
    """The trials of a study: queued, claimed and finished."""

    def add_trials(self, study_id: int, trials: Sequence[NewTrial]) -> list[Trial]:
        """Queue a batch in one transaction: all of it is stored or nothing.

        Returns:
            The trials as they are stored.
        Raises:
            ConflictError: a number or configuration is there already; nothing was stored.
        """
        new = {"study_id": study_id, "state": "waiting", "created_at": self.clock()}
        new |= {"collapsed": False, "from_store": False, "attempts": 0, "lost_workers": 0}
        rows = [{**columns_of(trial), **new} for trial in trials]
        if not rows:
            return []
        try:
            stored = self.write(lambda c: c.execute(_NEW_TRIALS, rows).all())
        except IntegrityError as error:
            raise ConflictError(
                f"trials {trials[0].number} to {trials[-1].number} are stored already: {error.orig}"
            ) from error
        return [record_of(Trial, row) for row in stored]

    def trials_of(
        self,
        study_id: int,
        *,
        states: Iterable[str] | None = None,
        first: int = 0,
    ) -> list[Trial]:
        """Trials by number: all, or those in the given states, from number ``first`` on."""
        if states is None:
            query = _FROM
        else:
            query = _FROM.where(TRIAL.c.state.in_(list(states)))
        return self.records(Trial, query, {"of_study": study_id, "first": first})

    def trials_by_number(self, study_id: int, numbers: Sequence[int]) -> list[Trial]:
        """These trials, by number."""
        found: list[Trial] = []
        for start in range(0, len(numbers), _MANY):
            some = TRIAL.c.number.in_(numbers[start : start + _MANY])
            query = select(TRIAL).where(TRIAL.c.study_id == study_id, some)
            found += self.records(Trial, query)
        return sorted(found, key=lambda trial: trial.number)

    def unfinished(self, study_id: int) -> set[int]:
        """Numbers of the trials that wait or run."""
        return {row.number for row in self.read(_UNFINISHED, {"of_study": study_id})}

    def news_of(self, study_id: int) -> News:
        """Read in one statement the figures by which a driver sees whether anybody else changed its
        study."""
        ((command, next_number, unfinished),) = self.read(_NEWS, {"of_study": study_id})
        return News(command, next_number, unfinished)

    def count_trials(self, study_id: int) -> Counts:
        """Count the trials in each state."""
        rows = self.read(
            select(TRIAL.c.state, TRIAL.c.from_store, func.count())
            .where(TRIAL.c.study_id == study_id)
            .group_by(TRIAL.c.state, TRIAL.c.from_store)
        )
        counts: dict[str, int] = {}
        for state, from_store, count in rows:
            counts[state] = counts.get(state, 0) + count
            if from_store and state == "complete":
                counts["from_store"] = counts.get("from_store", 0) + count
        if unknown := counts.keys() - set(names_of(Counts)):
            raise StoreError(
                f"a row of the database is damaged: the state of a trial is {min(unknown)!r}",
                where=shown_url(self.engine.url),
                fix="restore the database from a copy, or start over with another",
            )
        return Counts(**counts)

    def claim_trials(
        self,
        study_id: int,
        driver_id: int,
        limit: int,
        *,
        below: int,
        held: Collection[int] = (),
        valued: Callable[[Ended], Ended] = lambda end: end,
    ) -> Claims:
        """Lease the next waiting trials to a driver, or answer them from work done before.

        Of trials that would do the same work one is leased; its twins wait for its answer. What
        this driver holds without knowing (its last claim was cut off) is given to it again.

        Args:
            limit: how many may be leased.
            below: numbers from here on are beyond the study's target.
            held: ids of the trials that the driver runs.
            valued: gives an answer the values of this study's objectives.
        """
        wanted = {
            "of_study": study_id,
            "below": below,
            "driver": driver_id,
            "held": list(held),
            "most": 4 * limit,
        }

        def work(connection: Connection) -> Claims:
            if self.shared:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CLAIM_LOCK})")
            free: list[tuple[int, str]] = [(*row,) for row in connection.execute(_FREE, wanted)]
            answers = _answers(connection, [work_hash for _, work_hash in free])
            answered = [row_id for row_id, work_hash in free if work_hash in answers]
            first: dict[str, int] = {}
            for row_id, work_hash in free:
                if work_hash not in answers and len(first) < limit:
                    first.setdefault(work_hash, row_id)
            chosen = [*first.values()]
            known = _by_id(connection, _BY_ID, answered)
            again = {h: replace(a.outcome, attempts=1, from_store=True) for h, a in answers.items()}
            ends = [valued(Ended(trial, again[trial.work_hash])) for trial in known]
            stored = self._store_ends(connection, study_id, ends)
            leased = _by_id(connection, _LEASE, chosen, driver=driver_id, now=self.clock())
            return Claims(tuple(leased), tuple(stored))

        return self.write(work)

    def finish_trials(self, study_id: int, ends: Sequence[Ended]) -> list[Trial]:
        """Store how trials ended, with shards, events and logs, in one transaction.

        Returns:
            Those that had not ended before; of the others nothing is changed.
        """
        if not ends:
            return []
        return self.write(lambda connection: self._store_ends(connection, study_id, ends))

    def count_lost_worker(self, study_id: int, trial: Trial, where: str, log: str | None) -> None:
        """A worker died on a running trial: one attempt and one lost worker more."""
        now = self.clock()
        statements: list[Any] = [
            update(TRIAL)
            .where(TRIAL.c.id == trial.id, TRIAL.c.state == "running")
            .values(attempts=TRIAL.c.attempts + 1, lost_workers=TRIAL.c.lost_workers + 1),
            insert(EVENT).values(
                study_id=study_id,
                kind="worker_lost",
                trial=trial.number,
                data={"where": where},
                at=now,
            ),
        ]
        if log:
            statements.append(
                insert(LOG).values(
                    study_id=study_id, trial=trial.number, source=where, excerpt=log, at=now
                )
            )
        self.execute(*statements)

    def requeue(self, driver_ids: Collection[int]) -> int:
        """Queue the trials of these drivers again, with the same parameters; how many."""
        held = TRIAL.c.driver_id.in_(list(driver_ids))
        back = update(TRIAL).where(TRIAL.c.state == "running", held)
        return self.execute(back.values(state="waiting", started_at=None, driver_id=None))

    def retry_failed(self, study_id: int, below: int) -> int:
        """Queue failed trials with numbers under ``below`` again, as they were; how many."""
        failed = update(TRIAL).where(
            TRIAL.c.study_id == study_id, TRIAL.c.state == "failed", TRIAL.c.number < below
        )
        none = dict.fromkeys(("started_at", "finished_at", "driver_id", *failure_columns(None)))
        return self.execute(failed.values(state="waiting", **none))

    def shards_of(self, study_id: int, number: int) -> list[Shard]:
        """Return the results of the parts of a trial's evaluation, in order."""
        of_trial = (TRIAL.c.study_id == study_id, TRIAL.c.number == number)
        return self._shards(select(TRIAL.c.id).where(*of_trial))

    def shards_behind(self, trial: Trial) -> list[Shard]:
        """The parts of a trial; of one that the store answered, those of the first trial of any
        study that did exactly this work on all samples."""
        if not trial.outcome.from_store:
            return self.shards_of(trial.study_id, trial.number)
        made = (
            select(func.min(TRIAL.c.id))
            .join(SHARD, SHARD.c.trial_id == TRIAL.c.id)
            .where(TRIAL.c.work_hash == trial.work_hash, TRIAL.c.state == "complete")
        )
        return self._shards(made)

    def _shards(self, trial_id: Select[Any]) -> list[Shard]:
        of_trial = select(SHARD).where(SHARD.c.trial_id == trial_id.scalar_subquery())
        return self.records(Shard, of_trial.order_by(SHARD.c.shard))

    def _store_ends(
        self, connection: Connection, study_id: int, ends: Sequence[Ended]
    ) -> list[Trial]:
        if not ends:
            return []
        now = self.clock()
        still = set(connection.execute(_OPEN, {"ids": [end.trial.id for end in ends]}).scalars())
        ends = [end for end in ends if end.trial.id in still]
        of = [{"study_id": study_id, "trial": end.trial.number, "at": now} for end in ends]
        states = [{"kind": "trial", "data": {"state": end.outcome.state}} for end in ends]
        shards = [{"trial_id": end.trial.id, **columns_of(s)} for end in ends for s in end.shards]
        logs = [{"source": "trial", "excerpt": end.log, **o} for end, o in zip(ends, of) if end.log]
        for statement, values in (
            (_FINISH, [_finished(end.trial.id, end.outcome, now) for end in ends]),
            (_NEW_EVENT, [{**state, **o} for state, o in zip(states, of)]),
            (_NEW_SHARD, shards),
            (_NEW_LOG, logs),
        ):
            if values:
                connection.execute(statement, values)
        return [replace(end.trial, outcome=end.outcome, finished_at=now) for end in ends]


def _answers(connection: Connection, work_hashes: Sequence[str]) -> dict[str, Trial]:
    answers: dict[str, Trial] = {}
    if work_hashes:
        for row in connection.execute(_ANSWERS, {"hashes": sorted(set(work_hashes))}):
            answers.setdefault(row.work_hash, record_of(Trial, row))
    return answers


def _by_id(connection: Connection, statement: Any, ids: Sequence[int], **given: Any) -> list[Trial]:
    """Return the trials of a statement, in the order of their ids."""
    rows = connection.execute(statement, {"ids": ids, **given}) if ids else ()
    found = {row.id: record_of(Trial, row) for row in rows}
    return [found[row_id] for row_id in ids]


def _finished(trial_id: int, outcome: Outcome, now: float) -> Mapping[str, Any]:
    columns = {**columns_of(outcome), "finished_at": now}
    new = {f"new_{name}": columns[name] for name in _ENDED}
    return {"trial_id": trial_id, "more_attempts": outcome.attempts - 1, **new}
