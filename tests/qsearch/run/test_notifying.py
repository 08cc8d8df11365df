"""Webhooks: what they are told, signed, and never where a server's users must not reach."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.errors import SettingsError
from qsearch.run.notifying import Notifier, RefusedAddressError, is_public, post
from tests.qsearch.quick import QUICK_SPACE

SECRET = "shared with the receiver"
WAIT_S = 240


class Hook:
    """A receiver: keeps what came, and answers as it is told."""

    def __init__(self, status: int = 200, location: str = "") -> None:
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.held = threading.Event()
        self.hangs = False
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.came.append((dict(self.headers), body))
                if hook.hangs:
                    hook.held.wait(WAIT_S)
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook?key=1"

    def events(self, wanted: str) -> list[dict[str, Any]]:
        """Wait for an event of this kind; everything that came so far."""
        end = time.monotonic() + WAIT_S
        while True:
            found = [json.loads(body) for _, body in self.came]
            if any(message["event"] == wanted for message in found):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.02)


@pytest.fixture
def hooks() -> Iterator[list[Hook]]:
    made: list[Hook] = []
    yield made
    for hook in made:
        hook.held.set()
        hook.server.shutdown()
        hook.server.server_close()


def test_a_search_tells_its_best_and_its_end_signed(
    hooks: list[Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QSEARCH_NOTIFY_SECRET", SECRET)
    hook = Hook()
    hooks.append(hook)
    folder = tmp_path / "run"
    asked = {"trials": 2, "pool": "inline", "out": folder, "space": QUICK_SPACE}
    qsearch.launch("digits", notify=[hook.url], **asked)
    told = hook.events("end")
    assert {"best", "end"} <= {message["event"] for message in told}
    assert all(message["study"] == "run" and "run: " in message["text"] for message in told)
    for headers, body in hook.came:
        stamp = headers["X-Qsearch-Timestamp"]
        key = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
        assert headers["X-Qsearch-Signature"] == f"sha256={key.hexdigest()}"
    kept = [path.read_text() for path in folder.glob("*.*") if path.suffix in (".yaml", ".json")]
    assert not any("key=1" in text for text in kept), "the path of a webhook is a secret"
    small = ["--max-size", "10", "--notify", hook.url, "-q", "-o", str(tmp_path / "small")]
    assert run(["launch", "--model", "digits", "--trials", "1", "--pool", "inline", *small]) == 1
    assert hook.events("unmet")


def test_an_address_that_hangs_or_refuses_holds_up_nobody(hooks: list[Hook]) -> None:
    slow, good = Hook(), Hook()
    slow.hangs = True
    hooks += [slow, good]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        notifier = Notifier([slow.url, nobody, good.url], True, {"study": "s"})
        for number in range(20):
            notifier.tell("best", f"best {number}", trial=number)
        notifier.tell("end", "it ended")
        notifier.close()
        last = [message for message in good.events("end") if message["event"] == "best"][-1]
    assert last["trial"] == 19
    assert not slow.held.is_set()


def test_redirects_are_not_followed(hooks: list[Hook]) -> None:
    private = Hook()
    hook = Hook(307, private.url)
    hooks += [private, hook]
    with pytest.raises(SettingsError, match="307"):
        post(hook.url, b"{}", None, private=True)
    assert (len(hook.came), private.came) == (1, [])


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "public.example"])
def test_what_a_server_must_not_call_is_checked_where_it_connects(
    hooks: list[Hook], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Hook()
    hooks.append(hook)
    real, asked = socket.getaddrinfo, []

    def rebinding(host: str, port: int, *more: Any, **named: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if host.endswith("example") else host, port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with pytest.raises(RefusedAddressError, match="is private"):
        post(f"http://{name}:{hook.server.server_port}/", b"{}", None, private=False)
    assert len(asked) == 1, "the name is resolved once: what was checked is connected to"
    assert hook.came == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_private_addresses_are_known_in_every_form(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "host", "http://"])
def test_what_is_no_webhook_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--model", "digits", "--notify", url]) == 2
    assert "http://" in capsys.readouterr().err
