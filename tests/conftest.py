"""What every test may use, and the rule that CI skips nothing."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# pytest-xdist has a process for each core: threads of BLAS beside them would wait for each other,
# for half of the CPU time. numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

REPOSITORY = Path(__file__).resolve().parents[1]
NO_SHARED_DATA = "needs ../shared/data (real models and images), which is not on this machine"


# The order in which pytest-xdist hands out files, by how their paths begin. Tests that start
# processes or compile kernels are few and long: they begin first, so that no worker is left alone
# with one of them at the end.
ORDER = (
    *("e2e/", "deploy/", "packaging/", "tutorials/", "test_readme_commands.py"),
    *("compiler/targets/engine/test_harness.py", "qsearch/", "workers/"),
)


# Objects of the tests themselves, which stay: the collector of cyclic garbage would look through
# half a million of them again and again, for a fifteenth of the time.
def pytest_sessionstart(session: pytest.Session) -> None:
    """The collector rests while tests are collected; kernels that are built already are found."""
    gc.disable()
    if not hasattr(session.config, "workerinput"):
        from tests.installed_kernels import take_installed_kernels  # workers do without it

        take_installed_kernels()


def pytest_collection_finish() -> None:
    """It leaves what was collected alone."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C works in tests and in what they start, also where a shell runs us with ``&``.

    Such a shell has its children ignore SIGINT, and a Python that starts so leaves it at that.
    """
    # pytest-xdist would sort files by their number of tests, against ORDER.
    config.option.loadscopereorder = False
    # Tests start hundreds of processes, which share bytecode, though none beside the sources.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
        os.environ["PYTHONPYCACHEPREFIX"] = str(config.rootpath / ".pytest_cache" / "bytecode")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests into ORDER; those of other files keep theirs, behind."""

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(REPOSITORY / "tests").as_posix()
        return next((n for n, start in enumerate(ORDER) if path.startswith(start)), len(ORDER))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """One worker of pytest-xdist compiles a file, and the others read its bytecode.

    All of them collect all files in the same order, and compiling takes two thirds of that time.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as source:
        fcntl.flock(source, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the real models and images; only some machines have it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(NO_SHARED_DATA)
    return folder


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of the images that digits is calibrated with; ranges are fitted as much faster."""
    import numpy as np

    path = tmp_path_factory.mktemp("calib") / "few.npz"
    with np.load(REPOSITORY / "qsearch" / "models" / "digits_calib.npz") as data:
        np.savez(path, input=data["input"][:32])
    return path


@pytest.fixture(scope="session")
def few_labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So few of the images that digits is judged on that a trial has two parts, not twelve.

    Each of the first six parts times the candidate anew, where a search weighs times.
    """
    import numpy as np

    path = tmp_path_factory.mktemp("eval") / "few.npz"
    with np.load(REPOSITORY / "qsearch" / "models" / "digits_dev.npz") as data:
        np.savez(path, **{name: data[name][:64] for name in data.files})
    return path


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With CI=true a skipped test is a failure: what CI can install must have run.

    Nobody can install the models and images of ``../shared/data``, or instructions of a processor:
    tests that lack them are counted on lines of their own.
    """
    from tests.needs import NO_INSTRUCTIONS

    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get("CI") != "true":
        return
    reasons = [str(report.longrepr) for report in reporter.stats.get("skipped", ())]
    without_data = sum(NO_SHARED_DATA in reason for reason in reasons)
    if without_data:
        reporter.write_line(f"CI=true: {without_data} not run, no ../shared/data here", red=True)
    without_instructions = sum(NO_INSTRUCTIONS in reason for reason in reasons)
    if without_instructions:
        line = f"CI=true: {without_instructions} not run, {NO_INSTRUCTIONS} such instructions"
        reporter.write_line(line, red=True)
    failing = len(reasons) - without_data - without_instructions
    if failing and exitstatus == 0:
        reporter.write_line(f"CI=true: {failing} skipped, which counts as failure", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
