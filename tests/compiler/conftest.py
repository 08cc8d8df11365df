from __future__ import annotations

from collections.abc import Iterator

import pytest

from compiler.ir.pass_infra import PassContext


@pytest.fixture(autouse=True)
def verified_passes() -> Iterator[None]:
    """Every pass a test runs must leave a well-formed, well-typed module behind."""
    with PassContext(verify=True):
        yield
