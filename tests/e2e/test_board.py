"""Trials are timed on a board: another machine over ssh, which this one plays."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from compiler import relay
from compiler.errors import CodegenError
from compiler.ir.inference.infer_type import infer_module
from compiler.targets.c.board import Board
from tests.e2e.conftest import Launch
from tests.needs import NEEDS_C, skip
from workers.metrics.costs import latency_figures

pytestmark = [pytest.mark.slow, NEEDS_C]
SSHD = Path("/usr/sbin/sshd")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of an sshd of our own, and the words of an ssh that reaches it."""
    if not SSHD.exists() or shutil.which("ssh") is None:
        skip("sshd")
    folder = tmp_path_factory.mktemp("sshd")
    for key in ("host", "me"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(words, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "server").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\n"
        f"AuthorizedKeysFile {folder / 'me.pub'}\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
    )
    (folder / "client").write_text(
        f"Host *\nIdentityFile {folder / 'me'}\nIdentitiesOnly yes\nStrictHostKeyChecking no\n"
        f"UserKnownHostsFile {folder / 'known'}\nLogLevel ERROR\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([SSHD, "-D", "-f", folder / "server", "-E", folder / "log"])
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        for _ in range(200):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"ssh://{user}@127.0.0.1:{port}", f"ssh -F {folder / 'client'}"
    finally:
        server.terminate()
        server.wait(60)


def test_every_trial_is_timed_on_the_board_and_its_integers_are_compared(
    launch: Callable[..., Launch],
    board: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, words = board
    monkeypatch.setenv("QSEARCH_SSH", words)
    study = launch("board", "--measure", url, "--trials", "2")
    study.finish("--pool", "inline")
    timed = [one.outcome.score["latency_ms"] for one in study.trials() if one.state == "complete"]
    assert timed
    assert all(0 < one < 1000 for one in timed)


def test_a_board_that_is_not_there_is_named_before_anything_runs(
    launch: Callable[..., Launch],
) -> None:
    process = launch("none", "--measure", "ssh://127.0.0.1:1", "--trials", "3").start()
    _, said = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "the board ended with 255" in said
    assert "ssh://127.0.0.1:1" in said


@pytest.mark.parametrize("url", ["ssh://-oProxyCommand=true", "http://board", "ssh://board:70000"])
def test_what_names_no_board_never_reaches_ssh(url: str) -> None:
    with pytest.raises(CodegenError, match="names no board"):
        Board.of(url)


def test_a_board_that_computes_something_else_fails_the_trial(
    board: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, words = board
    monkeypatch.setenv("QSEARCH_SSH", words)
    x = relay.var("x", (1, 8), "int8")
    mod = infer_module(relay.module(relay.Function([x], relay.op.add(x, relay.const(1, "int8")))))
    inputs = {"x": np.arange(8, dtype=np.int8)[None]}
    assert latency_figures(("latency",), mod, inputs, 1, url)["latency_ms"] > 0
    monkeypatch.setattr(Board, "run", lambda self, sources, given: bytes(16))
    with pytest.raises(CodegenError, match="the board computes something else"):
        latency_figures(("latency",), mod, inputs, 1, url)
