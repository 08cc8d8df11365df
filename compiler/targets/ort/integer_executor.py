"""IntegerExecutor: a realised module's integers, as onnxruntime computes its exact ONNX form."""

from __future__ import annotations

from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.module import IRModule
from compiler.targets.ort.session import OrtExecutor


class IntegerExecutor(OrtExecutor):
    """One function of a realised module.

    A session optimizes the graph as it does for whoever runs the file.

    Args:
        mod: a typed module after QuantizeRealize.
        function: name of the function.
    Raises:
        OnnxExportError: the module has no exact integer form.
    """

    def __init__(self, mod: IRModule, function: str = "main") -> None:
        names = [param.name_hint for param in mod[function].params]
        super().__init__(to_integer_onnx(mod, function), names)
