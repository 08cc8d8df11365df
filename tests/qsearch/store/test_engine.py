"""Engines: settings, locks between processes, schema versions, storages that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

from qsearch.errors import StoreError
from qsearch.store.engine import (
    exclusive,
    open_engine,
    open_reader,
)
from qsearch.store.records import Ended, NewStudy, NewTrial, Outcome
from qsearch.store.repository import Repository
from qsearch.store.tables import METADATA, VERSION_TABLE

# Imports what the processes need, then does what follows in so many of them at once.
TOGETHER = """
import multiprocessing, os, sys
from sqlalchemy import text
from qsearch.store.engine import open_engine, open_reader
from qsearch.store.repository import Repository
print("imported", flush=True)
def work(me):
    exec(sys.argv[1], {**globals(), "url": sys.argv[2], "me": me})
fork = multiprocessing.get_context("fork")
children = [fork.Process(target=work, args=(me,)) for me in range(int(sys.argv[3]))]
for child in children:
    child.start()
for child in children:
    child.join()
sys.exit(any(child.exitcode for child in children))
"""
CLAIM = """
engine = open_engine(url)
claimed = 0
while True:
    with engine.begin() as connection:
        row = connection.execute(text("select id from job where owner is null limit 1")).first()
        if row is None:
            break
        connection.execute(
            text("update job set owner = :me where id = :id and owner is null"),
            {"me": me, "id": row.id},
        )
    claimed += 1
os.write(1, b"%d " % claimed)
"""


def together(code: str, url: str, count: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", TOGETHER, code, url, str(count)]
    pipe = subprocess.PIPE
    processes = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True)
    assert processes.stdout is not None
    assert processes.stdout.readline() == "imported\n"
    return processes


def said(processes: subprocess.Popen[str]) -> str:
    """What they print, when all of them ended well."""
    out, err = processes.communicate(timeout=600)
    assert processes.returncode == 0, err
    return out


def test_a_new_database_has_the_tables_of_the_models(storage_url: str) -> None:
    engine = open_engine(storage_url)
    with engine.connect() as connection:
        tables = set(inspect(connection).get_table_names())
    assert tables == {*METADATA.tables, VERSION_TABLE}
    engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_keeps_every_letter(
    postgres_url: str, encoding: str
) -> None:
    engine = open_engine(postgres_url)
    name = f"{engine.url.database}_{encoding.lower()}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' "
            "LC_CTYPE 'C'"
        )
        url = engine.url.set(database=name).render_as_string(hide_password=False)
        repository = Repository(open_engine(url))
        study = NewStudy("Größe", "m.onnx", "a" * 64, {"metric": "é"}, "b" * 64, 0, 1, "c")
        made = repository.create_study(study)
        repository.close()
        reader = Repository(open_reader(url))
        assert reader.study("Größe") == made
        assert made.spec == {"metric": "é"}
        reader.close()
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.mark.postgres
def test_a_name_that_the_database_cannot_write_is_one_clear_error(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    name = f"{engine.url.database}_latin1"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' "
            "LC_CTYPE 'C'"
        )
        repository = Repository(open_engine(engine.url.set(database=name).render_as_string(False)))
        study = NewStudy("模型", "m.onnx", "a" * 64, {}, "b" * 64, 0, 1, "c")
        with pytest.raises(StoreError, match="no equivalent in encoding") as raised:
            repository.create_study(study)
        assert "UTF8" in str(raised.value)
        repository.close()
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


def test_a_schema_of_another_version_is_refused_and_left_alone(storage_url: str) -> None:
    engine = open_engine(storage_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(StoreError, match="'9999'") as caught:
        open_engine(storage_url)
    assert "version of qsearch that wrote it" in (caught.value.fix or "")


def test_sqlite_writers_wait_for_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("create table job (id integer primary key, owner text)")
        for _ in range(60):
            connection.exec_driver_sql("insert into job (owner) values (null)")
    assert sum(map(int, said(together(CLAIM, url, 3)).split())) == 60
    engine.dispose()


def test_processes_that_create_a_database_together_take_turns(storage_url: str) -> None:
    said(together("open_engine(url)", storage_url, 3))


def test_an_sqlite_store_has_one_driver(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    engine, other = open_engine(url), open_engine(url)
    with (
        exclusive(engine),
        pytest.raises(StoreError, match="another process"),
        exclusive(other),
    ):
        pass
    with exclusive(other):
        pass
    engine.dispose()
    other.dispose()


def test_a_reader_sees_and_cannot_write(storage_url: str) -> None:
    engine = open_engine(storage_url)
    reader = open_reader(storage_url)
    with reader.connect().execution_options(reader=True) as connection:
        assert connection.exec_driver_sql("select count(*) from qs_study").scalar() == 0
        with pytest.raises(DBAPIError, match=r"(?i)read.?only"):
            connection.exec_driver_sql("delete from qs_study")
    engine.dispose()
    reader.dispose()


def test_a_reader_makes_no_file_in_a_folder_that_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'a b#1.db'}"
    open_engine(storage).dispose()
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    reader = open_reader(storage)
    with reader.connect().execution_options(reader=True) as connection:
        assert connection.exec_driver_sql("select count(*) from qs_study").scalar() == 0
        assert sorted(tmp_path.iterdir()) == before
    reader.dispose()


READ = """
repository = Repository(open_reader(url))
study = repository.studies()[0]
seen = 0
while seen < 80:
    now = len(repository.trials_of(study.id))
    assert now >= seen, "trials disappeared"
    seen = now
"""


@pytest.mark.slow
def test_eight_readers_meet_no_lock_while_trials_are_written(storage_url: str) -> None:
    repository = Repository(open_engine(storage_url))
    study = repository.create_study(
        NewStudy("digits", "digits.onnx", "a" * 64, {}, "b" * 64, 0, 80, "c")
    )
    readers = together(READ, storage_url, 8)
    for n in range(80):
        trial = NewTrial(n, n, {}, {}, f"{n:064x}", f"{n:064x}")
        repository.finish_trials(
            study.id,
            [Ended(one, Outcome("complete")) for one in repository.add_trials(study.id, [trial])],
        )
    said(readers)
    repository.close()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("not a url", "not a storage URL"),
        ("mysql://u@h/d", "not supported"),
        ("sqlite:///:memory:", "lost with the process"),
        ("sqlite:////no/such/folder/study.db", "cannot be reached"),
        ("sqlite:///" + "a" * 5000, "storage URL of 5010 letters"),
        ("sqlite:///" + "ä" * 200 + ".db", "name of 403 bytes"),
        ("sqlite:///a\0b.db", "not a storage URL"),
        ("postgresql://u:hunter2@h:" + "9" * 20 + "/d", "cannot be reached"),
        ("postgresql://u:hunter2@" + "h" * 5000 + "/d", "storage URL of"),
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
