"""The report is one file that loads nothing, runs nothing, and says what the store says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.report.html import report
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.stores import fill, new_study, written_runs


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(text)
    return parser.found


def test_the_report_is_one_file_with_every_plot(tmp_path: Path, capsys) -> None:
    folder = written_runs(tmp_path) / "digits"
    out = tmp_path / "report.html"
    assert run(["report", str(folder), "-o", str(out), "--svg", str(tmp_path / "svg")]) == 0
    text = out.read_text()
    names = {tag for tag, _ in tags(text)}
    assert not names & {"script", "link", "img", "iframe"}
    assert not any("src" in attrs or "href" in attrs for _, attrs in tags(text))
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert sum(tag == "svg" for tag, _ in tags(text)) == 7
    assert "digits" in text
    assert "the worker ran out of memory" in text
    written = capsys.readouterr().out.splitlines()
    assert len(written) == 1 + 7
    for path in (tmp_path / "svg").iterdir():
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg")
        assert "--blue" in path.read_text()


def test_the_best_of_the_report_is_the_stores(tmp_path: Path) -> None:
    folder = written_runs(tmp_path) / "digits"
    (path,) = report(folder, tmp_path / "r.html")
    best = qsearch.best(folder)
    text = re.sub("<[^>]*>", " ", path.read_text())
    assert f"{100 * best['top1']:.2f} % (trial {best['number']})" in text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    run_folder = tmp_path / "x"
    run_folder.mkdir()
    repository = Repository(open_engine(f"sqlite:///{run_folder / 'study.db'}"))
    study = repository.create_study(new_study("<script>alert(1)</script>", 4, "<img src=x>"))
    fill(repository, study, 4)
    repository.close()
    (path,) = report(run_folder, tmp_path / "r.html")
    assert not {tag for tag, _ in tags(path.read_text())} & {"script", "img"}


def test_an_empty_study_has_a_report(tmp_path: Path) -> None:
    run_folder = tmp_path / "x"
    run_folder.mkdir()
    repository = Repository(open_engine(f"sqlite:///{run_folder / 'study.db'}"))
    repository.create_study(new_study("new", 4))
    repository.close()
    (path,) = report(run_folder, tmp_path / "r.html")
    assert "no trial is complete" in path.read_text()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys) -> None:
    folder = written_runs(tmp_path) / "digits"
    (tmp_path / "file").write_text("")
    assert run(["report", str(folder), "-o", str(tmp_path / "file" / "r.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["report", "nowhere"], ["dashboard", "nowhere"]])
def test_a_folder_that_is_not_there_is_bad_input(words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert "nowhere" in capsys.readouterr().err
