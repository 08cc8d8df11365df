"""best, compare, stop, delete, completion, and the filters of trials."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

import qsearch
from compiler.runtime.archive import read_archive
from compiler.runtime.artifact import TENSORS
from qsearch.cli.main import run
from qsearch.cli.output import table
from qsearch.errors import SearchFailedError
from qsearch.run.run_folder import RunFolder
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.qsearch.quick import QUICK_SPACE

pytestmark = pytest.mark.usefixtures("quick_space")

SPACE = {**QUICK_SPACE, "layers": {"nbit_input": {"gemm_0": 16}}}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    qsearch.launch("digits", out=folder, trials=5, pool="inline", space=SPACE)
    return folder


@pytest.fixture
def copied(searched: Path, tmp_path: Path) -> Path:
    """A run folder that a test may change."""
    return Path(shutil.copytree(searched, tmp_path / "one"))


def asked(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert run([str(word) for word in words]) == code
    return capsys.readouterr().out


def test_what_is_asked_for_is_tried_first_and_marked(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "mine.json"
    wanted.write_text('{"weight_scale": "max", "calibrate_mode": "max", "smooth_alpha": 0.75}')
    assert "0 driver(s) listening" in asked(capsys, "try", copied, "calibrate_mode=kl_divergence")
    again = {"out": copied, "trials": 6, "pool": "inline", "space": SPACE, "try_": [str(wanted)]}
    for _ in range(2):
        qsearch.launch("digits", **again)
        rows = json.loads(asked(capsys, "trials", copied, "-f", "json"))
        tried = {r["number"]: r["params"] for r in rows if r["stage"] == "tried"}
        assert set(tried) == {5, 6}
        assert tried[5]["calibrate_mode"] == "kl_divergence"
        assert tried[6]["weight_scale"] == "max"
        assert "tried" in asked(capsys, "trials", copied, "--filter", "tried")
    for word, told in (
        ("nbit_weigth=4", "nbit_weigth"),
        (tmp_path / "no.json", "no.json"),
        ("calibrate_mode=percentile,percentile=0.5", "0.5, and this study calibrates [0.999"),
    ):
        assert run(["try", str(copied), str(word)]) == 2
        assert told in capsys.readouterr().err


def test_the_smallest_trial_is_written_from_what_is_stored(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = json.loads(asked(capsys, "trials", searched, "-f", "json"))
    found = json.loads(asked(capsys, "best", searched, "--smallest", "--json"))
    least = min(row["model_bytes"] for row in listed)
    assert found["model_bytes"] == least
    file = tmp_path / "small.qmod"
    assert "smallest" in asked(capsys, "best", searched, "--smallest", "-o", file)
    assert len(read_archive(file)[TENSORS]) == least
    # Nothing was timed.
    assert run(["best", str(searched), "--fastest"]) == 1
    assert "--minimize latency" in capsys.readouterr().err
    assert run(["best", str(searched), "--smallest", "--trial", "0"]) == 2


def test_best_is_the_trial_of_the_report(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((searched / "report.json").read_text())
    found = json.loads(asked(capsys, "best", searched, "--json"))
    assert found["number"] == report["best"]["trial"]
    assert found["module"] == str(searched / "best.qmod")
    fields = json.loads(asked(capsys, "best", searched, "--qconfig"))
    assert fields == report["best"]["qconfig"]
    shown = asked(capsys, "best", searched)
    assert f"trial {found['number']}" in shown
    wide = sorted(fields["layers"])
    assert "gemm_0" in wide
    assert fields["layers"] == {name: {"nbit_input": 16} for name in wide}
    assert f"layers     nbit_input=16 in {', '.join(wide)}\n" in shown


def test_trials_are_filtered_sorted_and_counted(
    searched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            asked(capsys, "trials", searched, "-f", "json", *words)
        )
        return found

    everything = rows()
    assert [row["number"] for row in everything] == list(range(5))
    by_sqnr = rows("--sort", "-sqnr_db", "--limit", "2")
    best_two = sorted((row["sqnr_db"] for row in everything), reverse=True)[:2]
    assert [row["sqnr_db"] for row in by_sqnr] == best_two
    best = sorted(row["number"] for row in by_sqnr)
    for word in ("sqnr_db", "sqnr", "SQNR", "SQNR_dB"):
        assert rows("--sort", f"-{word}", "--limit", "2") == by_sqnr
        assert [r["number"] for r in rows("--filter", f"{word}>={best_two[1]}")] == best
    assert rows("--filter", "stage=global") == everything
    assert rows("--filter", "stage=none-such") == []
    assert run(["trials", str(searched), "--filter", "stag=global"]) == 2
    assert "stage" in capsys.readouterr().err
    assert run(["trials", str(searched), "--sort", "snr_dB"]) == 2
    assert "sqnr_db" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal_and_parameters_are_asked_for(
    searched: Path,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    doctor = ("doctor", "digits", "-v")
    insight = ("insight", "digits", "--samples", "2")
    for words in (("status",), ("trials",), ("best",), ("compare",), doctor, insight):
        place = () if len(words) > 1 else (searched,)
        assert run([str(word) for word in (*words, *place)]) == 0
        told = capsys.readouterr()
        lines = (told.out + told.err.rpartition("\r")[2]).splitlines()
        assert max(map(len, lines)) <= columns, words
        assert not any(line.startswith(":") for line in lines)
        if "SQNR" in told.out or "sqnr_db" in told.out:
            assert "higher is better" in " ".join(lines)
    assert "calibrate_mode=" not in asked(capsys, "trials", searched)
    shown = asked(capsys, "trials", searched, "--params")
    assert "calibrate_mode=" in shown
    assert max(map(len, shown.splitlines())) <= columns
    assert "weight_granularity=" in asked(capsys, "compare", searched, "--params")


def test_studies_are_compared_in_rows(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "two"
    qsearch.launch("digits", out=other, trials=2, pool="inline", seed=5)
    rows = json.loads(asked(capsys, "compare", searched, other, "-f", "json"))
    assert [row["study"] for row in rows] == ["one", "two"]
    assert [row["trials"] for row in rows] == ["5/5", "2/2"]
    assert asked(capsys, "compare", searched, other).count("\n") == 3


def test_trials_without_a_score_are_listed_beside_those_with_one(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qsearch.launch("digits", out=copied, trials=6, pool="inline", space=SPACE)
    database = sqlite3.connect(copied / "study.db")
    database.execute("UPDATE qs_trial SET state = 'waiting', score = NULL WHERE number IN (0, 5)")
    database.commit()
    database.close()
    lines = asked(capsys, "trials", copied).splitlines()
    assert [line.split()[:2] for line in lines[1::5]] == [["0", "waiting"], ["5", "waiting"]]
    cut = asked(capsys, "trials", copied, "--sort", "model_bytes", "--limit", 1, "-f", "csv")
    assert cut.splitlines()[1].split(",")[1] == "complete"
    rows = json.loads(asked(capsys, "trials", copied, "-f", "json"))
    assert {len(row) for row in rows} == {len(rows[1])}


def test_studies_with_and_without_a_best_are_compared(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    over.set()
    with pytest.raises(SearchFailedError):
        qsearch.launch("digits", out=tmp_path / "none", trials=1, pool="inline", stop=over)
    for words in ((searched, tmp_path / "none"), (tmp_path / "none", searched)):
        told = asked(capsys, "compare", *words).splitlines()
        assert len({len(line.split()) for line in told}) == 1


def test_stop_pause_and_resume_are_left_for_the_drivers(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--pause", "--resume"):
        assert "0 driver(s) listening" in asked(capsys, "stop", copied, flag)
    asked(capsys, "stop", copied)
    repository = Repository(open_engine(f"sqlite:///{RunFolder(copied).database}"))
    study = repository.study("one")
    assert [c.kind for c in repository.commands_of(study.id, 0)] == ["pause", "resume", "stop"]
    repository.close()


def test_a_study_is_deleted_after_a_yes_only(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["delete"]) == 2
    assert "delete what?" in capsys.readouterr().err
    assert run(["delete", "--help"]) == 0
    assert "the only one" not in capsys.readouterr().out
    assert run(["delete", str(copied)]) == 2
    assert "--yes" in capsys.readouterr().err
    asked(capsys, "delete", copied, "--yes")
    assert not copied.exists()


def test_deleting_leaves_the_files_of_others_in_a_run_folder(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(capsys, "verify", copied)
    (copied / "notes.txt").write_text("mine")
    asked(capsys, "delete", copied, "--yes")
    assert [path.name for path in copied.iterdir()] == ["notes.txt"]


def test_deleting_a_run_folder_forgets_its_study_in_a_shared_storage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'team.db'}"
    for name in ("one", "two"):
        qsearch.launch("digits", out=tmp_path / name, storage=url, trials=1, pool="inline")
    asked(capsys, "delete", tmp_path / "one", "--yes")
    assert not (tmp_path / "one").exists()
    assert (tmp_path / "two" / "best.qmod").is_file()
    assert json.loads(asked(capsys, "status", "--storage", url, "--json"))[0]["study"] == "two"


def test_a_run_folder_in_use_is_not_deleted(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(copied).in_use():
        assert run(["delete", str(copied), "--yes", "--force"]) == 2
    assert "another process is searching" in capsys.readouterr().err
    assert (copied / "study.db").is_file()


def test_a_study_that_is_searched_is_not_deleted(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(open_engine(f"sqlite:///{RunFolder(copied).database}"))
    repository.join(repository.study("one").id, "elsewhere:7", "v1", 2)
    repository.close()
    assert run(["delete", str(copied), "--yes"]) == 2
    assert "elsewhere:7" in capsys.readouterr().err
    asked(capsys, "delete", copied, "--yes", "--force")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_asks_for_completions(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = asked(capsys, "completion", shell)
    assert f"_QSEARCH_COMPLETE={shell}_complete" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("qsearch la", ["launch"]),
        ("qsearch launch --max-d", ["--max-drop"]),
        ("qsearch launch --sampler t", ["tpe"]),
        ("qsearch launch --metric agr", ["agreement"]),
        ("qsearch launch -q --pool ''", ["auto", "process", "ray", "inline"]),
        ("qsearch launch --hw opu", ["opu", "opu_q"]),
        ("qsearch trials --format c", ["csv"]),
    ],
)
def test_the_shell_completes_commands_options_and_words(
    words: str,
    wanted: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_QSEARCH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(shlex.split(words)) - 1))
    assert run([]) == 0
    found = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert [word for kind, word in found if kind == "plain"] == wanted


def test_a_table_leaves_out_its_widest_columns_until_it_fits() -> None:
    counts = {f"measured_{i}": i for i in range(4)}
    rows = [{"number": i, "params": "x" * 80, **counts, "top1": 0.5} for i in range(2)]
    header = table(rows, 64).splitlines()[0]
    assert header.split() == ["number", *counts, "top1"]
    assert "without params:" in table(rows, 64)
    assert "without params, measured_3:" in table(rows, 60)
    for width in (64, 60, 50, 40):
        assert all(len(line) <= width for line in table(rows, width).splitlines()[:3])
    assert "params" in table(rows).splitlines()[0]


def test_a_table_shortens_names_before_it_leaves_out_a_column() -> None:
    rows = [{"number": 1, "params": "x" * 80, "top1": 0.5}, {"number": 2, "params": "", "top1": 1}]
    lines = table(rows, 70).splitlines()
    assert lines[0].split() == ["number", "params", "top1"]
    assert len(lines) == 3
    assert "…" in lines[1]
    assert all(len(line) <= 70 for line in lines)
