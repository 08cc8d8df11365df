"""FuseOpHW: calls that run through the units of an accelerator in one go become one function.

    before                                   after (description opu)
    %0 = nn.conv2d(%x, w);                   %0 = fn (%p0, Primitive=1, Compiler="opu",
    %1 = add(%0, b);                             global_symbol="opu_0",
    %2 = nn.relu(%1);                            hdfg_stages=["ipa", "add", "compare", "pool"], …)
    nn.max_pool2d(%2)                            { nn.max_pool2d(nn.relu(add(nn.conv2d(…)))) };
                                             %0(%x)

A group is a chain: every call but the last feeds only the next one, so a value that two operators
use always ends its group. The calls are taken in post-order, and each is offered to the latest
group first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import compiler.fusion.hardware.command_list  # noqa: F401  (registers its code generators)
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.dfg import scope_post_order
from compiler.fusion.hardware.graph_match_fuser import partition
from compiler.fusion.hardware.group_functions import group_function, with_group_calls
from compiler.fusion.hardware.hdfg import HDFG
from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr, Function, GlobalVar
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import SKIPPED, ModulePass, PassContext, register_pass
from compiler.ir.static_shapes import require_static
from compiler.ops.qnn.requantize import inlined_module


@register_pass("FuseOpHW", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class FuseOpHW(ModulePass):
    """Turn the hardware groups of every function into functions of their own.

    Args:
        hdfg: a description, or the name of a shipped one, or the path of a TOML or JSON file.

    Raises:
        HDFGError: the description is wrong or cannot be found.
        DynamicShapeError: a size is not known.
    """

    hdfg: HDFG | str = "opu"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        if isinstance(self.hdfg, str):
            hdfg = load_hdfg(self.hdfg)
        else:
            hdfg = self.hdfg
        mod = inlined_module(mod)
        symbols = _symbols(mod, hdfg.name)
        changed: dict[GlobalVar, Function] = {}
        for gv, function in mod.functions.items():
            if not isinstance(function, Function) or _is_closed(function):
                continue
            require_static(function, self.info.name)
            new = self._grouped(function, hdfg, symbols)
            if new is not function:
                changed[gv] = new
        if changed:
            return infer_module(mod.updated(changed))
        return mod

    def _grouped(self, function: Function, hdfg: HDFG, symbols: Iterator[str]) -> Function:
        """``function`` and the function literals inside it, innermost first."""
        literals: dict[Expr, Expr] = {}
        for scope in _scopes(function):
            dfg, groups = partition(scope, hdfg)
            inner = {e: literals[e] for e in dfg.node_of if e in literals}
            if groups or inner:
                drawn = {g.root.ref: group_function(g, hdfg.name, next(symbols)) for g in groups}
                literals[scope] = with_group_calls(scope, drawn, inner)
            dfg.unlink()
        new = literals.get(function, function)
        assert isinstance(new, Function)
        return new


def _is_closed(function: Function) -> bool:
    """True for what belongs to another compiler or is a kernel already."""
    return function.has_nonzero_attr("Primitive") or any(key in function.attrs for key in SKIPPED)


def _scopes(function: Function) -> Iterator[Function]:
    """Function literals inside ``function``, inner before outer, then ``function``."""
    return (scope for scope in post_order(function, _literals) if isinstance(scope, Function))


def _literals(scope: Expr) -> list[Function]:
    """Open function literals that stand in a scope itself."""
    assert isinstance(scope, Function)
    nodes = scope_post_order(scope.body)
    return [n for n in nodes if isinstance(n, Function) and not _is_closed(n)]


def _symbols(mod: IRModule, prefix: str) -> Iterator[str]:
    """``opu_0, opu_1, …``, without those that something else in the module has."""
    taken = {gv.name_hint for gv in mod.functions}
    for function in mod.functions.values():
        if isinstance(function, Function):
            taken |= {
                node.get_attr("global_symbol")
                for node in post_order(function)
                if isinstance(node, Function) and "global_symbol" in node.attrs
            }
    symbols = (f"{prefix}_{number}" for number in count())
    return (symbol for symbol in symbols if symbol not in taken)
