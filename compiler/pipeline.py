"""Ordered pass lists and the plain ways to run a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.errors import EvaluationError, check_known
from compiler.export.to_tflite.module import TfliteFile, to_tflite
from compiler.fusion.fuse_ops import FuseOps
from compiler.fusion.preparation import BEFORE_FUSION
from compiler.ir.expr import Array, Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import lifted
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import Pass, run_named
from compiler.ir.ty import tensor_fields
from compiler.lowering.lower_te import LowerTE
from compiler.passes.convert_layout import ConvertLayout
from compiler.passes.eta_expand import EtaExpand
from compiler.passes.inline_requantize import InlineRequantize
from compiler.runtime.lowered_module import LoweredModule
from compiler.targets.c.stepwise import Lowering, Orders
from compiler.targets.compilation_config import CompilationConfig
from compiler.targets.reference.executor import ReferenceExecutor
from compiler.targets.target import Target

EXECUTORS = ("reference", "c")

BEFORE_LOWERING: tuple[Pass, ...] = (InlineRequantize(), *BEFORE_FUSION, FuseOps(), EtaExpand())
"""Passes that ``lower`` runs on the graph before PlanDevices and LowerTE."""

BEFORE_C: tuple[Pass, ...] = (
    *BEFORE_FUSION,
    InlineRequantize(high_half=True),
    FuseOps(),
    EtaExpand(),
)
"""The same for target ``c`` behind ConvertLayout: its loops are fastest over channels and over
32-bit numbers."""


def evaluate(
    mod: IRModule | Expr,
    inputs: Mapping[str, Any] | Sequence[Any] = (),
    executor: str = "reference",
    function: str = "main",
    tap: Callable[[Expr, Any], None] | None = None,
) -> list[Array]:
    """Run one function of a module once.

    Args:
        mod: a module, or an expression (wrapped over its free variables).
        inputs: arrays by parameter name, or in the order of the parameters.
        executor: which implementation; "reference" computes with numpy, operator by operator; "c"
            lowers the module and compiles it.
        function: name of the global function.
        tap: called with every evaluated node and its value, in the order of evaluation; of the
            reference executor only.
    Returns:
        The results, tuples flattened from left to right.
    Raises:
        TypeInferenceError: the module is ill-typed.
        EvaluationError: an input does not fit, or the program cannot go on.
    """
    check_known(executor, EXECUTORS, f"unknown executor {executor!r}", EvaluationError)
    if isinstance(mod, Expr):
        mod = IRModule.from_expr(mod)
    if executor != "reference":
        if tap is not None:
            raise EvaluationError("only the reference executor shows values on the way")
        return lower(mod, target=executor).run(inputs, function=function)
    return ReferenceExecutor(mod, function, tap).run(inputs)


def tflite_file(
    mod: IRModule,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    io: str | None = None,
) -> TfliteFile:
    """A module of ``requantization`` "tflite" as a LiteRT file, images in NHWC.

    Args:
        inputs, outputs: names of its signature; those of the module, and numbers, without them.
        io: what the file takes and gives: "int8", "int16", "uint8" or "float"; None for the
            integers of the module.
    Raises:
        TfliteExportError: an operator has no such form, or packages are missing.
    """
    laid = run_named(infer_module(mod), (ConvertLayout(),), "export")
    main = laid["main"]
    results = len(tensor_fields(main.body.checked_type))
    names = inputs or [param.name_hint for param in main.params]
    told = outputs or [f"output_{n}" for n in range(results)]
    return to_tflite(laid, names, told, io)


def fuse_for_c(mod: IRModule, orders: Orders | None = None) -> IRModule:
    """Run the passes of ``lower`` for target ``c`` up to the lowering of kernels.

    Args:
        orders: as ``ConvertLayout`` has them.
    """
    return run_named(lifted(infer_module(mod)), (ConvertLayout(orders), *BEFORE_C), "lower")


def lower(
    mod: IRModule | Expr,
    mod_name: str = "m",
    target: Target | str = "c",
    *,
    targets_by_kind: Mapping[str, Target] | None = None,
) -> LoweredModule:
    """Fuse and lower a module: FuseOps, PlanDevices, LowerTE.

    Args:
        mod: any module with static shapes, such as a quantized one; hardware groups made by
            FuseOpHW stay as they are and go to their code generators.
        mod_name: prefix of the names of PrimFuncs.
        target: of every kernel that no on_device places; such as "c" or "reference".
        targets_by_kind: targets of functions with a ``Compiler``.
    Raises:
        TypeInferenceError: the module is ill-typed.
        DynamicShapeError: unknown dimensions.
        LoweringError: what has no lowered form.
    """
    if isinstance(mod, Expr):
        mod = IRModule.from_expr(mod)
    config = CompilationConfig.of(target, targets_by_kind)
    to_c = (config.default_primitive.target or "").partition(" ")[0] == "c"
    if to_c:
        fused = fuse_for_c(mod)
    else:
        fused = run_named(lifted(infer_module(mod)), BEFORE_LOWERING, "lower")
    return lower_fused(fused, mod_name, config)


def lower_fused(
    fused: IRModule, mod_name: str = "m", config: CompilationConfig | None = None
) -> LoweredModule:
    """The rest of ``lower``: LowerTE on what ``fuse_for_c`` gave, or for another target."""
    config = config or CompilationConfig.of("c")
    lowered = LowerTE(mod_name, config=config)(fused)
    return LoweredModule(lowered, config.default_primitive.target or "")


C_LOWERING = Lowering(fuse_for_c, lower_fused)
"""The lowering of the C that ``derive`` tests."""
