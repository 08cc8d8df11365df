"""LowerTE: primitive functions become global PrimFuncs, calls of them become call_lowered.

    before                                     after
    %1 = fn (%p0: …, Primitive=1) { exp(%p0) };  call_lowered(@m_fused_exp, (%x,), metadata={…})
    %1(%x)                                       @m_fused_exp = primfn(p0: …) -> (o0: …) …

Module attributes afterwards: ``external_mods``, the runtime modules of external code generators;
``device_contexts``, the compiler of each external function; ``op_weights``, calls per PrimFunc,
where ``relay.backend.op_weights`` is on. Functions are lowered by primitive.py, calls are rewritten
by lower_tensor_expr.py, te_compiler.py keeps what has been lowered.
Source: Relay v0.10 backend/te_compiler.cc (LowerTE).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.errors import LoweringError
from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr, Function, GlobalVar
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_context import register_config
from compiler.ir.pass_infra import ModulePass, PassContext, PassInfo, register_pass
from compiler.ir.virtual_device import UNCONSTRAINED
from compiler.lowering.kernel_cache import KernelCache
from compiler.lowering.lower_tensor_expr import (
    GlobalNames,
    LowerTensorExprMutator,
    ProcessFn,
    no_process,
)
from compiler.lowering.te_compiler import TECompiler
from compiler.ops.annotation.on_device import get_on_device_props
from compiler.passes.plan_devices import PlanDevices
from compiler.targets.compilation_config import CompilationConfig

OP_WEIGHTS = "relay.backend.op_weights"
CACHE_DIR = "relay.backend.kernel_cache"

register_config(OP_WEIGHTS, bool, False)
register_config(CACHE_DIR, str, "")


def lower_te(
    mod: IRModule,
    mod_name: str = "",
    process_fn: ProcessFn | None = None,
    config: CompilationConfig | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> IRModule:
    """Lower a fused module whose kernels have devices.

    Args:
        mod: after FuseOps and PlanDevices, typed.
        mod_name: prefix of the names of PrimFuncs.
        process_fn: sees every function that is lowered; see ``lower_tensor_expr.ProcessFn``.
        config: the device of kernels in functions that have none, and targets of functions with a
            ``Compiler``; without it every kernel needs a device, and the latter get ``ext_dev``.
        cache_dir: folder that keeps lowered functions between processes; the configuration key
            ``relay.backend.kernel_cache`` where it is None.
    Raises:
        LoweringError: a call without a target, an external function without a code generator.
        DynamicShapeError: a kernel with unknown dimensions.
    """
    ctx = PassContext.current()
    folder = cache_dir or ctx.get_config(CACHE_DIR)
    compiler = TECompiler(mod, mod_name, config, KernelCache(folder) if folder else None)
    lowered = _LowerTensorExpr(compiler, process_fn or no_process, config)(mod)
    lowered = compiler.add_externs(lowered)
    prims = compiler.get_lowered_functions()
    for gv in prims:
        if gv.name_hint in lowered:
            raise LoweringError(f"@{gv.name_hint} is defined twice: a name was not reserved")
    lowered = lowered.updated(prims)
    externals = (*mod.attrs.get("external_mods", ()), *compiler.lower_external_functions())
    if externals:
        lowered = lowered.with_attr("external_mods", externals)
    contexts = _united(mod, "device_contexts", compiler.get_device_contexts())
    if contexts:
        lowered = lowered.with_attr("device_contexts", contexts)
    if ctx.get_config(OP_WEIGHTS):
        weights = _united(mod, "op_weights", compiler.get_op_weights())
        lowered = lowered.with_attr("op_weights", weights)
    return infer_module(lowered)


@register_pass("LowerTE", opt_level=0, required=("InferType", "FuseOps"))
@dataclass(frozen=True, slots=True)
class LowerTE(ModulePass):
    """``lower_te`` as a pass; PlanDevices runs first for a module without planned devices.

    Args:
        mod_name: prefix of the names of PrimFuncs.
        target: text of the Target of kernels that nothing else places.
        process_fn: see ``lower_te``.
        config: see ``lower_te``.
        cache_dir: see ``lower_te``.
    """

    mod_name: str = ""
    target: str = "c"
    process_fn: ProcessFn | None = None
    config: CompilationConfig | None = None
    cache_dir: str = ""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        config = self.config or CompilationConfig.of(self.target)
        if _is_unplanned(mod):
            mod = PlanDevices(config)(mod)
        return lower_te(mod, self.mod_name, self.process_fn, config, self.cache_dir)


@dataclass(frozen=True, slots=True)
class _LowerTensorExpr(ModulePass):
    """The rewriting inside LowerTE. No FunctionPass: types are inferred once the lowered functions
    are there."""

    info: ClassVar[PassInfo] = PassInfo("LowerTensorExpr")

    compiler: TECompiler
    process_fn: ProcessFn
    config: CompilationConfig | None

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        names = GlobalNames(mod)
        changed: dict[GlobalVar, Expr] = {}
        for gv, fn in mod.functions.items():
            if isinstance(fn, Function) and "Compiler" not in fn.attrs:
                changed[gv] = LowerTensorExprMutator(
                    mod, names, self.compiler, self.process_fn, self.config
                ).visit(fn)
        return mod.updated(changed)


def _is_unplanned(mod: IRModule) -> bool:
    """True when there are on_device calls, and no function has a device."""
    functions = [fn for fn in mod.functions.values() if isinstance(fn, Function)]
    return all(fn.virtual_device is UNCONSTRAINED for fn in functions) and any(
        get_on_device_props(node) is not None for fn in functions for node in post_order(fn)
    )


def _united(mod: IRModule, what: str, new: Mapping[Any, Any]) -> dict[Any, Any]:
    """A module attribute with new entries; a name in both was compiled twice."""
    old = mod.attrs.get(what, {})
    names = {_name(key) for key in old}
    for key in new:
        if _name(key) in names:
            raise LoweringError(
                f"{what} has an entry for {_name(key)!r} already",
                fix="lower a module once, or give its functions other names",
            )
    return {**old, **new}


def _name(key: object) -> str:
    return key.name_hint if isinstance(key, GlobalVar) else str(key)
