"""Requests to a server, with the standard library alone; every failure is one of our errors."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Mapping
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from qsearch.errors import SearchError, SettingsError

_MAX_ANSWER: Final = 256 << 20
_MAX_ERROR: Final = 1 << 20


class ServerError(SearchError):
    """The server refused a request; ``status`` is the HTTP status."""

    status: int = 0


class UnreachableError(SearchError):
    """The server does not answer."""


class NotFoundError(ServerError):
    """The server has no resource of this name."""


class UnavailableError(ServerError):
    """The server cannot answer now: it or its database restarts."""


class Connection:
    """The API of one server.

    Args:
        url: of the server; ``http://`` unless it says.
        token: of the user, sent with every request; never to where a redirect leads.
        timeout_s: seconds in which a connection has to move.
    Raises:
        SettingsError: no address, or no token.
    """

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        try:
            split = urlsplit(url if "://" in url else f"http://{url}")
            known = split.scheme in ("http", "https") and split.hostname and split.port != 0
        except ValueError:
            known = None
        if not known:
            raise SettingsError(
                f"{url!r} is no address of a server", where="--server", fix="http://host:8090"
            )
        self.url = f"{split.scheme}://{split.netloc}{split.path.rstrip('/')}"
        self._path = split.path.rstrip("/")
        self._token = None if token is None else token.strip()
        if self._token is not None and not re.fullmatch("[!-~]+", self._token):
            raise SettingsError(
                "the token holds a character that no token has",
                where="QSEARCH_TOKEN",
                fix="copy it again as `qsearch token` printed it, on one line",
            )
        self._timeout_s = timeout_s
        self._opener = build_opener(_NoRedirect)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, with a body as JSON; the answer, a JSON object where there is one."""
        data = None if body is None else json.dumps(body).encode()
        if data is None:
            headers = {}
        else:
            headers = {"Content-Type": "application/json"}
        found: dict[str, Any] = self._answered(path, data, headers)
        return found

    def listed(self, path: str) -> list[dict[str, Any]]:
        """The answer to a request without a body, a JSON array."""
        found: Any = self.ask(path)
        return list(found)

    def send(self, path: str, stream: IO[bytes], size: int) -> Any:
        """Send a file of ``size`` bytes; the answer, read from JSON."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        return self._answered(path, stream, headers)

    def _answered(
        self, path: str, body: IO[bytes] | bytes | None, headers: Mapping[str, str]
    ) -> Any:
        with self.open(path, body, headers) as answer:
            found = Whole(answer, self.url).read(_MAX_ANSWER)
        try:
            if found:
                return json.loads(found)
            return None
        except ValueError as error:
            raise self._no_server() from error

    def open(
        self, path: str, body: IO[bytes] | bytes | None = None, headers: Mapping[str, str] = {}
    ) -> http.client.HTTPResponse:
        """Send a request to the API.

        Raises:
            ServerError, UnreachableError: see the class.
        """
        request = Request(f"{self.url}/api/v1{path}", data=body, headers=dict(headers))
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout_s)
            return answer
        except HTTPError as error:
            raise self._refused(error) from error
        except (URLError, OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            cut = isinstance(reason, BrokenPipeError | ConnectionResetError)
            if isinstance(reason, ssl.SSLError):
                what = f"no secure connection: {reason.reason or reason}"
                fix = "check the certificate, or whether the server speaks http"
            elif cut and hasattr(body, "read"):
                what = "the server ended the upload early"
                fix = "send less; or its disk is full, or something between you cuts it off"
            else:
                said = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
                what = f"the server does not answer: {said}"
                fix = "check the address that `qsearch serve` printed, and that it runs"
            raise UnreachableError(what, where=self.url, fix=fix) from error

    def _refused(self, error: HTTPError) -> SearchError:
        try:
            told = json.loads(Whole(error, self.url).read(_MAX_ERROR))
            what = str(told["what"])
            where = told.get("where")
            fix = told.get("fix")
        except (ValueError, KeyError, TypeError):
            if error.code in (502, 503, 504):
                return UnavailableError(
                    f"the server is not there: {error.code}", where=self.url, fix="try again"
                )
            return self._no_server()
        if error.code == 404 and what == "Not Found" and self._path:
            fix = f"leave out {self._path}: http://host:port is the address of a server"
        if error.code == 401:
            fix = "set QSEARCH_TOKEN to the token that the server's operator gave you"
        kinds = {404: NotFoundError, 503: UnavailableError}
        found = kinds.get(error.code, ServerError)(what, where=where or self.url, fix=fix)
        found.status = error.code
        return found

    def _no_server(self) -> UnreachableError:
        return UnreachableError(
            "the server at this address is not a qsearch server",
            where=self.url,
            fix="check the address that `qsearch serve` printed",
        )


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would send the token elsewhere."""

    def redirect_request(self, *args: Any) -> None:
        """Refuse."""


class Whole:
    """The body of an answer, to its end.

    Args:
        answer: open.
        url: of the server, for messages.
    """

    def __init__(self, answer: http.client.HTTPResponse | HTTPError, url: str) -> None:
        self._answer = answer
        self._url = url

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; fewer than ``size`` at the end only.

        Raises:
            UnreachableError: the connection ended before the body did, or stalls.
        """
        try:
            found = self._answer.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise self._cut_off() from error
        if len(found) < size and self._answer.length:
            raise self._cut_off()
        return found

    def _cut_off(self) -> UnreachableError:
        return UnreachableError(
            "the answer of the server was cut off",
            where=self._url,
            fix="run the same command again; it goes on where it was",
        )
