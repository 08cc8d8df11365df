"""The API of a server and its client: what each asks stands in the OpenAPI document."""

from __future__ import annotations

import errno
import io
import json
import re
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

import qsearch
from compiler.errors import OnnxImportError
from qsearch.dashboard.app import DashboardOptions, create_app
from qsearch.dashboard.schemas import API_VERSION
from qsearch.dashboard.security import Policy
from qsearch.errors import SettingsError
from qsearch.opening.model_file import find_model
from qsearch.opening.open_model import DataSource, open_model
from qsearch.server.connection import Connection, ServerError, UnreachableError
from qsearch.server.submission import SUBMITTED, ServerOptions
from qsearch.server.tokens import Tokens
from qsearch.server.uploads import LEAST_FREE_BYTES, Uploads
from tests.qsearch.dashboard.server import Client as Http
from tests.qsearch.dashboard.server import served

MODELS = Path(qsearch.__file__).parent / "models"
RECORDED = Path(__file__).parent / "api.txt"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("runs") / "tokens.json")


@pytest.fixture(scope="module")
def users(tokens: Tokens) -> dict[str, str]:
    return {
        "ann": tokens.add("ann", "submit", 3),
        "bob": tokens.add("bob", "submit"),
        "eve": tokens.add("eve", "read"),
    }


@pytest.fixture(scope="module")
def http(tokens: Tokens, users: dict[str, str]) -> Iterator[Http]:
    """A server that starts no study, of which everybody needs a token."""
    root = tokens.path.parent
    policy = Policy(tokens=tokens, max_upload_bytes=1 << 20)
    options = DashboardOptions(root, None, policy, ServerOptions(root, max_studies=0))
    with served(options) as asking:
        yield asking


@pytest.fixture(scope="module")
def ann(http: Http, users: dict[str, str]) -> qsearch.Client:
    return qsearch.Client(str(http.base_url), token=users["ann"])


# The document -----------------------------------------------------------------------------------


def described(document: dict[str, Any]) -> str:
    """Paths with their parameters, and schemas with their fields; ``*`` marks required ones."""
    lines = [f"version {document['info']['version']}"]
    for path, methods in sorted(document["paths"].items()):
        for method, told in sorted(methods.items()):
            names = [f"{p['name']}{'*' * p['required']}" for p in told.get("parameters", ())]
            lines.append(f"{method.upper()} {path} {' '.join(names)}".rstrip())
    for name, schema in sorted(document["components"]["schemas"].items()):
        needed = schema.get("required", ())
        fields = [f"{each}{'*' * (each in needed)}" for each in schema.get("properties", ())]
        lines.append(f"{name}: {' '.join(fields)}")
    return "\n".join(lines) + "\n"


def test_the_document_is_the_recorded_one_of_its_version() -> None:
    document = create_app(DashboardOptions()).openapi()
    assert described(document) == RECORDED.read_text(), (
        f"the API changed: raise API_VERSION ({API_VERSION}) in dashboard/schemas.py and write "
        "tests/qsearch/server/api.txt anew (python -m tests.qsearch.server.test_api)"
    )


@pytest.mark.slow
def test_all_that_the_client_asks_and_gets_is_described(
    http: Http, ann: qsearch.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = create_app(DashboardOptions()).openapi()
    asked: list[tuple[str, str, Any]] = []
    ask = Connection.ask

    def recorded(self: Connection, path: str, body: Any = None) -> Any:
        answer = ask(self, path, body)
        asked.append(("get" if body is None else "post", path.partition("?")[0], (body, answer)))
        return answer

    monkeypatch.setattr(Connection, "ask", recorded)
    job = ann.submit(MODELS / "digits_cnn.onnx", calib=MODELS / "digits_calib.npz", study="asked")
    ann.queue(), ann.job("asked"), ann.uploads(), ann.me(), ann.studies()
    ann.cancel("asked")
    ann.forget_upload(job["settings"]["model"].partition(".")[0])
    for method, path, (body, answer) in asked:
        found = [
            told[method]
            for template, told in document["paths"].items()
            if method in told
            and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), f"/api/v1{path}")
        ]
        assert found, f"{method} {path} is not in the document"
        good = next(
            found[0]["responses"][code]
            for code in ("200", "201", "204")
            if code in found[0]["responses"]
        )
        if answer is not None:
            schema = {
                **good["content"]["application/json"]["schema"],
                "components": document["components"],
            }
            jsonschema.validate(answer, schema)
        if body:
            schema = found[0]["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(body, {**schema, "components": document["components"]})
    assert {path for _, path, _ in asked} >= {"/me", "/studies", "/jobs", "/jobs/asked", "/uploads"}


def test_the_command_takes_what_a_server_takes() -> None:
    from qsearch.cli.queue import submit_command

    flags = {option for param in submit_command().params for option in param.opts}
    assert {f"--{name.replace('_', '-')}" for name in SUBMITTED} <= flags


# Uploads ----------------------------------------------------------------------------------------


def zipped(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name) if name else zipfile.ZipInfo("x")
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def picture() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (10, 20, 30)).save(out, "PNG")
    return out.getvalue()


def link() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("0/a.png")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    return out.getvalue()


def sent(http: Http, token: str, kind: str, data: bytes) -> Any:
    headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {token}"}
    return http.post(f"/api/v1/uploads?kind={kind}", content=data, headers=headers)


@pytest.mark.parametrize(
    "data",
    [
        b"no zip",
        zipped(),
        zipped(("../a.png", picture())),
        zipped(("/tmp/a.png", picture())),
        zipped(("0/../../a.png", picture())),
        zipped(("0\\..\\a.png", picture())),
        zipped(("0/.hidden.png", picture())),
        zipped(("0/run.py", b"print()")),
        zipped(("a/" * 20 + "a.png", picture())),
        zipped(("0/a.png", picture()), ("0/b.png", picture())).replace(b"b.png", b"a.png"),
        link(),
        zipped(("0/a.png", picture()))[:-30],
        zipped(("0/a\u202egnp.png", picture())),
        zipped(("0/a\x1b[31m.png", picture())),
        zipped(("0/a\n.png", picture())),
        zipped(("0 /a.png", picture())),
        zipped(("0./a.png", picture())),
        zipped(("con/a.png", picture())),
        zipped(("0/NUL.png", picture())),
        zipped(("\u00e9/a.png", picture()), ("e\u0301/b.png", picture())),
    ],
    ids=range(20),
)
def test_archives_that_lead_elsewhere_are_refused_whole(
    http: Http, users: dict[str, str], tokens: Tokens, data: bytes
) -> None:
    before = sorted(tokens.path.parent.parent.rglob("*.png"))
    answer = sent(http, users["ann"], "zip", data)
    assert answer.status_code == 422, answer.text
    assert answer.json()["fix"]
    assert sorted(tokens.path.parent.parent.rglob("*.png")) == before
    uploads = tokens.path.parent / ".uploads"
    assert not list(uploads.glob(".part-*"))


def test_an_archive_that_claims_too_much_is_refused_unread(
    http: Http, users: dict[str, str]
) -> None:
    data = bytearray(zipped(("0/a.png", b"\0" * 1000)))
    place = data.rindex(b"PK\1\2") + 24  # size of the member, in the directory at the end
    data[place : place + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    entry = bytes(data[data.rindex(b"PK\1\2") : data.rindex(b"PK\5\6")])
    end = bytearray(data[data.rindex(b"PK\5\6") :])
    many = 3
    end[8:10] = end[10:12] = many.to_bytes(2, "little")
    end[12:16] = (many * len(entry)).to_bytes(4, "little")
    answer = sent(
        http, users["ann"], "zip", bytes(data[: data.rindex(b"PK\1\2")]) + entry * many + bytes(end)
    )
    assert answer.status_code == 422
    assert "more than is allowed" in answer.json()["what"]


def test_what_an_archive_unpacks_to_is_measured_before_it_is_unpacked(
    http: Http, users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = zipped(("0/a.png", b"\0" * (8 << 20)))
    assert len(bomb) < 20_000
    free = SimpleNamespace(free=LEAST_FREE_BYTES + (1 << 20))
    monkeypatch.setattr("qsearch.server.uploads.shutil.disk_usage", lambda _: free)
    monkeypatch.setattr(Uploads, "unpacked", lambda _: pytest.fail("it was unpacked"))
    answer = sent(http, users["bob"], "zip", bomb)
    assert answer.status_code == 507, answer.text
    assert answer.json()["what"] == "the disk of the server is full"


def external(place: str) -> bytes:
    """A model one of whose tensors lies in another file: that of somebody else's upload."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=f"{'0' * 64}.npz")
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    here, there = (helper.make_tensor_value_info(n, 1, [1, 4]) for n in "xy")
    inner = helper.make_graph([constant, helper.make_node("Add", ["x", "w"], ["z"])], "i", [], [])
    inner.output.append(helper.make_tensor_value_info("z", 1, [1, 4]))
    body = helper.make_function(
        "own", "F", ["x"], ["y"], [constant, add], [helper.make_opsetid("", 13)]
    )
    calls = {
        "branch": helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        "function": helper.make_node("F", ["x"], ["y"], domain="own"),
        "attribute": add,
    }
    nodes = [constant, add] if place == "attribute" else [calls.get(place, add)]
    graph = helper.make_graph(nodes, "g", [here], [there])
    if place == "branch":
        graph.input.append(helper.make_tensor_value_info("c", 9, []))
    if place == "initializer":
        graph.initializer.append(tensor)
    if place == "sparse":
        sparse = onnx.SparseTensorProto(values=tensor, dims=[4])
        graph.sparse_initializer.append(sparse)
    functions = [body] if place == "function" else []
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=functions, opset_imports=opsets)
    model.ir_version = 7  # ONNX's checker looks at no function of such a model
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("place", ["initializer", "attribute", "branch", "function", "sparse"])
def test_a_model_that_reads_another_file_is_refused_wherever_it_says_so(
    http: Http, users: dict[str, str], place: str
) -> None:
    answer = sent(http, users["ann"], "onnx", external(place))
    assert answer.status_code == 422, answer.text
    assert answer.json()["what"] == "the model refers to other files"


def test_an_upload_is_imported_without_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / f"{'0' * 64}.npz").write_bytes(np.zeros(4, np.float32).tobytes())
    model = tmp_path / "m.onnx"
    model.write_bytes(external("function"))
    source = find_model(model)
    assert open_model(source, DataSource()) is not None
    with pytest.raises(OnnxImportError, match="given as bytes"):
        open_model(replace(source, alone=True), DataSource())


@pytest.mark.parametrize(
    ("path", "body", "what", "where", "fix"),
    [
        ("/studies", {"stem": "/"}, "not '/'", "body.stem", "give a text that matches"),
        ("/session", {}, "required", "body.token", "add token"),
        ("/session", {"token": "a", "x": 2}, "not permitted", "body.x", "leave out x"),
        ("/jobs?ended=5000", None, "not '5000'", "query.ended", "give at most 1000"),
    ],
    ids=["no name", "missing", "unknown", "in the address"],
)
def test_a_value_that_the_api_does_not_take_is_told_with_those_that_it_takes(
    ann: qsearch.Client, path: str, body: Any, what: str, where: str, fix: str
) -> None:
    with pytest.raises(ServerError) as caught:
        ann._server.ask(path, body)
    error = caught.value
    assert what in error.what
    assert error.where == where
    assert fix in str(error.fix)


def test_a_client_that_goes_away_in_an_upload_leaves_no_part_and_no_traceback(
    http: Http, users: dict[str, str], tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    uploads = tokens.path.parent / ".uploads"
    lines = (
        "POST /api/v1/uploads?kind=onnx HTTP/1.1",
        f"Host: 127.0.0.1:{http.base_url.port}",
        f"Authorization: Bearer {users['ann']}",
        "Content-Type: application/octet-stream",
        "Content-Length: 1000000",
    )
    head = "\r\n".join((*lines, "", "")).encode()
    with socket.create_connection(("127.0.0.1", int(http.base_url.port or 0))) as client:
        client.sendall(head + b"x" * 1000)
        until(lambda: bool(list(uploads.glob(".part-*"))))
    until(lambda: not list(uploads.glob(".part-*")))
    http.get("/api/v1/me", headers={"Authorization": f"Bearer {users['ann']}"})
    assert [one.message for one in caplog.records if one.name == "uvicorn.error"] == []


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_folder_of_images_is_sent_once_and_counted_unpacked(
    http: Http, users: dict[str, str], ann: qsearch.Client, tmp_path: Path
) -> None:
    for name in ("0/a.png", "1/b.png", "notes.txt", ".cache/c.png"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())
    job = ann.submit(MODELS / "digits_cnn.onnx", eval=tmp_path / "images", study="images")
    sha256, _, kind = job["settings"]["eval"].partition(".")
    (found,) = (each for each in ann.uploads() if each["upload"] == sha256)
    assert (kind, found["bytes"]) == ("zip", 2 * len(picture()))
    again = ann.submit(MODELS / "digits_cnn.onnx", eval=tmp_path / "images", study="images")
    assert again["created_at"] == job["created_at"]
    with pytest.raises(ServerError, match="needs this file"):
        ann.forget_upload(sha256)


def test_arrays_and_a_model_in_memory_are_sent_as_launch_takes_them(ann: qsearch.Client) -> None:
    given = np.load(MODELS / "digits_dev.npz")
    name = next(each for each in given.files if each != "labels")
    data = {name: given[name], "labels": given["labels"]}
    model = (MODELS / "digits_cnn.onnx").read_bytes()
    job = ann.submit(
        model, eval=data, study="arrays", space={"fields": {"calibrate_mode": ["mse"]}}
    )
    assert job["settings"]["eval"].endswith(".npz")
    assert job["settings"]["files"] == {"model": "model.onnx"}
    assert job["settings"]["space"] == {"fields": {"calibrate_mode": ["mse"]}}


def test_a_full_disk_is_told_and_nothing_is_left(
    http: Http,
    users: dict[str, str],
    ann: qsearch.Client,
    tokens: Tokens,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_args: Any, **_more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    data = tmp_path / "big.npz"
    data.write_bytes(b"x" * 500_000)  # more than a socket holds: it is read to its end
    monkeypatch.setattr("qsearch.server.uploads.os.fdopen", full)
    with pytest.raises(ServerError, match="disk of the server is full") as refused:
        ann.upload(data)
    assert refused.value.status == 507
    assert not list((tokens.path.parent / ".uploads").glob(".part-*"))


# Users ------------------------------------------------------------------------------------------


def test_a_reader_sees_everything_and_changes_nothing(http: Http, users: dict[str, str]) -> None:
    reading = {"Authorization": f"Bearer {users['eve']}"}
    assert http.get("/api/v1/jobs", headers=reading).status_code == 200
    page = http.get("/api/v1/studies", headers=reading).json()
    assert (page["allow_launch"], page["has_queue"]) == (False, True)
    for path in ("studies", "jobs/x/cancel", f"uploads/{'0' * 64}/delete"):
        answer = http.post(f"/api/v1/{path}", json={}, headers=reading)
        assert answer.status_code == 403, path
        assert answer.json()["what"] == "your token may read, and change nothing"
    assert http.get("/api/v1/jobs").status_code == 401


def test_a_cookie_stands_for_a_users_token(http: Http, users: dict[str, str]) -> None:
    assert http.post("/api/v1/session", json={"token": "qs_no"}).status_code == 401
    assert http.post("/api/v1/session", json={"token": users["eve"]}).status_code == 204
    try:
        assert http.get("/api/v1/me").json()["name"] == "eve"
        answer = http.post("/api/v1/jobs/x/cancel", json={})
        assert answer.status_code == 403
    finally:
        http.cookies.clear()


def test_a_server_for_others_needs_a_token_that_somebody_has(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs a token"):
        Policy(host="0.0.0.0", tokens=Tokens(tmp_path / "tokens.json"))
    tokens = Tokens(tmp_path / "tokens.json")
    given = tokens.add("ann", "read")
    policy = Policy(host="0.0.0.0", tokens=tokens)
    tokens.path.unlink()
    assert policy.asks_token
    assert policy.user_of_token(given) is None


def test_what_is_no_server_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="does not answer"):
        qsearch.Client("http://127.0.0.1:1").queue()
    for address in ("ftp://x", "http://", "http://x:notaport"):
        with pytest.raises(SettingsError, match="no address of a server"):
            qsearch.Client(address)


if __name__ == "__main__":
    RECORDED.write_text(described(create_app(DashboardOptions()).openapi()))
    print(json.dumps({"written": str(RECORDED)}))
