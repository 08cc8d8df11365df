"""onnxruntime as an external compiler: a Relay function becomes an ONNX model and a session.

onnx and onnxruntime are imported when the first function is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from compiler.errors import CodegenError, EvaluationError, OnnxExportError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Call, Function, Op, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import Type, is_dynamic, tensor_fields
from compiler.ops.number_format import Array
from compiler.runtime.executor import Executor
from compiler.runtime.external_module import external_loaders
from compiler.targets.external_codegen import external_codegen, external_support
from compiler.targets.target import Target, TargetKind, target_kinds

COMPILER = "onnxruntime"

_RESULTS = ("float32",)
# Conditions and indices feed float operators.
_OPERANDS = ("float32", "bool", "int32", "int64")
_FORMS_HELD = 4096


@external_support.register(COMPILER)
def is_supported(call: Call) -> bool:
    """True for an operator on float32 tensors of known shape that has an ONNX form.

    simulated_quantize is one; integers stay with the code generators that are exact on them.
    """
    if not isinstance(call.op, Op):
        return False
    operands = [arg.checked_type for arg in call.args]
    tensors = [field for ty in operands for field in tensor_fields(ty)]
    results = tensor_fields(call.checked_type)
    if any(t.dtype not in _OPERANDS or is_dynamic(t) for t in tensors):
        return False
    if not results or any(t.dtype not in _RESULTS or is_dynamic(t) for t in results):
        return False
    if not any(t.dtype == "float32" for t in tensors):
        return False
    return _has_form(call.op, call.attrs, tuple(operands))


@lru_cache(maxsize=_FORMS_HELD)
def _has_form(op: Op, attrs: Attrs | None, operands: tuple[Type, ...]) -> bool:
    """Whether onnxruntime runs this call. The only way to know is to try: export rules and kernels
    refuse some attributes and ranks."""
    from compiler.export.to_onnx.float_model import to_onnx
    from compiler.targets.ort.session import OrtExecutor

    params = tuple(Var(f"p{i}", ty) for i, ty in enumerate(operands))
    mod = infer_module(IRModule({"main": Function(params, Call(op, params, attrs))}))
    fields = [field for ty in operands for field in tensor_fields(ty)]
    try:
        session = OrtExecutor(to_onnx(mod), fused_grids=False)
        zeros = [np.zeros(ty.concrete_shape, ty.dtype) for ty in fields]
        session.run(dict(zip(session.input_names, zeros, strict=True)))
    except (OnnxExportError, CodegenError, EvaluationError, ValueError):
        return False
    return True


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
        self.symbols = (symbol,)
        self._model = model
        self._session: Executor = OrtExecutor(model, threads=threads, fused_grids=False)

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
