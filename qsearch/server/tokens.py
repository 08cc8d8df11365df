"""Users of a server: a token each, stored as hashes in one file, with their rights.

    {"ann": {"may": "submit", "token": sha256, "session": sha256, "max_studies": 4}}

A token is 32 random bytes, so one round of SHA-256 is enough: it cannot be guessed from its hash.
The session is what a browser's cookie holds; it follows from the token, and not from the file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from compiler.errors import legal_names
from qsearch.errors import SettingsError
from qsearch.process import file_lock
from qsearch.store.artifacts import write_atomically

May = Literal["read", "submit"]
TOKENS_FILE: Final = "tokens.json"
LIST: Final = "list"
"""Word in place of a user's name: ``qsearch token list``."""
_PREFIX: Final = "qs_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_MAX_BYTES: Final = 4 << 20
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class User:
    """The user who sends a request; the operator may change studies of all users.

    Attributes:
        max_studies: studies of the user that may wait or run at a time; None is any number.
    """

    name: str
    may: May
    max_studies: int | None = None
    operator: bool = False

    def __str__(self) -> str:
        """Name, rights and limit in words."""
        if self.max_studies:
            limit = f", at most {self.max_studies} studies at a time"
        else:
            limit = ""
        return f"{self.name} may {self.may}{limit}"

    @property
    def submits(self) -> bool:
        """Return whether the user may change anything."""
        return self.may == "submit"

    def owns(self, owner: str) -> bool:
        """Return whether the user may change what ``owner`` submitted."""
        return self.submits and (self.operator or owner == self.name)


OPERATOR: Final = User("operator", "submit", operator=True)
"""User that started the server, knows its own token, or needs none on the same machine."""


class _Entry(BaseModel):
    """A user in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    may: May
    token: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    session: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    max_studies: Annotated[int, Field(gt=0)] | None = None

    def user(self, name: str) -> User:
        return User(name, self.may, self.max_studies)


_FILE: Final = TypeAdapter(dict[str, _Entry])


def session_of(token: str) -> str:
    """Return the session of a cookie instead of the token; it follows from the token, not the
    reverse."""
    return hmac.new(token.encode(), b"qsearch session", "sha256").hexdigest()


@dataclass(slots=True)
class Tokens:
    """The users in a file; it is read again when it changed. Safe to use from several threads."""

    path: Path
    _read: tuple[Any, dict[str, _Entry]] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, given: str, kind: Literal["token", "session"] = "token") -> User | None:
        """The user of a token, or of the session in a browser's cookie."""
        found = None
        digest = _hash(given)
        for name, entry in self._entries().items():
            if hmac.compare_digest(getattr(entry, kind), digest):
                found = entry.user(name)
        return found

    def add(self, name: str, may: May, max_studies: int | None = None) -> str:
        """Give a user a new token, which replaces an earlier one.

        Args:
            max_studies: as of ``User``.
        Returns:
            The token; the file keeps only its hash.

        Raises:
            SettingsError: no name for a user, or the file cannot be read.
            RunFolderError: the file cannot be written.
        """
        if not _NAME.fullmatch(name) or name in (OPERATOR.name, LIST):
            raise SettingsError(
                f"{name!r} is no name for a user",
                where="NAME",
                fix=f"use up to 64 letters, digits and . _ @ -; but not {OPERATOR.name} or {LIST}",
            )
        token = _PREFIX + secrets.token_urlsafe(32)
        session = _hash(session_of(token))
        entry = _Entry(may=may, token=_hash(token), session=session, max_studies=max_studies)
        self._change(lambda users: users.update({name: entry}))
        return token

    def change(self, name: str, may: May, max_studies: int | None) -> User:
        """Change rights and limit of a user; the token stays valid.

        Raises:
            SettingsError: there is no such user.
        """
        entry = self._known(name).model_copy(update={"may": may, "max_studies": max_studies})
        self._change(lambda users: users.update({name: entry}))
        return entry.user(name)

    def remove(self, name: str) -> None:
        """Remove a user and the token.

        Raises:
            SettingsError: there is no such user.
        """
        self._known(name)
        self._change(lambda users: users.pop(name, None))

    def _known(self, name: str) -> _Entry:
        users = self._entries()
        if name not in users:
            if users:
                fix = legal_names(name, users)
            else:
                fix = f"create a token: qsearch token {name}"
            raise SettingsError(f"there is no user {name!r}", where=str(self.path), fix=fix)
        return users[name]

    def users(self) -> dict[str, User]:
        """Every user by name.

        Raises:
            SettingsError: the file cannot be read, or is none of ours.
        """
        return {name: entry.user(name) for name, entry in self._entries().items()}

    def _entries(self) -> Mapping[str, _Entry]:
        with self._lock:
            try:
                state = self.path.stat()
            except FileNotFoundError:
                return {}
            version = (state.st_ino, state.st_mtime_ns, state.st_size)
            if self._read is None or self._read[0] != version:
                self._read = (version, self._load())
            return dict(self._read[1])

    def _load(self) -> dict[str, _Entry]:
        try:
            with self.path.open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ValueError(f"it holds more than {_MAX_BYTES >> 20} MiB")
            return _FILE.validate_json(data)
        except (OSError, ValueError, ValidationError) as error:
            raise SettingsError(
                f"the file of tokens cannot be used: {str(error).splitlines()[0][:200]}",
                where=str(self.path),
                fix="restore it, or delete it and give every user a new token: qsearch token NAME",
            ) from error

    def _change(self, change: Any) -> None:
        busy = SettingsError("another command changes the file", where=str(self.path), fix="wait")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path.with_name(f".{self.path.name}.lock"), busy):
            users = dict(self._entries())
            change(users)
            plain = {name: entry.model_dump(exclude_none=True) for name, entry in users.items()}
            write_atomically(self.path, json.dumps(plain, indent=1).encode() + b"\n", _MODE)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
