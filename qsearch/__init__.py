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
    if name not in {"SearchResult", "launch", "load", "quantize"}:
        raise AttributeError(f"module 'qsearch' has no attribute {name!r}")
    from qsearch.identity import check_own_packages

    check_own_packages()
    from qsearch import api, result

    return getattr(result if name == "SearchResult" else api, name)
