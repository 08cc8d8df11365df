from __future__ import annotations

from collections.abc import Iterator

import pytest
from pool_runner import Ask
from pool_test_case import PoolTestCase

from workers.messages import Handle
from workers.pool.queued_pool import InlinePool


class TestLocalPool(PoolTestCase):
    @pytest.fixture
    def pool(self) -> Iterator[InlinePool]:
        pool = InlinePool("pool_runner:Runner")
        yield pool
        pool.close()


def test_a_handle_of_another_pool_is_refused() -> None:
    pool = InlinePool("pool_runner:Runner")
    pool.submit("a", Ask("sum", large=Handle("f" * 64)))
    finished = pool.next_finished()
    assert finished is not None
    assert "another pool" in str(finished.error)
