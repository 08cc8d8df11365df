"""Engines: settings, locks between processes, schema versions, storages that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from qsearch.errors import StoreError
from qsearch.store.engine import exclusive, open_engine
from qsearch.store.models import VERSION_TABLE, Table

CLAIM = """
import sys
from sqlalchemy import text
from qsearch.store.engine import open_engine
engine = open_engine(sys.argv[1])
claimed = 0
while True:
    with engine.begin() as connection:
        row = connection.execute(text("select id from job where owner is null limit 1")).first()
        if row is None:
            break
        connection.execute(
            text("update job set owner = :me where id = :id and owner is null"),
            {"me": sys.argv[2], "id": row.id},
        )
    claimed += 1
print(claimed)
"""


def test_the_migrated_schema_is_the_one_the_tables_describe(storage_url: str) -> None:
    engine = open_engine(storage_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, Table.metadata) == []
        tables = set(inspect(connection).get_table_names())
    assert {t for t in tables if not t.startswith("qs_")} == set()
    assert VERSION_TABLE in tables
    engine.dispose()


def test_a_schema_of_another_version_is_refused_and_left_alone(storage_url: str) -> None:
    engine = open_engine(storage_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(StoreError, match="'9999'"):
        open_engine(storage_url)


def test_sqlite_writers_wait_for_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("create table job (id integer primary key, owner text)")
        for _ in range(60):
            connection.exec_driver_sql("insert into job (owner) values (null)")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, url, str(n)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    claims = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        claims.append(int(out))
    assert sum(claims) == 60
    engine.dispose()


def test_processes_that_create_a_database_together_take_turns(storage_url: str) -> None:
    code = "import sys; from qsearch.store.engine import open_engine; open_engine(sys.argv[1])"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, storage_url], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()


def test_one_study_has_one_driver(storage_url: str) -> None:
    engine, other = open_engine(storage_url), open_engine(storage_url)
    with (
        exclusive(engine, "digits"),
        pytest.raises(StoreError, match="another process"),
        exclusive(other, "digits"),
    ):
        pass
    with exclusive(other, "digits"):
        pass
    engine.dispose()
    other.dispose()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("not a url", "not a storage URL"),
        ("mysql://u@h/d", "not supported"),
        ("sqlite:///:memory:", "lost with the process"),
        ("sqlite:////no/such/folder/study.db", "cannot be reached"),
        ("postgresql://someone:hunter2@127.0.0.1:1/none", "cannot be reached"),
    ],
)
def test_a_storage_that_cannot_be_used_is_told_without_its_password(url: str, what: str) -> None:
    with pytest.raises(StoreError, match=what) as caught:
        open_engine(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.fix


def test_a_reader_does_not_create_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no database"):
        open_engine(f"sqlite:///{tmp_path / 'none.db'}", create=False)
    assert list(tmp_path.iterdir()) == []
