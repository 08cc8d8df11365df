"""Webhooks: tell addresses of a new best, the end, a failure, or limits that nothing meets.

A process of its own sends what it reads from stdin, a JSON object a line: an address that hangs
delays neither the search nor its end, and others are told meanwhile (a thread each).

    X-Qsearch-Timestamp: 1795993556
    X-Qsearch-Signature: sha256=HMAC(secret, "1795993556." + body)

Where private addresses are not allowed (a server, whose users name the addresses), the address that
is connected to is the one that was checked, and redirects are not followed in any case.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from qsearch.errors import SettingsError
from workers.process import python_path

SECRET_VARIABLE: Final = "QSEARCH_NOTIFY_SECRET"
BEST: Final = "best"
"""The event of which only the newest is sent to an address that is slow."""
MOST_URLS: Final = 8
_LONGEST: Final = 1000
TIMEOUT_S: Final = 5.0
PAUSES_S: Final = (0.0, 1.0, 5.0, 20.0)
"""Before each attempt."""
LAST_S: Final = 60.0
"""Seconds for which the process tries on once the search has ended."""


class RefusedAddressError(OSError):
    """An address that a server may not call."""


class Notifier:
    """Tells addresses what happens in a study, and waits for none of them.

    Args:
        urls: of webhooks; none starts no process.
        private: addresses of this machine and of private networks may be called.
        about: fields of every message.
    """

    def __init__(self, urls: Sequence[str], private: bool, about: Mapping[str, Any]) -> None:
        self._about = dict(about)
        self._process: subprocess.Popen[bytes] | None = None
        if not urls:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qsearch.run.notifying"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,  # Ctrl-C is for the search, whose end it still tells
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        threading.Thread(target=self._process.wait, daemon=True).start()
        secret = os.environ.get(SECRET_VARIABLE)
        self._write({"urls": list(urls), "private": private, "secret": secret})

    def tell(self, event: str, text: str, **more: Any) -> None:
        """Send a message: ``text`` is what Slack, Mattermost and Teams show."""
        told = {"text": text[:_LONGEST], "event": event, "time": time.time()}
        self._write({**told, **self._about, **more})

    def close(self) -> None:
        """Nothing more comes; what is on its way is still sent."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = None

    def _write(self, message: Mapping[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            # Whole or not at all, as it is shorter than what a pipe takes at once.
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError:  # it ended; the search goes on
            self._process = None


def checked_urls(urls: Sequence[str]) -> tuple[str, ...]:
    """The addresses, once each.

    Raises:
        ValueError: one is no address of a webhook, or there are too many.
    """
    for url in urls:
        split = urlsplit(url)
        if split.scheme not in ("http", "https") or not split.hostname or split.port == 0:
            raise ValueError("expected http://… or https://…")
    if len(set(urls)) > MOST_URLS:
        raise ValueError(f"expected at most {MOST_URLS} addresses")
    return tuple(dict.fromkeys(urls))


def masked_url(url: str) -> str:
    """The host of a webhook: its path is a secret."""
    split = urlsplit(url)
    return f"{split.scheme}://{split.hostname}/…"


def is_public(address: str) -> bool:
    """Tell whether an IP address belongs to no private network, inside other forms of it too."""
    found = ipaddress.ip_address(address.partition("%")[0])
    inside: list[ipaddress.IPv4Address | None] = []
    if isinstance(found, ipaddress.IPv6Address):
        inside = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        if found in ipaddress.ip_network("64:ff9b::/96"):
            inside.append(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
    return all(a.is_global and not a.is_multicast for a in (found, *filter(None, inside)))


def post(url: str, body: bytes, secret: str | None, private: bool) -> None:
    """Send one message.

    Raises:
        SettingsError: the answer is no success.
        OSError, http.client.HTTPException: there is none; or the address may not be called.
    """
    split = urlsplit(url)
    host = split.hostname or ""
    secure = split.scheme == "https"
    port = split.port or (443 if secure else 80)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    connection.sock = _connected(host, port, private)
    if secure:
        context = ssl.create_default_context()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=host)
    stamp = str(int(time.time()))
    headers = {"Content-Type": "application/json", "X-Qsearch-Timestamp": stamp}
    if secret:
        digest = hmac.new(secret.encode(), f"{stamp}.".encode() + body, hashlib.sha256)
        headers["X-Qsearch-Signature"] = f"sha256={digest.hexdigest()}"
    path = f"{split.path or '/'}{f'?{split.query}' if split.query else ''}"
    try:
        connection.request("POST", path, body, headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise SettingsError(f"it answered {status}", where=masked_url(url))


def _connected(host: str, port: int, private: bool) -> socket.socket:
    """A connection to an address of the host that may be called: nobody resolves it again."""
    last: OSError = OSError("no such host")
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = str(place[0])
        if not private and not is_public(address):
            last = RefusedAddressError(f"{address} is private")
            continue
        try:
            return socket.create_connection((address, port), timeout=TIMEOUT_S)
        except OSError as error:
            last = error
    raise last


# The process that sends ---------------------------------------------------------------------------


class _Address(threading.Thread):
    """Sends what comes to one address, in order; of new bests only the newest that waits."""

    def __init__(self, url: str, secret: str | None, private: bool) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._secret = secret
        self._private = private
        self._waiting: list[dict[str, Any] | None] = []
        self._news = threading.Condition()

    def add(self, message: dict[str, Any] | None) -> None:
        """A message that comes behind those that wait; None is the last one."""
        with self._news:
            if message is not None and message["event"] == BEST:
                self._waiting = [
                    one for one in self._waiting if one is None or one["event"] != BEST
                ]
            self._waiting.append(message)
            self._news.notify()

    def run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting)
                message = self._waiting.pop(0)
            if message is None:
                return
            self._send(json.dumps(message).encode())

    def _send(self, body: bytes) -> None:
        for pause_s in PAUSES_S:
            time.sleep(pause_s)
            try:
                post(self._url, body, self._secret, self._private)
            except RefusedAddressError:
                return
            except (OSError, http.client.HTTPException, SettingsError):
                continue
            return


def main() -> None:
    """Send what stdin says, until it ends and ``LAST_S`` later at most."""
    first = json.loads(sys.stdin.readline())
    addresses = [_Address(url, first["secret"], first["private"]) for url in first["urls"]]
    for address in addresses:
        address.start()
    for line in sys.stdin:
        for address in addresses:
            address.add(json.loads(line))
    end = time.monotonic() + LAST_S
    for address in addresses:
        address.add(None)
        address.join(max(0.0, end - time.monotonic()))
    os._exit(0)


if __name__ == "__main__":
    main()
