"""Visitors and rewriters; which one to pick is a table in ``compiler/ir/README.md``."""

from compiler.ir.functor.expr_functor import ExprFunctor as ExprFunctor
from compiler.ir.functor.expr_functor import MemoizedFunctor as MemoizedFunctor
from compiler.ir.functor.forward_rewriter import ForwardRewriter as ForwardRewriter
from compiler.ir.functor.forward_rewriter import ForwardRule as ForwardRule
from compiler.ir.functor.forward_rewriter import Realizer as Realizer
from compiler.ir.functor.mixed_mode import MixedModeMutator as MixedModeMutator
from compiler.ir.functor.mixed_mode import MixedModeVisitor as MixedModeVisitor
from compiler.ir.functor.mutator import ExprMutator as ExprMutator
from compiler.ir.functor.pattern_functor import PatternFunctor as PatternFunctor
from compiler.ir.functor.pattern_functor import PatternMutator as PatternMutator
from compiler.ir.functor.pattern_functor import PatternVisitor as PatternVisitor
from compiler.ir.functor.rewriter import ComposedRewriter as ComposedRewriter
from compiler.ir.functor.rewriter import ExprRewriter as ExprRewriter
from compiler.ir.functor.rewriter import post_order_rewrite as post_order_rewrite
from compiler.ir.functor.rewriter import rewrite_until_stable as rewrite_until_stable
from compiler.ir.functor.traversal import expand_anf as expand_anf
from compiler.ir.functor.traversal import expand_dataflow as expand_dataflow
from compiler.ir.functor.visitor import ExprVisitor as ExprVisitor
from compiler.ir.functor.visitor import UseVarVisitor as UseVarVisitor
