"""QuantizeAnnotate: put a simulated_quantize in front of every operand that will be an integer.

    before                          after (each point has three fresh variables)
    nn.conv2d(%x, w)                %0 = simulated_quantize(%x, %scale, %low, %high);
                                    %1 = simulated_quantize(w, …);
                                    nn.conv2d(%0, %1)

Operators take part through ops/rules/annotate.py. A value with several consumers is quantized once,
by the multi-reference trigger. Source: Relay v0.10 quantize/_annotate.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from compiler.errors import InternalQuantizeError
from compiler.ir.analysis import free_vars
from compiler.ir.expr import Call, Expr, Function, Op, TempExpr, Tuple, is_op_call
from compiler.ir.functor.forward_rewriter import ForwardRewriter
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.static_shapes import require_static
from compiler.ir.ty import holds_float
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import (
    as_input,
    attach_simulated_quantize,
    is_given,
)
from compiler.ops.annotation.narrow_move import narrow_moves
from compiler.ops.annotation.wide_point import (
    first_states,
    last_states,
    residual_stream,
    stored_sums,
    sums_for_norms,
    wide_point,
)
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    kind_of,
    unannotated,
    with_args,
)
from compiler.qtypes.context import GraphFacts, QuantizeContext
from compiler.qtypes.layer_choices import REST
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import OPERAND_FLOAT, UNBOUNDED, call_places
from compiler.quantize.first_calls import first_calls
from compiler.quantize.layers import choices_of, tied_tables
from compiler.quantize.preparation.masks import mask_values
from compiler.quantize.run_context import RunPass, context_or_new
from compiler.quantize.scales.given_points import points_of


@register_pass("QuantizeAnnotate", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class QuantizeAnnotate(RunPass, FunctionPass):
    """Make the quantize points; their variables become parameters of the function."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        require_static(fn, self.info.name)
        run = context_or_new(self.context)
        run = replace(run, facts=_facts_of(fn, run.qconfig))
        # Where the model says what is quantized, narrow values get no second point.
        given = bool(points_of(fn))
        stores = run.qconfig.form.stores_values
        first: Mapping[Expr, frozenset[Expr]] = {}
        if run.qconfig.integer_tables:
            first = first_calls(nodes_of(fn), stores)
        states = frozenset() if stores else first_states(fn)
        keeps = given and REST in run.qconfig.layers
        annotator = _Annotator(run, call_places(fn), given, keeps, first, states, _pointed(fn))
        body = ForwardRewriter(
            annotator.rule, fmulti_ref_trigger=annotator.quantize_shared
        ).rewrite_body(fn)
        made = fn.with_fields(body=body)
        return made.with_fields(params=(*fn.params, *free_vars(made)))


def _facts_of(fn: Function, qconfig: QConfig) -> GraphFacts:
    layers = qconfig.layers
    stores = qconfig.form.stores_values
    in_float = frozenset(call for call, choice in choices_of(fn, layers).items() if choice.float)
    if not qconfig.integer_tables:
        return GraphFacts(float_layers=in_float)
    if stores:
        wide = sums_for_norms(fn)
    else:
        wide = residual_stream(fn, layers.wide_sums) | last_states(fn)
    return GraphFacts(
        wide_values=wide,
        stored_sums=stored_sums(fn, wide) if layers.narrow_sums else frozenset(),
        tied_tables=frozenset() if stores else tied_tables(fn),
        float_layers=in_float,
        masks=frozenset() if stores else mask_values(fn),
        narrow_moves=narrow_moves(fn, every=stores),
    )


def _pointed(fn: Function) -> frozenset[Expr]:
    """Values that only points of the model read: they need no point in front of these."""
    points = {point.operands()[1] for point in points_of(fn)}
    others = {
        arg for node in nodes_of(fn) if points and not is_given(node) for arg in node.operands()
    }
    return frozenset(points - others - {fn.body})


_ROUNDED: Final = ("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm", "divide", "sqrt")
"""Operators whose integers are not those of float operators behind a point."""


def _in_float(arg: Expr) -> Expr:
    """An operand, in float where it or a field of it is annotated."""
    fields = arg.fields if isinstance(arg, Tuple) else (arg,)
    made = tuple(
        op_call("annotation.cast_hint", one.expr, dtype="float32")
        if isinstance(one, QAnnotateExpr)
        else one
        for one in fields
    )
    if isinstance(arg, Tuple):
        return Tuple(made, span=arg.span)
    return made[0]


def annotate() -> QuantizeAnnotate:
    """The pass, for the QConfig that is current when it runs."""
    return QuantizeAnnotate()


@dataclass(frozen=True, slots=True, eq=False)
class _Annotator:
    """The annotate rules of one run, behind the guard of ``debug_enabled_ops``."""

    context: QuantizeContext
    places: Mapping[Expr, int]
    given: bool
    keeps_float: bool
    first_calls: Mapping[Expr, frozenset[Expr]]
    states: frozenset[Expr]
    pointed: frozenset[Expr]

    def rule(self, ref_call: Call, args: tuple[Expr, ...], _ctx: object) -> Expr | None:
        rule = FQAnnotateRewrite.get(ref_call.op)
        if rule is None:
            return None
        if not any(holds_float(node.checked_type) for node in (ref_call, *ref_call.args)):
            self.note(ref_call, "float", OPERAND_FLOAT)  # integers have no scale to choose
            return None
        if not self.context.qconfig.guard(ref_call):
            self.note(ref_call, "float", "guard")
            return with_args(ref_call, tuple(unannotated(arg) for arg in args))
        was_stopped = self.context.stopped
        counter = self.context.conv2d_counter
        known = len(self.context.qnode_map)
        result = rule(ref_call, args, self.context)
        if self.keeps_float:
            return self._as_given(ref_call, args, result, len(self.context.qnode_map) - known)
        reason = ""
        if result is None:
            reason = self._reason(ref_call, args, was_stopped, counter)
            if (
                reason in (OPERAND_FLOAT, UNBOUNDED, "rule_aborted")
                and ref_call in self.first_calls
            ):
                result = rule(ref_call, self._with_inputs(ref_call, args), self.context)
        if result is None:
            self.note(ref_call, "float", reason)
        else:
            self.note(ref_call, "integer")
        whole = ref_call in self.context.facts.masks or ref_call in self.pointed
        if isinstance(result, QAnnotateExpr) and whole:
            return replace(result, masks=True)
        if isinstance(result, QAnnotateExpr) and ref_call in self.context.facts.wide_values:
            return replace(result, wide=result.kind == QAnnotateKind.ACTIVATION)
        return result

    def _as_given(
        self, ref_call: Call, args: tuple[Expr, ...], result: Expr | None, added: int
    ) -> Expr | None:
        """The annotated call where it needs no point that the model has not; else in float.

        Args:
            added: points that its rule has made.
        """
        own = list(islice(reversed(self.context.qnode_map), added))
        narrows = any(key[1] != int(QAnnotateKind.WEIGHT) for key in own)
        if result is not None and not narrows and not is_op_call(ref_call, *_ROUNDED):
            self.note(ref_call, "integer")
            return result
        for key in own:
            del self.context.qnode_map[key]
        if is_op_call(ref_call, "annotation.cast_hint"):
            return args[0]
        self.note(ref_call, "float", "skipped_layer")
        return with_args(ref_call, tuple(_in_float(arg) for arg in args))

    def note(self, ref_call: Call, status: str, reason: str = "") -> None:
        place = self.places.get(ref_call)
        if place is not None:
            self.context.report.set_call(place, status, reason)

    def _reason(
        self, ref_call: Call, args: tuple[Expr, ...], was_stopped: bool, counter: int
    ) -> str:
        cfg = self.context.qconfig
        assert isinstance(ref_call.op, Op)
        if ref_call.op.name == "nn.dense" and cfg.skip_dense_layer:
            return "skipped_dense"
        if was_stopped:
            return "stopped"
        counted = self.context.conv2d_counter != counter
        skipped = counted and counter in (cfg.skip_conv_layers or ())
        if skipped or ref_call in self.context.facts.float_layers:
            return "skipped_layer"
        quantized = any(kind_of(arg) is not None for arg in args)
        if quantized:
            return "rule_aborted"
        if not any(holds_float(arg.checked_type) for arg in ref_call.args):
            return UNBOUNDED
        return OPERAND_FLOAT

    def _with_inputs(self, ref_call: Call, args: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The operands; inputs of the model, converted or not, are quantized."""
        read = self.first_calls[ref_call]
        found: list[Expr] = []
        for old, arg in zip(ref_call.args, args, strict=True):
            if isinstance(old, Tuple) and isinstance(arg, Tuple):
                fields = zip(old.fields, arg.fields, strict=True)
                new = tuple(self._point(o, f) if o in read else f for o, f in fields)
                found.append(Tuple(new, span=arg.span))
            else:
                found.append(self._point(old, arg) if old in read else arg)
        return tuple(found)

    def _point(self, old: Expr, value: Expr) -> QAnnotateExpr:
        if old in self.states:
            return QAnnotateExpr(wide_point(value, self.context), QAnnotateKind.ACTIVATION)
        return QAnnotateExpr(as_input(value, self.context), QAnnotateKind.INPUT)

    def quantize_shared(self, expr: Expr) -> Expr:
        """Return the value that every consumer of a value with several consumers reads."""
        if isinstance(expr, QAnnotateExpr) and expr.masks:
            return expr
        if isinstance(expr, QAnnotateExpr) and expr.wide:
            return replace(expr, expr=wide_point(expr.expr, self.context))
        if self.keeps_float or (self.given and kind_of(expr) == QAnnotateKind.INPUT):
            return expr
        if isinstance(expr, QAnnotateExpr):
            point = attach_simulated_quantize(expr.expr, QAnnotateKind.INPUT, context=self.context)
            return QAnnotateExpr(point, QAnnotateKind.INPUT)
        if isinstance(expr, TempExpr):
            raise InternalQuantizeError(f"a {type(expr).__name__} among annotated expressions")
        return expr
