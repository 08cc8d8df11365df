"""What every test may use, and the rule that CI skips nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the real models and images; only some machines have it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data (real models and images), which is not on this machine")
    return folder


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With CI=true a skipped test is a failure: CI is where everything must have run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", ()) if reporter is not None else ()
    if os.environ.get("CI") == "true" and skipped and exitstatus == 0:
        reporter.write_line(f"CI=true: {len(skipped)} skipped, which counts as failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
