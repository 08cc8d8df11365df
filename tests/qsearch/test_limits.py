"""Files of any author are read within limits of memory and CPU time, which end with a sentence."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from compiler.at_work import at_work, last_node, observe
from qsearch.limits import Limits, Watch, allow_cpu, forked, size_of
from tests.compiler.judgement.small_files import node, packed


def in_child(work: Callable[[], object], limits: Limits) -> tuple[int, Watch]:
    """Exit status and last node of a limited process that does the work."""
    watch = Watch()
    child = os.fork()
    if child == 0:
        observe(watch)
        limits.set()
        try:
            work()
        except MemoryError:
            os._exit(9 if last_node() == "%7 conv" else 8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), watch


def test_more_memory_than_the_limit_is_an_error_at_a_node() -> None:
    def work() -> None:
        at_work(str, "%7 conv")
        np.ones(1 << 30, np.uint8)

    status, watch = in_child(work, Limits(1 << 30))
    assert status == 9
    assert watch.ended(status, Limits(1 << 30), 1) == ""


def test_more_cpu_time_than_the_limit_ends_the_process_and_names_the_node() -> None:
    def work() -> None:
        at_work(str, "%8 matmul")
        while True:
            pass

    limits = Limits(4 << 30, 1)
    status, watch = in_child(work, limits)
    assert watch.ended(status, limits, 1.2) == (
        "nothing is decided after 1 s of CPU time, more than was announced; it was at %8 matmul"
    )


def test_announced_time_is_added_to_a_limit_and_no_limit_is_made() -> None:
    def cpu_limit() -> int:
        return resource.getrlimit(resource.RLIMIT_CPU)[0]

    def work() -> None:
        allow_cpu(10)
        assert cpu_limit() == 31
        allow_cpu(None)
        assert cpu_limit() == before[1]

    before = resource.getrlimit(resource.RLIMIT_CPU)
    allow_cpu(10)
    assert resource.getrlimit(resource.RLIMIT_CPU) == before
    assert in_child(work, Limits(4 << 30, 20))[0] == 0


def test_limits_grow_with_the_file() -> None:
    assert Limits.of_file(0) == Limits(2 << 30, 20)
    assert Limits.of_file(30_000_000) == Limits((2 << 30) + 1_500_000_000, 80)
    assert Limits.of_file(30_000_000, timed=False).cpu_s == 0


def test_other_commands_and_an_explicit_wish_have_no_limits(tmp_path: Path) -> None:
    file = tmp_path / "m.qmod"
    file.write_bytes(b"something")
    assert forked(["launch", "--model", str(file)]) is None
    assert forked(["verify", str(file), "--allow-large"]) is None
    assert forked(["verify", "--help"]) is None
    assert forked([]) is None


def test_a_model_has_the_size_of_its_external_data(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"12")
    (tmp_path / "m.onnx.data").write_bytes(b"345")
    (tmp_path / "other.onnx").write_bytes(b"6")
    assert size_of(model) == 5
    assert size_of(tmp_path / "none.qmod") == 0


def test_a_model_of_ones_own_is_shown_and_examined_without_limits(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"12")
    assert forked(["show", str(model)]) is None
    assert forked(["doctor", "--model", str(model)]) is None


def test_a_padding_of_terabytes_ends_with_a_sentence_that_names_its_node(tmp_path: Path) -> None:
    far = {"pads": [200_000] * 4, "strides": [400_000] * 2}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "zw"], ["v"]),
        node("Conv", ["d", "v"], ["c"], name="far", **far),
        node("QuantizeLinear", ["c", "s", "z"], ["p"]),
        node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.1), "z": np.uint8(0), "zw": np.int8(0)}
    constants["w"] = np.ones((1, 1, 1, 1), np.int8)
    file = tmp_path / "m.onnx"
    file.write_bytes(packed(nodes, [1, 1, 4, 4], constants))
    words = [sys.executable, "-m", "qsearch", "verify", str(file)]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "there is not enough memory" in ended.stderr
    assert "where: Conv 'far'" in ended.stderr
