"""What the first page of a long study costs is done before somebody asks for it."""

from __future__ import annotations

import contextlib
from typing import Final

from compiler.errors import CompilerError
from qsearch.dashboard.plotting import importance_of
from qsearch.dashboard.routes.studies import get_study, list_failures
from qsearch.dashboard.routes.trials import list_trials
from qsearch.dashboard.snapshots import KEPT
from qsearch.dashboard.state import Shared

PAGES: Final = 8
"""Studies whose pages are answered in advance; further ones are only read."""


def warm(found: Shared) -> None:
    """Read the newest studies, and answer what their pages ask first.

    What cannot be read is left to whoever asks for it: they are told why.
    """
    with contextlib.suppress(CompilerError):
        read, _ = found.snapshots.page(0, KEPT)
        for study in read[:PAGES]:
            get_study(study, found)
            list_trials(study, sort="-number")
            list_failures(study)
        for study in read[:PAGES]:
            importance_of(study, study.measures.primary)
