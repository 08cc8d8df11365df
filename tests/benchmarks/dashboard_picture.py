"""Take the README's picture of a study: `python -m tests.benchmarks.dashboard_picture runs/digits`.

Serves the run folder, opens its study in Chromium and writes `.github/dashboard.png`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from qsearch.dashboard.app import DashboardOptions
from tests.e2e.browser import chromium, watched_page
from tests.qsearch.dashboard.server import served

PICTURE = Path(__file__).resolve().parents[2] / ".github" / "dashboard.png"


def main() -> None:
    """Take one picture, of the first screen in a window of 1240 x 1000."""
    folder = Path(sys.argv[1])
    with served(DashboardOptions(folder)) as client, chromium() as browser:
        page, errors = watched_page(browser, viewport={"width": 1240, "height": 1000})
        page.goto(str(client.base_url.join(f"/studies/{client.key}")))
        page.wait_for_selector("tr[data-trial]")
        page.screenshot(path=PICTURE)
        if errors:
            raise SystemExit(f"the page logged: {errors}")


if __name__ == "__main__":
    main()
