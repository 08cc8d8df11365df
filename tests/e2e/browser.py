"""Chromium for tests that need eyes; without it they are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.chromium import CHROMIUM, QUIET
from tests.needs import missing

playwright = pytest.importorskip(
    "playwright.sync_api", reason=missing("the Python packages of the tests")
)
axe = pytest.importorskip(
    "axe_core_python.base", reason=missing("the Python packages of the tests")
)

NEEDS_CHROMIUM: Final = pytest.mark.skipif(CHROMIUM is None, reason=missing("Chromium"))
WAIT_MS: Final = 240_000


WIDTHS: Final = (1400, 400)
_COLOURS: Final = ("color-contrast", "link-in-text-block")
"""Rules whose answer another theme can change."""
_DRAWN: Final = """async (limit) => {
  const waiting = [];
  const end = performance.now() + limit;
  for (const canvas of document.querySelectorAll(".canvas")) {
    canvas.scrollIntoView({ block: "center" });
    const wide = () => canvas.querySelector("svg")?.getAttribute("width");
    const fits = () => Math.abs(wide() - canvas.clientWidth) <= 8;
    while (!fits() && performance.now() < end) await new Promise(requestAnimationFrame);
    if (!fits()) waiting.push(canvas.ariaLabel);
  }
  scrollTo(0, 0);
  return waiting;
}"""
"""Plots are drawn when they come near the window; those that were not."""
_AXE: Final = """async (rules) => {
  const runOnly = rules ? { runOnly: { type: "rule", values: rules } } : {};
  const found = await axe.run(document, { resultTypes: ["violations"], ...runOnly });
  const where = (each) => each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160));
  return found.violations.map((each) => `${each.id}: ${where(each)}`);
}"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that is started, and ended."""
    with playwright.sync_playwright() as manager:
        found = manager.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


def watched_page(browser: Any, **options: Any) -> tuple[Any, list[str]]:
    """A page of a context of its own, and the errors it logs."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page, errors


def findings(page: Any, rules: tuple[str, ...] | None = None) -> list[str]:
    """What axe finds: rule, and where."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.AXE_SCRIPT)
    found: list[str] = page.evaluate(_AXE, None if rules is None else list(rules))
    return found


def flaws(page: Any, name: str, pictures: Path | None = None) -> list[str]:
    """What is wrong with a page that is open: 400 and 1400 pixels wide, light and dark.

    Args:
        pictures: folder for a screenshot of each.
    """
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            told = [f"not drawn: {each}" for each in page.evaluate(_DRAWN, WAIT_MS)]
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            told += [f"{over} pixels too wide"] if over > 0 else []
            if scheme == "light":
                told += findings(page)
            elif width == WIDTHS[0]:  # a narrow window has the same colours
                told += findings(page, _COLOURS)
            found += [f"{name}, {width}, {scheme}: {each}" for each in told]
            if pictures is not None:
                page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    return found
