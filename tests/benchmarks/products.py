"""Networks of products alone, with seeded weights: what tiles and wide dot steps are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.benchmarks.bench_true_size import bert_base, resnet50, vit_base
from tests.benchmarks.unseen_networks import Network


def dense_197(g: Network) -> str:
    """Four dense layers of 197 rows, 768 to 3072 and back, with relu."""
    x = g.input(1, 197, 768)
    for _ in range(2):
        x = g.dense(g.dense(x, 768, 3072, "Relu"), 3072, 768, "Relu")
    return x


def _convolutions(g: Network, channels: int, size: int) -> str:
    x = g.input(1, channels, size, size)
    for _ in range(3):
        x = g.conv(x, (channels, channels, 3, 3))
    return x


def conv3x3_128(g: Network) -> str:
    """Three convolutions of 3 x 3, 128 channels, 28 x 28."""
    return _convolutions(g, 128, 28)


def conv3x3_64(g: Network) -> str:
    """Three convolutions of 3 x 3, 64 channels, 56 x 56."""
    return _convolutions(g, 64, 56)


def conv1x1(g: Network) -> str:
    """Four convolutions of 1 x 1, 256 to 1024 channels and back, 14 x 14."""
    x = g.input(1, 256, 14, 14)
    for _ in range(2):
        x = g.conv(g.conv(x, (1024, 256, 1, 1)), (256, 1024, 1, 1))
    return x


def one_row(g: Network) -> str:
    """Two dense layers of one row, 1024 to 4096 and back."""
    return g.dense(g.dense(g.input(1, 1024), 1024, 4096, "Relu"), 4096, 1024, "Relu")


_BUILDERS: Final = (dense_197, conv3x3_128, conv3x3_64, conv1x1, one_row)
PRODUCTS: Final[Mapping[str, Callable[[Network], str]]] = {b.__name__: b for b in _BUILDERS}
TRUE_SIZE: Final[Mapping[str, Callable[[Network], str]]] = {
    build.__name__: build for build in (resnet50, vit_base, bert_base)
}


def model_of(name: str) -> bytes:
    """The file of a network of ``PRODUCTS`` or ``TRUE_SIZE``."""
    graph = Network(7)
    build = {**PRODUCTS, **TRUE_SIZE}[name]
    return graph.model(build(graph)).SerializeToString()
