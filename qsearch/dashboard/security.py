"""Guard requests: hosts, tokens, origins, sizes; and add the headers of every answer.

One layer around the whole application decides before any route runs.

    foreign Host header                 400   DNS rebinding
    no or wrong token                   401   Authorization: Bearer, or the cookie of /session
    write with a token that may read    403
    write from another origin           403   Origin, Sec-Fetch-Site
    write that is neither JSON nor a
    stream of bytes                     415   what a form of another page could send
    body larger than allowed            413   claimed or sent
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qsearch.errors import SettingsError
from qsearch.server.tokens import OPERATOR, Tokens, User, session_of

MAX_JSON_BYTES: Final = 64 * 1024
MAX_SUBMISSION_BYTES: Final = 1 << 20
"""A search space may name every layer of a large model."""
MIN_TOKEN: Final = 16
DRAIN_S: Final = 10.0
"""Seconds for which the body of a refused request is read and thrown away."""
_BODY_UNREAD: Final = frozenset({400, 401, 403, 413, 415, 429, 503, 507})
"""Refusals that may come before the body was read."""
SESSION_PATH: Final = "/api/v1/session"
SUBMIT_PATH: Final = "/api/v1/studies"
UPLOAD_PATH: Final = "/api/v1/uploads"
HEALTH_PATH: Final = "/healthz"
READY_PATH: Final = "/readyz"
METRICS_PATH: Final = "/metrics"
USER: Final = "qsearch.user"
"""Key of the user in the scope of a request, set by the guard."""
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE: Final = frozenset({"GET", "HEAD"})

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'; "
    # A plot becomes a PNG by way of an image that the page itself made.
    "img-src 'self' blob:",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Conditions of the guard for a request.

    Attributes:
        host: address that the server listens on.
        token: what the operator's clients must know.
        tokens: what other users must know. Both are None only where ``host`` is this machine's own.
        allowed_hosts: further names under which it may be asked.
        max_upload_bytes: largest upload.
    """

    host: str = "127.0.0.1"
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    max_upload_bytes: int = 256 << 20
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        known = self.token is not None or (self.tokens is not None and self.tokens.users())
        if not known and not self.is_local:
            raise SettingsError(
                f"a dashboard on {self.host} can be reached by others and needs a token",
                where="--host",
                fix="set QSEARCH_TOKEN (python -c 'import secrets; print(secrets.token_hex(16))'), "
                "give users tokens (qsearch token NAME), or leave out --host",
            )
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise SettingsError(
                f"the token has {len(self.token)} characters",
                where="--token, QSEARCH_TOKEN",
                fix=f"give {MIN_TOKEN} or more: "
                "python -c 'import secrets; print(secrets.token_hex(16))'",
            )
        if self.token and self.tokens:
            user = self.tokens.find(self.token)
        else:
            user = None
        if user is not None:
            raise SettingsError(
                f"the server's own token is that of {user.name}, who could change everything",
                where="--token, QSEARCH_TOKEN",
                fix="unset QSEARCH_TOKEN where the server is started, or give another one",
            )

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can connect."""
        return self.host in _LOCAL

    @property
    def asks_token(self) -> bool:
        """Return whether a request without a token is refused; on this machine once there is
        one."""
        given = self.tokens is not None and self.tokens.path.is_file()
        return self.token is not None or given or not self.is_local

    @property
    def cookie(self) -> str:
        """Name of the session's cookie; cookies are shared by the ports of a host."""
        if self.tokens is None:
            place = ""
        else:
            place = str(self.tokens.path.absolute())
        return "qsearch-" + hashlib.sha256(f"{self.token or place}".encode()).hexdigest()[:8]

    def user_of_token(self, given: str) -> User | None:
        """Return the user of a token; takes as long for a near miss as for a far one."""
        if self.token is not None and hmac.compare_digest(given.encode(), self.token.encode()):
            return OPERATOR
        if self.tokens is None:
            return None
        return self.tokens.find(given)

    def user(self, headers: Headers) -> User | None:
        """Return the user of a request; None for somebody without a token where one is needed.

        Raises:
            SettingsError: the file of tokens is damaged.
        """
        if not self.asks_token:
            return OPERATOR
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if given:
            if scheme.lower() == "bearer":
                return self.user_of_token(given.strip())
            return None
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        own = "" if self.token is None else session_of(self.token)
        if own and hmac.compare_digest(session.encode(), own.encode()):
            return OPERATOR
        if self.tokens is None:
            return None
        return self.tokens.find(session, "session")

    def knows_host(self, header: str | None) -> bool:
        """Return whether a Host header names this server.

        An attacker who rebinds a name of his own sends that name. An address is none, so on a
        server for others every address passes.
        """
        name = _host_name(header or "")
        if name is None:
            return False
        if name in _LOCAL or name in self.allowed_hosts or name == self.host:
            return True
        if self.is_local:
            return False
        return _is_address(name) or name == socket.gethostname().lower()

    def refusal(
        self, method: str, path: str, headers: Headers, user: User | None
    ) -> JSONResponse | None:
        """Explain why a request is not answered; None where it is."""
        if path in (HEALTH_PATH, READY_PATH):
            return None
        if not self.knows_host(headers.get("host")):
            return _refused(
                400,
                "this server does not go by that name",
                "Host header",
                "start it with --allow-host NAME, or use its address",
            )
        if path == METRICS_PATH or (path.startswith("/api/") and path != SESSION_PATH):
            if user is None:
                return _refused(
                    401,
                    "the token is wrong" if "authorization" in headers else "a token is needed",
                    "Authorization",
                    "send Authorization: Bearer TOKEN, or open the address that the server printed",
                )
            if method not in _SAFE and not user.submits:
                return _refused(
                    403,
                    "your token may read, and change nothing",
                    "Authorization",
                    "ask the server's operator for one: qsearch token NAME --may submit",
                )
        if method in _SAFE:
            return None
        return self._bad_write(path, headers)

    def limit(self, path: str) -> int:
        """Largest body in bytes."""
        own = {UPLOAD_PATH: self.max_upload_bytes, SUBMIT_PATH: MAX_SUBMISSION_BYTES}
        return own.get(path, MAX_JSON_BYTES)

    def _bad_write(self, path: str, headers: Headers) -> JSONResponse | None:
        origin = headers.get("origin")
        host = headers.get("host", "").lower()
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host
        if foreign or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _refused(
                403,
                "another page may not change anything here",
                "Origin",
                "use the dashboard's own page, or a client that sends no Origin",
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if path == UPLOAD_PATH:
            wanted = "application/octet-stream"
        else:
            wanted = "application/json"
        if kind != wanted:
            return _refused(415, f"the content type is {kind!r}", "Content-Type", f"send {wanted}")
        claimed = headers.get("content-length", "0")
        if not claimed.isdecimal() or int(claimed) > self.limit(path):
            fix = "send less; its operator can raise the limit of uploads: --max-upload"
            return _refused(413, _larger(self.limit(path)), "Content-Length", fix)
        return None


class Guard:
    """ASGI layer that answers what ``Policy`` refuses and marks every answer."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        body = _Body(receive, self._policy.limit(path))

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if path.startswith("/api/"):
                    headers["Cache-Control"] = "no-store"
                body.refused = message["status"] in _BODY_UNREAD
            elif body.refused and not message.get("more_body", False):
                # Most clients read no answer before they have sent all; and a connection that is
                # closed while bytes arrive is reset, which takes the answer along.
                await send({**message, "more_body": True})
                await body.drain()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        given = Headers(scope=scope)
        try:
            scope[USER] = self._policy.user(given)
            refusal = self._policy.refusal(scope["method"], path, given, scope[USER])
        except SettingsError as error:  # nobody is known without the file of tokens
            refusal = _refused(503, error.what, "tokens", "ask the server's operator")
        if refusal is not None:
            body.ended = "expect" in given  # such a client waits to be told before it sends
            await refusal(scope, receive, send_marked)
            return
        await self._app(scope, body.counted, send_marked)


class _Body:
    """The body of a request: bounded, and read to its end where it was refused."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._arrived = 0
        self.refused = False
        self.ended = False

    async def counted(self) -> Message:
        """``receive`` that counts: bodies may claim no length."""
        message = await self._receive()
        self.ended = message["type"] != "http.request" or not message.get("more_body", False)
        if message["type"] == "http.request":
            self._arrived += len(message.get("body", b""))
            if self._arrived > self._limit:
                raise HTTPException(413, _larger(self._limit))  # where a route reads the body
        return message

    async def drain(self) -> None:
        """Throw away what still comes, for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self.ended:
                    message = await self._receive()
                    self.ended = not message.get("more_body", False)


def _larger(limit: int) -> str:
    return f"the body is larger than {limit} bytes, the most that this server takes"


def _refused(status: int, what: str, where: str, fix: str) -> JSONResponse:
    headers = {"Connection": "close"}  # what the client still sends is not read
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"what": what, "where": where, "fix": fix}, status, headers)


def _host_name(header: str) -> str | None:
    """The name of a Host header without its port; None where it is malformed."""
    try:
        split = urlsplit(f"//{header}")
        _ = split.port
    except ValueError:
        return None
    if split.path or split.query or split.fragment or split.username is not None:
        return None
    return split.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
