"""FoldScaleAxis: a per-channel multiply moves into the weight of a neighbouring matmul.

    backward half
    before                                after
    %0 = nn.conv2d(%x, w);                nn.conv2d(%x, w * s[C,1,1,1])
    multiply(%0, s[C,1,1])

    forward half
    before                                after
    %0 = multiply(%x, s[1,C,1,1]);        nn.conv2d(%x, w * s[C,1,1])
    nn.conv2d(%0, w)

Fires when s varies along C only and is no activation (the gate of squeeze-and-excitation would make
the weight depend on the input); with a relu in between, s must also be a constant >= 0.
Operators take part through ops/rules/axes.py, which ops/rules/scale_axis.py asks.
Not handled: grouped non-depthwise convolution; clip, pooling or concatenate in between.
Source: Relay v0.10 transforms/fold_scale_axis.cc.
"""

from __future__ import annotations

from compiler.ir.analysis import count_uses, post_order
from compiler.ir.expr import Call, Expr, Function, is_op_call
from compiler.ir.functor import ForwardRewriter, MixedModeMutator
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, ModulePass, PassContext, register_pass, run_named
from compiler.ops.op_call import op_call
from compiler.ops.rules.scale_axis import (
    Message,
    MultiplyBy,
    PushDown,
    forward,
    pushed_down,
    scale_of,
    takes_scale_before,
    takes_scale_behind,
)
from compiler.passes.fold_constant import FoldConstant


@register_pass("BackwardFoldScaleAxis", opt_level=3, required=("InferType",))
class BackwardFoldScaleAxis(FunctionPass):
    """Move a multiply behind a convolution or dense into its weight."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The folded function, itself when no operator can take a scale."""
        messages = _backward_messages(fn)
        if not messages:
            return fn
        return _BackwardTransformer(messages).mutate(fn)


def _backward_messages(fn: Function) -> dict[Expr, Message]:
    uses = count_uses(fn)
    messages: dict[Expr, Message] = {}
    for node in post_order(fn):
        if not isinstance(node, Call) or uses[node] != 1:
            continue
        message = takes_scale_behind(node, [messages.get(a) for a in node.args])
        if message is not None:
            messages[node] = message
    return messages


class _BackwardTransformer(MixedModeMutator):
    def __init__(self, messages: dict[Expr, Message]) -> None:
        super().__init__()
        self.messages = messages

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        if not is_op_call(pre, "multiply"):
            return post
        # The right side is asked only when the left has no message at all.
        data = 0 if pre.args[0] in self.messages else 1
        scale = scale_of(pre, pre.args, self.messages.get(pre.args[data]), data)
        if scale is None:
            return post
        return self._push(pre.args[data], scale)

    def _push(self, root: Expr, scale: Expr) -> Expr:
        """``root * scale`` with the multiplication done in the weights below ``root``.

        The nodes passed have one consumer each, so they form a tree.
        """
        passed = [(root, scale)]
        changes = []
        for node, node_scale in passed:
            assert isinstance(node, Call)
            messages = [self.messages.get(arg) for arg in node.args]
            change = pushed_down(node, messages, self.messages[node], node_scale)
            changes.append(change)
            passed.extend(
                (arg, c.scale) for arg, c in zip(node.args, change) if isinstance(c, PushDown)
            )
        done: dict[Expr, Expr] = {}
        for (node, _), change in zip(reversed(passed), reversed(changes)):
            assert isinstance(node, Call)
            args: list[Expr] = []
            for arg, c in zip(node.args, change):
                if isinstance(c, PushDown):
                    args.append(done[arg])
                elif isinstance(c, MultiplyBy):
                    args.append(op_call("multiply", self.visit(arg), c.factor, span=node.span))
                else:
                    args.append(self.visit(arg))
            done[node] = node.with_fields(args=tuple(args))
        return done[root]


@register_pass("ForwardFoldScaleAxis", opt_level=3, required=("InferType",))
class ForwardFoldScaleAxis(FunctionPass):
    """Move a multiply in front of a convolution or dense into its weight."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The folded function, itself when no scale moves."""
        messages = _forward_messages(fn)
        # Every scale sets out from a multiply whose consumers all take it.
        if not any(message and is_op_call(node, "multiply") for node, message in messages.items()):
            return fn
        rewriter = ForwardRewriter(forward, fcontext=messages.get)
        new = rewriter.rewrite(fn)
        assert isinstance(new, Function)
        return new


def _forward_messages(fn: Function) -> dict[Expr, Message | None]:
    """Message of every node: what all of its consumers agree to take."""
    messages: dict[Expr, Message | None] = {}
    for node in reversed(list(post_order(fn))):
        if isinstance(node, Call):
            taken = takes_scale_before(node, messages.get(node))
        else:
            taken = None
        if isinstance(node, Call) and taken is not None:
            for arg, message in zip(node.args, taken):
                _agree(messages, arg, message)
        else:
            for child in node.operands():
                _agree(messages, child, None)
    return messages


def _agree(messages: dict[Expr, Message | None], node: Expr, message: Message | None) -> None:
    if node not in messages:
        messages[node] = message
        return
    held = messages[node]
    if held is None or message is None or held.axis != message.axis:
        messages[node] = None
    else:
        messages[node] = Message(held.axis, held.require_positive or message.require_positive)


@register_pass("FoldScaleAxis", opt_level=3, required=("InferType",))
class FoldScaleAxis(ModulePass):
    """Move per-channel multiplies into weights: both halves, then FoldConstant."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The folded module."""
        halves = [BackwardFoldScaleAxis(), ForwardFoldScaleAxis(), FoldConstant()]
        return run_named(mod, halves, "fold_scale_axis")
