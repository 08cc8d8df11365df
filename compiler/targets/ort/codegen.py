"""onnxruntime as an external compiler: a Relay function becomes an ONNX model and a session.

onnx and onnxruntime are imported when the first function is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.errors import EvaluationError
from compiler.ir.expr import Function
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.runtime.executor import Executor
from compiler.runtime.external_module import external_loaders
from compiler.targets.external_codegen import external_codegen
from compiler.targets.ort.supported import COMPILER
from compiler.targets.target import Target, TargetKind, target_kinds

target_kinds.register(COMPILER)(
    TargetKind("float functions run by onnxruntime", options={"threads": "within one operator"})
)


class OrtModule:
    """One function as an ONNX model; implements ``runtime.external_module.ExternalModule``.

    Args:
        symbol: the function's ``global_symbol``.
        model: bytes of the ONNX model.
        threads: threads within one operator.
    Raises:
        CodegenError: onnxruntime refuses the model.
    """

    kind = COMPILER

    def __init__(self, symbol: str, model: bytes, threads: int = 1) -> None:
        from compiler.targets.ort.session import OrtExecutor

        self._symbol = symbol
        self._model = model
        self._session: Executor = OrtExecutor(model, threads=threads)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The one function it implements."""
        return (self._symbol,)

    def run(self, symbol: str, args: Sequence[Array]) -> list[Array]:
        """See ExternalModule."""
        if symbol != self._symbol:
            raise EvaluationError(f"this module implements {self._symbol!r}, not {symbol!r}")
        return self._session.run(args)

    def members(self) -> dict[str, bytes]:
        """The model under the name of the function."""
        return {self._symbol: self._model}


@external_codegen.register(COMPILER)
def compile_for_onnxruntime(function: Function, target: Target) -> OrtModule:
    """A typed function without ``Compiler`` as a session.

    Raises:
        OnnxExportError: an operator without ONNX form.
        CodegenError: onnxruntime refuses the model.
    """
    from compiler.export.to_onnx.float_model import to_onnx

    symbol = str(function.get_attr("global_symbol"))
    plain = Function(function.params, function.body, function.ret_type)
    model = to_onnx(infer_module(IRModule({"main": plain})))
    threads = int(target.option("threads", "1")) if target.kind == COMPILER else 1
    return OrtModule(symbol, model.SerializeToString(), threads)


@external_loaders.register(COMPILER)
def load_ort_module(members: Mapping[str, bytes]) -> OrtModule:
    """The module that ``OrtModule.members`` describes."""
    ((symbol, model),) = members.items()
    return OrtModule(symbol, model)
