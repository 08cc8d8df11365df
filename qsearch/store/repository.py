"""Every query of the service, a method with a name; the files beside this one hold them by noun.

Drivers write; commands add to the command table and delete studies; everyone else reads.
"""

from __future__ import annotations

from qsearch.store.job_queries import JobQueries
from qsearch.store.study_queries import DriverQueries, HistoryQueries, StudyQueries
from qsearch.store.trial_queries import TrialQueries
from qsearch.store.view_queries import ViewQueries


class Repository(
    StudyQueries, TrialQueries, HistoryQueries, DriverQueries, ViewQueries, JobQueries
):
    """The store of studies behind one engine; see ``Database`` for its arguments.

    Every method runs in one transaction and raises StoreError when the database does not answer.
    """
