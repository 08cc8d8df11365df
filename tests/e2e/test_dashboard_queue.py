"""The form of a new search and the queue in a browser: as a user, as a reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.security import Policy
from qsearch.server.submission import ServerOptions
from qsearch.server.tokens import Tokens
from qsearch.store.engine import open_engine
from qsearch.store.records import Failure, Study
from qsearch.store.repository import Repository
from tests.e2e.browser import NEEDS_CHROMIUM, flaws, watched_page
from tests.qsearch.dashboard.server import Client, served
from tests.qsearch.dashboard.stores import fill, new_study

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]

MODEL = Path(qsearch.__file__).parent / "models" / "digits_cnn.onnx"


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


@pytest.fixture
def client(tokens: Tokens) -> Iterator[Client]:
    """A server of which everybody needs a token, and that starts nothing."""
    root = tokens.path.parent
    tokens.add("bob", "submit")
    server = ServerOptions(root, max_studies=0, workers=2, pools=("process", "ray"))
    with served(DashboardOptions(root, policy=Policy(tokens=tokens), server=server)) as asking:
        yield asking


def study_of(tokens: Tokens, name: str, why: Failure | None = None) -> tuple[Repository, Study]:
    """The database and the study of a job, as a driver leaves them that ran it."""
    server = ServerOptions(tokens.path.parent)
    queue = Repository(open_engine(server.queue_url))
    (job,) = queue.jobs((server.jobs / "server").read_text(), name=name)
    assert queue.start_job(job.id)
    queue.end_job(job.id, "failed" if why else "done", 2 if why else 0, why)
    queue.close()
    folder = server.folder(name)
    folder.path.mkdir(parents=True, exist_ok=True)
    store = Repository(open_engine(f"sqlite:///{folder.database}"))
    return store, store.create_study(new_study(name, job.trials))


def test_a_user_queues_and_cancels_and_a_reader_sees_no_form(
    client: Client, tokens: Tokens, browser: Any
) -> None:
    ann = tokens.add("ann", "submit", 3)
    qsearch.Client(str(client.base_url), token=tokens.add("bob", "submit")).submit(
        "digits", study="theirs"
    )
    page, errors = watched_page(browser)
    page.goto(f"{client.base_url}/launch#token={ann}")
    text = {"name": "My text.onnx", "mimeType": "text/plain", "buffer": b"hello"}
    page.locator("#model").set_input_files(text)
    page.get_by_role("button", name="Queue the search").click()
    page.get_by_role("alert").get_by_text("My text.onnx").wait_for()
    errors.clear()  # the browser logs the refused request
    page.locator("#model").set_input_files(MODEL)
    page.locator("#preset").select_option("small")
    assert page.locator("#trials").input_value() == "64"
    page.locator("#size").fill("300k")
    page.locator("#until").fill("gemm_0; conv_1")
    page.locator("#latency").fill("5")
    page.locator("#pool").select_option("ray")
    assert page.get_by_text("3 of your studies may wait or run").count() == 1
    assert flaws(page, "form") == []
    page.get_by_role("button", name="Queue the search").click()
    row = page.locator("[data-job=digits_cnn]")
    row.wait_for()
    assert "2" in row.locator("td").first.inner_text(), "users take turns"
    job = qsearch.Client(str(client.base_url), token=ann).job("digits_cnn")
    asked = {name: job["settings"][name] for name in ("minimize", "max_size", "at_most", "until")}
    limits = {"max_size": "300k", "at_most": {"latency": 5}}
    assert asked == {"minimize": ["size"], **limits, "until": ["gemm_0", "conv_1"]}
    assert (job["settings"]["pool"], job["trials"]) == ("ray", 64)
    assert page.locator("[data-job=theirs] button").count() == 0, "another user's"
    assert flaws(page, "queue") == []
    row.get_by_label("Cancel digits_cnn").click()
    page.get_by_role("button", name="Cancel the search").click()
    row.get_by_text("cancelled").wait_for()
    why = Failure("sample 3 holds nan", "val.npz", "repair it")
    qsearch.Client(str(client.base_url), token=ann).submit("digits", study="bad")
    study_of(tokens, "bad", why)[0].close()
    for words in (why.what, why.where, why.fix):
        page.locator("[data-job=bad]").get_by_text(str(words)).wait_for()
    # One that ran: so many of its trials are done, and more while the page is open.
    store, study = study_of(tokens, "theirs")
    fill(store, study, 3)
    done = page.locator("[data-job=theirs] td").nth(4)
    done.get_by_text("3 / 32").wait_for()
    fill(store, study, 2, first=3)
    done.get_by_text("5 / 32").wait_for()
    store.close()
    page.locator("[data-job=theirs]").get_by_role("link", name="theirs").click()
    page.locator("tr[data-trial]").first.wait_for()
    assert errors == []
    reading, errors = watched_page(browser)
    eve = tokens.add("eve", "read")
    reading.goto(f"{client.base_url}/launch#token={eve}")
    reading.get_by_text("Your token may read, and start nothing.").wait_for()
    assert reading.locator("form").count() == 0
    reading.goto(f"{client.base_url}/queue")
    reading.locator("[data-job=theirs]").wait_for()
    assert reading.locator("[data-job] button").count() == 0
    assert reading.get_by_role("link", name="New search").count() == 0
    assert errors == []
