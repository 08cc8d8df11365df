"""PartitionGraph: what another compiler takes becomes functions for it, as large as possible.

    before                              after (compiler onnxruntime)
    %0 = nn.dense(%x, %w);              %0 = fn (%p0, %p1, Primitive=1, Compiler="onnxruntime",
    %1 = nn.softmax(%0);                         global_symbol="onnxruntime_0") { … };
    right_shift(cast(%1), 2)            right_shift(cast(%0(%x, %w)), 2)

Every operator call gets a level: how often the worst way to it changes between what the compiler
takes and what it does not. Calls that are taken, connected, of one level and of one scope form a
region. No way leaves a region and comes back, as it would be a level higher then; so the functions
can be called one after the other. A region with several values read outside returns a tuple.
What this does in one sweep are Relay's AnnotateTarget, MergeCompilerRegions and PartitionGraph.
Not handled: what is taken inside primitive functions; run it before FuseOps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir.analysis import post_order
from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
)
from compiler.ir.module import IRModule
from compiler.ir.op import NON_COMPUTATIONAL
from compiler.ir.pass_infra import ModulePass, PassContext, register_pass
from compiler.ir.rebuild import substitute, with_operands
from compiler.passes.opaque_primitives import outside_kernels
from compiler.span import join_spans
from compiler.targets.external_codegen import external_support
from compiler.targets.reference.scopes import ScopeMap

_CUT = ("annotation.stop_fusion",)


@register_pass("PartitionGraph", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class PartitionGraph(ModulePass):
    """Make functions for an external compiler.

    Args:
        compiler: a name with an entry in ``targets.external_codegen.external_support``.
        min_calls: regions of fewer calls stay as they are.

    Raises:
        LoweringError: the compiler is not registered.
    """

    compiler: str = "onnxruntime"
    min_calls: int = 1

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        external_support.require(self.compiler)
        # Numbers of functions go through the whole module: a symbol names one of them.
        count = 0
        changed: dict[GlobalVar, Function] = {}
        for gv, fn in mod.functions.items():
            if isinstance(fn, Function) and not _is_leaf(fn):
                builder = _Partitioner(fn, self.compiler, self.min_calls, count)
                new = builder.build()
                if new is not fn:
                    changed[gv] = new
                count += builder.made
        # infer_module registers the pass InferType, which this one requires.
        from compiler.ir.inference.infer_type import infer_module

        return infer_module(mod.updated(changed) if changed else mod)


def _is_leaf(node: Expr) -> bool:
    marks = ("Primitive", "Compiler", "Extern", "SkipOptimization")
    return isinstance(node, Function) and any(mark in node.attrs for mark in marks)


@dataclass(slots=True, eq=False)
class _Region:
    """Calls that become one function.

    Attributes:
        members: in post-order.
        inputs: what they read from outside, in order of first need.
        outputs: members that are read outside.
    """

    members: list[Call] = field(default_factory=list)
    inputs: list[Expr] = field(default_factory=list)
    outputs: list[Call] = field(default_factory=list)


class _Partitioner:
    def __init__(self, fn: Function, compiler: str, min_calls: int, first: int) -> None:
        self._fn = fn
        self._compiler = compiler
        self._min_calls = min_calls
        self._first = first
        self._takes = external_support.require(compiler)
        nodes = list(post_order(fn))
        self._order = outside_kernels(nodes, _is_leaf)
        self._inside = set(nodes).difference(self._order)
        self._region: dict[Expr, _Region] = {}
        self._takes_call = {node: self._taken(node) for node in self._order}
        users: dict[Expr, list[Expr]] = {}
        for node in self._order:
            for operand in node.operands():
                users.setdefault(operand, []).append(node)
        # Tuples that only taken calls read are packed inside the functions.
        self._packed = {
            node
            for node in self._order
            if isinstance(node, Tuple) and all(self._takes_call[u] for u in users.get(node, [fn]))
        }
        self.made = 0

    def build(self) -> Function:
        """The function with calls of external functions in place of regions."""
        self._find_regions()
        if not self._region:
            return self._fn
        result = self._rewrite()
        assert isinstance(result, Function)
        return result

    def _taken(self, node: Expr) -> bool:
        return (
            isinstance(node, Call)
            and isinstance(node.op, Op)
            and NON_COMPUTATIONAL not in node.op.flags
            and node.op.name not in _CUT
            and self._takes(node)
        )

    def _reads(self, node: Expr) -> list[Expr]:
        """Operands of a node; of a call, the fields of tuples that its function packs."""
        if node in self._packed:
            return []
        found: list[Expr] = []
        for operand in node.operands():
            found.extend(operand.operands() if operand in self._packed else (operand,))
        return found

    def _find_regions(self) -> None:
        levels: dict[Expr, int] = {}
        taken: dict[Expr, bool] = {}
        bound: dict[Expr, Expr] = {}
        owner = ScopeMap(self._fn).owner
        parent: dict[Expr, Expr] = {}
        for node in self._order:
            if isinstance(node, Let):
                bound[node.var] = node.value
        for node in self._order:
            if isinstance(node, (Constant, Op, GlobalVar)):
                continue
            mine = taken[node] = self._takes_call[node]
            level = 0
            for operand in self._reads(node):
                # A variable is as late as the value that it stands for.
                source = bound.get(operand, operand)
                if source in levels:
                    changes = taken[source] != mine or source is not operand
                    level = max(level, levels[source] + changes)
            levels[node] = level
            if not mine:
                continue
            parent[node] = node
            for operand in self._reads(node):
                if operand in parent and levels[operand] == level and owner[operand] is owner[node]:
                    parent[_root(operand, parent)] = _root(node, parent)
        self._collect(parent)

    def _collect(self, parent: dict[Expr, Expr]) -> None:
        regions: dict[Expr, _Region] = {}
        for node in self._order:
            if node in parent:
                assert isinstance(node, Call)
                region = regions.setdefault(_root(node, parent), _Region())
                region.members.append(node)
                self._region[node] = region
        small = [r for r in regions.values() if len(r.members) < self._min_calls]
        for region in small:
            for member in region.members:
                del self._region[member]
        read_outside: set[Expr] = set()
        for node in self._order:
            mine = self._region.get(node)
            read_outside.update(o for o in self._reads(node) if self._region.get(o) is not mine)
        for region in dict.fromkeys(self._region.values()):
            region.outputs = [member for member in region.members if member in read_outside]
            region.inputs = self._inputs_of(region)

    def _inputs_of(self, region: _Region) -> list[Expr]:
        """What the members read from outside, each once; constants move inside."""
        return list(
            dict.fromkeys(
                arg
                for member in region.members
                for arg in self._reads(member)
                if arg is not member.op
                and self._region.get(arg) is not region
                and not isinstance(arg, Constant)
            )
        )

    def _rewrite(self) -> Expr:
        """Build everything after what it needs; a region needs all its inputs first."""
        done: dict[Expr, Expr] = {node: node for node in self._inside}
        stack: list[tuple[Expr, bool]] = [(self._fn, False)]
        while stack:
            node, ready = stack.pop()
            if node in done:
                continue
            region = self._region.get(node)
            needs = node.operands() if region is None else tuple(region.inputs)
            if _is_leaf(node):
                done[node] = node
            elif not ready:
                stack.append((node, True))
                stack.extend((n, False) for n in reversed(needs) if n not in done)
            elif region is None:
                done[node] = with_operands(node, [done[child] for child in needs])
            else:
                done.update(self._call(region, [done[n] for n in needs]))
        return done[self._fn]

    def _call(self, region: _Region, args: list[Expr]) -> dict[Expr, Expr]:
        """The outputs of a region as results of one call."""
        params = [Var(f"p{i}", value.checked_type) for i, value in enumerate(region.inputs)]
        results = region.outputs
        body: Expr = results[0] if len(results) == 1 else Tuple(tuple(results))
        inner = substitute(body, dict(zip(region.inputs, params)))
        ret_type = body.checked_type if len(results) == 1 else None
        number = self._first + self.made
        self.made += 1
        span = join_spans(member.span for member in region.members)
        attrs = DictAttrs(
            {
                "Primitive": 1,
                "Compiler": self._compiler,
                "global_symbol": f"{self._compiler}_{number}",
            }
        )
        function = Function(tuple(params), inner, ret_type, attrs=attrs, span=span)
        call = Call(function, tuple(args), span=span)
        if len(results) == 1:
            return {results[0]: call}
        return {out: TupleGetItem(call, i, span=out.span) for i, out in enumerate(results)}


def _root(node: Expr, parent: dict[Expr, Expr]) -> Expr:
    root = node
    while parent[root] is not root:
        root = parent[root]
    while node is not root:
        parent[node], node = root, parent[node]
    return root
