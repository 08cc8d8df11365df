"""The house stays as small as it was made: figures that bench_house counts, and their bounds."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_house import MEASURES, REACHED, code_lines, words_of


@pytest.mark.parametrize("name", sorted(REACHED))
def test_figure_stays_within_its_bound(name: str) -> None:
    bound = MEASURES[name]()
    assert bound.figure <= bound.limit, "\n".join(bound.found)


def test_code_lines_leave_out_comments_blank_lines_and_docstrings() -> None:
    source = '"""A module.\n\nMore.\n"""\n\n# why\nx = (\n    1,\n)\n\n\ndef f():\n    """F."""\n'
    assert code_lines(source) == 4


def test_words_of_an_identifier_are_found_in_every_spelling() -> None:
    assert words_of("leaky_bucket") == words_of("leakyBucket") == ["leaky", "bucket"]
    assert words_of("HTTPServer-port") == ["http", "server", "port"]
