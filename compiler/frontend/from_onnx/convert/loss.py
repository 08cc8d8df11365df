"""Losses of class labels; a label that is ignored has weight 0."""

from __future__ import annotations

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(node: OnnxNode) -> Expr:
    """Minus the logarithm at each label, weighted and reduced."""
    return _loss(node, node.arg(0))


@from_onnx("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(node: OnnxNode) -> list[Expr]:
    """The same loss of log_softmax along the classes, and these logarithms."""
    logs = node.call("nn.log_softmax", node.arg(0), axis=1)
    return [_loss(node, logs), logs][: len(node.proto.output)]


def _loss(node: OnnxNode, logs: Expr) -> Expr:
    labels = node.arg(1)
    ignored = node.attr("ignore_index", None)
    counted: Expr | None = None
    if ignored is not None:
        counted = node.call("not_equal", labels, node.scalar_like(ignored, labels))
        labels = node.call("where", counted, labels, node.scalar_like(0, labels))
    at = node.call("expand_dims", labels, axis=1)
    chosen = node.call("squeeze", node.call("gather", logs, at, axis=1), axis=(1,))
    loss = node.call("negative", chosen)
    weights = node.call("take", node.arg(2), labels, axis=0) if node.has_input(2) else None
    if counted is not None:
        kept = node.call("cast", counted, dtype=logs.tensor_type.dtype)
        weights = kept if weights is None else node.call("multiply", weights, kept)
    if weights is not None:
        loss = node.call("multiply", loss, weights)
    every = tuple(range(node.rank(loss)))
    reduction = node.choice("reduction", ("mean", "sum", "none"))
    if reduction == "none":
        return loss
    if reduction == "mean" and weights is None:
        return node.call("mean", loss, axis=every)
    total = node.call("sum", loss, axis=every)
    if reduction == "sum":
        return total
    assert weights is not None
    return node.call("divide", total, node.call("sum", weights, axis=every))
