"""A store with a study in it, and the dashboard over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qsearch.dashboard.app import DashboardOptions
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import Client, served
from tests.qsearch.dashboard.stores import written_runs


@pytest.fixture(scope="session")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The dashboard over a store that no test changes."""
    with served(
        DashboardOptions(root=written_runs(tmp_path_factory.mktemp("unchanged")))
    ) as asking:
        yield asking


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written_runs(tmp_path)


@pytest.fixture
def repository(folder: Path) -> Iterator[Repository]:
    found = Repository(open_engine(f"sqlite:///{folder / 'digits' / 'study.db'}"))
    yield found
    found.close()


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    with served(DashboardOptions(root=folder)) as asking:
        yield asking
