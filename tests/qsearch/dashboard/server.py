"""The dashboard as a real server in a thread, and a client that asks it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from qsearch.dashboard.app import DashboardOptions, create_app
from qsearch.dashboard.server import server_config


class Client(httpx.Client):
    """Asks the dashboard; knows the key of its only study."""

    @property
    def key(self) -> str:
        key: str = self.get("/api/v1/studies").json()["studies"][0]["key"]
        return key

    @property
    def study(self) -> str:
        return f"/api/v1/studies/{self.key}"


def style_of(client: httpx.Client) -> str:
    """Where the page says that its style sheet is."""
    found = re.search(r'href="(/static/[^"]*/style\.css)"', client.get("/").text)
    assert found is not None
    return found[1]


@contextmanager
def served(options: DashboardOptions, **client: Any) -> Iterator[Client]:
    """A server in a thread of its own."""
    config = server_config(create_app(options), port=0, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with Client(base_url=f"http://127.0.0.1:{port}", timeout=240, **client) as asking:
            yield asking
    finally:
        server.should_exit = True
        thread.join()
