"""Passes after realisation: the integers of a quantized network stay what they were, bit for bit.

One property for every pass there is, over random networks, configurations and scales.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler.passes
from compiler import evaluate, transform
from compiler.ir.module import IRModule
from compiler.quantize import build_candidate, mark, measured_points
from tests.compiler.quantize.test_random_networks import setup as random_network
from tests.each import each

for _module in pkgutil.iter_modules(compiler.passes.__path__):
    importlib.import_module(f"compiler.passes.{_module.name}")

PASSES = [
    name
    for name, cls in transform.registered_passes().items()
    if cls.__module__.startswith("compiler.passes.")
]
PIPELINES = [
    *PASSES,
    "DeadCodeElimination{inline_once=True}",
    "SimplifyExpr,FoldConstant,EliminateCommonSubexpr,CanonicalizeCast,DeadCodeElimination",
]


@cache
def quantized(seed: int) -> tuple[IRModule, dict[str, NDArray[Any]]]:
    """A realised module, cut into its three parts, and inputs for it."""
    mod, config, inputs, rng = random_network(seed)
    annotated, _ = mark(mod, config)
    ranges = np.exp2(rng.uniform(-2, 3, len(measured_points(annotated)))).astype(np.float32)
    cut = build_candidate(mod, config, ranges).partitioned
    assert cut is not None
    return cut, inputs


def integers(mod: IRModule, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What the prefix makes of the inputs, and what the integer part makes of that."""
    stored = evaluate(mod, inputs, function="quantize_inputs")
    names = [p.name_hint for p in mod["quantized_main"].params]
    assert len(names) == len(stored)
    return [*stored, *evaluate(mod, stored, function="quantized_main")]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 400))
def test_passes_keep_the_integers_of_a_quantized_module(seed: int) -> None:
    mod, inputs = quantized(seed)
    assume(mod.contains("quantized_main"))
    wanted = integers(mod, inputs)
    for pipeline in PIPELINES:
        note(pipeline)
        with transform.PassContext(opt_level=4, verify=True):
            new = transform.Sequential.from_text(pipeline)(mod)
        for before, after in each(zip(wanted, integers(new, inputs), strict=True)):
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)


def test_the_networks_hold_integers_worth_keeping() -> None:
    found = [m for m, _ in map(quantized, range(20)) if m.contains("quantized_main")]
    shown = "\n".join(compiler.text(m, show_meta=False) for m in found)
    for part in (
        'out_dtype="int32"',
        'dtype="int8"',
        "multiplier=",
        "shift=",
        "qnn.requantize",
    ):
        assert part in shown
