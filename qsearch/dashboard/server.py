"""The server process: uvicorn for clients that send in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from qsearch.dashboard.app import DashboardOptions, create_app
from qsearch.errors import SettingsError
from qsearch.store.engine import require_folder

GRACE_S: Final = 2
"""Seconds that answers may take once the server is told to stop."""

HEADERS_S: Final = 15.0
"""Seconds that a client may take to send the headers of a request."""

BODY_S: Final = 30.0
"""In so long a client has to send ``LEAST_BYTES`` of a body, or its end."""
LEAST_BYTES: Final = 64 * 1024

_LAST_PORT: Final = 65535


class PromptProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, for clients that send headers and bodies in time.

    uvicorn has no such limit: a client that sends a byte now and then keeps its connection for
    ever, and a few hundred of them take all that a process may open.
    """

    headers_s = HEADERS_S
    body_s = BODY_S
    _deadline: asyncio.TimerHandle | None = None
    _awaited: object = None
    _arrived = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count: a client that sends nothing is a slow one, too."""
        super().connection_made(transport)
        self._count()

    def data_received(self, data: bytes) -> None:
        """Go on counting until the request is there, from its first byte on."""
        self._arrived += len(data)
        super().data_received(data)
        self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._stop_counting()
        super().connection_lost(exc)

    def _count(self) -> None:
        awaited = self.conn.their_state
        if self._deadline is not None and awaited is self._awaited:
            return
        self._stop_counting()
        self._awaited = awaited
        if awaited is h11.IDLE:
            self._deadline = self.loop.call_later(self.headers_s, self.transport.close)
        elif awaited is h11.SEND_BODY:
            self._deadline = self.loop.call_later(self.body_s, self._check_body, self._arrived)

    def _check_body(self, before: int) -> None:
        """Close a connection whose client sent too little of a body, where we did read it."""
        if self._arrived - before < LEAST_BYTES and not self.flow.read_paused:
            self.transport.close()
        else:
            self._deadline = None
            self._count()

    def _stop_counting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def serve(options: DashboardOptions, port: int) -> None:
    """Serve until the process is told to stop.

    Raises:
        SettingsError: no port, one that is taken or may not be used, or a host that is not ours.
        StoreError: the storage is no URL, or a file whose folder is not there.
    """
    host = options.policy.host
    if options.storage is not None:
        # The file may be one that a search will make; a search makes no folder for it.
        require_folder(options.storage)
    if not 0 <= port <= _LAST_PORT:
        raise SettingsError(
            f"{port} is no port", where="--port", fix=f"1 to {_LAST_PORT}; 0 takes any that is free"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP: else asyncio leaves Nagle's algorithm on, and a body waits 40 ms for its headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Whoever follows the address below before the server is ready waits in the queue.
        listener.listen()
    except OSError as error:
        listener.close()
        foreign = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise SettingsError(
            f"the dashboard cannot listen on {host}:{port}: {error.strerror or error}",
            where="--host" if foreign else "--port",
            fix="give an address of this machine; 0.0.0.0 stands for all"
            if foreign
            else "choose another --port; 0 takes any that is free",
        ) from error
    with listener:
        app = create_app(options)
        if app.state.queue is not None:
            app.state.queue.open()  # what it refuses is told before anybody is sent here
        print(f"dashboard  {address(options, listener.getsockname()[1])}", flush=True)
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = server_config(app, timeout_graceful_shutdown=GRACE_S)
        # uvicorn stops in good order, then raises the signal again for the handler before its own.
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        with contextlib.suppress(KeyboardInterrupt):  # raised again in the same way
            uvicorn.Server(config).run([listener])


def server_config(app: FastAPI, **more: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn; ``more`` are further options of uvicorn."""
    return uvicorn.Config(
        app,
        http=PromptProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=64 * 1024,
        **more,
    )


def address(options: DashboardOptions, port: int) -> str:
    """Return the address to open: with a token in the fragment, which browsers do not send, where
    it is ours."""
    host = options.policy.host
    if host in ("0.0.0.0", "::"):
        name = "localhost"
    elif ":" in host:
        name = f"[{host}]"
    else:
        name = host
    if options.policy.asks_token:
        hint = "  (append #token=… with your token)"
    else:
        hint = ""
    return f"http://{name}:{port}/{hint}"
