"""Where Chromium is, and the flags that keep it from doing anything for itself."""

from __future__ import annotations

import shutil
from typing import Final

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))),
    None,
)
"""The one without windows does the same pages for two thirds of the CPU seconds."""
QUIET: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
