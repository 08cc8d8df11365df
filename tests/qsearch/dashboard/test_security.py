"""Real requests that must be refused, and hostile words that must stay words."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from qsearch.cli.main import run
from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.inspection import Inspection, InspectionError
from qsearch.dashboard.security import Policy
from qsearch.dashboard.server import PromptProtocol
from qsearch.errors import SettingsError
from qsearch.masking import masked
from qsearch.server.submission import ServerOptions
from tests.qsearch.dashboard.server import served, style_of

TOKEN = "0123456789abcdef0123456789abcdef"
OUT = (
    "..%2f..%2fetc%2fpasswd",
    "%2fetc%2fpasswd",
    "..%5c..%5cx",
    "%00",
    "a%0d%0ab",
    "'%22<script>",
)


@pytest.fixture
def guarded(folder: Path):
    with served(DashboardOptions(root=folder, policy=Policy(token=TOKEN))) as client:
        yield client


def told(answer: httpx.Response, status: int) -> dict[str, str]:
    """The error of an answer: every one has the same three fields."""
    assert answer.status_code == status, answer.text
    error = answer.json()
    assert set(error) == {"what", "where", "fix"}
    return error


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_no_other_address_without_a_token(host):
    with pytest.raises(SettingsError, match="needs a token"):
        Policy(host=host)


def test_a_short_token_is_refused():
    with pytest.raises(SettingsError, match="characters"):
        Policy(token="secret")


def test_without_a_token_nothing_is_told(guarded):
    for path in ("/api/v1/studies", "/api/v1/openapi.json", "/api/v1/studies/x/events"):
        told(guarded.get(path), 401)
    assert guarded.get("/api/v1/studies").headers["www-authenticate"] == "Bearer"
    told(guarded.post("/api/v1/studies", json={}), 401)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "0", "ö" * 16])
def test_a_wrong_token_is_refused(guarded, token):
    header = f"Bearer {token}".strip().encode()
    told(guarded.get("/api/v1/studies", headers={"Authorization": header}), 401)
    basic = f"Basic {token}".strip().encode()
    told(guarded.get("/api/v1/studies", headers={"Authorization": basic}), 401)
    told(guarded.get("/api/v1/studies", headers={"Cookie": f"{Policy(token=TOKEN).cookie}=x"}), 401)


def test_the_token_opens_the_api_and_a_cookie_stands_for_it(guarded):
    assert guarded.get("/api/v1/studies", headers=bearer(TOKEN)).status_code == 200
    told(guarded.post("/api/v1/session", json={"token": "wrong"}), 401)
    opened = guarded.post("/api/v1/session", json={"token": TOKEN})
    assert opened.status_code == 204
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/api/v1/studies").status_code == 200


def test_health_needs_no_token_and_tells_nothing(guarded):
    answer = guarded.get("/healthz", headers={"Host": "10.1.2.3:8090"})
    assert answer.json() == {"status": "ok"}


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "a@b", "[x"]
)
def test_a_foreign_host_is_refused(unchanged, host):
    told(unchanged.get("/api/v1/studies", headers={"Host": host}), 400)
    told(unchanged.get("/", headers={"Host": host}), 400)


def test_only_known_hosts_pass():
    local = Policy()
    assert all(local.knows_host(h) for h in ("localhost:1", "127.0.0.1", "[::1]:8090"))
    assert not local.knows_host("10.0.0.7")
    shared = Policy(host="0.0.0.0", token=TOKEN, allowed_hosts=("search.lab",))
    assert all(shared.knows_host(h) for h in ("10.0.0.7:8090", "search.lab", "localhost"))
    assert not shared.knows_host("evil.example")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_foreign_page_changes_nothing(client, repository, headers):
    path = f"{client.study}/commands"
    told(client.post(path, json={"kind": "stop"}, headers=headers), 403)
    assert repository.news_of(1).command == 0


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_form_changes_nothing(client, repository, kind):
    path = f"{client.study}/commands"
    body = b'{"kind": "stop"}'
    told(client.post(path, content=body, headers={"Content-Type": kind}), 415)
    assert repository.news_of(1).command == 0


def test_commands_reach_the_store(client, repository):
    for kind in ("pause", "resume", "stop"):
        own = {"Origin": str(client.base_url).rstrip("/")}
        answer = client.post(f"{client.study}/commands", json={"kind": kind}, headers=own)
        assert answer.json() == {"kind": kind, "listening": 0}
    assert [c.kind for c in repository.commands_of(1, 0)] == ["pause", "resume", "stop"]
    told(client.post(f"{client.study}/commands", json={"kind": "delete"}), 422)


@pytest.mark.parametrize("word", OUT)
def test_no_path_leads_out(unchanged, word):
    study, described = unchanged.study, unchanged.get("/api/v1/openapi.json").json()["paths"]
    good = {
        "key": unchanged.key,
        "number": "1",
        "name": "best.qmod",
        "format": "c",
        "sha256": "0" * 64,
    }
    tried = {
        (method, path.format(**{**good, bad: word}))
        for path, methods in described.items()
        for method in methods
        for bad in re.findall(r"{(\w+)}", path)
    }
    assert len(tried) >= 26
    version = style_of(unchanged).split("/")[2]
    tried |= {("get", f"/static/{way}{word}") for way in ("", "..%2f", f"{version}/")}
    for method, path in sorted(tried):
        body = {"json": {"kind": "pause"}} if method == "post" else {}
        answer = unchanged.request(method, path, **body)
        assert answer.status_code in (404, 422), f"{path}: {answer.status_code}"
        assert "root:" not in answer.text
    told(unchanged.get(f"{study}/module/graph", params={"groups": "../../etc/passwd"}), 422)
    told(unchanged.get(f"{study}/trials", params={"sort": "../x"}), 400)


def test_a_search_is_not_named_like_a_path(folder):
    with served(DashboardOptions(root=folder, server=ServerOptions(folder))) as client:
        for word in ("../x", "/etc/passwd", "..", "a/b", "a\\b", "", "x" * 65, "a\n"):
            told(client.post("/api/v1/studies", json={"model": "digits", "name": word}), 422)
            told(client.post("/api/v1/studies", json={"model": word, "name": "x"}), 422)
            wish = {"model": "digits", "name": "x", "calib": word}
            told(client.post("/api/v1/studies", json=wish), 422)
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == [".jobs", "digits"]


def test_links_in_a_run_folder_are_not_followed(client, folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "digits" / "report.json").symlink_to(secret)
    told(client.get(f"{client.study}/files/report.json"), 404)


def test_a_study_named_like_a_path_has_no_folder_outside(client, folder, repository):
    from qsearch.dashboard.sources import Sources
    from tests.qsearch.dashboard.stores import new_study

    storage = f"sqlite:///{folder / 'digits' / 'study.db'}"
    for name in ("../elsewhere", "/etc", ".."):
        study = repository.create_study(new_study(name, 1))
        sources = Sources(folder, storage)
        (source,) = sources.all()
        assert sources.run_folder(source, study) is None


def test_a_claim_of_ten_gigabytes_is_refused_at_once(folder):
    with (
        served(DashboardOptions(root=folder, server=ServerOptions(folder))) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as raw,
    ):
        raw.settimeout(240)
        raw.sendall(
            b"POST /api/v1/uploads?kind=onnx HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/octet-stream\r\nContent-Length: 10737418240\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/api/v1/uploads?kind=onnx", "application/octet-stream", 413),
        ("/api/v1/session", "application/json", 413),
        ("/api/v1/session", "text/plain", 415),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_refusal_reaches_a_client_that_reads_only_after_it_has_sent_all(
    folder, path, kind, status, chunked
):
    size = 24 << 20  # more than the buffers of both ends hold
    policy = Policy(max_upload_bytes=100_000)
    with (
        served(
            DashboardOptions(root=folder, server=ServerOptions(folder), policy=policy)
        ) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as raw,
    ):
        raw.settimeout(240)
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{length}\r\n\r\n"
        )
        raw.sendall(head.encode())
        block = b"x" * (1 << 20)
        for _ in range(size >> 20):
            raw.sendall(b"100000\r\n" + block + b"\r\n" if chunked else block)
        if chunked:
            raw.sendall(b"0\r\n\r\n")
        assert raw.recv(4096).startswith(f"HTTP/1.1 {status}".encode())


@pytest.mark.slow
def test_a_client_that_never_ends_its_headers_is_cut_off(folder, monkeypatch):
    monkeypatch.setattr(PromptProtocol, "headers_s", 1.5)
    with served(DashboardOptions(root=folder)) as client:
        place = (client.base_url.host, client.base_url.port)
        with socket.create_connection(place) as silent, socket.create_connection(place) as slow:
            for raw in (silent, slow):
                raw.settimeout(240)
            slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-")
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    slow.sendall(b"a")
                    time.sleep(0.02)
            assert silent.recv(1) == b""
            with contextlib.suppress(ConnectionError):
                assert slow.recv(1) == b""
        with socket.create_connection(place) as kept:
            kept.settimeout(240)
            for _ in range(4):
                kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                told_back = b""
                while not told_back.endswith(b'{"status":"ok"}'):  # head and body may come apart
                    part = kept.recv(4096)
                    assert part, "the connection was cut off"
                    told_back += part
                assert told_back.startswith(b"HTTP/1.1 200")
                time.sleep(0.4)  # together longer than headers may take


def send_slowly(raw):
    for _ in range(3000):
        raw.sendall(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize("request_line", ["POST /api/v1/session", "GET /healthz"])
def test_a_client_that_never_ends_its_body_is_cut_off(folder, monkeypatch, request_line):
    monkeypatch.setattr(PromptProtocol, "body_s", 1.0)
    with served(DashboardOptions(root=folder)) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as slow:
            slow.settimeout(240)
            slow.sendall(
                f"{request_line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 60000\r\n\r\n".encode()
            )
            with pytest.raises(ConnectionError):
                send_slowly(slow)
        assert client.get("/healthz").status_code == 200


def test_a_body_that_claims_no_length_is_counted(folder):
    policy = Policy(max_upload_bytes=100_000)
    with served(
        DashboardOptions(root=folder, server=ServerOptions(folder), policy=policy)
    ) as client:
        kind = {"Content-Type": "application/octet-stream"}
        body = (b"x" * 50_000 for _ in range(4))
        told(client.post("/api/v1/uploads?kind=onnx", content=body, headers=kind), 413)
        json_body = (b" " * 50_000 for _ in range(4))
        headers = {"Content-Type": "application/json"}
        told(client.post("/api/v1/session", content=json_body, headers=headers), 413)
        assert not list((folder / ".uploads").iterdir())


@pytest.mark.slow
def test_45_uploads_at_once_leave_the_threads_of_the_other_routes_free(folder, monkeypatch):
    """Every upload is stopped where it is read; pages are answered none the less."""
    held, reached = threading.Event(), threading.Semaphore(0)

    def wait(*_args, **_more):
        reached.release()
        held.wait(240)
        raise InspectionError("read at last")

    monkeypatch.setattr(Inspection, "ask", wait)
    kind = {"Content-Type": "application/octet-stream"}
    with served(DashboardOptions(root=folder, server=ServerOptions(folder))) as client:
        address = str(client.base_url)

        def send(number):
            path = f"{address}/api/v1/uploads?kind=onnx"
            return httpx.post(path, content=b"x%d" % number, headers=kind, timeout=240)

        with ThreadPoolExecutor(45) as clients:
            sent = [clients.submit(send, number) for number in range(45)]
            reached.acquire(timeout=240)
            for path in ("studies", "me", "jobs", "uploads"):
                assert client.get(f"/api/v1/{path}").status_code == 200
            assert not any(one.done() for one in sent)
            held.set()
            assert {one.result().status_code for one in sent} == {422}


def test_uploads_need_a_server_that_allows_them(unchanged):
    kind = {"Content-Type": "application/octet-stream"}
    told(unchanged.post("/api/v1/uploads?kind=onnx", content=b"x", headers=kind), 403)
    told(unchanged.post("/api/v1/studies", json={"model": "digits", "name": "x"}), 403)


@pytest.mark.slow
def test_a_zip_bomb_for_a_module_is_an_error(client, folder):
    bomb = folder / "digits" / "best.qmod"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tensors/k0.npy", b"\0" * (64 << 20))
    assert bomb.stat().st_size < 1 << 20
    assert "packed" in told(client.get(f"{client.study}/module/graph"), 422)["what"]
    assert client.get("/healthz").status_code == 200


@pytest.mark.slow
def test_what_reads_files_is_bounded(folder):
    """A file that needs more memory than allowed ends its reader, not the server."""
    big = folder / "digits" / "best.qmod"
    with zipfile.ZipFile(big, "w") as archive:
        archive.writestr("module.relay", b"x" * (8 << 20))
    options = DashboardOptions(root=folder, inspection=Inspection(memory_bytes=64 << 20))
    with served(options) as client:
        assert "limits" in told(client.get(f"{client.study}/module/text"), 422)["what"]
    options = DashboardOptions(root=folder, inspection=Inspection(time_s=0.01))
    with served(options) as client:
        assert "longer" in told(client.get(f"{client.study}/module/text"), 422)["what"]


def test_every_answer_carries_the_headers(unchanged):
    for path in ("/", "/api/v1/studies", style_of(unchanged), "/api/v1/nothing", "/healthz"):
        headers = unchanged.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers or "uvicorn" in headers["server"]


def test_the_page_holds_nothing_inline_and_loads_nothing_from_elsewhere():
    static = Path(__file__).parents[3] / "qsearch" / "dashboard" / "static"
    page = (static / "index.html").read_text()
    assert "style=" not in page
    assert "<style" not in page
    for file in static.rglob("*"):
        text = file.read_text() if file.is_file() else ""
        text = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file
        assert "https://" not in text, file
        assert "innerHTML" not in text, file
        assert "insertAdjacentHTML" not in text, file


def test_passwords_of_storages_are_masked(unchanged):
    trial = unchanged.get(f"{unchanged.study}/trials/12").json()
    (log,) = trial["logs"]
    assert log["excerpt"] == "connect postgresql://me:***@db/x failed"
    assert masked("x postgresql://a:p@ss@h/d y") == "x postgresql://a:***@h/d y"
    assert masked(f"sqlite://a:{'p' * 2000}@h/d") == "sqlite://a:***@h/d"
    assert masked("see a://b:c and d@e") == "see a://b:c and d@e"


@pytest.mark.slow
def test_the_server_prints_no_secret(tmp_path):
    environment = os.environ | {
        "QSEARCH_TOKEN": TOKEN,
        "QSEARCH_STORAGE": "postgresql://me:s3cret@127.0.0.1:1/x",
    }
    words = [sys.executable, "-m", "qsearch", "dashboard", "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        port = int(line.split(":")[2].split("/")[0])
        answer = httpx.get(
            f"http://127.0.0.1:{port}/api/v1/studies", headers=bearer(TOKEN), timeout=600
        )
        assert "s3cret" not in json.dumps(told(answer, 503))
    finally:
        process.terminate()
        rest = process.communicate()[0].decode()
    assert TOKEN not in line + rest
    assert "s3cret" not in line + rest
    assert process.returncode == 0


@pytest.mark.slow
def test_another_host_without_a_token_does_not_start(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QSEARCH_TOKEN", raising=False)
    assert run(["dashboard", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "needs a token" in capfd.readouterr().err
