"""unify_for_concatenate: the scale that fields share."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Expr, Function, Tuple, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.realize import QRealizeIntExpr, integers
from compiler.ops.rules.unify_scales import unify_for_concatenate
from compiler.qtypes.qconfig import QConfig
from tests.compiler.bounded import bounds_with


def field(dtype: str, scale: float, low: int, high: int) -> QRealizeIntExpr:
    data = relay.var("x", (2,), dtype)
    return integers(data, DomScale(as_scale(scale)), dtype, bounds_with(data, low, high))


def scales_of(values: tuple[QRealizeIntExpr, ...], config: QConfig) -> list[float]:
    params = tuple(Var(f"x{n}", TensorType((2,), "float32")) for n in range(len(values)))
    mod = infer_module(IRModule.from_expr(Function(params, Tuple(params))))
    refs: tuple[Expr, ...] = mod["main"].params
    fields = unify_for_concatenate(refs, values, config)
    return [float(value.dom_scale.data) for value in fields]


@pytest.mark.parametrize("scales", [(1.0, 2.0**-6), (2.0**-6, 1.0)])
def test_accumulators_take_a_scale_at_which_the_coarsest_one_keeps_its_range(
    scales: tuple[float, float],
) -> None:
    values = tuple(field("int32", scale, -(2**29), 2**29) for scale in scales)
    assert scales_of(values, QConfig()) == [1.0, 1.0]


@pytest.mark.parametrize(("high", "scale"), [(10, 0.5), (255, 0.5), (200, 0.5)])
def test_stored_fields_of_two_dtypes_take_the_coarsest_scale_that_holds_them(
    high: int, scale: float
) -> None:
    config = QConfig(activation_scheme="asymmetric")
    values = field("uint8", 0.5, 0, high), field("int8", 0.25, 0, 10)
    assert scales_of(values, config) == [scale, scale]


def test_ends_that_exceed_the_levels_of_both_scales_make_the_scale_coarser() -> None:
    config = QConfig(activation_scheme="asymmetric")
    values = field("uint8", 0.5, 0, 255), field("int8", 0.5, -128, 0)
    (first, second) = scales_of(values, config)
    assert first == second == np.float32((127.5 + 64) / 255)
