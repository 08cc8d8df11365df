"""What the processor has, as far as kernels of other runtimes depend on it."""

from __future__ import annotations

import pytest

from compiler.targets.engine import library


@pytest.mark.parametrize(
    ("machine", "features", "pairs"),
    [
        ("x86_64", "avx2 fma", True),
        ("x86_64", "avx2 fma avx512_vnni", False),
        ("x86_64", "avx2 fma avx_vnni", False),
        ("aarch64", "asimddp", False),
    ],
)
def test_products_are_added_in_pairs_on_x86_without_vnni(
    machine: str, features: str, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.platform, "machine", lambda: machine)
    monkeypatch.setattr(library, "cpu_features", lambda: features)
    assert library.adds_pairs() is pairs
