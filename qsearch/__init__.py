"""qsearch: search for the quantization of a model that keeps its accuracy, on integers only.

Publishes ``launch``, ``load``, ``quantize`` and ``SearchResult``; they are imported on first use,
so that ``import qsearch`` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsearch.api import launch, load, quantize
    from qsearch.result import SearchResult

__version__ = "0.1.0"
__all__ = ["SearchResult", "__version__", "launch", "load", "quantize"]


def __getattr__(name: str) -> Any:
    if name == "SearchResult":
        from qsearch.result import SearchResult

        return SearchResult
    if name in {"launch", "load", "quantize"}:
        from qsearch import api

        return getattr(api, name)
    raise AttributeError(f"module 'qsearch' has no attribute {name!r}")
