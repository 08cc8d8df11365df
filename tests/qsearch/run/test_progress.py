"""What the user sees: plain lines without a terminal, bars with one, nothing with -q."""

from __future__ import annotations

import io

import pytest

from qsearch.run.progress import TRIALS, BarProgress, PlainProgress, Progress, make_progress


def test_plain_lines_have_count_time_eta_rate_and_best() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = PlainProgress(out, every_s=5, clock=lambda: now[0])
    progress.phase(TRIALS, 4)
    for step in range(1, 5):
        now[0] += 3
        progress.advance(1, f"best top1 0.9{step}")
    assert out.getvalue().splitlines() == [
        "trials: 0/4",
        "trials: 2/4, 6 s, ETA 18 s with the checks, 20.0 trials/min, best top1 0.92",
        "trials: 4/4, 12 s, 20.0 trials/min, best top1 0.94",
    ]


def test_the_rate_of_a_resumed_phase_counts_what_was_done_now() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = PlainProgress(out, every_s=5, clock=lambda: now[0])
    progress.phase(TRIALS, 20, 16)
    now[0] = 6.0
    progress.advance(2)
    assert out.getvalue().splitlines() == [
        "trials: 16/20",
        "trials: 18/20, 6 s, ETA 18 s with the checks, 20.0 trials/min",
    ]


def test_a_short_phase_that_returns_is_not_printed_again() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = PlainProgress(out, every_s=5, clock=lambda: now[0])
    progress.phase("calibration", 2)
    progress.advance(2)
    progress.phase(TRIALS, 8)
    for done in range(0, 6, 2):
        progress.phase("calibration", 2)  # of another kind of graph
        now[0] += 1
        progress.advance(2)
        progress.phase(TRIALS, 8, done)
        now[0] += 2
        progress.advance(2)
    progress.advance(2)
    assert out.getvalue().splitlines() == [
        "calibration: 0/2",
        "calibration: 2/2, 0 s",
        "trials: 0/8",
        "trials: 4/8, 6 s, ETA 12 s with the checks, 40.0 trials/min",
        "trials: 8/8, 9 s, 53.3 trials/min",
    ]


def test_a_phase_that_returns_and_takes_long_is_printed_again() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = PlainProgress(out, every_s=5, clock=lambda: now[0])
    for _ in range(2):
        progress.phase("calibration", 4)
        for _ in range(4):
            now[0] += 3
            progress.advance(1)
    assert out.getvalue().splitlines()[3:] == [
        "calibration: 2/4, 6 s, ETA 6 s",
        "calibration: 4/4, 12 s",
    ]


def test_bars_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    progress = BarProgress()
    progress.phase("calibration", 2)
    progress.advance(2)
    progress.phase(TRIALS, 2)
    progress.advance(1, "best top1 0.9")
    progress.phase("calibration", 4)
    progress.advance(4)
    progress.phase(TRIALS, 2, 1)
    progress.advance(1, "best top1 0.95")
    progress.message("a [word] in brackets")
    progress.close()
    out, err = capfd.readouterr()
    assert out == ""
    *_, last = err.split("in brackets")
    assert [last.count(name) for name in ("calibration", TRIALS)] == [1, 1]
    assert last.count("2/2") == 1
    assert last.count("4/4") == 1
    assert "calibration" in err
    assert "a [word] in brackets" in err


@pytest.mark.parametrize("columns", [80, 130])
def test_bars_keep_their_figures_on_a_narrow_terminal(
    columns: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = BarProgress()
    progress.phase("calibration: pass 2 of 2, histograms; again, because smoothing changes it", 128)
    progress.advance(128)
    progress.phase(TRIALS, 16)
    progress.advance(3, "best top1 98.75% (trial 3)")
    progress.close()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert max(map(len, lines)) <= columns
    assert "128/128" in lines[-2]
    assert "trials, best top1 98.75% (trial 3)" in lines[-1]
    assert "3/16" in lines[-1]
    assert ":" in lines[-1].partition("3/16")[2], "time and ETA"


def test_the_time_that_is_left_is_whole_where_no_phase_has_a_rate(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    progress = BarProgress()
    progress.phase("calibration: channels", 16)
    progress.advance(16)
    progress.close()
    assert capfd.readouterr().err.rstrip().endswith("ETA 0:00:00")


def test_quiet_is_silent_and_pipes_get_lines() -> None:
    assert type(make_progress(-1)) is Progress
    assert isinstance(make_progress(0), PlainProgress)


def test_a_command_says_how_far_it_is_once_it_takes_long() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = PlainProgress(stream, 3.0, lambda: now[0], quiet_s=10.0)
    progress.phase("calibration", 4)
    for now[0] in (4.0, 12.0):
        progress.advance()
    assert stream.getvalue() == "calibration: 2/4, 12 s, ETA 12 s\n"


def test_a_silence_ends_with_an_estimate_that_outlasts_it() -> None:
    stream, now = io.StringIO(), [3.0]
    progress = PlainProgress(stream, clock=lambda: now[0], quiet_s=10.0)
    progress.expect(6.0, "the module")
    assert stream.getvalue() == ""
    progress.expect(30.0, "the module")
    progress.message("audit")
    assert stream.getvalue() == "estimate: 30 s for the module\naudit\n"
