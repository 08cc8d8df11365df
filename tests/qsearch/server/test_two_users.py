"""Every route of the API × whose object it names × who asks; a new route needs an answer here.

The cases come from the OpenAPI document. Ann and Bob may submit, Eve may read; what a path names is
Ann's, Bob's, was never there, or was deleted.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.dashboard.app import DashboardOptions, create_app
from qsearch.dashboard.security import Policy
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import Tokens
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.qsearch.dashboard.server import Client, served
from tests.qsearch.quick import QUICK_SPACE
from tests.qsearch.server.test_api import until

pytestmark = pytest.mark.slow

MODELS = Path(qsearch.__file__).parent / "models"
OPERATOR_TOKEN = "0123456789abcdef"
WHOSE = ("own", "other's", "unknown", "deleted")
WHO = ("read", "submit", "operator")
USERS = {"read": "eve", "submit": "ann", "operator": "operator"}
DOCUMENT = create_app(DashboardOptions()).openapi()

# What an answer depends on ----------------------------------------------------------------------

EVERYBODY = "names nothing of a user: everybody with a token is answered"
SUBMITS = "names nothing of a user: whoever may submit is answered"
SEEN = "everybody with a token sees it, while it is there"
CHANGED = "its owner and the operator change it"
PRIVATE = "only who uploaded it is told of it"
FORGOTTEN = "only who uploaded it forgets it"

ROUTES = {
    "GET /api/v1/jobs": EVERYBODY,
    "GET /api/v1/jobs/{name}": SEEN,
    "POST /api/v1/jobs/{name}/cancel": CHANGED,
    "GET /api/v1/me": EVERYBODY,
    "POST /api/v1/session": EVERYBODY,
    "GET /api/v1/studies": EVERYBODY,
    "POST /api/v1/studies": SUBMITS,
    "GET /api/v1/studies/{key}": SEEN,
    "GET /api/v1/studies/{key}/artifacts/{sha256}": SEEN,
    "POST /api/v1/studies/{key}/commands": CHANGED,
    "POST /api/v1/studies/{key}/delete": CHANGED,
    "GET /api/v1/studies/{key}/events": SEEN,
    "GET /api/v1/studies/{key}/export/{format}": SEEN,
    "GET /api/v1/studies/{key}/failures": SEEN,
    "GET /api/v1/studies/{key}/files/{name}": SEEN,
    "GET /api/v1/studies/{key}/importances": SEEN,
    "GET /api/v1/studies/{key}/layers": SEEN,
    "GET /api/v1/studies/{key}/module/graph": SEEN,
    "GET /api/v1/studies/{key}/module/proof": SEEN,
    "GET /api/v1/studies/{key}/module/text": SEEN,
    "GET /api/v1/studies/{key}/module/times": SEEN,
    "POST /api/v1/studies/{key}/notes": CHANGED,
    "GET /api/v1/studies/{key}/points": SEEN,
    "GET /api/v1/studies/{key}/trials": SEEN,
    "GET /api/v1/studies/{key}/trials/export.csv": SEEN,
    "GET /api/v1/studies/{key}/trials/export.json": SEEN,
    "GET /api/v1/studies/{key}/trials/{number}": SEEN,
    "GET /api/v1/studies/{key}/trials/{number}/histograms": SEEN,
    "GET /api/v1/studies/{key}/trials/{number}/layers": SEEN,
    "POST /api/v1/studies/{key}/tries": CHANGED,
    "GET /api/v1/uploads": EVERYBODY,
    "POST /api/v1/uploads": SUBMITS,
    "GET /api/v1/uploads/{sha256}": PRIVATE,
    "POST /api/v1/uploads/{sha256}/delete": FORGOTTEN,
    "GET /healthz": EVERYBODY,
    "GET /metrics": EVERYBODY,
    "GET /readyz": EVERYBODY,
}
BODIES: dict[str, Any] = {
    "session": {"token": OPERATOR_TOKEN},
    "studies": {"model": "digits", "trials": 1},
    "commands": {"kind": "pause"},
    "tries": {"fields": {"calibrate_mode": "max"}},
    "notes": {"note": "fine", "tags": ["x"]},
}


def described() -> list[str]:
    return [f"{verb.upper()} {path}" for path, told in DOCUMENT["paths"].items() for verb in told]


def expected(route: str, whose: str, who: str) -> int:
    """The status: 2 stands for any success."""
    kind, reads = ROUTES[route], who == "read"
    there = whose in ("own", "other's")
    if kind == SUBMITS or (kind in (CHANGED, FORGOTTEN) and reads):
        return 403 if reads else 2
    if kind == EVERYBODY or (kind == SEEN and there):
        return 2
    if kind == CHANGED and there:
        return 2 if whose == "own" or who == "operator" else 403
    if kind in (PRIVATE, FORGOTTEN) and whose == "own" and who == "submit":
        return 2
    return 400 if kind == FORGOTTEN else 404


# A server with two users ------------------------------------------------------------------------


@dataclass(slots=True)
class Place:
    """A server that starts no study, and what its users have on it."""

    http: Client
    options: ServerOptions
    tokens: dict[str, str]
    run: Path
    artifact: str
    count: Iterator[int] = field(default_factory=itertools.count)

    def headers(self, user: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[user]}"}

    def upload(self, user: str, data: bytes) -> str:
        headers = self.headers(user) | {"Content-Type": "application/octet-stream"}
        answer = self.http.post("/api/v1/uploads?kind=onnx", content=data, headers=headers)
        return str(answer.json()["upload"])

    def study(self, user: str, *, waits: bool = False, **settings: Any) -> tuple[str, str]:
        """A job of a user, waiting or done with a run folder; name and key of the study."""
        name = f"s{next(self.count)}"
        wish = {"model": "digits", "trials": 2, "name": name, **settings}
        answer = self.http.post("/api/v1/studies", json=wish, headers=self.headers(user))
        assert answer.status_code == 201, answer.text
        if waits:
            return name, ""
        folder = self.options.folder(name)
        shutil.copytree(self.run, folder.path)
        store = open_engine(f"sqlite:///{folder.database}")
        with store.begin() as connection:
            connection.exec_driver_sql("UPDATE qs_study SET name = ?", (name,))
        store.dispose()
        queue = Repository(open_engine(self.options.queue_url))
        (job,) = queue.jobs((self.options.jobs / "server").read_text(), name=name)
        queue.start_job(job.id)
        queue.end_job(job.id, "done", 0)
        queue.close()
        found = self.http.get(f"/api/v1/jobs/{name}", headers=self.headers(user)).json()
        return name, str(found["study"])

    def gone(self, user: str) -> tuple[str, str]:
        """A study that its user deleted."""
        name, key = self.study(user)
        path = f"/api/v1/studies/{key}/delete"
        answer = self.http.post(path, json={"name": name}, headers=self.headers(user))
        assert answer.status_code == 204, answer.text
        return name, key


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("server")
    run = tmp_path_factory.mktemp("run") / "digits"
    qsearch.launch("digits", trials=1, pool="inline", out=run, space=QUICK_SPACE)
    store = Repository(open_engine(f"sqlite:///{run / 'study.db'}"))
    artifact = store.artifacts_of(1)[0].sha256
    store.close()
    tokens = Tokens(root / "tokens.json")
    given = {"eve": tokens.add("eve", "read"), "operator": OPERATOR_TOKEN}
    given |= {name: tokens.add(name, "submit") for name in ("ann", "bob")}
    options = ServerOptions(root, max_studies=0)
    policy = Policy(token=OPERATOR_TOKEN, tokens=tokens)
    with served(DashboardOptions(root, None, policy, options)) as http:
        yield Place(http, options, given, run, artifact)


@pytest.fixture(scope="module")
def seen(place: Place) -> dict[str, tuple[str, str]]:
    """Studies that are looked at only, by whose they are."""
    return {
        "own": place.study("ann"),
        "other's": place.study("bob"),
        "unknown": ("never", "00000000-1"),
        "deleted": place.gone("ann"),
    }


def named(
    place: Place, seen: dict[str, tuple[str, str]], route: str, whose: str
) -> tuple[str, str, str]:
    """Name, key and sha256 of what the path of a route names; fresh where it is changed."""
    name, key = seen[whose]
    user = "bob" if whose == "other's" else "ann"
    if ROUTES[route] == CHANGED and whose in ("own", "other's"):
        name, key = place.study(user, waits="/jobs/" in route)
    if "{key}" in route:
        return name, key, place.artifact
    sha256 = "0" * 64
    if "{sha256}" in route and whose != "unknown":
        data = (MODELS / "digits_cnn.onnx").read_bytes()
        # Another file for each case: one of equal content is stored once.
        marked = data + b"\x32" + bytes([8]) + b"%08d" % next(place.count)
        sha256 = place.upload(user, marked)
        if whose == "deleted":
            path = f"/api/v1/uploads/{sha256}/delete"
            place.http.post(path, json={}, headers=place.headers(user))
    return name, key, sha256


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("route", described())
def test_every_route_answers_every_user_as_its_kind_says(
    place: Place, seen: dict[str, tuple[str, str]], route: str, whose: str
) -> None:
    assert route in ROUTES, f"say in ROUTES who may ask {route}"
    method, path = route.split()
    for who in WHO:
        name, key, sha256 = named(place, seen, route, whose)
        file = "best.qmod" if "/files/" in path else name
        told = path.format(key=key, name=file, sha256=sha256, number=0, format="c")
        told += "?kind=onnx" if "uploads" in path else ""
        headers = place.headers(USERS[who])
        more: dict[str, Any] = {}
        if method == "POST":
            more = {"json": BODIES.get(path.rpartition("/")[2], {})}
        if path.endswith("/{key}/delete"):
            more = {"json": {"name": name}}
        if route == "POST /api/v1/uploads":
            more = {"content": (MODELS / "digits_cnn.onnx").read_bytes()}
            headers |= {"Content-Type": "application/octet-stream"}
        with place.http.stream(method, told, headers=headers, **more) as answer:
            status = answer.status_code
            body = "" if path.endswith("stream") else answer.read()
        place.http.cookies.clear()
        wanted = expected(route, whose, who)
        assert wanted in (status, status // 100), f"{who}, {told}: {status} {body!r}"


def test_the_table_names_no_route_that_is_gone() -> None:
    assert set(ROUTES) == set(described())


def test_no_answer_tells_the_hash_of_an_upload_of_another_user(place: Place) -> None:
    model = place.upload("ann", (MODELS / "digits_cnn.onnx").read_bytes() + b"\x32\x01a")
    name, key = place.study("ann", model=f"{model}.onnx")
    store = open_engine(f"sqlite:///{place.options.folder(name).database}")
    with store.begin() as connection:
        connection.exec_driver_sql("UPDATE qs_study SET model_sha256 = ?", (model,))
    store.dispose()
    paths = [path for path, told in DOCUMENT["paths"].items() if "get" in told]
    assert len(paths) > 20
    for user, shown in (("bob", False), ("eve", False), ("ann", True)):
        texts = ""
        for path in paths:
            if path.endswith(("stream", "{sha256}", "{format}", "times", "{name}")):
                continue  # streams, files, and what names a hash itself
            told = path.format(key=key, name=name, number=0)
            texts += place.http.get(told, headers=place.headers(user)).text
        texts += place.http.get(f"/api/v1/jobs/{name}", headers=place.headers(user)).text
        assert (model in texts) is shown, user


def test_no_answer_tells_another_user_paths_of_the_server_or_names_of_uploads(
    place: Place,
) -> None:
    model = place.upload("ann", (MODELS / "digits_cnn.onnx").read_bytes() + b"\x32\x01b")
    files = {"model": "private name.onnx"}
    name, key = place.study("ann", model=f"{model}.onnx", files=files)
    paths = [path for path, told in DOCUMENT["paths"].items() if "get" in told]
    for user, shown in (("bob", False), ("eve", False), ("ann", True)):
        texts = ""
        for path in paths:
            if path.endswith(("stream", "{sha256}", "{format}", "times", "best.qmod")):
                continue
            told = path.format(key=key, name="report.json", number=0)
            texts += place.http.get(told, headers=place.headers(user)).text
        texts += place.http.get(f"/api/v1/jobs/{name}", headers=place.headers(user)).text
        assert ("private name" in texts) is shown, user
        if not shown:
            assert str(place.run) not in texts, "the report names the folder of its run"
        assert str(place.options.root) not in texts, user


def test_rights_follow_the_folder_of_a_study_and_not_its_name(place: Place) -> None:
    """Bob submits under the name of the operator's study, whose run folder was renamed."""
    secret = place.options.root / "renamed"
    shutil.copytree(place.run, secret)
    name = f"s{next(place.count)}"
    store = open_engine(f"sqlite:///{secret / 'study.db'}")
    with store.begin() as connection:
        connection.exec_driver_sql("UPDATE qs_study SET name = ?", (name,))
    store.dispose()
    headers = place.headers("bob")
    wish = {"model": "digits", "trials": 1, "name": name}
    assert place.http.post("/api/v1/studies", json=wish, headers=headers).status_code == 201
    place.http.post(f"/api/v1/jobs/{name}/cancel", json={}, headers=headers)
    listed = place.http.get("/api/v1/studies?limit=100", headers=headers).json()["studies"]
    (key,) = (study["key"] for study in listed if study["name"] == name)
    assert not place.http.get(f"/api/v1/studies/{key}", headers=headers).json()["can_change"]
    for what, body in (("delete", {"name": name}), ("commands", {"kind": "stop"}), ("notes", {})):
        answer = place.http.post(f"/api/v1/studies/{key}/{what}", json=body, headers=headers)
        assert answer.status_code == 403, what
    assert (secret / "study.db").is_file()


@pytest.mark.parametrize(
    "name",
    [
        *("queue.db", "queue.db-journal", "queue.db-wal", "tokens.json", "studies", "jobs"),
        *("server.lock", "study.db", "best.qmod", "config.resolved.yaml"),
    ],
)
def test_a_study_of_any_name_leaves_the_files_of_the_server_alone(place: Place, name: str) -> None:
    def files() -> set[str]:
        return {path.name for path in place.options.root.iterdir()}

    before = files()
    wish = {"model": "digits", "trials": 1, "name": name}
    answer = place.http.post("/api/v1/studies", json=wish, headers=place.headers("bob"))
    assert answer.status_code == 201
    place.options.folder(name).path.mkdir()
    assert files() == before
    for who in ("bob", "operator"):
        assert place.http.get("/api/v1/studies", headers=place.headers(who)).status_code == 200
        assert place.http.get("/api/v1/jobs", headers=place.headers(who)).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        *(
            "con",
            "AUX.onnx",
            "nul.tar.gz",
            "com1",
            "LPT9.x",
            "a.",
            "a ",
            " a",
            ".",
            "..",
            ".hidden",
        ),
        *("a/b", "a\\b", "C:x", "a\n", "a\0", "é", "e\u0301", "a\u202eb", "\uff0e\uff0e", "x" * 65),
    ],
)
def test_a_name_that_is_no_plain_folder_is_refused(place: Place, name: str) -> None:
    wish = {"model": "digits", "trials": 1, "name": name}
    answer = place.http.post("/api/v1/studies", json=wish, headers=place.headers("bob"))
    assert answer.status_code in (400, 422)
    assert answer.json()["fix"]


def test_a_link_below_the_studies_leads_nowhere(place: Place, tmp_path: Path) -> None:
    (place.options.studies / "linked").symlink_to(tmp_path)
    wish = {"model": "digits", "trials": 1, "name": "linked"}
    answer = place.http.post("/api/v1/studies", json=wish, headers=place.headers("bob"))
    assert answer.status_code == 400
    (place.options.studies / "linked").unlink()


def test_a_note_has_an_author_and_the_newest_one_is_all_that_is_kept(place: Place) -> None:
    _name, key = place.study("ann")
    path, headers = f"/api/v1/studies/{key}", place.headers("ann")
    for n in range(5):
        note = {"note": f"note {n}", "tags": ["x"]}
        assert place.http.post(f"{path}/notes", json=note, headers=headers).status_code == 204

    def shown() -> tuple[str, str]:
        found = place.http.get(path, headers=place.headers("bob")).json()
        return found["note"], found["note_by"]

    until(lambda: shown() == ("note 4", "ann"))
    events = place.http.get(f"{path}/events", headers=headers).json()
    assert [event["data"]["note"] for event in events if event["kind"] == "note"] == ["note 4"]
    for bad in ("x" * 4001, "\x1b[31m", "a\u202eb", "\0"):
        refused = place.http.post(f"{path}/notes", json={"note": bad}, headers=headers)
        assert refused.status_code == 422, bad
    place.http.post(f"{path}/notes", json={"note": "mine"}, headers=place.headers("operator"))
    until(lambda: shown() == ("mine", "operator"))
