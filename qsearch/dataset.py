"""Dataset: items of any kind and a function that makes a model's inputs of one, as NNCF has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """What ``calib`` and ``eval`` take: items, read one at a time, and how to read one.

    Args:
        items: any iterable: a list, a torch DataLoader or Dataset, a Hugging Face data set.
        transform_fn: from an item to an array, a mapping of input name to array (``labels`` among
            them), or a pair (inputs, labels). None takes items as they are.
    Example:
        >>> import numpy as np
        >>> rows = [{"pixels": np.zeros(4, np.uint8), "digit": 3}]
        >>> data = Dataset(rows, lambda row: (row["pixels"] / 255, row["digit"]))
        >>> [label for _, label in data]
        [3]
    """

    items: Iterable[Any]
    transform_fn: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            yield item if self.transform_fn is None else self.transform_fn(item)
