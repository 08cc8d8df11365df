"""What a trial is compared with while it runs: earlier trials, and their parts from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qsearch.search.ledger import Ledger
from qsearch.store.records import Shard, Trial
from qsearch.store.repository import Repository


@dataclass(frozen=True, slots=True)
class StoredIncumbents:
    """See ``pruning.Incumbents``.

    Args:
        ledger: the trials of the study as the driver knows them.
        repository, study_id: where their parts are.
    """

    ledger: Ledger
    repository: Repository
    study_id: int

    def before(self, batch: int) -> Sequence[Trial]:
        """Complete trials of earlier batches."""
        return self.ledger.before(batch)

    def shards(self, trial: Trial) -> Sequence[Shard]:
        """The parts of a trial; of one that the store answered, those of the work it repeats."""
        if trial.outcome.from_store:
            return self.repository.shards_of_work(trial.work_hash)
        return self.repository.shards_of(self.study_id, trial.number)
