"""The collector rests inside the outermost call and is left as it was found, and has nothing to do:
no stage of the compiler leaves cycles behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import transform
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.garbage import collector_rests
from compiler.proof.derive import derive_static
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, build_candidate, prerequisite_optimize
from tests.compiler.networks import CHANNELS, residual_chain


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


@pytest.mark.slow
def test_no_stage_leaves_cycles_that_hold_a_graph() -> None:
    operators = 60

    def left(stage: Callable[..., Any], *given: Any) -> Any:
        """The result of a stage, which must leave no more than a node for ten operators.

        Only the compiler's own objects count: threads that other tests left behind make garbage
        at any time.
        """
        stage(*given)  # what is kept from the first call on is no garbage
        gc.collect()
        gc.disable()
        result = stage(*given)
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            nodes = [one for one in gc.garbage if type(one).__module__.startswith("compiler.")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert len(nodes) < operators / 10, stage
        return result

    mod, params = left(load, residual_chain(operators))
    left(compiler.parse, compiler.text(mod))
    optimized = left(lambda: prerequisite_optimize(mod, params, opt_level=3))
    left(to_onnx, optimized)
    left(transform.FuseOpHW("opu"), optimized)
    qconfig = QConfig.recommended()
    data = [{"x": np.ones((1, CHANNELS, 2, 2), np.float32)}]
    scales = left(lambda: Calibration(optimized, data).scales_for(qconfig))
    candidate = left(build_candidate, optimized, qconfig, scales)
    left(derive_static, candidate.module)
