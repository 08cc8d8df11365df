"""Model in, quantized and lowered module out; deterministic, single process.

    import compiler
    mod = compiler.parse(text)
    outputs = compiler.evaluate(mod, {"x": array})

The names below are loaded when they are first used; nothing here imports onnx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.lazy_names import lazy_names

if TYPE_CHECKING:
    from compiler import ir as ir
    from compiler import opt as opt
    from compiler import quantize as quantize
    from compiler import relay as relay
    from compiler import testing as testing
    from compiler import transform as transform
    from compiler.fusion.fuse_ops import fuse_report as fuse_report
    from compiler.fusion.hardware.hdfg import HDFG as HDFG
    from compiler.fusion.hardware.report import hw_report as hw_report
    from compiler.fusion.hardware.stage import Stage as Stage
    from compiler.ir.inference.infer_type import infer_expr as infer_expr
    from compiler.ir.inference.infer_type import infer_module as infer_module
    from compiler.ir.module import IRModule as IRModule
    from compiler.ir.structural import assert_structural_equal as assert_structural_equal
    from compiler.ir.structural import structural_equal as structural_equal
    from compiler.ir.structural import structural_hash as structural_hash
    from compiler.ir.text.parser import parse as parse
    from compiler.ir.text.parser import parse_expr as parse_expr
    from compiler.ir.text.printer import astext as astext
    from compiler.ir.text.printer import text as text
    from compiler.pipeline import evaluate as evaluate
    from compiler.pipeline import lower as lower
    from compiler.targets.external_codegen import register_external as register_external

__getattr__, __all__ = lazy_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
