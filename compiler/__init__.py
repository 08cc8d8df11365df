"""Model in, quantized and lowered module out; deterministic, single process.

    import compiler
    mod = compiler.parse(text)
    outputs = compiler.evaluate(mod, {"x": array})

The names below are loaded when they are first used; nothing here imports onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import compiler.opt as opt
    import compiler.quantize as quantize
    import compiler.relay as relay
    import compiler.testing as testing
    import compiler.transform as transform
    from compiler.fusion.fuse_ops import fuse_report
    from compiler.fusion.hardware.hdfg import HDFG, Stage
    from compiler.fusion.hardware.report import hw_report
    from compiler.ir.infer_type import infer_expr, infer_module
    from compiler.ir.module import IRModule
    from compiler.ir.parser import parse, parse_expr
    from compiler.ir.printer import astext, text
    from compiler.ir.structural import assert_structural_equal, structural_equal
    from compiler.ir.structural_digest import structural_hash
    from compiler.pipeline import evaluate, lower
    from compiler.targets.external_codegen import register_external

_HOMES = {
    "HDFG": "compiler.fusion.hardware.hdfg",
    "IRModule": "compiler.ir.module",
    "Stage": "compiler.fusion.hardware.hdfg",
    "assert_structural_equal": "compiler.ir.structural",
    "astext": "compiler.ir.printer",
    "evaluate": "compiler.pipeline",
    "fuse_report": "compiler.fusion.fuse_ops",
    "hw_report": "compiler.fusion.hardware.report",
    "infer_expr": "compiler.ir.infer_type",
    "infer_module": "compiler.ir.infer_type",
    "lower": "compiler.pipeline",
    "parse": "compiler.ir.parser",
    "parse_expr": "compiler.ir.parser",
    "register_external": "compiler.targets.external_codegen",
    "structural_equal": "compiler.ir.structural",
    "structural_hash": "compiler.ir.structural",
    "text": "compiler.ir.printer",
}
_MODULES = ("opt", "quantize", "relay", "testing", "transform")

__all__ = [
    "HDFG",
    "IRModule",
    "Stage",
    "assert_structural_equal",
    "astext",
    "evaluate",
    "fuse_report",
    "hw_report",
    "infer_expr",
    "infer_module",
    "lower",
    "opt",
    "parse",
    "parse_expr",
    "quantize",
    "register_external",
    "relay",
    "structural_equal",
    "structural_hash",
    "testing",
    "text",
    "transform",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"compiler.{name}")
    else:
        raise AttributeError(f"module 'compiler' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
