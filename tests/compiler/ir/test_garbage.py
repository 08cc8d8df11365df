"""The collector rests inside the outermost call and is left as it was found."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from compiler.ir.garbage import collector_rests


@pytest.fixture(autouse=True)
def awake() -> Iterator[None]:
    before = gc.isenabled()
    gc.enable()
    yield
    if before:
        gc.enable()
    else:
        gc.disable()


@collector_rests
def state(inner: int = 0) -> bool:
    if inner:
        assert not state(inner - 1)
    return gc.isenabled()


def test_the_collector_rests_until_the_outermost_call_returns() -> None:
    assert not state(3)
    assert gc.isenabled()


def test_an_error_ends_the_rest_of_the_collector() -> None:
    @collector_rests
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    assert not state()
    assert not gc.isenabled()


def test_threads_that_overlap_share_the_rest() -> None:
    entered, leave = threading.Event(), threading.Event()

    @collector_rests
    def wait() -> None:
        entered.set()
        leave.wait(240)

    thread = threading.Thread(target=wait)
    thread.start()
    assert entered.wait(240)
    state()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_the_name_and_text_of_a_function_stay() -> None:
    assert state.__name__ == "state"
