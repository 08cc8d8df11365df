"""Channels between products take an order in which pairs of products fit in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.errors import PlanError
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.proof.steps import check_forms
from compiler.quantize.conversions.partition_conversions import partition_conversions
from compiler.targets.engine import planner
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import ISA_VARIABLE, available_isas, load_library
from compiler.targets.engine.steps import layout
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized
from tests.needs import NEEDS_C

pytestmark = NEEDS_C
HIDDEN = 96


def weight(rng: np.random.Generator, shape: tuple[int, ...], heavy: tuple[int, ...] = ()) -> Expr:
    """Weights [columns, channels, ...] as trained ones are; of ``heavy`` channels only the ends."""
    made = np.clip(np.rint(rng.normal(0, 33, shape)), -127, 127)
    for channel in heavy:
        made[:, channel] = rng.choice([-127, 127], made[:, channel].shape)
    return relay.const(made.astype("int8"))


def last_product(mod: IRModule) -> dict[str, int]:
    """How the last product of a module takes its weights with AVX2."""
    engine = EngineExecutor(mod, isa="avx2")
    rows = [r for r, step in zip(engine.plan.rows, engine.steps) if step.kind == "gemm"]
    return {name: int(rows[-1][layout()[0]["gemm"].index(name)]) for name in ("narrow", "wide")}


def block(
    rng: np.random.Generator, order: str, columns: int, heavy: tuple[int, ...] = ()
) -> tuple[Expr, Expr]:
    """An expansion, a depthwise convolution, and the product behind it; what it reads."""
    axis, conv = order.index("C"), relay.op.nn.conv2d
    sizes = {"N": 1, "C": 16, "H": 7, "W": 6}
    x = relay.var("x", tuple(sizes[c] for c in order), "uint8")
    how: dict[str, Any] = {"data_layout": order, "out_dtype": "int32"}
    wide = requantized(conv(x, weight(rng, (HIDDEN, 16, 1, 1)), **how), HIDDEN, axis, rng)
    taps = weight(rng, (HIDDEN, 1, 3, 3))
    deep = requantized(conv(wide, taps, padding=1, groups=HIDDEN, **how), HIDDEN, axis, rng)
    out = conv(
        relay.op.annotation.stop_fusion(deep), weight(rng, (columns, HIDDEN, 1, 1), heavy), **how
    )
    return requantized(out, columns, axis, rng), deep


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("columns", "heavy", "wide"),
    [(24, (), 0), (40, (), 0), (24, (5, 80), 1), (29, (5, 6, 7, 50), 1)],
)
def test_a_block_pairs_its_channels(
    order: str, columns: int, heavy: tuple[int, ...], wide: int
) -> None:
    rng = np.random.default_rng(columns)
    mod = relay.module(block(rng, order, columns, heavy)[0])
    (x,) = mod["main"].params
    for extreme in (True, False):
        agree(mod, drawn(rng, x.checked_type.concrete_shape, "uint8", extreme))
    if "avx2" in available_isas():
        assert last_product(mod) == {"narrow": 1, "wide": wide}


def test_dense_layers_pair_their_channels() -> None:
    rng = np.random.default_rng(3)
    dense = relay.op.nn.dense
    x = relay.var("x", (1, 1, 9, 40), "int8")
    wide = requantized(dense(x, weight(rng, (HIDDEN, 40)), out_dtype="int32"), HIDDEN, 3, rng)
    mod = relay.module(dense(wide, weight(rng, (17, HIDDEN)), out_dtype="int32"))
    agree(mod, drawn(rng, (1, 1, 9, 40), "int8", True))
    if "avx2" in available_isas():
        assert last_product(mod) == {"narrow": 1, "wide": 0}


@pytest.mark.parametrize("reader", ["an output", "a sum", "another product"])
def test_channels_that_others_read_keep_their_order(reader: str) -> None:
    rng = np.random.default_rng(5)
    out, deep = block(rng, "NCHW", 24)
    if reader == "an output":
        body: Expr = relay.Tuple((deep, out))
    elif reader == "a sum":
        named = rng.integers(-9, 9, (1, HIDDEN, 7, 6)).astype("int8")
        body = relay.Tuple(
            (relay.op.add(relay.op.cast(deep, dtype="int8"), relay.const(named)), out)
        )
    else:
        other = relay.op.nn.conv2d(deep, weight(rng, (24, HIDDEN, 1, 1)), out_dtype="int32")
        body = relay.Tuple((other, out))
    mod = relay.module(body)
    agree(mod, drawn(rng, (1, 16, 7, 6), "uint8", True))
    if "avx2" in available_isas():
        assert last_product(mod)["narrow"] == 0


def test_a_defect_of_an_order_is_one_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("substring not found")

    monkeypatch.setattr(planner, "pair_channels", broken)
    with pytest.raises(PlanError, match="cannot plan main: ValueError"):
        EngineExecutor(relay.module(block(np.random.default_rng(0), "NCHW", 24)[0]))


@pytest.fixture
def on_avx2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if "avx2" in available_isas():
        monkeypatch.setenv(ISA_VARIABLE, "avx2")
    load_library.cache_clear()
    yield
    load_library.cache_clear()


@pytest.mark.usefixtures("on_avx2")
def test_steps_are_verified_in_the_order_of_the_plan() -> None:
    rng = np.random.default_rng(7)
    mod = partition_conversions(relay.module(block(rng, "NCHW", 24)[0]), ("int8", "uint8"), True)
    tested, found = check_forms(mod, 3, seed=0)
    assert found == ()
    assert tested[0].steps == tested[0].of
