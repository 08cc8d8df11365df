"""FuseOps: operators that may share a loop nest become one primitive function, called in place.

    before                              after
    %0 = add(%x, 1f);                   %2 = fn (%p0: …, Primitive=1) -> … {
    %1 = exp(%0);                         %0 = add(%p0, 1f);
    squeeze(%1)                           %1 = exp(%0);
                                          squeeze(%1)
                                        };
                                        %2(%x)

Operators take part through their OpPattern; ``annotation.stop_fusion`` ends a kernel and goes away.
The pass builds a graph of the whole function (indexed_graph.py), merges groups (groups.py) in
three phases over its post-dominator tree (partition.py), and writes each group as a kernel
(kernels.py). A function with Primitive or Compiler stays as it is.
Source: Relay v0.10 transforms/fuse_ops.cc.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from compiler.errors import CompilerError
from compiler.fusion.indexed_graph import IndexedForwardGraph
from compiler.fusion.kernels import KernelBuilder
from compiler.fusion.partition import Limits, partition
from compiler.ir.expr import Call, Function, Op, describe
from compiler.ir.module import IRModule
from compiler.ir.pass_context import register_config
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass

MAX_DEPTH, LINK_PARAMS, MAX_ARGS, EXPLAIN = (
    f"relay.FuseOps.{name}" for name in ("max_depth", "link_params", "max_args", "explain")
)
REPORT_ATTR = "fuse_report"
"""Function attribute: why each node that was not fused was not, where ``explain`` is on."""

register_config(MAX_DEPTH, int, 256)
register_config(LINK_PARAMS, bool, False)
register_config(MAX_ARGS, int, 0)
register_config(EXPLAIN, bool, False)

_DEEPEST = 10_000


class MissingPatternWarning(UserWarning):
    """An operator without an OpPattern: it is never fused."""


@register_pass("FuseOps", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class FuseOps(FunctionPass):
    """Group operators into primitive functions.

    Args:
        fuse_opt_level: 0 makes a kernel of every operator; -1 takes the level of the PassContext.
        max_depth: most nodes of one kernel, 1 to 10 000; 0 takes ``relay.FuseOps.max_depth``.
        link_params: constants stay inside kernels; False takes ``relay.FuseOps.link_params``.
        max_args: most parameters and results of one kernel; 0 takes ``relay.FuseOps.max_args``,
            where 0 sets no limit.

    Raises:
        CompilerError: a limit out of range.
    """

    fuse_opt_level: int = -1
    max_depth: int = 0
    link_params: bool = False
    max_args: int = 0

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        if fn.has_nonzero_attr("Primitive"):
            return fn
        if self.fuse_opt_level < 0:
            level = ctx.opt_level
        else:
            level = self.fuse_opt_level
        limits = self._limits(ctx)
        graph = IndexedForwardGraph(fn)
        _warn_of_missing_patterns(graph)
        groups, refused = partition(graph, limits, fuse=level > 0)
        new = KernelBuilder(graph, groups, link_params=limits.link_params).visit(fn)
        assert isinstance(new, Function)
        explain = ctx.get_config(EXPLAIN)
        if explain:
            return new.with_attr(REPORT_ATTR, _report(graph, refused))
        return new

    def _limits(self, ctx: PassContext) -> Limits:
        max_depth = self.max_depth or ctx.get_config(MAX_DEPTH)
        if not 1 <= max_depth <= _DEEPEST:
            raise CompilerError(
                f"FuseOps: max_depth is {max_depth}", fix=f"give a number from 1 to {_DEEPEST}"
            )
        max_args = self.max_args or ctx.get_config(MAX_ARGS)
        if max_args < 0:
            raise CompilerError(f"FuseOps: max_args is {max_args}", fix="0 sets no limit")
        return Limits(max_depth, max_args, self.link_params or ctx.get_config(LINK_PARAMS))


def fuse_report(mod: IRModule) -> str:
    """Explain, a line each, why operators were not fused with their readers.

    Args:
        mod: after FuseOps under ``PassContext(config={"relay.FuseOps.explain": True})``; any
            other typed module is fused for the report only.
    """
    functions = {g: f for g, f in mod.functions.items() if isinstance(f, Function)}
    if not any(REPORT_ATTR in fn.attrs for fn in functions.values()):
        current = PassContext.current()
        with PassContext(opt_level=current.opt_level, config={**current.config, EXPLAIN: True}):
            return fuse_report(FuseOps()(mod))
    lines: list[str] = []
    for gv, fn in functions.items():
        if REPORT_ATTR in fn.attrs:
            lines.append(f"@{gv.name_hint}")
            lines.extend(f"  {line}" for line in fn.attrs[REPORT_ATTR])
    return "\n".join(lines)


def _report(graph: IndexedForwardGraph, refused: dict[int, str]) -> tuple[str, ...]:
    """One line per operator call; constants, tuples and the like explain nothing."""
    lines: list[str] = []
    for index, reason in sorted(refused.items()):
        ref = graph.nodes[index].ref
        if isinstance(ref, Call) and isinstance(ref.op, Op):
            at = f" ({ref.span})" if ref.span is not None else ""
            lines.append(f"#{index} {describe(ref)}{at}: {reason}")
    return tuple(lines)


def _warn_of_missing_patterns(graph: IndexedForwardGraph) -> None:
    missing: dict[str, None] = {}
    for node in graph.nodes:
        ref = node.ref
        if isinstance(ref, Call) and isinstance(ref.op, Op) and ref.op.pattern is None:
            missing[ref.op.name] = None
    for name in missing:
        warnings.warn(
            f"operator {name!r} has no pattern and is never fused", MissingPatternWarning, 2
        )
