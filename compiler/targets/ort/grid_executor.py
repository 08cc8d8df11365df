"""GridExecutor: a realised module's integers, computed by onnxruntime: 8 bit kernels or float32."""

from __future__ import annotations

from compiler.export.to_onnx.grid import to_grid_onnx
from compiler.ir.module import IRModule
from compiler.targets.ort import narrow_kernels
from compiler.targets.ort.session import OrtExecutor


class GridExecutor(OrtExecutor):
    """One function of a realised module.

    Args:
        mod: a typed module after QuantizeRealize.
        function: name of the function.
    Raises:
        OnnxExportError: the module has no grid form.
    """

    def __init__(self, mod: IRModule, function: str = "main") -> None:
        names = [param.name_hint for param in mod[function].params]
        super().__init__(to_grid_onnx(mod, function, narrow_kernels.are_exact()), names)
