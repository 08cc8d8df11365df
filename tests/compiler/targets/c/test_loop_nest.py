"""The form of loops: no branch inside, the innermost loop along memory, floats in their order."""

from __future__ import annotations

import re

import numpy as np

from compiler import lower, relay
from compiler.ir.inference.infer_type import infer_module
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.kernel_library import kernels_text
from tests.needs import NEEDS_C


def kernels_of(body: relay.Expr, *params: relay.Var) -> str:
    """C text of the kernels of an expression."""
    mod = lower(infer_module(relay.module(relay.Function(params, body)))).mod
    functions = [f for f in mod.functions.values() if hasattr(f, "blocks")]
    text = kernels_text(functions)[1]
    return text[text.index("void kernel_") :]


def convolution(width: int, kernel: int, dtype: str, **attrs: object) -> str:
    """In a dtype whose sums are no dot products."""
    x = relay.var("x", (1, 4, width, width), dtype)
    w = relay.var("w", (8, 4, kernel, kernel), dtype)
    wide = "float32" if dtype == "float32" else "int32"
    return kernels_of(relay.op.nn.conv2d(x, w, out_dtype=wide, **attrs), x, w)


def loops(text: str) -> list[str]:
    """Loop variables in the order of the text."""
    return re.findall(r"for \(int32_t (\w+)", text)


def test_padding_becomes_bounds_of_loops_and_no_branch() -> None:
    text = convolution(12, 3, "int16", padding=(1, 1), strides=(2, 2))
    assert "?" not in text
    assert "if (" not in text
    assert "const int32_t i_from = max_i32(0, -y * 2 + 1);" in text
    # Channels lie side by side: they are summed innermost.
    assert loops(text)[-6:] == ["y", "x", "o", "i", "j", "c"]


def test_a_pool_keeps_a_row_of_channels() -> None:
    x = relay.var("x", (1, 12, 12, 4), "int8")
    pool = relay.op.nn.max_pool2d(x, pool_size=(3, 3), padding=(1, 1), layout="NHWC")
    text = kernels_of(pool, x)
    assert "if (" not in text
    assert loops(text) == ["y", "x", "o", "i", "j", "o", "o"]


def test_a_pointwise_convolution_of_floats_runs_over_the_whole_plane() -> None:
    text = convolution(40, 1, "float32")
    assert loops(text) == ["o", "y_x_first", "y_x", "c", "y_x", "y_x"]
    assert "y_x_first += 400" in text


def test_a_dense_layer_sums_innermost() -> None:
    x, w = relay.var("x", (1, 64), "int8"), relay.var("w", (10, 64), "int8")
    text = kernels_of(relay.op.nn.dense(x, w, out_dtype="int32"), x, w)
    assert loops(text) == ["u", "k"]
    assert "int32_t acc = 0;" in text


def test_sums_that_may_wrap_are_made_in_unsigned_numbers_and_no_others() -> None:
    x, w = relay.var("x", (1, 64), "int16"), relay.var("w", (10, 64), "int16")
    wrapping = kernels_of(relay.op.nn.dense(x, w, out_dtype="int32"), x, w)
    assert "uint32_t acc = 0;" in wrapping
    assert "wrap_i32(acc)" in wrapping
    x, w = relay.var("x", (1, 64), "int8"), relay.var("w", (10, 64), "int8")
    assert "wrap" not in kernels_of(relay.op.nn.dense(x, w, out_dtype="int32"), x, w)


@NEEDS_C
def test_float_sums_add_their_terms_in_the_order_of_the_loops() -> None:
    rng = np.random.default_rng(2)
    data = rng.normal(size=(1, 3, 5, 9)).astype("float32")
    weight = rng.normal(size=(2, 3, 3, 3)).astype("float32")
    x = relay.var("x", data.shape)
    body = relay.op.nn.conv2d(x, relay.const(weight))
    found = CExecutor(infer_module(relay.module(relay.Function((x,), body)))).run({"x": data})[0]
    wanted = np.zeros((1, 2, 3, 7), "float32")
    for c, i, j in np.ndindex(3, 3, 3):
        window = data[:, c : c + 1, i : i + 3, j : j + 7]
        wanted += window * weight[None, :, c, i, j].reshape(1, 2, 1, 1)
    assert found.tobytes() == wanted.tobytes()


def test_no_index_is_named_whose_loops_were_joined() -> None:
    """One position, k * 28 + l, serves two loads: their loop is one over all of it."""
    x, y = relay.var("x", (1, 1, 784), "int32"), relay.var("y", (784,), "int32")
    product = relay.op.reshape(relay.op.multiply(x, y), newshape=(1, 1, 28, 28))
    text = kernels_of(relay.op.right_shift(product, relay.const(np.int32(3))), x, y)
    assert loops(text) == ["k_l"]
    assert " * 28" not in text


@NEEDS_C
def test_a_short_loop_of_elements_is_not_unrolled_and_a_long_one_may_be() -> None:
    """GCC 12 with -O3 -march=native does not end on some short loops of 64-bit shifts."""
    for width, kept in ((4, 1), (12, 0)):
        x, by = relay.var("x", (30, width), "int64"), relay.var("by", (width,), "int64")
        body = relay.op.right_shift(x, by)
        assert kernels_of(body, x, by).count("KEEP_LOOP") == kept
        data = np.arange(30 * width, dtype=np.int64).reshape(30, width) << 30
        by_data = np.arange(width, dtype=np.int64)
        made = CExecutor(infer_module(relay.module(relay.Function((x, by), body)))).run(
            [data, by_data]
        )
        np.testing.assert_array_equal(made[0], data >> by_data)
