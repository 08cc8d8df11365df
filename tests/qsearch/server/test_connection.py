"""What a client tells of a server that dies, stalls or is none, in the middle of an answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.server.client import Client
from qsearch.server.connection import UnreachableError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
RESET = struct.pack("ii", 1, 0)
ANSWERS = {
    "fewer bytes than promised": HEAD + b'Content-Length: 500\r\n\r\n{"a": ',
    "half a chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n100\r\n{"a": ',
    "half an error": b'HTTP/1.1 400 Bad\r\nContent-Length: 500\r\n\r\n{"what": ',
}
ENDS: dict[str, Callable[[socket.socket], None]] = {
    "closed": lambda connection: None,
    "reset": lambda connection: connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET),
    "stalled": lambda connection: threading.Event().wait(1.0) and None,
}
ASKED: dict[str, Callable[[Client, Path], Any]] = {
    "queue": lambda client, path: client.queue(),
    "upload": lambda client, path: client.upload(path),
    "download": lambda client, path: client.download("study", path.with_suffix(".qmod")),
}


class Server:
    """Answers every request alike, and then ends the connection."""

    def __init__(self) -> None:
        self.answer = b""
        self.end = ENDS["closed"]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(self.answer)
                self.end(connection)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_cut_off_is_told(
    server: Server, answer: str, end: str, asked: str, tmp_path: Path
) -> None:
    server.answer, server.end = ANSWERS[answer], ENDS[end]
    file = tmp_path / "m.onnx"
    file.write_bytes(b"model")
    with pytest.raises(UnreachableError, match="cut off") as told:
        ASKED[asked](qsearch.Client(server.url, timeout_s=0.3), file)
    assert told.value.where is not None
    assert told.value.where.startswith(server.url)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"SSH-2.0\r\n"])
def test_what_is_no_server_of_ours_is_told(server: Server, answer: bytes) -> None:
    server.answer = answer
    with pytest.raises(UnreachableError, match=r"does not answer|is not a qsearch server"):
        qsearch.Client(server.url, timeout_s=0.3).queue()


def test_waiting_outlasts_an_answer_that_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = b'{"state": "done", "position": null, "study": null}'
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(job) + job
    answers = iter((ANSWERS["half a chunk"], ANSWERS["fewer bytes than promised"]))

    def next_answer(connection: socket.socket) -> None:
        server.answer = next(answers, whole)

    server.answer, server.end = ANSWERS["half a chunk"], next_answer
    monkeypatch.setattr("qsearch.server.client.POLL_S", 0.01)
    assert qsearch.Client(server.url, timeout_s=1).wait("study")["state"] == "done"
