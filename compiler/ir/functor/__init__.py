"""Visitors and rewriters; which one to pick is a table in ``compiler/ir/README.md``."""

from compiler.ir.functor.expr_functor import ExprFunctor, MemoizedFunctor
from compiler.ir.functor.forward_rewriter import ForwardRewriter, ForwardRule, Realizer
from compiler.ir.functor.mixed_mode import MixedModeMutator, MixedModeVisitor
from compiler.ir.functor.mutator import ExprMutator
from compiler.ir.functor.pattern_functor import PatternFunctor, PatternMutator, PatternVisitor
from compiler.ir.functor.rewriter import (
    ComposedRewriter,
    ExprRewriter,
    post_order_rewrite,
    rewrite_until_stable,
)
from compiler.ir.functor.traversal import expand_anf, expand_dataflow
from compiler.ir.functor.type_functor import TypeFunctor, TypeMutator, TypeVisitor
from compiler.ir.functor.visitor import ExprVisitor, UseVarVisitor

__all__ = [
    "ComposedRewriter",
    "ExprFunctor",
    "ExprMutator",
    "ExprRewriter",
    "ExprVisitor",
    "ForwardRewriter",
    "ForwardRule",
    "MemoizedFunctor",
    "MixedModeMutator",
    "MixedModeVisitor",
    "PatternFunctor",
    "PatternMutator",
    "PatternVisitor",
    "Realizer",
    "TypeFunctor",
    "TypeMutator",
    "TypeVisitor",
    "UseVarVisitor",
    "expand_anf",
    "expand_dataflow",
    "post_order_rewrite",
    "rewrite_until_stable",
]
