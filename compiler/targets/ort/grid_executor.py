"""GridExecutor: a realised module's integers, computed by onnxruntime: 8 bit kernels or float32."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from compiler.export.to_onnx.grid import to_grid_onnx
from compiler.ir.module import IRModule
from compiler.runtime.executor import Inputs, ordered_inputs
from compiler.targets.ort import narrow_kernels
from compiler.targets.ort.session import OrtExecutor


class GridExecutor:
    """One function of a realised module; implements ``runtime.executor.Executor``.

    Args:
        mod: a typed module after QuantizeRealize.
        function: name of the function.
        threads: threads within one operator.
    Raises:
        OnnxExportError: the module has no grid form.
    """

    def __init__(self, mod: IRModule, function: str = "main", threads: int = 1) -> None:
        self._names = tuple(p.name_hint for p in mod[function].params)
        self._session = OrtExecutor(
            to_grid_onnx(mod, function, narrow_kernels.are_exact()), threads=threads
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return self._names

    def run(self, inputs: Inputs) -> list[NDArray[Any]]:
        """The results, tuples flattened from left to right; see ``OrtExecutor.run``."""
        return self._session.run(ordered_inputs(self._names, inputs))
