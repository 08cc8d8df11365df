"""TECompiler: lowers every distinct primitive function once, and hands out its global name.

Two functions are one when they are structurally equal and meant for one target. Functions with a
``Compiler`` attribute are only noted; ``lower_external_functions`` gives them to their code
generators at the end. Source: Relay v0.10 backend/te_compiler.cc.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from numpy.typing import NDArray

from compiler.errors import CompilerError, LoweringError, nearest
from compiler.ir.expr import Call, Function, GlobalVar, Op, describe
from compiler.ir.module import IRModule
from compiler.ir.structural import structural_hash
from compiler.ir.ty import tensor_fields
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.ir.walk import nodes_of, post_order
from compiler.lir.nodes import PrimFunc
from compiler.lowering.primitive import lower_primitive
from compiler.runtime.external_module import ExternalModule
from compiler.targets.compilation_config import CompilationConfig
from compiler.targets.external_codegen import external_codegen
from compiler.targets.target import Target, target_kinds

_LONGEST_NAME = 80


class UnimplementedSymbolWarning(UserWarning):
    """An external module that does not implement the function it was made from."""


@dataclass(frozen=True, slots=True)
class CCacheKey:
    """Key of a lowered function: the function, and the target."""

    source: Function
    target: Target
    virtual_device: VirtualDevice = UNCONSTRAINED


@dataclass(slots=True)
class CachedFunc:
    """A lowered function, or an external one that still waits for its code generator.

    Attributes:
        prim_fn_var: its global name; typed.
        prim_funcs: the PrimFuncs made for it; none for an external function.
        key: what it was made from.
        compiler: the ``Compiler`` attribute; None for a plain kernel.
        use_count: how often it was asked for.
    """

    prim_fn_var: GlobalVar
    key: CCacheKey
    prim_funcs: dict[GlobalVar, PrimFunc] = field(default_factory=dict)
    compiler: str | None = None
    use_count: int = 1


class TECompiler:
    """The cache of one lowering.

    Args:
        mod: its global names are taken.
        mod_name: prefix of the names of PrimFuncs; "" for none.
        config: targets of external functions.
    """

    def __init__(
        self,
        mod: IRModule | None = None,
        mod_name: str = "",
        config: CompilationConfig | None = None,
    ) -> None:
        self._prefix = f"{mod_name}_" if mod_name else ""
        self._config = config
        if mod is not None:
            self._names = {gv.name_hint for gv in mod}
        else:
            self._names = set()
        self._next: dict[str, int] = {}
        self._by_hash: dict[str, CachedFunc] = {}
        self._order: list[CachedFunc] = []
        self._device_contexts: dict[GlobalVar, str] = {}

    def lower(self, key: CCacheKey) -> CachedFunc:
        """The entry of a key, made at its first request.

        Raises:
            LoweringError: an external function without ``global_symbol``, or with one that is
                taken; a function that cannot be lowered.
            DynamicShapeError: unknown dimensions.
        """
        digest = structural_hash(key.source, map_free_vars=True)
        full = f"{digest} {key.target} {key.virtual_device}"
        if full in self._by_hash:
            self._by_hash[full].use_count += 1
            return self._by_hash[full]
        compiler = key.source.get_attr("Compiler")
        if compiler is None:
            made = self._lower_kernel(key)
        else:
            made = self._note(key, str(compiler))
        self._by_hash[full] = made
        self._order.append(made)
        return made

    def _lower_kernel(self, key: CCacheKey) -> CachedFunc:
        source = key.source
        target = key.target
        name = self._fresh(self._prefix + _fused_name(source))
        prim = _lowered(source, name, target)
        if "hash" in source.attrs:
            prim = prim.with_attr("hash", source.attrs["hash"])
        gv = GlobalVar(name, span=source.span)
        gv.set_checked_type(prim.func_type)
        return CachedFunc(gv, key, {gv: prim})

    def _note(self, key: CCacheKey, compiler: str) -> CachedFunc:
        """An external function keeps its own name."""
        symbol = key.source.get_attr("global_symbol")
        if not isinstance(symbol, str) or not symbol:
            raise LoweringError(
                f"a function for compiler {compiler!r} has no global_symbol",
                fix="give every external function a name of its own in attribute global_symbol",
                span=key.source.span,
            )
        if any(held.prim_fn_var.name_hint == symbol for held in self._externals):
            raise LoweringError(
                f"two different functions have the global_symbol {symbol!r}",
                fix="give every external function a name of its own",
                span=key.source.span,
            )
        self._names.add(symbol)
        gv = GlobalVar(symbol, span=key.source.span)
        gv.set_checked_type(key.source.checked_type)
        self._device_contexts[gv] = compiler
        return CachedFunc(gv, key, compiler=compiler)

    @property
    def _externals(self) -> list[CachedFunc]:
        return [entry for entry in self._order if entry.compiler is not None]

    def get_lowered_functions(self) -> dict[GlobalVar, PrimFunc]:
        """Every PrimFunc made, in order of first request."""
        return {gv: fn for entry in self._order for gv, fn in entry.prim_funcs.items()}

    def add_externs(self, mod: IRModule) -> IRModule:
        """``mod`` without definitions that have a ``Compiler``, and with a declaration, attribute
        ``Extern=1`` alone, of every external function noted."""
        kept = {
            gv: fn
            for gv, fn in mod.functions.items()
            if not isinstance(fn, Function) or "Compiler" not in fn.attrs
        }
        declarations: dict[GlobalVar, Function] = {}
        for entry in self._externals:
            source = entry.key.source
            declared = source.with_fields(attrs={"Extern": 1})
            declared.set_checked_type(source.checked_type_or_none)
            declarations[entry.prim_fn_var] = declared
        return mod.with_functions(kept).updated(declarations)

    def lower_external_functions(self) -> list[ExternalModule]:
        """Call the code generators, and forget the external functions.

        Raises:
            LoweringError: there is none for a compiler.
        """
        found: list[ExternalModule] = []
        for entry in self._externals:
            assert entry.compiler is not None
            if entry.compiler not in external_codegen:
                known = list(external_codegen.names())
                close = nearest(entry.compiler, known)
                raise LoweringError(
                    "Failed to find the external codegen tool for "
                    f"relay.ext.{entry.compiler}, known={known}",
                    fix=f"did you mean {', '.join(close)}?"
                    if close
                    else f"compiler.register_external({entry.compiler!r}, function)",
                    span=entry.key.source.span,
                )
            generate = external_codegen.require(entry.compiler)
            made = generate(entry.key.source.without_attr("Compiler"), entry.key.target)
            symbol = entry.prim_fn_var.name_hint
            if made is None:
                continue
            if symbol not in made.symbols:
                warnings.warn(
                    f"the external module of {entry.compiler!r} does not implement {symbol!r}",
                    UnimplementedSymbolWarning,
                    stacklevel=2,
                )
            found.append(made)
        self._order = [entry for entry in self._order if entry.compiler is None]
        self._by_hash = {
            key: entry for key, entry in self._by_hash.items() if entry.compiler is None
        }
        return found

    def get_device_contexts(self) -> dict[GlobalVar, str]:
        """Name of every external function → its compiler."""
        return dict(self._device_contexts)

    def get_op_weights(self) -> dict[str, int]:
        """Name of every PrimFunc → how often it is called."""
        return {gv.name_hint: entry.use_count for entry in self._order for gv in entry.prim_funcs}

    def jit(self, func: Function, target: Target) -> Callable[..., list[NDArray[Any]]]:
        """Lower one function and return it as a callable on arrays, evaluated with numpy."""
        (prim,) = self.lower(CCacheKey(func, target)).prim_funcs.values()

        def run(*args: NDArray[Any]) -> list[NDArray[Any]]:
            return prim.evaluate(args)

        return run

    def list_items(self) -> list[CachedFunc]:
        """Every entry, in order of first request."""
        return list(self._order)

    def clear(self) -> None:
        """Forget every entry; names stay taken."""
        self._by_hash.clear()
        self._order.clear()
        self._device_contexts.clear()

    def _fresh(self, name: str) -> str:
        """``name``, or with the first free of the endings _1, _2, …"""
        found = name
        number = self._next.get(name, 0)
        while found in self._names:
            number += 1
            found = f"{name}_{number}"
        self._next[name] = number
        self._names.add(found)
        return found


def _lowered(source: Function, name: str, target: Target) -> PrimFunc:
    try:
        _refuse_missing_dtypes(source, target)
        return lower_primitive(source, name, target)
    except CompilerError as error:
        error.add_note(f"while lowering @{name} for target {target}")
        raise


def _refuse_missing_dtypes(source: Function, target: Target) -> None:
    missing = target_kinds.require(target.kind).missing_dtypes
    if not missing:
        return
    for node in post_order(source):
        ty = node.checked_type_or_none
        if ty is None:
            dtypes = set()
        else:
            dtypes = {part.dtype for part in tensor_fields(ty)}
        for dtype in sorted(dtypes & missing):
            raise LoweringError(
                f"target {target.kind} has no type {dtype}",
                where=f"{describe(node)} is {ty}",
                fix="keep such values in float32: cast them before and after",
                span=node.span,
            )


def fused_ops(function: Function) -> Sequence[str]:
    """Operators a function calls, in post-order, each call once."""
    return [
        node.op.name
        for node in nodes_of(function)
        if isinstance(node, Call) and isinstance(node.op, Op)
    ]


def _fused_name(function: Function) -> str:
    """``fused_`` and the operators; what is too long ends in a hash of the whole."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", "fused_" + "_".join(fused_ops(function)))
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}_{blake2b(name.encode(), digest_size=8).hexdigest()}_"
    return name
