"""What the dashboard costs at ten thousand trials: `python tests/benchmarks/bench_dashboard.py`.

Prints JSON: wall and CPU milliseconds of the first and of later requests, the CPU being that of the
server's process alone; bytes of every answer as sent and unpacked; and, where there is a browser,
milliseconds from the address to the painted table of a study (first with nothing kept, then again)
and from a click to the next page of the table, with the CPU of the main thread, and the CPU of the
server and of the page in 15 seconds without anything new; and the milliseconds of a module answer
that is kept, alone and while four others are computed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import qsearch
from qsearch.dashboard.snapshots import FRESH_S
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.benchmarks.machine import machine
from tests.e2e.chromium import CHROMIUM, QUIET
from tests.qsearch.dashboard.server import Client
from tests.qsearch.dashboard.stores import fill, new_study

CHUNK = 500
IDLE_S = 15.0
SETTLE_S = 1.0
"""A browser that was just started, or plots of the visit before, would be measured as well."""
WATCH = """
window.seen = {};
new MutationObserver(() => {
  const note = (name, found) => {
    if (!found || name in seen) return;
    seen[name] = 0;
    requestAnimationFrame(() => setTimeout(() => { seen[name] = performance.now(); }));
  };
  note("table", document.querySelector("tr[data-trial]"));
  note("plot", document.querySelector(".canvas svg"));
  if (seen.click) note("next", document.querySelector("#trials").textContent.includes("51–100 of"));
}).observe(document, { childList: true, subtree: true, characterData: true });
addEventListener("click", () => { seen.click = performance.now(); }, true);
"""
"""Notes by the page's own clock when something is there and painted."""
PATHS = {
    "studies": "/api/v1/studies",
    "study": "{study}",
    "trials, first page": "{study}/trials?limit=50&sort=-number",
    "trials, by top1": "{study}/trials?limit=50&sort=-top1",
    "trials, filtered": "{study}/trials?limit=50&filter=calibrate_mode%3Dmse",
    "trials, last page": "{study}/trials?limit=50&offset=9950",
    "one trial": "{study}/trials/21",
    "failures": "{study}/failures",
    "trials, by two columns": "{study}/trials?limit=50&sort=params.calibrate_mode,-top1",
    "export": "{study}/trials/export.csv",
    "points": "{study}/points",
    "importances": "{study}/importances",
}


class Server:
    """``qsearch dashboard`` as a process of its own, and what it spends."""

    def __init__(self, root: Path) -> None:
        words = [sys.executable, "-m", "qsearch", "dashboard", str(root), "--port", "0"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[1].rstrip("/")
        self.client = Client(base_url=self.url, timeout=60)

    @property
    def cpu_ms(self) -> float:
        """CPU time of its threads so far, in milliseconds (Linux)."""
        spent = 0
        for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                spent += int((thread / "schedstat").read_text().split()[0])
        return spent / 1e6

    @property
    def whole_cpu_ms(self) -> float:
        """The same in steps of 10 ms, threads that have ended included."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def asked(self, path: str) -> dict[str, float]:
        """One request: wall and CPU milliseconds, bytes as sent and unpacked."""
        cpu, begin = self.cpu_ms, time.perf_counter()
        answer = self.client.get(path)
        answer.raise_for_status()
        wall = 1000 * (time.perf_counter() - begin)
        return {
            "wall_ms": wall,
            "cpu_ms": self.cpu_ms - cpu,
            "bytes_sent": int(answer.headers["content-length"]),
            "bytes": len(answer.content),
        }

    def end(self) -> None:
        """Stop it."""
        self.client.close()
        self._process.terminate()
        self._process.wait()


def measure(server: Server, repository: Repository, repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {"first list of studies": server.asked("/api/v1/studies")}
    study = server.client.study
    for name, path in PATHS.items():
        first = server.asked(path.format(study=study))
        later = []
        for _ in range(repeats):
            time.sleep(FRESH_S)  # so that the store is looked at again
            later.append(server.asked(path.format(study=study)))
        medians = {
            f"later_{key}": statistics.median(each[key] for each in later)
            for key in ("wall_ms", "cpu_ms")
        }
        found[name] = {**first, **medians}
    number = len(repository.points_of(1))
    fill(repository, repository.study("big"), 1, first=number)
    time.sleep(FRESH_S)
    found["study after one more trial"] = server.asked(study)
    found["table after one more trial"] = server.asked(f"{study}/trials?limit=50&sort=-number")
    found["points after one more trial"] = server.asked(f"{study}/points")
    return found


def _seen(page: Any, name: str) -> float:
    """When a thing was painted, in milliseconds since the page was asked for."""
    page.wait_for_function(f"() => seen.{name} > 0")
    return float(page.evaluate(f"seen.{name}"))


def _tasks(metrics: list[dict[str, Any]]) -> float:
    """CPU seconds that the main thread of a page has spent."""
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def module_answers(root: Path) -> dict[str, float]:
    """Milliseconds of a kept answer about a module: alone, and the slowest beside four others."""
    qsearch.launch("digits", trials=3, pool="inline", out=root / "digits", progress=False)
    server = Server(root)
    try:
        module = f"{server.client.study}/module"
        server.asked(f"{module}/text")
        alone = server.asked(f"{module}/text")["wall_ms"]
        others = ("graph?groups=opu", "graph?groups=opu_q", "graph?groups=npu", "times")
        beside = []
        with ThreadPoolExecutor(len(others)) as pool:
            asked = [pool.submit(_answer, server.url, f"{module}/{other}") for other in others]
            while not all(each.done() for each in asked):
                beside.append(server.asked(f"{module}/text")["wall_ms"])
        return {"alone_ms": alone, "slowest_beside_four_ms": max(beside), "asked": len(beside)}
    finally:
        server.end()


def _answer(url: str, path: str) -> None:
    with Client(base_url=url, timeout=60) as client:
        client.get(path).raise_for_status()


def in_browser(server: Server) -> dict[str, Any] | None:
    client = server.client
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if CHROMIUM is None:
        return None
    found: dict[str, Any] = {}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto("about:blank")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        sizes: list[tuple[str, int]] = []
        page.on(
            "response",
            lambda r: (
                sizes.append((r.url, int(r.headers["content-length"])))
                if "content-length" in r.headers
                else None
            ),
        )
        page.add_init_script(WATCH)
        key = client.key
        for visit in ("first", "later"):
            time.sleep(SETTLE_S)
            page.goto(f"{client.base_url}/studies/{key}", wait_until="commit")
            found[f"table shown, {visit} visit ms"] = _seen(page, "table")
            spent = _tasks(session.send("Performance.getMetrics")["metrics"])
            found[f"main thread CPU, {visit} visit ms"] = 1000 * spent
            page.locator(".canvas").first.scroll_into_view_if_needed()
            found[f"first plot shown, {visit} visit ms"] = _seen(page, "plot")
        page.get_by_role("button", name="Next").click()
        shown = _seen(page, "next")
        found["next page of the table ms"] = shown - page.evaluate("seen.click")
        time.sleep(SETTLE_S)
        before, begin = session.send("Performance.getMetrics")["metrics"], server.whole_cpu_ms
        time.sleep(IDLE_S)
        after, end = session.send("Performance.getMetrics")["metrics"], server.whole_cpu_ms
        found["server CPU in 15 idle seconds ms"] = end - begin
        found["main thread CPU in 15 idle seconds ms"] = 1000 * (_tasks(after) - _tasks(before))
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
        server = Server(root)
        try:
            found = measure(server, repository, args.repeats)
            browser = in_browser(server)
        finally:
            server.end()
        repository.close()
        found |= {"browser": browser, "module": module_answers(Path(temporary) / "modules")}
    print(json.dumps({"machine": machine(), "trials": args.trials, **found}, indent=1))


if __name__ == "__main__":
    main()
