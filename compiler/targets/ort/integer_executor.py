"""IntegerExecutor: a realised module's integers, computed by onnxruntime in their own dtypes."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from compiler.export.to_onnx.integer import to_integer_onnx
from compiler.ir.module import IRModule
from compiler.runtime.executor import Inputs, ordered_inputs
from compiler.targets.ort.session import OrtExecutor


class IntegerExecutor:
    """One function of a realised module; implements ``runtime.executor.Executor``.

    The graph runs as it was written: no optimizer may take part in what serves as an oracle.

    Args:
        mod: a typed module after QuantizeRealize.
        function: name of the function.
        threads: threads within one operator.
    Raises:
        OnnxExportError: the module has no exact integer form.
    """

    def __init__(self, mod: IRModule, function: str = "main", threads: int = 1) -> None:
        self._names = tuple(p.name_hint for p in mod[function].params)
        self._session = OrtExecutor(to_integer_onnx(mod, function), threads=threads, optimize=False)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return self._names

    def run(self, inputs: Inputs) -> list[NDArray[Any]]:
        """The results, tuples flattened from left to right; see ``OrtExecutor.run``."""
        return self._session.run(ordered_inputs(self._names, inputs))
