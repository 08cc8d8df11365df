"""Work with trials in a browser: filter, sort, compare, brush, zoom, save; the address holds it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qsearch
from qsearch.dashboard.app import DashboardOptions
from qsearch.report.html import write_report
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.e2e.browser import NEEDS_CHROMIUM, flaws, watched_page
from tests.qsearch.dashboard.server import Client, served
from tests.qsearch.dashboard.stores import fill, new_study, new_trial, written_runs

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]

MANY = 2000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies: plain, two objectives, no limit kept, killed -9, and one of 2,000 trials."""
    root = written_runs(tmp_path_factory.mktemp("work"))
    for name, more, count, state in (
        ("two", {"minimize": ["hw_traffic"]}, 40, "complete"),
        ("missed", {"at_most": {"hw_traffic": 10}}, 20, "complete"),
        ("killed", {}, 10, "running"),
        ("many", {}, MANY, "complete"),
    ):
        (root / name).mkdir()
        repository = Repository(open_engine(f"sqlite:///{root / name / 'study.db'}"))
        study = repository.create_study(new_study(name, count))
        spec = json.dumps({**study.spec, **more})
        repository.save_baseline(study.id, {"top1": 0.96, "agreement": 1.0, "sqnr_db": None})
        for first in range(0, count, 1000):
            fill(repository, study, min(1000, count - first), first)
        if name == "killed":
            repository.add_trials(study.id, [new_trial(count), new_trial(count + 1)])
            repository.join(study.id, "gone", "test", 1)
        with repository.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE qs_study SET spec = ?, state = ?, updated_at = 1000", (spec, state)
            )
            connection.exec_driver_sql(
                "UPDATE qs_trial SET started_at = 900 + number, finished_at = 901.5 + number"
                " WHERE state != 'waiting'"
            )
            # What a driver leaves that is killed: heartbeats end, its trials are still "running".
            connection.exec_driver_sql("UPDATE qs_driver SET beat_at = 1000")
            connection.exec_driver_sql(
                "UPDATE qs_trial SET state = 'running' WHERE state = 'waiting'"
            )
        repository.close()
        (root / name / "config.resolved.yaml").write_text("max_drop: '0.1'\n")
    return root


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[Client]:
    with served(DashboardOptions(root=runs)) as asking:
        yield asking


@pytest.fixture(scope="module")
def keys(client: Client) -> dict[str, str]:
    studies = client.get("/api/v1/studies").json()["studies"]
    return {study["name"]: study["key"] for study in studies}


@pytest.fixture
def page(browser: Any, client: Client) -> Iterator[Any]:
    opened, errors = watched_page(browser, base_url=str(client.base_url))
    yield opened
    # A filter that is not understood is answered with 400, which Chromium logs.
    assert [
        e for e in errors if not any(lost in e for lost in ("400 (Bad Request)", "ERR_FAILED"))
    ] == []
    opened.context.close()


def numbers(page: Any) -> list[int]:
    rows = page.locator("tr[data-trial]")
    return [int(rows.nth(i).get_attribute("data-trial")) for i in range(rows.count())]


def plot(page: Any, title: str) -> Any:
    card = page.locator(f"section[aria-label='{title}']")
    card.scroll_into_view_if_needed()
    card.locator(".canvas svg").wait_for()
    return card


def test_the_best_sqnr_among_trials_with_little_traffic_is_found_with_five_clicks(
    page: Any, keys: dict[str, str], client: Client
) -> None:
    """Of the trials with little traffic the best SQNR, against the second, as CSV and a link."""
    page.goto(f"/studies/{keys['digits']}")
    page.get_by_label("Filter trials").fill("hw_traffic<=80% state=complete")
    page.get_by_role("button", name="SQNR", exact=True).click()
    page.locator("th[aria-sort=descending]", has_text="SQNR").wait_for()
    asked = {"filter": "hw_traffic<=80% state=complete", "sort": "-sqnr_db"}
    path = f"/api/v1/studies/{keys['digits']}/trials"
    wanted = [row["number"] for row in client.get(path, params=asked).json()["rows"]]
    page.wait_for_function(
        "n => document.querySelector('tr[data-trial]')?.dataset.trial == n", arg=wanted[0]
    )
    assert numbers(page) == wanted
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    table = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert [int(row["number"]) for row in table] == wanted
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON").click()
    rows = json.loads(Path(download.value.path()).read_text())
    assert [row["number"] for row in rows] == wanted
    address = page.url
    page.reload()
    page.locator("tr[data-trial]").first.wait_for()
    assert numbers(page) == wanted
    elsewhere, _ = watched_page(page.context.browser)
    elsewhere.goto(address)
    elsewhere.locator("tr[data-trial]").first.wait_for()
    assert numbers(elsewhere) == wanted
    elsewhere.context.close()
    page.get_by_role("button", name="Compare first 2").click()
    page.locator("#differences").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert rows[0][1:] == [f"digits #{number}" for number in wanted[:2]]
    page.go_back()
    page.locator("tr[data-trial]").first.wait_for()
    assert page.url == address
    assert numbers(page) == wanted
    page.get_by_label(f"Pick trial {wanted[3]}", exact=True).check()
    assert page.get_by_role("button", name="Compare 1").is_disabled()
    page.get_by_label(f"Pick trial {wanted[2]}", exact=True).check()
    page.get_by_role("button", name="Compare 2").click()
    page.locator("#differences thead", has_text=f"#{wanted[2]}").wait_for()
    page.go_back()
    page.locator("tr[data-trial]").first.wait_for()
    assert page.get_by_label(f"Pick trial {wanted[2]}", exact=True).is_checked()


def test_what_a_filter_does_not_know_names_the_columns(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['digits']}?filter=sqnr_dbb%3E35")
    page.get_by_role("alert").get_by_text("there is no column 'sqnr_dbb'").wait_for()
    page.get_by_text("did you mean 'sqnr_db'").wait_for()


def test_columns_are_chosen_and_remembered(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['digits']}")
    page.locator("tr[data-trial]").first.wait_for()
    assert page.locator("th", has_text="agreement").count() == 0  # the same in all
    page.get_by_text("Columns", exact=True).click()
    page.locator("[data-column=agreement]").check()
    page.locator("th", has_text="agreement").wait_for()
    assert "cols=" in page.url
    page.goto(f"/studies/{keys['digits']}")
    page.locator("th", has_text="agreement").wait_for()
    page.get_by_role("button", name="top-1").click()
    page.get_by_role("button", name="SQNR").click(modifiers=["Shift"])
    page.locator("th[aria-sort]").nth(1).wait_for()
    assert "sort=-top1,-sqnr_db" in page.url
    first = page.locator("tr[data-trial] th").first
    before = first.bounding_box()["x"]
    page.locator(".worktable").evaluate("e => { e.scrollLeft = 400; }")
    assert first.bounding_box()["x"] == pytest.approx(before, abs=20)


def test_a_click_counts_before_the_last_one_is_answered(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['digits']}")
    page.locator("tr[data-trial]").first.wait_for()
    held: list[Any] = []
    page.route("**/api/v1/studies/*/trials?*", lambda route: held.append(route))
    page.get_by_role("button", name="top-1").click()
    page.get_by_role("button", name="SQNR").click(modifiers=["Shift"])
    assert "sort=-top1,-sqnr_db" in page.url
    for route in held:
        route.continue_()
    page.unroute_all()
    page.locator("th[aria-sort]").nth(1).wait_for()


def test_two_objectives_have_a_front(page: Any, keys: dict[str, str], client: Client) -> None:
    told = client.get(f"/api/v1/studies/{keys['two']}").json()
    page.goto(f"/studies/{keys['two']}")
    page.locator("tr[data-front]").first.wait_for()
    assert page.locator("tr[data-front]").count() == min(len(told["front"]), 20)
    page.locator("[data-quick='front=true']").click()
    wanted = {each["number"] for each in told["front"]}
    page.wait_for_function(
        "n => document.querySelectorAll('tr[data-trial]').length == n", arg=len(wanted)
    )
    assert set(numbers(page)) == wanted
    card = plot(page, "Accuracy and cost")
    rings = card.locator("[data-front]")
    assert {int(rings.nth(i).get_attribute("data-front")) for i in range(rings.count())} == wanted
    page.locator("tr[data-front] a").first.click()
    page.locator("h1", has_text="Trial").wait_for()


@pytest.mark.parametrize(
    ("name", "words"), [("missed", "no trial within limits"), ("two", "met: top-1 ≥ 86 %")]
)
def test_the_result_is_printed_in_words(
    page: Any, keys: dict[str, str], name: str, words: str
) -> None:
    page.goto(f"/studies/{keys[name]}")
    page.locator(".result [data-verdict]", has_text=words).wait_for()


def test_a_killed_search_says_what_was_interrupted_and_how_to_go_on(
    page: Any, keys: dict[str, str]
) -> None:
    page.goto("/?find=killed")
    page.locator("tr[data-study] .chip.idle", has_text="no driver").wait_for()
    page.get_by_role("link", name="killed").click()
    page.locator(".result [data-verdict]", has_text="no driver").wait_for()
    page.locator("[data-resume]", has_text="qsearch launch -c ").wait_for()
    assert "2 interrupted" in page.locator(".progress").inner_text()
    open_one = page.locator("tr[data-trial='10']")
    assert open_one.locator(".chip.idle").inner_text() == "interrupted"
    assert page.locator(".chip.running").count() == 0, "nothing runs"
    quick = page.locator("[data-quick='state=running']")
    assert quick.inner_text() == "interrupted 2"
    quick.click()
    page.get_by_text("1–2 of 2").wait_for()
    assert numbers(page) == [11, 10]
    open_one.get_by_role("link").click()
    page.locator(".head .chip.idle", has_text="interrupted").wait_for()
    page.locator(".under .chip.idle", has_text="no driver").wait_for()


@pytest.mark.parametrize("name", ["two", "missed", "killed", "many"])
def test_every_kind_of_study_looks_right(page: Any, keys: dict[str, str], name: str) -> None:
    page.goto(f"/studies/{keys[name]}?filter=number>=4 number<14")
    page.locator("tr[data-trial]").first.wait_for()
    page.locator(".canvas").first.wait_for(state="attached")
    assert flaws(page, name) == []


def test_studies_are_found_sorted_and_deleted_and_the_address_says_so(
    page: Any, client: Client, runs: Path
) -> None:
    def shown() -> list[str]:
        return page.locator("tr[data-study] td:first-child > a").all_inner_texts()

    page.goto("/?sort=name")
    page.locator("th[aria-sort=ascending]", has_text="Study").wait_for()
    assert shown() == sorted(shown())
    page.get_by_label("State").select_option("complete")
    page.wait_for_url("**state=complete**")
    page.wait_for_function("() => document.querySelectorAll('tr[data-study]').length === 3")
    page.get_by_label("Find studies").fill("tw")
    page.wait_for_function("() => document.querySelectorAll('tr[data-study]').length === 1")
    address = page.url
    page.get_by_role("link", name="two").click()
    page.locator("h1", has_text="two").wait_for()
    page.go_back()
    page.locator("tr[data-study]").wait_for()
    assert (page.url, shown()) == (address, ["two"])
    (runs / "old").mkdir()
    repository = Repository(open_engine(f"sqlite:///{runs / 'old' / 'study.db'}"))
    made = new_study("old", 4)
    made = replace(made, spec={**made.spec, "for": "cortex-m4"})
    fill(repository, repository.create_study(made), 2)
    repository.close()
    page.goto("/")
    page.get_by_label("Device").select_option("cortex-m4")
    page.wait_for_url("**device=cortex-m4**")
    page.wait_for_function("() => document.querySelectorAll('tr[data-study]').length === 1")
    assert shown() == ["old"]
    page.goto("/?find=old")
    page.get_by_role("link", name="old").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("Delete old with its 2 trials").wait_for()
    page.get_by_role("button", name="Delete the study").click()
    page.locator("tr[data-study]").first.wait_for()
    assert "old" not in [each["name"] for each in client.get("/api/v1/studies").json()["studies"]]


def test_trials_of_two_studies_are_compared(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['two']}/trials/1")
    page.get_by_label("Compare with trial").fill("2")
    page.keyboard.press("Enter")
    page.locator("#differences").wait_for()
    page.get_by_label("Study to add from").select_option("missed")
    page.get_by_label("Trial to add").fill("3")
    page.get_by_role("button", name="Add a trial").click()
    page.get_by_role("button", name="Remove missed 3").wait_for()
    head = page.locator("#differences thead th").all_inner_texts()
    assert head == ["Field", "two #1", "two #2", "missed #3"]
    assert "differs" in page.locator("[data-field=calibrate_mode]").get_attribute("class")
    assert page.locator(".picked").all_inner_texts() == [
        "two #1 complete ✓ within limits ×",
        "two #2 complete ✓ within limits ×",
        "missed #3 complete ✗ not hardware traffic ≤ 10 bytes ×",
    ]
    address = page.url
    page.get_by_role("button", name="Remove two 2").click()
    page.wait_for_function("() => document.querySelectorAll('#differences thead th').length === 3")
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('#differences thead th').length === 4")
    assert page.url == address
    assert flaws(page, "compare") == []


def test_plots_zoom_toggle_answer_the_keyboard_and_are_saved(
    page: Any, keys: dict[str, str]
) -> None:
    page.goto(f"/studies/{keys['digits']}")
    card = plot(page, "Optimisation history")
    card.get_by_label("Measure of the history").select_option("sqnr_db")
    page.wait_for_url("**history.y=sqnr_db**")
    card.get_by_text("SQNR (dB)").wait_for()
    marks = card.locator("path[data-trial]")
    before = marks.count()
    card.get_by_role("button", name="pruned").click()
    page.wait_for_function(
        "n => document.querySelectorAll('.canvas')[0].querySelectorAll('[data-trial]').length < n",
        arg=before,
    )
    box = card.locator(".canvas svg").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=4)
    page.mouse.up()
    card.get_by_role("button", name="Reset zoom").click()
    card.locator(".canvas").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#tip", has_text="trial").wait_for()
    for kind, head in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as download:
            card.get_by_role("button", name=f"as {kind}").click()
        assert Path(download.value.path()).read_bytes().startswith(head)
    card.locator(".canvas").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#tip", has_text="trial").wait_for()
    # A plot that is drawn anew keeps the trial that the keyboard reached.
    wide = card.locator(".canvas svg").get_attribute("width")
    page.set_viewport_size({"width": 900, "height": 800})
    page.wait_for_function(
        "wide => document.querySelector('.canvas svg').getAttribute('width') !== wide", arg=wide
    )
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Trial").wait_for()


def test_every_plot_has_its_axes_units_and_choices(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['two']}")
    card = plot(page, "Accuracy and cost")
    card.get_by_text("top-1 (%)", exact=True).wait_for()
    low = card.locator("text.mid").first.text_content()
    card.get_by_label("Logarithmic x axis of Accuracy and cost").check()
    page.wait_for_url("**scatter.logx=1**")
    assert card.locator("text.mid").first.text_content() != low
    card = plot(page, "Importance of parameters")
    card.get_by_label("Measure of the importances").select_option("hw_traffic")
    card.locator("rect[data-layer=calibrate_mode]").wait_for()
    card = plot(page, "Slice")
    card.get_by_label("Parameter of the slice").select_option("keep_output_wide")
    assert {"true", "false"} <= set(card.locator("text.mid").all_text_contents())
    card = plot(page, "Rank over two parameters")
    card.get_by_text("the stronger the better").wait_for()
    assert card.locator("path[data-trial]").count() > 10
    card = plot(page, "Timeline")
    card.get_by_text("seconds since the first trial began").wait_for()
    box = card.locator("path.span").first.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 4)
    page.locator("#tip", has_text="from second").wait_for()


def test_a_brush_filters_the_table(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['digits']}")
    card = plot(page, "Parallel coordinates")
    brush = card.locator("[data-axis=calibrate_mode] .overlay")
    box = brush.bounding_box()
    page.mouse.move(box["x"] + 12, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 12, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    page.wait_for_url("**filter=calibrate_mode**")
    assert page.get_by_label("Filter trials").input_value() == "calibrate_mode=mse,percentile"
    assert card.locator(".way.dim").count() > 0


def test_thousands_of_trials_are_drawn_as_densities(page: Any, keys: dict[str, str]) -> None:
    page.goto(f"/studies/{keys['many']}")
    card = plot(page, "Accuracy and cost")
    card.locator("path.density").first.wait_for(state="attached")
    assert card.locator("path.many").count() >= 1
    assert card.locator("path[data-trial]").count() == 0


def test_plots_whose_script_is_lost_are_drawn_later(page: Any, keys: dict[str, str]) -> None:
    lost: list[str] = []

    def lose(route: Any) -> None:
        lost.append(route.request.url)
        if len(lost) == 1:
            route.fulfill(status=400)
        else:
            route.continue_()

    page.route("**/web/charts.js*", lose)
    page.goto(f"/studies/{keys['two']}")
    page.get_by_label("Parameter of the slice").locator("option").first.wait_for(state="attached")
    assert len(lost) == 2


def test_statistics_that_do_not_arrive_are_said_on_the_page_of_a_trial(
    page: Any, keys: dict[str, str]
) -> None:
    def with_ranges(route: Any) -> None:
        told = route.fetch().json()
        route.fulfill(json={**told, "has_ranges": True})

    page.route("**/api/v1/**/trials/1", with_ranges)
    page.route("**/trials/1/histograms", lambda route: route.abort())
    page.goto(f"/studies/{keys['two']}/trials/1")
    page.locator(".notice", has_text="no answer from the server").wait_for()
    assert page.get_by_text("Reading the statistics").count() == 0


def test_a_trial_with_changed_fields_is_asked_for_on_its_page(
    page: Any, keys: dict[str, str], runs: Path
) -> None:
    page.goto(f"/studies/{keys['two']}/trials/3")
    fields = page.locator("#fields")
    changed = {**json.loads(fields.input_value()), "percentile": 0.9999}
    fields.fill("{")
    page.click("#try button")
    page.wait_for_selector("text=this is no JSON")
    fields.fill(json.dumps(changed))
    page.click("#try button")
    page.wait_for_selector("text=it is evaluated when the search runs again")
    repository = Repository(open_engine(f"sqlite:///{runs / 'two' / 'study.db'}"))
    (wish,) = repository.events_of(1, kind="try")
    repository.close()
    assert wish.data is not None
    assert wish.data["qconfig"]["percentile"] == 0.9999


def test_notes_are_kept_and_studies_deleted_after_a_question(
    page: Any, keys: dict[str, str], client: Client
) -> None:
    page.goto(f"/studies/{keys['killed']}")
    page.locator("#note").fill("for the talk")
    page.locator("#tags").fill("old")
    page.get_by_role("button", name="Keep", exact=True).click()
    page.locator(".result .chip.tag", has_text="old").wait_for()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Cancel").click()
    assert client.get(f"/api/v1/studies/{keys['killed']}").status_code == 200


def test_the_theme_is_switched_and_remembered(page: Any) -> None:
    page.goto("/")
    page.locator("#theme").click()
    page.locator("#theme").click()
    page.reload()
    page.locator("html[data-theme=dark]").wait_for(state="attached")


def test_the_report_draws_itself_from_a_file(browser: Any, runs: Path, tmp_path: Path) -> None:
    file = write_report(runs / "two", tmp_path / "report.html")
    page, errors = watched_page(browser)
    page.goto(file.as_uri())
    page.locator(".result [data-verdict=met]").wait_for()
    assert page.locator("tr[data-front]").count() > 1
    assert flaws(page, "report") == []
    assert errors == []
    page.context.close()


def test_a_winner_among_equal_trials_is_on_the_front_and_explained(
    browser: Any, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"activation_scheme": ["asymmetric"]}
    fields |= {"calibrate_mode": ["mse"], "weight_scale": ["mse"]}
    fields |= {"smooth_alpha": [0.75], "weight_rounding": ["corrected", "sequential"]}
    options: dict[str, Any] = {
        "minimize": ["bit_operations"],
        "sampler": "grid",
        "space": {"fields": fields},
    }
    found = qsearch.launch("digits", out=tmp_path / "run", trials=2, pool="inline", **options)
    assert [row["trial"] for row in found.summary["front"]] == [found.summary["best"]["trial"]]
    (luck,) = (line for line in found.warnings if "luck" in line)
    page, errors = watched_page(browser)
    page.goto(write_report(tmp_path / "run", tmp_path / "report.html").as_uri())
    page.locator(".result", has_text=luck).wait_for()
    rings = plot(page, "Accuracy and cost").locator("[data-front]")
    rings.first.wait_for()
    drawn = [int(rings.nth(i).get_attribute("data-front")) for i in range(rings.count())]
    assert drawn == [found.summary["best"]["trial"]]
    assert errors == []
    page.context.close()
