from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError

OP = "relay.op.annotation.simulated_quantize"
INPUT = 1


def run(data: ArrayLike, scale: ArrayLike, kind: int = INPUT, **attrs: Any) -> NDArray[Any]:
    array = np.asarray(data, np.float32)
    x = relay.var("x", array.shape)
    call = relay.call(
        OP,
        x,
        relay.const(np.asarray(scale, np.float32)),
        relay.const(-127.0),
        relay.const(127.0),
        kind=kind,
        **attrs,
    )
    return compiler.evaluate(relay.module(relay.Function((x,), call)), [array])[0]


def test_values_of_case_a1() -> None:
    table = {
        0.03125: 0.0625,
        -0.03125: -0.0625,
        0.09375: 0.125,
        -0.09375: -0.125,
        0.15625: 0.1875,
        7.9375: 7.9375,
        7.96999979: 7.9375,
        8.0: 7.9375,
        -8.0: -7.9375,
        100.0: 7.9375,
        -100.0: -7.9375,
        0.0: 0.0,
        0.0312499981: 0.0,
    }
    assert run(list(table), 0.0625).tolist() == list(table.values())


def test_kind_identity_changes_nothing() -> None:
    assert run([0.03, 1e9], 0.0625, kind=0).tolist() == [np.float32(0.03), 1e9]


def test_a_vector_of_scales_quantizes_channel_by_channel() -> None:
    data = np.full((1, 3, 2), 0.3, np.float32)
    scales = np.array([0.5, 0.25, 0.125], np.float32)
    got = run(data, scales, axis=1)
    want = np.stack([run(data[:, k], scales[k]) for k in range(3)], axis=1)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(run(data, scales, axis=-2), want)


def test_scales_and_bounds_are_inferred_as_float32_scalars() -> None:
    names = ("x", "scale", "low", "high")
    x = relay.var("x", (2, 3))
    params = (x, *(relay.var(n) for n in names[1:]))
    main = relay.module(relay.Function(params, relay.call(OP, *params, kind=INPUT)))["main"]
    assert [str(p.checked_type) for p in main.params[1:]] == ["Tensor[(), float32]"] * 3
    main = relay.module(relay.Function(params, relay.call(OP, *params, kind=INPUT, axis=1)))["main"]
    assert str(main.params[1].checked_type) == "Tensor[(3), float32]"


def test_unknown_roundings_are_refused() -> None:
    with pytest.raises(AssertionError, match="floor"):
        run([1.0], 0.5, rounding="floor")


def test_an_axis_outside_the_data_is_a_type_error() -> None:
    with pytest.raises(TypeInferenceError, match="axis 2"):
        run([1.0], [0.5], axis=2)
