"""Tokens by user: hashed in a file, read again when it changes, with a limit of studies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qsearch.dashboard.security import Policy
from qsearch.errors import SettingsError
from qsearch.server.tokens import Tokens, session_of


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "runs" / "tokens.json")


def test_a_token_names_its_user_and_is_not_in_the_file(tokens: Tokens) -> None:
    given = tokens.add("ann", "submit", 5)
    found = tokens.find(given)
    assert found is not None
    assert (found.name, found.submits, found.operator) == ("ann", True, False)
    assert found.max_studies == 5
    text = tokens.path.read_text()
    assert given not in text
    assert session_of(given) not in text
    assert tokens.path.stat().st_mode & 0o077 == 0


def test_a_session_follows_from_the_token_and_not_from_the_file(tokens: Tokens) -> None:
    given = tokens.add("ann", "read")
    found = tokens.find(session_of(given), "session")
    assert found is not None
    assert not found.submits
    entry = json.loads(tokens.path.read_text())["ann"]
    for hashed in (entry["token"], entry["session"]):
        assert tokens.find(hashed) is None
        assert tokens.find(hashed, "session") is None
    assert tokens.find("") is None
    assert tokens.find(given[:-1]) is None


def test_a_running_server_sees_what_a_command_changes(tokens: Tokens) -> None:
    other = Tokens(tokens.path)
    first = tokens.add("ann", "read")
    assert other.find(first) is not None
    second = tokens.add("ann", "submit")
    assert other.find(first) is None
    assert other.find(second) is not None
    tokens.remove("ann")
    assert other.find(second) is None
    with pytest.raises(SettingsError, match="no user 'bob'"):
        tokens.remove("bob")
    with pytest.raises(SettingsError, match="no user 'bob'"):
        tokens.change("bob", "read", None)


def test_other_rights_and_another_limit_keep_the_token(tokens: Tokens) -> None:
    other = Tokens(tokens.path)
    given = tokens.add("ann", "read", 5)
    assert other.find(given) is not None
    tokens.change("ann", "submit", 2)
    found = other.find(given)
    assert found is not None
    assert (found.submits, found.max_studies) == (True, 2)
    assert str(found) == "ann may submit, at most 2 studies at a time"
    assert other.find(session_of(given), "session") == found


@pytest.mark.parametrize("name", ["", "operator", "list", "a b", "../x", "x" * 65, "-a"])
def test_user_names_are_plain_and_operator_is_reserved(tokens: Tokens, name: str) -> None:
    with pytest.raises(SettingsError, match="no name for a user"):
        tokens.add(name, "read")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"ann": {}}', '{"ann": {"may": "all", "token": "x", "session": "y"}}']
)
def test_a_damaged_file_lets_nobody_in(tokens: Tokens, text: str) -> None:
    tokens.path.parent.mkdir()
    tokens.path.write_text(text)
    with pytest.raises(SettingsError, match="cannot be used"):
        tokens.find("x")


def test_the_token_of_a_user_is_not_taken_as_that_of_the_operator(tokens: Tokens) -> None:
    """As in a shell that has QSEARCH_TOKEN set for the client."""
    ann = tokens.add("ann", "read")
    with pytest.raises(SettingsError, match="own token is that of ann"):
        Policy(token=ann, tokens=tokens)
    assert Policy(token="a" * 32, tokens=tokens).asks_token
