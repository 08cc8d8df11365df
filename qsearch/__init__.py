"""qsearch: search for the quantization of a model that keeps its accuracy, on integers only.

Publishes ``launch``, ``launch_async``, ``load``, ``quantize``, ``Dataset`` and ``SearchResult``;
they are imported on first use, so that ``import qsearch`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsearch.api import launch, launch_async, load, quantize
    from qsearch.dataset import Dataset
    from qsearch.search.result import SearchResult

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "SearchResult",
    "__version__",
    "launch",
    "launch_async",
    "load",
    "quantize",
]
_HOMES = {"SearchResult": "qsearch.search.result", "Dataset": "qsearch.dataset"}


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in __all__:
        raise AttributeError(f"module 'qsearch' has no attribute {name!r}")
    from qsearch.identity import check_own_packages

    check_own_packages()
    return getattr(import_module(_HOMES.get(name, "qsearch.api")), name)
