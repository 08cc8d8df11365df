"""What the dashboard costs at ten thousand trials: `python tests/benchmarks/bench_dashboard.py`.

Prints JSON: milliseconds of the first and of later requests, CPU milliseconds of the first (client
and server together), bytes of every answer, and, where there is a browser, milliseconds until the
page of the study shows its table.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.snapshots import FRESH_S
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.benchmarks.machine import machine
from tests.qsearch.dashboard.server import Client, served
from tests.qsearch.dashboard.stores import fill, new_study

CHUNK = 500
PATHS = {
    "studies": "/api/v1/studies",
    "study": "{study}",
    "trials, first page": "{study}/trials?limit=50&sort=-number",
    "trials, by top1": "{study}/trials?limit=50&sort=-top1",
    "trials, filtered": "{study}/trials?limit=50&find=calibrate_mode%3Dmse",
    "trials, last page": "{study}/trials?limit=50&offset=9950",
    "one trial": "{study}/trials/4321",
    "failures": "{study}/failures",
    "history": "{study}/plots/history.svg",
    "scatter": "{study}/plots/scatter.svg",
    "importances": "{study}/plots/importances.svg",
    "parallel": "{study}/plots/parallel.svg",
    "slice": "{study}/plots/slice.svg?x=calibrate_mode",
}


def timed(client: Client, path: str) -> tuple[float, int]:
    begin = time.perf_counter()
    answer = client.get(path)
    answer.raise_for_status()
    return 1000 * (time.perf_counter() - begin), len(answer.content)


def measure(client: Client, repository: Repository, repeats: int) -> dict[str, Any]:
    begin = time.perf_counter()
    client.get("/api/v1/studies").raise_for_status()
    found: dict[str, Any] = {"first list of studies ms": 1000 * (time.perf_counter() - begin)}
    study = client.study
    for name, path in PATHS.items():
        spent = time.process_time()
        first, size = timed(client, path.format(study=study))
        spent = 1000 * (time.process_time() - spent)
        later = []
        for _ in range(repeats):
            time.sleep(FRESH_S)  # so that the store is looked at again
            later.append(timed(client, path.format(study=study))[0])
        found[name] = {
            "first_ms": first,
            "first_cpu_ms": spent,
            "later_ms": statistics.median(later),
            "bytes": size,
        }
    number = len(repository.points_of(1))
    fill(repository, repository.study("big"), 1, first=number)
    time.sleep(FRESH_S)
    found["study after one more trial ms"] = timed(client, study)[0]
    found["scatter after one more trial ms"] = timed(client, f"{study}/plots/scatter.svg")[0]
    return found


def in_browser(client: Client) -> dict[str, Any] | None:
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    found: dict[str, Any] = {}
    with sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = started.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        sizes: list[tuple[str, int]] = []
        page.on(
            "response",
            lambda r: (
                sizes.append((r.url, int(r.headers["content-length"])))
                if "content-length" in r.headers
                else None
            ),
        )
        key = client.key
        for visit in ("first", "later"):
            begin = time.perf_counter()
            page.goto(f"{client.base_url}/studies/{key}", wait_until="commit")
            page.locator("tr[data-trial]").first.wait_for()
            found[f"table shown, {visit} visit ms"] = 1000 * (time.perf_counter() - begin)
            page.locator(".canvas svg").first.wait_for()
            found[f"first plot shown, {visit} visit ms"] = 1000 * (time.perf_counter() - begin)
        begin = time.perf_counter()
        page.get_by_role("button", name="Next").click()
        page.get_by_text("51–100 of").wait_for()
        found["next page of the table ms"] = 1000 * (time.perf_counter() - begin)
        unique = dict(sizes)
        found["bytes of the page itself"] = sum(n for u, n in unique.items() if "/api/" not in u)
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="leave the store in this folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        run = root / "big"
        run.mkdir(parents=True)
        repository = Repository(open_engine(f"sqlite:///{run / 'study.db'}"))
        study = repository.create_study(new_study("big", args.trials))
        repository.save_baseline(study.id, {"top1": 0.96, "agreement": 1.0, "sqnr_db": None})
        for first in range(0, args.trials, CHUNK):
            fill(repository, study, min(CHUNK, args.trials - first), first)
        with served(DashboardOptions(root=root)) as client:
            found = measure(client, repository, args.repeats)
            browser = in_browser(client)
        repository.close()
    print(
        json.dumps(
            {"machine": machine(), "trials": args.trials, **found, "browser": browser}, indent=1
        )
    )


if __name__ == "__main__":
    main()
