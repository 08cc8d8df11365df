"""Words of strangers on every page: a study, a model, an error, a node. Nothing of it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.security import Policy
from qsearch.store.engine import open_engine
from qsearch.store.records import Ended, Failure, LayerFigures, Outcome, Stage
from qsearch.store.repository import Repository
from tests.e2e.browser import NEEDS_CHROMIUM, flaws, watched_page
from tests.qsearch.dashboard.server import served
from tests.qsearch.dashboard.stores import fill, new_study, new_trial

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]

TOKEN = "a-token-that-nobody-guesses"


def evil(where: str) -> str:
    """A name that would run if it were ever markup."""
    return f"<img src=x onerror=\"window.pwned='{where}'\"><script>pwned=1</script>'{where}'"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    repository = Repository(open_engine(f"sqlite:///{run / 'study.db'}"))
    new = new_study(evil("study"), 20, evil("model"))
    study = repository.create_study(new)
    repository.save_baseline(study.id, {"top1": 0.96, evil("metric"): 1.0})
    fill(repository, study, 12)
    trial = replace(new_trial(12), params={evil("parameter"): evil("value")}, stage=evil("stage"))
    (queued,) = repository.add_trials(study.id, [trial])
    failure = Failure(evil("error"), evil("where"), evil("fix"))
    failed = Outcome("failed", None, failure=failure)
    repository.finish_trials(study.id, [Ended(queued, failed, (), evil("log"))])
    trial = replace(new_trial(13), params={evil("parameter"): evil("other")})
    (queued,) = repository.add_trials(study.id, [trial])
    score = {"top1": 0.9, evil("metric"): 1.0, "agreement": 1.0, "sqnr_db": 3.0}
    repository.finish_trials(study.id, [Ended(queued, Outcome("complete", score, 8))])
    repository.save_stage(study.id, Stage(evil("stage"), 0, "running"))
    repository.save_stage(study.id, Stage("global", 1, "running"))
    repository.save_layers(study.id, [LayerFigures("sensitivity", evil("layer"), 0, {"db": 1.0})])
    repository.join(study.id, evil("driver"), "test", 1)
    repository.set_study_state(study.id, "stopped", evil("stopped"))
    repository.close()
    return run.parent


def graph() -> str:
    """A drawing whose every text is hostile."""
    detail = {"text": evil("text"), "type": evil("type"), "source": evil("node")}
    place = {"x": 0, "y": 0, "width": 100, "height": 60}
    row = {"title": evil("row"), "detail": detail}
    box = {"key": 1, "title": evil("box"), "subtitle": evil("sub"), "kind": "float"}
    boxes = [{**place, **box, "detail": detail, "rows": [row]}]
    edges = [{"path": "M0 0L1 1", "label": evil("edge"), "quantized": False}]
    frame = {"title": evil("title"), "part": "prefix", "width": 100, "height": 60}
    return json.dumps({"groups": "none", "frames": [{**frame, "boxes": boxes, "edges": edges}]})


def test_hostile_words_are_shown_as_text(hostile: Path, browser: Any) -> None:
    page, errors = watched_page(browser)
    with served(DashboardOptions(root=hostile)) as client:
        url, key = str(client.base_url).rstrip("/"), client.key
        page.route("**/module/graph*", lambda r: r.fulfill(body=graph()))
        shown = {
            "/": "'study'",
            f"/studies/{key}": "'error'",
            f"/studies/{key}/trials/12": "'log'",
            f"/studies/{key}/trials/13": "'metric'",
            f"/compare?trial={key}:13&trial={key}:12": "'metric'",
            f"/studies/{key}/module": "'title'",
        }
        for path, word in shown.items():
            page.goto(url + path)
            page.get_by_text(word).first.wait_for()
            if path.endswith("module"):
                page.locator(".box .name").first.focus()
                page.keyboard.press("Enter")
                page.get_by_text("'node'").first.wait_for()
            assert flaws(page, path) == []
            assert page.evaluate("window.pwned") is None, path
            assert page.locator("main img, main script").count() == 0
    unexpected = [e for e in errors if "404" not in e]
    assert unexpected == []
    page.context.close()


def test_the_token_goes_from_the_fragment_into_a_cookie_no_script_reads(
    hostile: Path, browser: Any
) -> None:
    with served(DashboardOptions(root=hostile, policy=Policy(token=TOKEN))) as client:
        url = str(client.base_url).rstrip("/")
        page, errors = watched_page(browser)
        page.goto(f"{url}/#token={TOKEN}")
        page.locator("tr[data-study]").wait_for()
        assert TOKEN not in page.url
        assert page.evaluate("document.cookie") == ""
        assert errors == []
        page.context.close()
        stranger, _ = watched_page(browser)
        stranger.goto(url)
        field = stranger.get_by_label("Token")
        field.fill("a wrong one, but a long one")
        stranger.get_by_role("button", name="Open").click()
        stranger.get_by_text("the token is wrong").wait_for()
        field.fill(TOKEN)
        stranger.get_by_role("button", name="Open").click()
        stranger.locator("tr[data-study]").wait_for()
        stranger.context.close()


def test_another_page_cannot_read_or_write(hostile: Path, browser: Any) -> None:
    with served(DashboardOptions(root=hostile)) as client:
        url, key = str(client.base_url).rstrip("/"), client.key
        page, _ = watched_page(browser)
        page.route(
            "http://evil.example/**", lambda r: r.fulfill(body="<p>hello", content_type="text/html")
        )
        page.goto("http://evil.example/")
        path = f"{url}/api/v1/studies/{key}/commands"
        told = page.evaluate(
            """async (path) => {
                const send = (type, mode) => fetch(path, {method: 'POST', mode,
                    headers: {'Content-Type': type}, body: '{"kind": "stop"}'})
                    .then(() => 'sent', () => 'refused');
                await send('text/plain', 'no-cors');
                return [await send('application/json', 'cors'),
                        await fetch(path).then(() => 'read', () => 'refused')];
            }""",
            path,
        )
        assert told == ["refused", "refused"]
        page.context.close()
    repository = Repository(open_engine(f"sqlite:///{hostile / 'x' / 'study.db'}"))
    assert repository.news_of(1).command == 0
    repository.close()
