"""kill -9 and Ctrl-C in the middle of a search: nothing lost, nothing twice, same end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qsearch
from tests.benchmarks.bench_faults import squeeze_excite
from tests.e2e.conftest import TIMEOUT_S, TRIALS

pytestmark = pytest.mark.slow


def children(pid: int) -> list[int]:
    """Living children of a process, oldest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``."""
    found, queue = [], [pid]
    while queue:
        queue.extend(below := children(queue.pop()))
        found.extend(below)
    return found


def command_of(pid: int) -> str:
    """The command line of a process, or nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill_session(process: subprocess.Popen[str]) -> None:
    """End what a killed driver may have left of the session it led."""
    for pid in descendants(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)


def test_a_killed_driver_loses_no_finished_trial_and_repeats_none(
    unbroken: Any, launch: Callable[..., Any]
) -> None:
    search = launch("digits", "--trials", str(TRIALS), "--workers", "2")
    kept: dict[int, Any] = {}
    for pool, more in (("inline", 1), ("process", TRIALS // 2 - 1)):
        process = search.start("--pool", pool, held_after=more)
        search.wait_until_held(process)
        if not kept:
            second = search.start("--pool", pool)
            _, err = second.communicate(timeout=TIMEOUT_S)
            assert second.returncode == 2, err
            assert "another process" in err
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        now = {t.number: t for t in search.trials() if t.finished}
        assert {number: now[number] for number in kept} == kept
        assert len(kept) + more <= len(now) < TRIALS
        kept = now
    summary = search.finish("--pool", "process")
    assert summary["trials"]["complete"] + summary["trials"]["pruned"] == TRIALS
    after = {t.number: t for t in search.trials()}
    assert {number: after[number] for number in kept} == kept
    assert search.story() == unbroken.story()
    theirs = (unbroken.folder / "best.qmod").read_bytes()
    assert (search.folder / "best.qmod").read_bytes() == theirs


@pytest.mark.parametrize(
    ("pool", "worker"),
    [
        ("process", "workers.pool.process_worker"),
        pytest.param("ray", "ray::_RayWorker", marks=pytest.mark.ray),
    ],
)
def test_a_killed_worker_changes_no_result(
    unbroken: Any, launch: Callable[..., Any], pool: str, worker: str
) -> None:
    search = launch("digits", "--trials", str(TRIALS), "--pool", pool, "--workers", "2")
    process = search.start(held_after=2)
    search.wait_until_held(process)
    workers = [pid for pid in descendants(process.pid) if worker in command_of(pid)]
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    search.hold.go(process.pid)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    counts = json.loads(out.splitlines()[-1])["trials"]
    assert counts["complete"] + counts["pruned"] == TRIALS
    assert search.story() == unbroken.story()
    theirs = (unbroken.folder / "best.qmod").read_bytes()
    assert (search.folder / "best.qmod").read_bytes() == theirs


@pytest.mark.ray
def test_a_killed_process_of_ray_ends_the_search_with_what_was_lost_and_how_to_go_on(
    unbroken: Any, launch: Callable[..., Any]
) -> None:
    search = launch("digits", "--trials", str(TRIALS), "--workers", "1")
    for program, lost in (
        ("raylet/raylet", "raylet on this machine ended"),
        ("gcs/gcs_server", "head of the Ray cluster ended"),
    ):
        process = search.start("--pool", "ray", held_after=2)
        search.wait_until_held(process)
        below = {pid: command_of(pid) for pid in descendants(process.pid)}
        (worker,) = [pid for pid, command in below.items() if "ray::_RayWorker" in command]
        os.kill(worker, signal.SIGSTOP)  # nothing finishes before the loss is noticed
        (killed,) = [pid for pid, command in below.items() if program in command]
        os.kill(killed, signal.SIGKILL)
        search.hold.go(process.pid)
        _, err = process.communicate(timeout=TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        assert process.returncode == 2, err
        assert lost in err
        # On a loaded machine the loss may come while data of a variant are calibrated.
        ran = r"(trials? [\d, ]+ ran and will begin again|none was running)"
        assert re.search(rf"of {TRIALS} trials are finished; {ran}", err), err
        assert f"qsearch launch -c {search.folder / 'config.resolved.yaml'}" in err
        assert all(t.state != "running" for t in search.trials())
    search.finish("--pool", "process")
    assert search.story() == unbroken.story()


def test_a_request_to_stop_writes_the_best_so_far_and_the_same_command_goes_on(
    unbroken: Any, launch: Callable[..., Any]
) -> None:
    search = launch("digits", "--trials", str(TRIALS), "--pool", "inline")
    before = 0
    for request_to_stop in (signal.SIGINT, signal.SIGTERM):
        process = search.start(held_after=3)
        search.wait_until_held(process)
        process.send_signal(request_to_stop)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert (search.folder / "best.qmod").exists()
        assert before + 3 <= search.finished() < TRIALS
        assert all(t.state != "running" for t in search.trials())
        before = search.finished()
        (search.folder / "best.qmod").unlink()
    search.finish()
    assert search.story() == unbroken.story()


@pytest.mark.parametrize(
    ("pool", "phase", "request_to_stop"),
    [
        pytest.param("ray", "starting workers", signal.SIGTERM, marks=pytest.mark.ray),
        ("process", "calibration: pass 1", signal.SIGINT),
        pytest.param("ray", "trials: 0/", signal.SIGTERM, marks=pytest.mark.ray),
        ("process", "trials: 2/2", signal.SIGTERM),
        ("process", "check, reference: 8/8", signal.SIGINT),
    ],
    ids=["starting", "calibrating", "searching", "building", "writing"],
)
def test_a_signal_ends_a_launch_wherever_it_is_and_nothing_goes_on(
    launch: Callable[..., Any], pool: str, phase: str, request_to_stop: signal.Signals
) -> None:
    search = launch("digits", "--trials", "2", "--pool", pool, "--workers", "1")
    process = search.start()
    assert process.stderr is not None
    told = next((line for line in process.stderr if line.startswith(phase)), None)
    assert told is not None
    started = descendants(process.pid)
    process.send_signal(request_to_stop)
    _, err = process.communicate(timeout=TIMEOUT_S)
    # Behind the last check there is little left to do when the signal comes.
    assert process.returncode in ({0, 130} if phase.startswith("check") else {130}), err
    assert "Traceback" not in err
    assert (search.folder / "best.qmod").exists() == any(t.finished for t in search.trials())
    assert all(t.state != "running" for t in search.trials())
    end = time.monotonic() + TIMEOUT_S
    while any(command_of(pid) for pid in started):
        assert time.monotonic() < end, "it left processes"
        time.sleep(0.1)


AGAIN = """
import sys, qsearch
for _ in range(3):
    model, calib, out = sys.argv[1:]
    qsearch.launch(model, calib=calib, eval=calib, trials=2, pool="ray", workers=2, out=out)
print("ray" in sys.modules)
"""


def test_a_finished_study_ends_on_ray_again_and_starts_none(tmp_path: Path) -> None:
    _, model, _, data, *_ = squeeze_excite(tmp_path, 32)
    out = tmp_path / "run"
    qsearch.launch(model, calib=data, eval=data, trials=2, pool="inline", out=out)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", AGAIN, model, data, str(out)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        busy.kill()
        busy.wait()
    assert done.stdout == "False\n", done.stderr
