"""Chromium for tests that need eyes; without it they are skipped and say so."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.e2e.chromium import CHROMIUM, QUIET

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_core_python.sync_playwright", reason="needs axe-core-python")

NEEDS_CHROMIUM: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"
)
WAIT_MS: Final = 60_000


def started(manager: Any) -> Any:
    """A browser of a running playwright."""
    return manager.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))


def watched_page(browser: Any, **options: Any) -> tuple[Any, list[str]]:
    """A page of a context of its own, and the errors it logs."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page, errors


def findings(page: Any) -> list[tuple[str, list[str]]]:
    """What axe finds: rule, and where."""
    result = axe.Axe().run(page)
    found = result.response if hasattr(result, "response") else result
    return [(v["id"], [n["html"][:160] for n in v["nodes"][:3]]) for v in found["violations"]]
