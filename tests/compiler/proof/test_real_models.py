"""The models of ../shared/data on integers are proved, and both executors agree on them."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import quantize
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.proof.derive import derive
from tests.compiler.quantize.candidates import calibrated

pytestmark = [pytest.mark.shared, pytest.mark.slow]

CONFIGS: list[dict[str, Any]] = [
    {},
    {"rounding": "TONEAREST", "weight_granularity": "tensor"},
    {"weight_scale": "power2", "calibrate_mode": "global_scale", "keep_output_wide": False},
    {"activation_scheme": "symmetric"},
    {"activation_scheme": "asymmetric", "calibrate_mode": "mse"},
]


@cache
def prepared(path: Path) -> IRModule:
    mod, params = load(path)
    return quantize.prerequisite_optimize(mod, params, opt_level=3)


def name_of(value: object) -> str:
    return "-".join(map(str, value.values())) or "plain" if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *product(("digits_cnn", "fashion_resnet"), CONFIGS),
        # Seconds each: what differs between the configurations is shown by the models above.
        ("fashion_mobilenet", CONFIGS[0]),
        *product(("fashion_mobilenet", "fashion_vit"), (CONFIGS[1], CONFIGS[-1])),
        ("efficientnet_lite0", CONFIGS[-1]),
    ],
    ids=name_of,
)
def test_a_real_model_on_integers_is_proved(
    name: str, config: dict[str, Any], shared_data: Path
) -> None:
    mod = prepared(shared_data / f"{name}.onnx")
    qconfig = quantize.QConfig.recommended(**{"calibrate_mode": "max", **config})
    rng = np.random.default_rng(3)
    types = {p.name_hint: p.tensor_type for p in mod["main"].params}
    batch = {n: rng.normal(0, 1, t.concrete_shape).astype(t.dtype) for n, t in types.items()}
    module = calibrated(mod, qconfig, [batch]).partitioned
    assert module is not None
    proof = derive(module, [(batch, evaluate(module, batch))])
    assert proof.findings == ()
    assert sum(test.elements for test in proof.comparisons) >= 130
