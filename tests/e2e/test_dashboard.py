"""A real browser walks through every page while a real search runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qsearch.dashboard.app import DashboardOptions
from qsearch.report.html import write_report
from qsearch.store.engine import open_engine, open_reader
from qsearch.store.repository import Repository
from tests.e2e.browser import NEEDS_CHROMIUM, flaws, watched_page
from tests.ports import own_port
from tests.qsearch.dashboard.server import served
from tests.qsearch.dashboard.stores import written_runs

TRIALS = 8

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


class Dashboard:
    """``qsearch dashboard`` on a port that stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = own_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["dashboard", str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen([sys.executable, "-m", "qsearch", *words])
        while True:
            try:
                httpx.get(f"{self.url}/healthz")
                return
            except httpx.HTTPError:
                assert self.process.poll() is None
                time.sleep(0.1)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}/api/v1{path}", timeout=600).json()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dashboard(runs: Path) -> Iterator[Dashboard]:
    server = Dashboard(runs)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page whose errors are collected."""
    opened, opened_errors = watched_page(browser)
    opened.errors = opened_errors
    yield opened
    opened.context.close()


@pytest.fixture(scope="module")
def search(runs: Path, few_digits: Path, few_labelled: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A search that runs while the browser looks."""
    words = ["--calib", str(few_digits), "--eval", str(few_labelled), "--trials", str(TRIALS)]
    process = launched(runs / "digits", *words)
    yield process
    process.kill()
    process.wait()


def launched(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A search of the model that ships with the package."""
    words = ("launch", "--model", "digits", "-o", str(folder), "-q", "--pool", "inline", *words)
    return subprocess.Popen([sys.executable, "-m", "qsearch", *words], stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def finished(search: subprocess.Popen[bytes]) -> None:
    """The search after its end."""
    assert search.wait(timeout=600) == 0


def key_of(dashboard: Dashboard) -> str:
    key: str = dashboard.get("/studies")["studies"][0]["key"]
    return key


def stored(runs: Path) -> Repository:
    return Repository(open_reader(f"sqlite:///{runs / 'digits' / 'study.db'}"))


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def test_a_live_search_moves_on_the_page_and_survives_the_servers_death(
    dashboard: Dashboard, search: subprocess.Popen[bytes], runs: Path, page: Any
) -> None:
    page.goto(dashboard.url)
    row = page.locator("tr[data-study]")
    row.wait_for()
    row.locator("a").first.click()
    progress = page.locator("[data-tile=progress]")
    progress.wait_for()
    page.wait_for_function(
        "() => parseInt(document.querySelector('[data-tile=progress]')?.textContent) >= 1"
    )
    page.locator("#link.live").wait_for()
    assert page.errors == []
    before = int(progress.inner_text().split("/")[0])
    dashboard.kill()
    page.locator("#link.lost").wait_for()
    dashboard.start()
    page.locator("#link.live").wait_for()
    assert search.wait(timeout=600) == 0
    page.get_by_text(f"{TRIALS} / {TRIALS}", exact=True).wait_for()
    # What can be chosen came with the trials, whenever the page was opened.
    offered = page.get_by_label("Parameter of the slice").locator("option")
    offered.first.wait_for(state="attached")
    assert "calibrate_mode" in offered.all_inner_texts()
    page.locator(".chip.complete", has_text="complete").first.wait_for()
    assert before <= TRIALS
    repository = stored(runs)
    study = repository.study("digits")
    winner = json.loads((runs / "digits" / "report.json").read_text())["best"]["trial"]
    (best,) = repository.trials_by_number(study.id, [winner])
    page.locator(".result").get_by_role("link", name=f"trial {winner}", exact=True).wait_for()
    assert page.locator("[data-tile=best]").inner_text() == percent(best.outcome.score["top1"])
    assert page.locator("[data-tile=float]").inner_text() == percent(study.baseline["top1"])
    repository.close()


def test_a_page_comes_back_by_itself_when_the_database_does(
    dashboard: Dashboard, finished: None, page: Any
) -> None:
    told = {"what": "the storage cannot be reached", "where": None, "fix": None}
    away = iter([True])

    def answer(route: Any) -> None:
        if next(away, False):
            route.fulfill(status=503, json=told)
        else:
            route.continue_()

    page.route("**/api/v1/studies?**", answer)
    page.goto(dashboard.url)
    page.get_by_text("the storage cannot be reached").wait_for()
    page.locator("tr[data-study]").wait_for()


def test_a_study_is_called_running_only_while_a_driver_is_heard(
    tmp_path: Path, browser: Any
) -> None:
    runs = written_runs(tmp_path)
    with served(DashboardOptions(root=runs)) as client:
        page, errors = watched_page(browser, base_url=str(client.base_url))
        page.clock.install()
        page.goto("/")
        page.locator(".studies .chip", has_text="preparing").or_(
            page.locator(".studies .chip", has_text="searching")
        ).wait_for()
        page.locator("tr[data-study] a").first.click()
        page.locator(".head .chip", has_text="preparing").wait_for()
        database = f"sqlite:///{runs / 'digits' / 'study.db'}"
        repository = Repository(open_engine(database))
        repository.join(repository.study("digits").id, "one", "test", 2)
        page.locator(".head .chip.running").wait_for()
        page.get_by_text("1 driver, 2 workers").wait_for()
        with repository.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE qs_driver SET beat_at = 0")
        repository.close()
        # No event tells of silence: the page asks now and then.
        page.clock.fast_forward(20_000)
        page.locator(".head .chip", has_text="no driver").wait_for()
        page.goto("/")
        page.locator(".studies .chip", has_text="no driver").wait_for()
        assert errors == []
        page.context.close()


def test_a_search_is_paused_resumed_and_stopped_from_the_page(
    tmp_path: Path, few_digits: Path, browser: Any
) -> None:
    with served(DashboardOptions(root=tmp_path)) as client:
        page, errors = watched_page(browser, base_url=str(client.base_url))
        page.goto("/")
        search = launched(tmp_path / "long", "--calib", str(few_digits), "--trials", "100000")
        try:
            page.locator("tr[data-study] a").first.click()
            for button, state in (("Pause", "paused"), ("Resume", "running"), ("Stop", "stopped")):
                page.get_by_role("button", name=button, exact=True).click()
                if button == "Stop":
                    page.get_by_role("button", name="Stop the search").click()
                page.locator(f".head .chip.{state}").wait_for()
            assert search.wait(timeout=600) in (0, 1)
        finally:
            search.kill()
        assert errors == []
        page.context.close()


def test_the_list_tells_the_result_of_a_search(
    dashboard: Dashboard, finished: None, page: Any
) -> None:
    study = dashboard.get("/studies")["studies"][0]
    page.goto(dashboard.url)
    page.get_by_text("met: top-1 ≥").wait_for()
    # The proof is derived beside the page.
    page.get_by_text("· proved").wait_for()
    head = page.locator("thead th").all_inner_texts()
    cells = page.locator("tr[data-study] td")
    shown = {name.rstrip(" ↓↑"): cells.nth(i).inner_text() for i, name in enumerate(head)}
    best = study["best"]["score"]
    assert percent(best["top1"]) in shown["Best"]
    lost = 100 * (best["top1"] - study["baseline"]["top1"])
    assert f"{'−' if lost < 0 else '+'}{abs(lost):.2f} points" in shown["Float model"]
    assert shown["SQNR"] == f"{best['sqnr_db']:.2f} dB"
    assert f"{best['model_bytes']:,.0f} bytes" in shown["Size"]
    assert "just now" in shown["Changed"] or "ago" in shown["Changed"]
    with page.expect_download() as download:
        page.get_by_role("link", name=".qmod").click()
    written = (dashboard.folder / "digits" / "best.qmod").read_bytes()
    assert Path(download.value.path()).read_bytes() == written
    assert page.url.rstrip("/") == dashboard.url, "the link of a row does not open the row"
    assert page.errors == []


def test_crumbs_lead_back_from_every_page(dashboard: Dashboard, finished: None, page: Any) -> None:
    study = f"/studies/{key_of(dashboard)}"
    crumbs = page.locator("#crumbs > *")
    for path, words in (("/trials/1", "trial 1"), ("/module", "module")):
        page.goto(dashboard.url + study + path)
        page.locator("#crumbs [aria-current=page]", has_text=words).wait_for()
        assert crumbs.all_inner_texts() == ["digits", words]
        assert page.title() == f"{words} · digits · qsearch"
        crumbs.first.click()
        page.locator("tr[data-trial]").first.wait_for()
        assert page.url == dashboard.url + study
        assert crumbs.all_inner_texts() == ["digits"]
        page.locator(".brand").click()
        page.locator("tr[data-study]").wait_for()
        assert page.url.rstrip("/") == dashboard.url
    assert page.errors == []


def test_the_table_shows_what_the_store_holds(
    dashboard: Dashboard, finished: None, runs: Path, page: Any
) -> None:
    page.goto(f"{dashboard.url}/studies/{key_of(dashboard)}")
    page.locator("tr[data-trial]").first.wait_for()
    repository = stored(runs)
    trials = repository.trials_of(1)
    repository.close()
    shown = page.locator("tr[data-trial]")
    assert shown.count() == len(trials)
    for trial in trials:
        text = page.locator(f"tr[data-trial='{trial.number}']").inner_text()
        assert percent(trial.outcome.score["top1"]) in text
        assert f"{trial.outcome.score['sqnr_db']:.2f} dB" in text
        assert trial.params["calibrate_mode"] in text
    page.get_by_role("button", name="SQNR", exact=True).click()
    page.locator("th[aria-sort=descending]", has_text="SQNR").wait_for()
    page.get_by_label("Filter trials").fill("calibrate_mode=mse")
    wanted = sum(t.params["calibrate_mode"] == "mse" for t in trials)
    page.get_by_text(f"1–{wanted} of {wanted}").wait_for()
    assert page.locator("tr[data-trial]").count() == wanted
    canvas = page.locator(".canvas").first
    canvas.scroll_into_view_if_needed()
    canvas.locator("svg").wait_for()
    marks = canvas.locator("path[data-trial]")
    assert marks.count() == sum(t.outcome.score is not None for t in trials)
    marks.first.click(force=True)
    page.wait_for_url(re.compile(r"/trials/\d+$"))
    assert page.errors == []


def test_cheap_and_costly_trials_lie_inside_their_chart(
    dashboard: Dashboard, finished: None, page: Any
) -> None:
    page.goto(f"{dashboard.url}/studies/{key_of(dashboard)}")
    canvas = page.locator(".canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    marks = canvas.locator("path[data-trial]")
    marks.first.wait_for()
    area = canvas.locator("svg").bounding_box()
    places = [marks.nth(i).bounding_box()["x"] for i in range(marks.count())]
    assert max(places) - min(places) > area["width"] / 2, "8 and 16 bits cost the same"
    assert area["x"] < min(places)
    assert max(places) < area["x"] + area["width"]


def test_a_trial_and_its_comparison(dashboard: Dashboard, finished: None, page: Any) -> None:
    study = f"{dashboard.url}/studies/{key_of(dashboard)}"
    page.goto(f"{study}/trials/1")
    page.locator("figure[data-point] svg").first.wait_for()
    layers = dashboard.get(f"/studies/{key_of(dashboard)}/trials/1/layers")["layers"]
    page.locator("#ratios .canvas").scroll_into_view_if_needed()
    marks = page.locator("#ratios [data-layer]")
    marks.first.wait_for()
    figures = ("weights_db", "alone_db", "upstream_db")
    shown = sum(layer[figure] is not None for layer in layers for figure in figures)
    assert marks.count() == shown + 1  # and that of the outputs
    page.get_by_label("Compare with trial").fill("0")
    page.keyboard.press("Enter")
    page.locator("#differences").wait_for()
    one, zero = (dashboard.get(f"/studies/{key_of(dashboard)}/trials/{n}") for n in (1, 0))
    shown = page.locator("tr[data-measure=top1] td")
    assert shown.nth(0).inner_text() == percent(one["score"]["top1"])
    assert shown.nth(1).inner_text() == percent(zero["score"]["top1"])
    differing = {k for k, v in one["qconfig"].items() if v != zero["qconfig"][k]}
    marked = page.locator("tr.differs")
    assert {marked.nth(i).get_attribute("data-field") for i in range(marked.count())} == differing
    page.locator("[data-layer-row=gemm_0]").wait_for()
    assert page.errors == []


def test_the_head_is_the_same_in_page_report_and_module(
    dashboard: Dashboard, finished: None, page: Any, tmp_path: Path
) -> None:
    study = f"{dashboard.url}/studies/{key_of(dashboard)}"
    written = write_report(dashboard.folder / "digits", tmp_path / "report.html")
    heads = []
    for address in (study, f"{study}/module", written.as_uri()):
        page.goto(address)
        page.locator(".result [data-proof=proved]").wait_for()
        rows = page.locator(".result .verdict-row, .result .tile")
        heads.append(rows.all_inner_texts())
    assert heads[0][0].startswith("✓ met: top-1")
    assert heads == [heads[0]] * 3
    assert page.errors == []


def test_the_module_page_can_be_used_by_keyboard(
    dashboard: Dashboard, finished: None, page: Any
) -> None:
    page.goto(f"{dashboard.url}/studies/{key_of(dashboard)}/module")
    page.locator(".graph .box").first.wait_for()
    parts = page.locator(".cluster")
    found = [parts.nth(i).get_attribute("data-part") for i in range(parts.count())]
    assert found == ["prefix", "integer main", "suffix"]
    page.get_by_label("Grouping").select_option("none")
    page.locator(".box", has_text="nn.conv2d").first.wait_for()
    page.locator(".box .name", has_text="nn.conv2d").first.focus()
    page.keyboard.press("Enter")
    assert "nn.conv2d(%input" in page.locator("[data-detail=text]").inner_text()
    assert "int32" in page.locator("[data-detail=type]").inner_text()
    assert "proved" in page.locator("[data-detail=range]").inner_text()
    page.get_by_label("Grouping").select_option("fused")
    page.locator("[data-part='integer main'] .name", has_text="conv_0").focus()
    page.keyboard.press("Enter")
    page.locator(".open .row", has_text="nn.conv2d").first.focus()
    page.keyboard.press("Enter")
    assert "nn.conv2d" in page.locator("[data-detail=text]").inner_text()
    for colour in ("loss", "time"):
        page.get_by_label("Colour").select_option(colour)
        page.get_by_text("pale to strong").wait_for()
        page.locator(".open .row", has_text="nn.conv2d").first.focus()
        page.keyboard.press("Enter")
        page.locator(f"[data-detail={colour}]").wait_for()
    # A kernel has the figure of the layer it is named after, not of those that read it.
    key = key_of(dashboard)
    best = dashboard.get(f"/studies/{key}")["best"]["number"]
    lost = {
        layer["name"]: layer["upstream_db"]
        for layer in dashboard.get(f"/studies/{key}/trials/{best}/layers")["layers"]
    }
    page.get_by_label("Colour").select_option("loss")
    for name in ("conv_0", "conv_1"):
        page.locator("[data-part='integer main'] .name", has_text=name).first.click()
        assert page.locator("[data-detail=source]").inner_text() == name
        # The grey levels of the digits lie on the grid of their input.
        told = "exact" if lost[name] is None else f"{lost[name]:.2f} dB"
        assert page.locator("[data-detail=loss]").inner_text() == told
    least = next(name for name in ("conv_0", "conv_1") if lost[name] is not None)
    palest = page.locator("[data-part='integer main'] .box[data-shade='0'] .name", has_text=least)
    assert palest.count() == 1, f"{least} loses least"
    page.locator("#tab-graph").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_label("Search in the text").fill("quantized_main")
    page.locator(".code .here").wait_for()
    page.keyboard.press("Tab")
    page.locator("#tab-proof").click()
    page.locator("[data-verdict=proved]").wait_for()
    page.locator("#tab-files").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="best.qmod").click()
    data = Path(download.value.path()).read_bytes()
    assert data == (dashboard.folder / "digits" / "best.qmod").read_bytes()
    assert page.errors == []


def test_the_module_page_leads_from_graph_to_text_and_back(
    dashboard: Dashboard, finished: None, page: Any
) -> None:
    page.goto(f"{dashboard.url}/studies/{key_of(dashboard)}/module")
    find = page.get_by_label("Find in the graph")
    find.press_sequentially("conv_1")
    page.keyboard.press("Enter")
    page.locator("[data-detail=attributes]", has_text="strides").wait_for()
    assert page.locator("[data-detail=source]").inner_text() == "conv_1"
    page.get_by_label("Colour").select_option("bytes")
    page.get_by_text("pale to strong").wait_for()
    world = page.locator(".graph .world > g")
    for move in (lambda: page.mouse.wheel(0, -300), lambda: page.get_by_role("button", name="Fit")):
        before = world.get_attribute("transform")
        page.locator(".graph").hover()
        done = move()
        if done is not None:
            done.click()
        page.wait_for_function(
            "was => document.querySelector('.graph .world > g').getAttribute('transform') !== was",
            arg=before,
        )
    find.fill("")
    page.get_by_label("Grouping").select_option("none")
    page.locator(".box .name", has_text="nn.dense").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show in the IR text").click()
    line = page.locator(".code .here")
    assert "nn.dense" in line.inner_text()
    line.dblclick()
    page.locator(".box.chosen", has_text="nn.dense").wait_for()
    assert page.errors == []


def test_pages_look_right_and_can_be_used_by_all(
    dashboard: Dashboard, finished: None, browser: Any
) -> None:
    """QSEARCH_SCREENSHOTS is a folder for pictures of them."""
    pictures = os.environ.get("QSEARCH_SCREENSHOTS")
    key = key_of(dashboard)
    page, errors = watched_page(browser)
    module = f"/studies/{key}/module"
    places = {
        "studies": ("/", "tr[data-study]", None),
        "study": (f"/studies/{key}", "#trials tr[data-trial]", None),
        "trial": (f"/studies/{key}/trials/1", "figure svg", None),
        "compare": (f"/compare?trial={key}:1&trial={key}:0", "[data-layer-row]", None),
        "module": (module, ".graph .box", None),
        "text": (module, ".code div", "text"),
        "proof": (module, "[data-verdict=proved]", "proof"),
        "files": (module, "a[download]", "files"),
        "launch": ("/launch", "h1", None),
    }
    found = []
    for name, (path, ready, tab) in places.items():
        if tab is None:
            page.goto(dashboard.url + path)
        else:
            page.locator(f"#tab-{tab}").click()
        page.locator(ready).first.wait_for()
        if name in ("study", "trial", "compare"):
            page.locator(".canvas").first.wait_for(state="attached")
        found += flaws(page, name, Path(pictures) if pictures else None)
    assert found == []
    assert errors == []
    page.context.close()
