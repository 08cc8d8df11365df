"""Operators that ONNX defines by others, against their definition written as loops over numbers.

The installed onnx has no part in it: its own functions of Attention differ between its versions.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import compiler
from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from tests.each import each

Arrays = dict[str, NDArray[Any]]


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def one_node(
    op: str, feeds: Arrays, held: Arrays, opset: int, outputs: int = 1, **attrs: Any
) -> onnx.ModelProto:
    """Inputs in the order of the node; one named ``_`` is left out."""
    order = [name if not name.startswith("_") else "" for name in feeds]
    given = {name: array for name, array in feeds.items() if array.size and name not in held}
    results = [f"y{place}" for place in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, order, results, **attrs)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(op: str, feeds: Arrays, opset: int, held: tuple[str, ...] = (), **attrs: Any) -> list[Any]:
    constants = {name: feeds[name] for name in held}
    mod, params = load(one_node(op, feeds, constants, opset, **attrs).SerializeToString())
    given = {name: a for name, a in feeds.items() if a.size and name not in held}
    return compiler.evaluate(mod, {**given, **params})


def attended(feeds: Arrays, cap: float, causal: int, left: int, right: int) -> list[NDArray[Any]]:
    """Output and weights of queries and keys by head, sum by sum."""
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    past = feeds["pk"].shape[2] if "pk" in feeds else 0
    if past:
        k, v = (np.concatenate([feeds[n], s], 2) for n, s in (("pk", k), ("pv", v)))
    weights = np.zeros((*q.shape[:3], k.shape[2]))
    for b, h, i in np.ndindex(weights.shape[:3]):
        count = int(feeds["n"][b]) if "n" in feeds else past + q.shape[2]
        here = i + count - q.shape[2]
        scores = np.full(k.shape[2], -np.inf)
        for j in range(k.shape[2]):
            seen = not (causal and j > here) and not ("n" in feeds and j >= count)
            seen &= not (left >= 0 and j < here - left) and not (right >= 0 and j > here + right)
            score = q[b, h, i] @ k[b, h * k.shape[1] // q.shape[1], j] / np.sqrt(q.shape[3])
            score = cap * np.tanh(score / cap) if cap else score
            if "m" in feeds:
                mask = np.broadcast_to(feeds["m"], (*weights.shape[:3], feeds["m"].shape[-1]))
                added = mask[b, h, i, j] if j < mask.shape[-1] else False
                boolean = mask.dtype == bool or j >= mask.shape[-1]
                score, seen = (score, seen and added) if boolean else (score + added, seen)
            scores[j] = score if seen else -np.inf
        if scores.max() > -np.inf:
            weights[b, h, i] = np.exp(scores - scores.max())
            weights[b, h, i] /= weights[b, h, i].sum()
    shared = np.repeat(v, q.shape[1] // v.shape[1], axis=1)
    return [weights @ shared, k, v, weights]


MASKS = {
    "no mask": {"_m": np.zeros(0)},
    "floats": {"m": drawn(3, 5, seed=4)},
    "truth values": {"m": drawn(2, 1, 3, 5, seed=5) > -0.3},
    "a row without a key": {"m": np.arange(3)[:, None] + np.zeros(5) > 0},
    "a short mask": {"m": drawn(4, 3, 3, seed=6)},
}
CACHES = {
    "no cache": {},
    "earlier keys": {"pk": drawn(2, 2, 2, 8, seed=7), "pv": drawn(2, 2, 2, 6, seed=8)},
    "a number of keys": {"_k": np.zeros(0), "_v": np.zeros(0), "n": np.array([2, 4])},
}


@pytest.mark.parametrize("held", [(), ("m",), ("n",)])
@pytest.mark.parametrize(
    "attrs", [(0.0, 0, -1, -1), (2.0, 1, -1, -1), (0.0, 1, 1, 2), (0, 0, 1, 1)]
)
def test_attention_is_the_same_sum_over_visible_keys(
    attrs: tuple[float, int, int, int], held: tuple[str, ...]
) -> None:
    cap, causal, left, right = attrs
    windows = {"left_window_size": left, "right_window_size": right}
    options = {"softcap": cap, "is_causal": causal, "qk_matmul_output_mode": 3}
    for mask, cached in product(MASKS.values(), CACHES.values()):
        new = 3 if "pk" in cached else 5
        feeds: Arrays = {"q": drawn(2, 4, 3, 8), "k": drawn(2, 2, new, 8, seed=1)}
        feeds |= {"v": drawn(2, 2, new, 6, seed=2), **mask, **cached}
        known = tuple(name for name in held if name in feeds)
        opset = 25 if left >= 0 else 24 if "n" in feeds else 23
        more = windows if opset == 25 else {}
        found = run("Attention", feeds, opset, known, outputs=4, **options, **more)
        wanted = attended(feeds, cap, causal, left, right)
        for one, other in each(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)  # sums of float32


def test_streams_without_heads_are_parted_and_joined() -> None:
    q, k, v = drawn(2, 3, 32), drawn(2, 5, 16, seed=1), drawn(2, 5, 12, seed=2)
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    (found,) = run("Attention", {"q": q, "k": k, "v": v}, 23, **heads)
    parted = {
        name: stream.reshape(2, stream.shape[1], count, -1).transpose(0, 2, 1, 3)
        for name, stream, count in (("q", q, 4), ("k", k, 2), ("v", v, 2))
    }
    wanted = attended(parted, 0.0, 0, -1, -1)[0].transpose(0, 2, 1, 3).reshape(2, 3, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)  # sums of float32


@pytest.mark.parametrize(
    ("feeds", "attrs", "words"),
    [
        ({"q": drawn(3, 8)}, {}, "ranks"),
        ({"q": drawn(1, 3, 8)}, {"q_num_heads": 3, "kv_num_heads": 2}, "3 heads do not divide 8"),
        ({"q": drawn(1, 3, 8)}, {"q_num_heads": 2}, "'kv_num_heads' is missing"),
        ({"q": drawn(1, 3, 3, 8)}, {}, "3 heads of queries are no multiple of 2"),
        ({"q": drawn(1, 2, 3, 8)}, {"scale": -1.0}, "scale is -1"),
    ],
)
def test_attention_that_has_no_meaning_is_refused(
    feeds: Arrays, attrs: dict[str, Any], words: str
) -> None:
    shape = (1, 3, 8) if feeds["q"].ndim == 3 else (1, 2, 3, 8)
    feeds = feeds | {"k": drawn(*shape), "v": drawn(*shape)}
    with pytest.raises(OnnxImportError, match=words):
        run("Attention", feeds, 23, **attrs)


@pytest.mark.parametrize("held", [(), ("c", "s")])
@pytest.mark.parametrize("by_position", [True, False])
@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_turns_pairs_by_their_angle(
    interleaved: int, size: int, by_position: bool, held: tuple[str, ...]
) -> None:
    x = drawn(2, 3, 5, 8)  # batch, heads, steps, width
    half = (size or 8) // 2
    feeds: Arrays = {"x": x, "c": drawn(9, half, seed=1), "s": drawn(9, half, seed=2)}
    at = np.random.default_rng(3).integers(0, 9, (2, 5))
    if by_position:
        feeds["p"] = at
    else:
        feeds |= {name: feeds[name][at] for name in "cs"}
    turned = x.astype(np.complex128)
    wanted = x.copy()
    for b, h, t, pair in np.ndindex(2, 3, 5, half):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        place = at[b, t] if by_position else (b, t)
        angle = feeds["c"][place][pair] + 1j * feeds["s"][place][pair]
        turned = (x[b, h, t, first] + 1j * x[b, h, t, second]) * angle
        wanted[b, h, t, first], wanted[b, h, t, second] = turned.real, turned.imag
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": size}
    (found,) = run("RotaryEmbedding", feeds, 23, held, **attrs)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)  # one sum of float32
    feeds["x"] = x.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    (flat,) = run("RotaryEmbedding", feeds, 23, held, num_heads=3, **attrs)
    np.testing.assert_array_equal(flat, found.transpose(0, 2, 1, 3).reshape(2, 5, 24))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("past", [True, False])
def test_causal_convolution_reads_the_state_and_returns_the_next(
    past: bool, activation: str
) -> None:
    x, w, b = drawn(2, 3, 5), drawn(3, 1, 4, seed=1), drawn(3, seed=2)
    feeds: Arrays = {"x": x, "w": w, "b": b}
    before = drawn(2, 3, 3, seed=3) if past else np.zeros((2, 3, 3), np.float32)
    if past:
        feeds["p"] = before
    whole = np.concatenate([before, x], 2)
    sums = [(whole[:, :, t : t + 4] * w[:, 0]).sum(-1) + b for t in range(5)]
    wanted = np.stack(sums, -1)
    if activation == "silu":
        wanted = wanted / (1 + np.exp(-wanted))
    attrs = {"activation": activation, "outputs": 2}
    found = run("CausalConvWithState", feeds, 27, ("w", "b"), **attrs)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)  # sums of float32
    np.testing.assert_array_equal(found[1], whole[:, :, -3:])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, -1])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("opset", [12, 13, 22])
def test_losses_weigh_the_logarithm_at_each_label(
    opset: int, weighted: bool, ignored: int | None, reduction: str
) -> None:
    x, labels = drawn(4, 3, 2), np.array([[0, 2], [1, 1], [2, 0], [1, 2]])
    labels[1, 0] = 1 if ignored is None else ignored
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    weights = np.abs(drawn(3, seed=1)) if weighted else np.ones(3, np.float32)
    loss, total = np.zeros((4, 2)), 0.0
    for n, d in np.ndindex(4, 2):
        label = labels[n, d]
        if label != ignored:
            loss[n, d] = -weights[label] * logs[n, label, d]
            total += weights[label]
    wanted = {"none": loss, "sum": loss.sum(), "mean": loss.sum() / total}[reduction]
    feeds: Arrays = {"x": x, "t": labels} | ({"w": weights} if weighted else {})
    attrs: dict[str, Any] = {"reduction": reduction}
    attrs |= {} if ignored is None else {"ignore_index": ignored}
    found = run("SoftmaxCrossEntropyLoss", feeds, opset, outputs=2, **attrs)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)  # sums of float32
    np.testing.assert_allclose(found[1], logs, rtol=1e-5, atol=1e-6)
    (found,) = run("NegativeLogLikelihoodLoss", feeds | {"x": logs}, opset, **attrs)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_swiglu_gates_the_second_input() -> None:
    a, b = drawn(3, 4), drawn(3, 4, seed=1)
    (found,) = run("SwiGLU", {"a": a, "b": b}, 28, alpha=1.5)
    np.testing.assert_allclose(found, a / (1 + np.exp(-1.5 * a)) * b, rtol=1e-5)
