from __future__ import annotations

import pickle
from dataclasses import asdict

import numpy as np
import pytest

from compiler.lru_cache import LRUCache
from compiler.quantize import QConfig
from compiler.quantize.calibration.measurement import Measurement
from workers.errors import DatasetError, LostWorkerError, WorkerError
from workers.messages import CalibrationRequest, DatasetRef, Handle, split_range
from workers.object_store import content_key


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
def test_parts_of_a_range_are_consecutive_nearly_equal_and_complete(parts: int) -> None:
    pieces = split_range(range(3, 17), parts)
    assert [i for p in pieces for i in range(p.start, p.stop)] == list(range(3, 17))
    lengths = {len(piece) for piece in pieces}
    assert max(lengths) - min(lengths) <= 1
    assert len(pieces) == min(parts, 14)


def test_requests_survive_pickling() -> None:
    request = CalibrationRequest(
        Handle("k"),
        DatasetRef("npz", {"path": "p"}),
        range(3),
        Measurement("ranges", QConfig.recommended()),
        None,
    )
    copy = pickle.loads(pickle.dumps(request))
    assert asdict(copy) == asdict(request)


@pytest.mark.parametrize("kind", [WorkerError, LostWorkerError, DatasetError])
def test_errors_survive_pickling_with_all_their_lines(kind: type[WorkerError]) -> None:
    error = kind("what", where="where", fix="fix")
    error.add_note("note")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_equal_values_have_equal_keys_and_others_do_not() -> None:
    a = np.arange(6, dtype=np.float32)
    assert content_key((a,)) == content_key([a.copy()])
    assert content_key(a) != content_key(a.reshape(2, 3))
    assert content_key(a) != content_key(a.astype(np.float64))
    assert content_key({"x": a, "y": a}) == content_key({"y": a, "x": a})
    with pytest.raises(WorkerError, match="a str cannot be stored"):
        content_key("text")


def test_the_cache_keeps_the_values_that_were_used_last() -> None:
    made: list[str] = []
    recent: LRUCache[str] = LRUCache(2)

    def get(key: str) -> str:
        return recent.get(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    for key in "ababcab":
        assert get(key) == key
    assert made == ["a", "b", "c", "a", "b"]
