"""LowerTE: primitive functions become global PrimFuncs, calls of them become call_lowered.

    before                                     after
    %1 = fn (%p0: …, Primitive=1) { exp(%p0) };  call_lowered(@m_fused_exp, (%x,), metadata={…})
    %1(%x)                                       @m_fused_exp = primfn(p0: …) -> (o0: …) …

Module attributes afterwards: ``external_mods``, the runtime modules of external code generators;
``device_contexts``, the compiler of each external function; ``op_weights``, calls per PrimFunc,
where ``relay.backend.op_weights`` is on. Functions are lowered by primitive.py; te_compiler.py
keeps what has been lowered.
Source: Relay v0.10 backend/te_compiler.cc (LowerTE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.errors import DynamicShapeError, LoweringError
from compiler.ir.attrs import DictAttrs
from compiler.ir.dataflow import SCAN
from compiler.ir.expr import (
    Call,
    Expr,
    Function,
    GlobalVar,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    describe,
    is_op_call,
)
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.pass_context import register_config
from compiler.ir.pass_infra import ModulePass, PassContext, PassInfo, register_pass
from compiler.ir.ty import TupleType, Type, is_dynamic
from compiler.ir.virtual_device import UNCONSTRAINED
from compiler.ir.walk import nodes_of, post_order
from compiler.lowering.device_aware import DeviceAwareExprMutator
from compiler.lowering.te_compiler import CachedFunc, CCacheKey, TECompiler, fused_ops
from compiler.ops.annotation.on_device import get_on_device_props
from compiler.ops.lowered.call_lowered import make_call_lowered
from compiler.ops.lowered.device_copy import get_device_copy_props, make_device_copy
from compiler.passes.plan_devices import PlanDevices
from compiler.targets.compilation_config import CompilationConfig
from compiler.targets.target import Target

RESHAPE_ONLY = "relay.reshape_only"

BaseFunc = Function | LoweredFunction
ProcessFn = Callable[[BaseFunc], None]
"""Sees every function that is lowered, with attributes ``prim_fn_var``, ``prim_funcs`` and
``target`` added; for collecting sizes and the like."""


class LowerTensorExprMutator(DeviceAwareExprMutator):
    """Rewrites one function: every call of a primitive function becomes a call of a lowered one.

        callee                              becomes
        1  Function with Primitive          call_lowered of a PrimFunc made for the device of the
                                            call; one that only copies: a plain device_copy;
                                            a scan: itself, its body is a function of the module
        2  … and with Compiler              call_lowered of its global_symbol, compiled later
        3  GlobalVar of a PrimFunc          call_lowered of it, as it is
        4  any other Function               stays an ordinary call
        5  call_lowered                     stays, over lowered arguments
        6  Function with Extern             call_lowered of it, nothing is compiled

    Callees may be literals, global names, or variables bound by a Let; a binding of a primitive
    function disappears with its calls.

    Args:
        mod: the module it belongs to.
        names: of the functions of ``mod``, by id: a LoweredFunction is equal by content.
        compiler: keeps what is lowered.
        process_fn: called once per lowered call, and with literals that are called as they are.
        config: targets of external functions.

    Raises:
        LoweringError: a call without a target, with type arguments, or of a PrimFunc without one.
        DynamicShapeError: a kernel with unknown dimensions.
    Source: Relay v0.10 backend/te_compiler.cc (LowerTensorExprMutator).
    """

    def __init__(
        self,
        mod: IRModule,
        names: Mapping[int, GlobalVar],
        compiler: TECompiler,
        process_fn: ProcessFn,
        config: CompilationConfig | None,
    ) -> None:
        super().__init__(mod)
        self._mod = mod
        self._names = names
        self._compiler = compiler
        self._process_fn = process_fn
        self._config = config
        self._primitive_vars: dict[Var, BaseFunc] = {}
        if config is not None:
            # What no function and no on_device places.
            self.push_virtual_device(config.default_primitive)

    def resolve_to_primitive(self, expr: Expr) -> BaseFunc | None:
        """The primitive, external or lowered function that ``expr`` means; None for all else."""
        found: object = expr
        if isinstance(expr, GlobalVar):
            found = self._mod[expr] if expr.name_hint in self._mod else None
        elif isinstance(expr, Var):
            return self._primitive_vars.get(expr)
        if isinstance(found, LoweredFunction):
            return found
        if not isinstance(found, Function):
            return None
        if found.has_nonzero_attr("Extern"):
            return found
        if found.has_nonzero_attr("Primitive") and not is_op_call(found.body, "debug"):
            return found
        return None

    def device_aware_visit_function(self, function: Function) -> Expr:
        if function.has_nonzero_attr("Primitive") or function.has_nonzero_attr("Extern"):
            return function
        return super().device_aware_visit_function(function)

    def pre_visit_let_binding(self, var: Var, value: Expr) -> tuple[Var, Expr]:
        new_var, new_value = super().pre_visit_let_binding(var, value)
        primitive = self.resolve_to_primitive(new_value)
        if primitive is not None:
            self._primitive_vars[var] = primitive
        return new_var, new_value

    def post_visit_let(self, pre_let: Let, post_let: Let) -> Expr:
        if self.resolve_to_primitive(post_let.value) is None:
            return post_let
        self._primitive_vars.pop(pre_let.var, None)
        return post_let.body

    def device_aware_visit_call(self, call: Call) -> Expr:
        primitive = self.resolve_to_primitive(call.op)
        if primitive is None:
            post = super().device_aware_visit_call(call)
            if isinstance(call.op, Function):
                self._process_fn(call.op)
            return post
        if call.type_args:
            raise LoweringError(
                "lowered functions cannot be polymorphic",
                where=f"{describe(call)} has type arguments {call.type_args}",
                span=call.span,
            )
        args = [self.visit(arg) for arg in call.args]
        if isinstance(primitive, LoweredFunction):
            return self._call_prim_func(call, primitive, args)
        if primitive.has_nonzero_attr("Extern"):
            return self._call_extern(call, primitive, args)
        copy = get_device_copy_props(primitive.body)
        if copy is not None and len(args) == 1 and "Compiler" not in primitive.attrs:
            return make_device_copy(args[0], copy.src_virtual_device, copy.dst_virtual_device)
        if is_op_call(primitive.body, SCAN):
            return primitive.body.with_fields(args=args)
        return self._call_function(call, primitive, args)

    def _call_function(self, call: Call, function: Function, args: list[Expr]) -> Expr:
        """Forms 1 and 2."""
        if function.checked_type_or_none is None or is_dynamic(function.checked_type):
            raise _dynamic(function)
        target = self._target(call, function)
        entry = self._compiler.lower(CCacheKey(function, target, self.get_virtual_device(call)))
        metadata: dict[str, object] = {
            "relay_attrs": function.attrs,
            "all_prim_fn_vars": tuple(entry.prim_funcs),
        }
        if function.has_nonzero_attr(RESHAPE_ONLY) and entry.compiler is None:
            metadata[RESHAPE_ONLY] = 1
        self._process_fn(_with_lowering_attrs(function, entry, str(target)))
        if entry.compiler is None:
            return _call_flat(entry.prim_fn_var, call, args, metadata)
        return make_call_lowered(entry.prim_fn_var, args, metadata, call.span)

    def _call_prim_func(self, call: Call, prim: LoweredFunction, args: list[Expr]) -> Expr:
        """Form 3."""
        name = self._global_name(call)
        if "target" not in prim.attrs:
            raise LoweringError(
                f"@{name.name_hint} is a PrimFunc without attribute target",
                fix='give it one: prim_func.with_attr("target", "c")',
                span=call.span,
            )
        annotated = prim.with_attr("prim_fn_var", name).with_attr("prim_funcs", {name: prim})
        self._process_fn(annotated)
        metadata: dict[str, object] = {"relay_attrs": prim.attrs, "all_prim_fn_vars": (name,)}
        return _call_flat(name, call, args, metadata)

    def _call_extern(self, call: Call, function: Function, args: list[Expr]) -> Expr:
        """Form 6."""
        metadata = {"relay_attrs": function.attrs, "all_prim_fn_vars": ()}
        return make_call_lowered(self._global_name(call), args, metadata, call.span)

    def _global_name(self, call: Call) -> GlobalVar:
        """The name of a callee that is defined globally, also where a Let gave it another."""
        if isinstance(call.op, GlobalVar):
            return call.op
        name = self._names.get(id(self.resolve_to_primitive(call.op)))
        if name is not None:
            return name
        raise LoweringError(
            f"{describe(call)}: a function that is compiled already has no global name",
            fix="define it in the module and call it by its name",
            span=call.span,
        )

    def _target(self, call: Call, function: Function) -> Target:
        compiler = function.get_attr("Compiler")
        if compiler is not None:
            if self._config is None:
                return Target("ext_dev")
            return self._config.target_of_compiler(str(compiler))
        device = self.get_virtual_device(call)
        if device.target is None:
            raise LoweringError(
                "the target of a call of a primitive function is not known",
                where=f"fused {', '.join(fused_ops(function)) or 'function'}",
                fix="run transform.PlanDevices(target) before LowerTE",
                span=call.span,
            )
        return Target.from_text(device.target)


def _call_flat(
    name: GlobalVar, call: Call, args: Sequence[Expr], metadata: dict[str, object]
) -> Expr:
    """A call of a PrimFunc, whose parameters are tensors: tuples are passed field by field."""
    flat: list[Expr] = []
    for old, new in zip(call.args, args):
        flat.extend(_fields(new, old.checked_type))
    lowered = make_call_lowered(name, flat, metadata, call.span)
    ret = call.checked_type
    if isinstance(ret, TupleType) and len(ret.fields) == 1:
        # A PrimFunc with one output returns the tensor itself.
        return Tuple((lowered,), span=call.span)
    return lowered


def _fields(value: Expr, ty: Type) -> list[Expr]:
    """The tensors of a value, left to right; recurses over the nesting of its type."""
    if not isinstance(ty, TupleType):
        return [value]
    if isinstance(value, Tuple):
        parts = list(value.fields)
    else:
        parts = [TupleGetItem(value, i, span=value.span) for i in range(len(ty.fields))]
    return [leaf for part, field in zip(parts, ty.fields) for leaf in _fields(part, field)]


def _with_lowering_attrs(function: Function, entry: CachedFunc, target: str) -> Function:
    extra = {
        "prim_fn_var": entry.prim_fn_var,
        "prim_funcs": dict(entry.prim_funcs),
        "target": target,
    }
    annotated = function.with_fields(attrs=DictAttrs({**function.attrs, **extra}))
    annotated.set_checked_type(function.checked_type_or_none)
    return annotated


def _dynamic(function: Function) -> DynamicShapeError:
    """The first operator of a kernel that reads or makes a tensor of unknown size."""
    for node in nodes_of(function):
        if not isinstance(node, Call):
            continue
        for part in (*node.args, node):
            ty = part.checked_type_or_none
            if ty is None or is_dynamic(ty):
                role = "makes" if part is node else "reads"
                return DynamicShapeError(
                    f"{describe(node).removeprefix('call of ')} {role} a tensor of type {ty}: "
                    "its size is not known",
                    fix="give every dimension a size before lowering",
                    span=node.span,
                )
    return DynamicShapeError("a parameter of a kernel has no fixed size", span=function.span)


def no_process(function: BaseFunc) -> None:
    """The process_fn that does nothing."""


OP_WEIGHTS = "relay.backend.op_weights"

register_config(OP_WEIGHTS, bool, False)


def lower_te(
    mod: IRModule,
    mod_name: str = "",
    process_fn: ProcessFn | None = None,
    config: CompilationConfig | None = None,
) -> IRModule:
    """Lower a fused module whose kernels have devices.

    Args:
        mod: after FuseOps and PlanDevices, typed.
        mod_name: prefix of the names of PrimFuncs.
        process_fn: sees every function that is lowered; see ``ProcessFn``.
        config: the device of kernels in functions that have none, and targets of functions with a
            ``Compiler``; without it every kernel needs a device, and the latter get ``ext_dev``.
    Raises:
        LoweringError: a call without a target, an external function without a code generator.
        DynamicShapeError: a kernel with unknown dimensions.
    """
    ctx = PassContext.current()
    compiler = TECompiler(mod, mod_name, config)
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
    """

    mod_name: str = ""
    target: str = "c"
    process_fn: ProcessFn | None = None
    config: CompilationConfig | None = None

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        config = self.config or CompilationConfig.of(self.target)
        if _is_unplanned(mod):
            mod = PlanDevices(config)(mod)
        return lower_te(mod, self.mod_name, self.process_fn, config)


@dataclass(frozen=True, slots=True)
class _LowerTensorExpr(ModulePass):
    """The rewriting inside LowerTE. No FunctionPass: types are inferred once the lowered functions
    are there."""

    info: ClassVar[PassInfo] = PassInfo("LowerTensorExpr")

    compiler: TECompiler
    process_fn: ProcessFn
    config: CompilationConfig | None

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        # The first name where a function has several.
        names = {id(fn): gv for gv, fn in reversed(mod.functions.items())}
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
    if isinstance(key, GlobalVar):
        return key.name_hint
    return str(key)
