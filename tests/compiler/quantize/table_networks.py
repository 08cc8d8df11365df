"""Networks of every operator that becomes a table or an integer kernel, with drawn weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler import relay
from compiler.ir.expr import Expr, Op
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import prerequisite_optimize

op = relay.op
Build = Callable[[Expr, "Weights"], Expr]


class Weights:
    """Random constants, scaled so that activations keep their size."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Expr:
        return relay.const((self.rng.standard_normal(shape) * scale).astype("float32"))

    def conv(self, x: Expr, reads: int, channels: int, size: int = 1, **attrs: Any) -> Expr:
        weight = self.normal(channels, reads, size, size, scale=(2 / (reads * size**2)) ** 0.5)
        made = op.nn.conv2d(
            x,
            weight,
            channels=channels,
            kernel_size=(size, size),
            padding=(size // 2, size // 2, size // 2, size // 2),
            **attrs,
        )
        return op.add(made, self.normal(channels, 1, 1, scale=0.1))

    def dense(self, x: Expr, reads: int, units: int) -> Expr:
        made = op.nn.dense(x, self.normal(units, reads, scale=reads**-0.5), units=units)
        return op.add(made, self.normal(units, scale=0.1))


def scalar(value: float) -> Expr:
    return relay.const(np.float32(value))


def hard_sigmoid(x: Expr) -> Expr:
    return op.clip(op.add(op.multiply(x, scalar(1 / 6)), scalar(0.5)), a_min=0.0, a_max=1.0)


def hard_swish(x: Expr) -> Expr:
    gate = op.clip(op.add(x, scalar(3)), a_min=0.0, a_max=6.0)
    return op.multiply(op.multiply(x, gate), scalar(1 / 6))


def swish(x: Expr) -> Expr:
    return op.multiply(x, op.sigmoid(x))


def gelu(x: Expr) -> Expr:
    erf = op.erf(op.multiply(x, scalar(0.5**0.5)))
    return op.multiply(op.multiply(x, op.add(erf, scalar(1))), scalar(0.5))


def mobile_net_v3(x: Expr, w: Weights) -> Expr:
    """Hard-swish, depthwise, squeeze and excite on either side of the product, a dense head."""
    x = hard_swish(w.conv(x, 3, 8, 3))
    y = w.conv(w.conv(x, 8, 16), 1, 16, 3, groups=16)
    gate = op.nn.relu(w.conv(op.nn.global_avg_pool2d(hard_swish(y)), 16, 4))
    y = op.multiply(hard_sigmoid(w.conv(gate, 4, 16)), y)
    x = op.add(x, w.conv(y, 16, 8))
    pooled = op.nn.batch_flatten(op.nn.global_avg_pool2d(hard_swish(x)))
    return w.dense(hard_swish(w.dense(pooled, 8, 12)), 12, 5)


def yolo(x: Expr, w: Weights) -> Expr:
    """Swish, split, concat of unequal scales, pools, nearest resize, a sigmoid head."""
    x = swish(w.conv(x, 3, 8, 3))
    halves = relay.Call(op_of("split"), (x,), attrs_of("split", indices_or_sections=2, axis=1))
    one, two = relay.TupleGetItem(halves, 0), relay.TupleGetItem(halves, 1)
    two = op.add(two, swish(w.conv(two, 4, 4, 3)))
    x = op.concatenate(relay.Tuple((one, two, swish(w.conv(two, 4, 4)))), axis=1)
    down = swish(w.conv(x, 12, 8, 3, strides=(2, 2)))
    pooled = op.nn.max_pool2d(down, pool_size=(5, 5), padding=(2, 2, 2, 2))
    down = w.conv(op.concatenate(relay.Tuple((down, pooled)), axis=1), 16, 8)
    up = op.image.resize2d(
        down,
        size=(8, 8),
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )
    x = op.concatenate(relay.Tuple((up, x)), axis=1)
    padded = op.nn.pad(x, scalar(0), pad_width=((0, 0), (0, 0), (1, 0), (0, 1)))
    x = op.strided_slice(padded, begin=(0, 0, 1, 0), end=(1, 20, 9, 8))
    head = op.reshape(op.sigmoid(w.conv(x, 20, 6)), newshape=(1, 2, 3, 64))
    return op.transpose(head, axes=(0, 1, 3, 2))


def transformer(x: Expr, w: Weights, norm: Callable[[Expr, Weights], Expr] | None = None) -> Expr:
    """Two pre-norm blocks of width 8 with two heads over 16 tokens, mean and a dense head."""
    norm = norm or layer_norm
    x = op.transpose(op.reshape(w.conv(x, 3, 8, 2, strides=(2, 2)), newshape=(1, 8, -1)), (0, 2, 1))
    tokens = 25
    x = op.add(x, w.normal(1, tokens, 8, scale=0.3))
    for _ in range(2):
        y = norm(x, w)
        q, k, v = (
            op.transpose(op.reshape(w.dense(y, 8, 8), newshape=(tokens, 2, 4)), (1, 0, 2))
            for _ in range(3)
        )
        scores = op.divide(op.nn.batch_matmul(q, k), scalar(2))
        mixed = op.nn.batch_matmul(op.nn.softmax(scores), v, transpose_b=False)
        mixed = op.reshape(op.transpose(mixed, (1, 0, 2)), newshape=(1, tokens, 8))
        x = op.add(x, w.dense(mixed, 8, 8))
        x = op.add(w.dense(gelu(w.dense(norm(x, w), 8, 16)), 16, 8), x)
    return w.dense(op.mean(norm(x, w), axis=(1,)), 8, 5)


def layer_norm(x: Expr, w: Weights) -> Expr:
    return op.nn.layer_norm(x, op.add(w.normal(8, scale=0.2), scalar(1)), w.normal(8, scale=0.2))


def written_out_norm(x: Expr, w: Weights) -> Expr:
    """As exporters write it: mean of squares, power, division by a root."""
    centred = op.subtract(x, op.mean(x, axis=(-1,), keepdims=True))
    variance = op.mean(op.power(centred, scalar(2)), axis=(-1,), keepdims=True)
    normal = op.divide(centred, op.sqrt(op.add(variance, scalar(1e-5))))
    gamma = relay.const(w.rng.uniform(-1, 2, 8).astype("float32"))
    return op.add(w.normal(8, scale=0.2), op.multiply(gamma, normal))


def post_norm(x: Expr, w: Weights) -> Expr:
    """Layer norms behind the sum; the residual is a norm's own result."""
    x = op.reshape(w.conv(x, 3, 8, 1), newshape=(1, 64, 8))
    for _ in range(2):
        x = layer_norm(op.add(x, w.dense(gelu(w.dense(x, 8, 16)), 16, 8)), w)
    return w.dense(x, 8, 3)


def odds_and_ends(x: Expr, w: Weights) -> Expr:
    """Subtract, maximum, minimum, squeeze, tile, take, mean over two axes, tanh of a product."""
    x = w.conv(x, 3, 6, 3)
    y = op.tanh(w.conv(x, 6, 6))
    x = op.subtract(op.maximum(x, y), op.minimum(op.nn.leaky_relu(x, alpha=0.1), scalar(0.7)))
    x = op.multiply(op.multiply(x, y), scalar(3))
    row = op.squeeze(op.expand_dims(op.mean(x, axis=(2, 3)), axis=2), axis=(2,))
    picked = op.take(op.tile(row, reps=(1, 2)), relay.const(np.array([0, 3, 11, 2])), axis=1)
    return w.dense(op.exp(op.negative(op.abs(picked))), 4, 3)


def running_maximum(x: Expr, w: Weights) -> Expr:
    """A maximum that begins with what nothing reaches, and a minimum of this kind."""
    least = relay.const(np.full((1, 4, 1, 1), -1e38, np.float32))
    largest = op.maximum(least, w.conv(x, 3, 4))
    return w.conv(op.minimum(largest, scalar(1e30)), 4, 2)


STEPS: dict[str, Build] = {
    "swish": lambda x, w: swish(x),
    "gelu": lambda x, w: gelu(x),
    "hard_swish": lambda x, w: hard_swish(x),
    "tanh": lambda x, w: op.tanh(x),
    "relu": lambda x, w: op.nn.relu(x),
    "conv": lambda x, w: w.conv(x, 4, 4),
    "residual": lambda x, w: op.add(x, w.conv(op.nn.relu(x), 4, 4)),
    "difference": lambda x, w: op.subtract(w.conv(x, 4, 4), x),
    "gate": lambda x, w: op.multiply(hard_sigmoid(w.conv(op.nn.global_avg_pool2d(x), 4, 4)), x),
    "softmax": lambda x, w: op.multiply(op.nn.softmax(x, axis=1), scalar(4)),
    "norm": lambda x, w: op.nn.layer_norm(x, w.normal(4), w.normal(4), axis=1),
    "larger": lambda x, w: op.maximum(x, op.multiply(op.tanh(x), scalar(0.5))),
    "attention": lambda x, w: op.reshape(
        op.nn.batch_matmul(
            op.reshape(x, newshape=(4, 6, 6)), op.reshape(op.sigmoid(x), newshape=(4, 6, 6))
        ),
        newshape=(1, 4, 6, 6),
    ),
}


def products_and_reductions(x: Expr, w: Weights) -> Expr:
    """Matrix products of two activations in every form, sum, max and min over axes."""
    x = w.conv(x, 3, 6, 3)
    flat = op.reshape(x, newshape=(6, 64))
    gram = op.nn.dense(flat, op.tanh(flat), units=6)
    other = op.nn.matmul(op.transpose(flat), op.sigmoid(gram))
    other = op.transpose(op.nn.matmul(other, op.reshape(flat, newshape=(64, 6)), transpose_b=True))
    total = op.sum(op.multiply(other, scalar(0.01)), axis=(1,), keepdims=True)
    peak = op.subtract(op.max(flat, axis=(1,)), op.min(flat, axis=(1,)))
    row = op.concatenate(
        relay.Tuple((op.reshape(total, newshape=(1, 64)), op.expand_dims(peak, axis=0))), axis=1
    )
    return w.dense(row, 70, 3)


def op_of(name: str) -> Op:
    return Op.get(name)


def attrs_of(name: str, **attrs: Any) -> Any:
    kind = Op.get(name).attrs_type
    assert kind is not None
    return kind.make(**attrs)


NETWORKS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "mobile_net_v3": (mobile_net_v3, (1, 3, 8, 8)),
    "yolo": (yolo, (1, 3, 8, 8)),
    "transformer": (transformer, (1, 3, 8, 8)),
    "written_out_norm": (lambda x, w: transformer(x, w, written_out_norm), (1, 3, 8, 8)),
    "post_norm": (post_norm, (1, 3, 8, 8)),
    "odds_and_ends": (odds_and_ends, (1, 3, 8, 8)),
    "running_maximum": (running_maximum, (1, 3, 8, 8)),
    "products_and_reductions": (products_and_reductions, (1, 3, 8, 8)),
}


def built(name: str, seed: int = 0) -> IRModule:
    build, shape = NETWORKS[name]
    x = relay.var("x", shape)
    mod = infer_module(IRModule.from_expr(relay.Function((x,), build(x, Weights(seed)))))
    return prerequisite_optimize(mod, None, 3)


def images(count: int, shape: tuple[int, ...], seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype("float32")} for _ in range(count)]
