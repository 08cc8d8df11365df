"""Count how often facts about a graph are asked for, and how often they are computed."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from compiler.frontend import cut_graph
from compiler.frontend.from_onnx import load, model_file
from compiler.ir import walk
from compiler.ir.inference import infer_type
from compiler.ir.text import parser
from compiler.quantize import diagnosis
from compiler.runtime import artifact

COUNTED: dict[str, Any] = {
    "orders asked for": walk.nodes_of,
    "walks": walk._walk,
    "types asked for": infer_type.infer_module,
    "inferences": infer_type._infer,
    "parses of text": parser.parse,
    "ONNX files read": model_file.read_model,
    "imports": load.load,
    "graphs to cut": cut_graph.Graph.__init__,
    "diagnoses": diagnosis.diagnose,
    "modules read": artifact.load_qmod,
}
_BETWEEN = {"operators_of", "post_order", "_infer_function", "<genexpr>", "<listcomp>"}
"""Functions that hand the question on."""


class Calls:
    """Calls of functions, with the place in the code that called."""

    def __init__(self) -> None:
        self._names = {_code_of(function): name for name, function in COUNTED.items()}
        self._seen: Counter[tuple[str, int, str]] = Counter()

    def __enter__(self) -> Calls:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code in self._names:
            back = frame.f_back
            while back is not None and (back.f_code in self._names or _wraps(back.f_code)):
                back = back.f_back
            place = "" if back is None else f"{back.f_code.co_filename}:{back.f_code.co_qualname}"
            self._seen[self._names[frame.f_code], frame.f_lasti, place] += 1

    def by_caller(self, name: str) -> Counter[str]:
        """Calls by caller. A generator is called where it begins, and resumed further behind."""
        first = min((at for known, at, _ in self._seen if known == name), default=0)
        found: Counter[str] = Counter()
        for (known, at, place), count in self._seen.items():
            if known == name and at == first:
                found[place] += count
        return found


def _code_of(function: Any) -> CodeType:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code: CodeType = function.__code__
    return code


def _wraps(code: CodeType) -> bool:
    """Return whether a frame stands between a decorated function and its caller."""
    return code.co_filename == contextlib.__file__ or code.co_name in _BETWEEN
