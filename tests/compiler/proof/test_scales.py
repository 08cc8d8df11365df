"""Multipliers are recomputed from the scales that values carry: what differs is refuted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import parse, relay, text
from compiler.errors import ArtifactError
from compiler.ir.analysis import post_order
from compiler.ir.dataflow import dataflow
from compiler.ir.expr import Call, Constant, Expr, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.proof.derive import derive_static
from compiler.proof.record import compare_record
from compiler.quantize import QConfig, prerequisite_optimize
from compiler.runtime.artifact import QModule, load_qmod
from tests.compiler.quantize.test_requantization import batches, candidate_of, network

FORMS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "fixed point": {"requantization": "fixed_point", "activation_scheme": "asymmetric"},
    "ties away": {"requantization": "fixed_point", "rounding": "TONEAREST"},
    "powers of two": {"requantization": "power_of_two", "weight_scale": "power2"},
    "LiteRT": {"requantization": "tflite", "activation_scheme": "asymmetric"},
    "one scale for a weight": {"weight_granularity": "tensor"},
}
TENSOR = {"requantization": "fixed_point", "weight_granularity": "tensor"}


def module(**changes: Any) -> IRModule:
    rng = np.random.default_rng(5)
    config = QConfig.recommended(calibrate_mode="max", **changes)
    made = candidate_of(network(rng), config, batches(rng)).partitioned
    assert made is not None
    return made


def refuted(mod: IRModule) -> list[str]:
    return [str(one) for one in derive_static(mod).findings if "scale" in one.what]


def with_text(mod: IRModule, pattern: str, change: Callable[[str], str]) -> IRModule:
    """The module with the first number of its core changed that a pattern finds."""
    source = text(mod, show_types=False)
    found = re.compile(pattern).search(source, source.index("def @quantized_main"))
    assert found is not None, source
    begin, end = found.span(1)
    return infer_module(parse(source[:begin] + change(found[1]) + source[end:]))


def with_core(mod: IRModule, change: Callable[[Call], Call | None]) -> IRModule:
    """The module with the first call of its core changed that ``change`` answers for."""
    core, done = mod["quantized_main"], []

    def made(node: Expr, new: Any) -> Expr | None:
        if done or not isinstance(node, Call):
            return None
        changed = change(node.fresh_copy(args=tuple(new.get(arg, arg) for arg in node.args)))
        done.extend([changed] if changed is not None else [])
        return changed

    body = rebuilt(post_order(core.body), made)[core.body]
    assert done
    return infer_module(mod.with_function("quantized_main", core.with_fields(body=body)))


@pytest.mark.parametrize("form", FORMS)
def test_every_multiplier_is_the_one_of_its_scales(form: str) -> None:
    mod = module(**FORMS[form])
    assert refuted(mod) == []
    values = [
        (step.args[0].quant, step.result.quant)
        for step in dataflow(mod, "quantized_main").steps
        if step.name == "qnn.requantize"
    ]
    assert len(values) > 4
    assert all(before is not None and behind is not None for before, behind in values)
    (claim,) = (one for one in derive_static(mod).claims if one.name == "integer scales")
    assert f"{len(values)} of {len(values)} multipliers" in claim.detail
    again = infer_module(parse(text(mod, show_types=False)))
    assert text(again) == text(mod)


def test_accumulators_carry_a_scale_for_each_channel() -> None:
    core = module()["quantized_main"]
    sums = [n for n in post_order(core) if isinstance(n, Call) and is_op_call(n, "nn.conv2d")]
    scales = [call.quant.scales for call in sums if call.quant is not None]
    assert [each.shape for each in scales] == [(4, 1, 1)] * 2
    assert " : quant(meta[relay.Constant][" in text(module(), show_types=False)


@pytest.mark.parametrize("form", ["fixed point", "ties away", "LiteRT", "one scale for a weight"])
def test_a_multiplier_that_is_one_unit_larger_is_refuted(form: str) -> None:
    mod = module(**FORMS[form])
    pattern = r"qnn\.requantize\([^)]*multiplier=(\d+)"
    other = with_text(mod, pattern, lambda n: str(int(n) + 1))
    (found,) = refuted(other)
    claims = {claim.name: claim.holds for claim in derive_static(other).claims}
    assert claims == {"integers only": True, "integer scales": False, "no overflow": True}
    assert re.search(r"qnn.requantize: multiplies by \d+ \* 2\^\(-?\d+ - 31\); the scales", found)


@pytest.mark.parametrize("place", [1, 2])
def test_a_multiplier_or_shift_of_one_channel_is_refuted(place: int) -> None:
    def changed(call: Call) -> Call | None:
        if not is_op_call(call, "qnn.requantize") or len(call.args) < 3:
            return None
        vector = call.args[place]
        assert isinstance(vector, Constant)
        numbers = vector.data.copy()
        numbers[-1] += 1
        args = list(call.args)
        args[place] = Constant(numbers)
        return call.with_fields(args=tuple(args))

    mod = module()
    other = with_core(mod, changed)
    assert len(refuted(other)) == 1
    record = derive_static(mod).to_dict()
    assert compare_record(record, derive_static(other).to_dict()) != ()


def test_a_forged_scale_is_refuted() -> None:
    mod = module(**TENSOR)
    pattern = r"qnn\.requantize\([^)]*\) : quant\(([0-9.e-]+)f"
    assert refuted(with_text(mod, pattern, lambda n: repr(float(n) * 1.001)))

    def forged(call: Call) -> Call | None:
        if call.quant is None or not call.quant.scales.ndim:
            return None
        scales = call.quant.scales.copy()
        scales.flat[0] *= np.float32(1.001)
        return call.with_fields(quant=call.quant._replace(scale=Constant(scales)))

    assert refuted(with_core(module(), forged))


@pytest.mark.parametrize("form", ["recommended", "fixed point", "LiteRT"])
def test_a_forged_scale_or_zero_point_of_an_input_is_refuted(form: str) -> None:
    mod = module(**FORMS[form])
    pattern = r"%x: Tensor\[[^\]]*\] : quant\(([0-9.e-]+)f"
    (found,) = refuted(with_text(mod, pattern, lambda n: repr(float(n) * 1.001)))
    assert found.startswith("input %x: is multiplied by ")


def test_a_zero_point_that_the_input_does_not_have_is_refuted() -> None:
    pattern = r"%x: Tensor\[[^\]]*\] : quant\(([0-9.e-]+f)"
    assert refuted(with_text(module(), pattern, lambda n: f"{n}, 9"))


def test_a_conversion_that_adds_nan_is_refuted() -> None:
    source = text(module(), show_types=False)
    assert "round(%0)" in source
    forged = infer_module(parse(source.replace("round(%0)", "round(add(%0, nanf))", 1)))
    assert any("has the zero point nan" in one for one in refuted(forged))


def test_a_forged_zero_point_is_refuted() -> None:
    mod = module(activation_scheme="asymmetric")
    pattern = r"qnn\.requantize\([^)]*\) : quant\([0-9.e-]+f, (-?\d+)"
    (found,) = refuted(with_text(mod, pattern, lambda n: str(int(n) + 1)))
    assert "its scale has the zero point" in found


def test_scales_that_lie_along_no_axis_are_refused_when_a_file_is_read(tmp_path: Path) -> None:
    def forged(call: Call) -> Call | None:
        if call.quant is None or not call.quant.scales.ndim:
            return None
        scale = Constant(np.ones(1000, np.float32))
        return call.with_fields(quant=call.quant._replace(scale=scale))

    path = tmp_path / "m.qmod"
    QModule(with_core(module(), forged)).save(path)
    with pytest.raises(ArtifactError, match=r"scales of shape \(1000,\) lie along no axis"):
        load_qmod(path)


def test_a_factor_of_the_model_is_no_quotient_of_scales() -> None:
    """0.4 x has the integers of x: what reads them multiplies by the factor as well."""
    rng, op = np.random.default_rng(3), relay.op
    x = relay.var("x", (1, 3, 6, 6))
    moved = op.add(op.multiply(x, relay.const(np.float32(0.4))), relay.const(np.float32(-1.0)))
    weight = relay.const(rng.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32))
    mod = relay.module(relay.Function([x], op.nn.conv2d(moved, weight)))
    data = [{"x": rng.normal(0, 1, (1, 3, 6, 6)).astype(np.float32)} for _ in range(3)]
    config = QConfig.recommended(calibrate_mode="max", requantization="tflite")
    made = candidate_of(prerequisite_optimize(mod, None, 3), config, data).partitioned
    assert made is not None
    assert "own_factor=True" in text(made, show_types=False)
    assert refuted(made) == []


def test_a_factor_of_the_model_behind_a_requantization_does_not_change_its_scale() -> None:
    """Two readers of h multiply by 0.5 and by 3: neither product is the scale of h."""
    rng, op = np.random.default_rng(4), relay.op
    x = relay.var("x", (1, 8))
    first, last = (relay.const(rng.normal(0, 0.5, (8, 8)).astype(np.float32)) for _ in range(2))
    h = op.nn.dense(x, first)
    half, triple = (op.multiply(h, relay.const(np.float32(by))) for by in (0.5, 3.0))
    both = op.add(op.nn.dense(op.add(half, x), last), op.add(triple, x))
    mod = prerequisite_optimize(relay.module(relay.Function([x], both)), None, 3)
    data = [{"x": rng.normal(0, 1, (1, 8)).astype(np.float32)} for _ in range(3)]
    wide = {"<others>": {"nbit_input": 15}}
    made = candidate_of(mod, QConfig.recommended(calibrate_mode="max", layers=wide), data)
    assert made.partitioned is not None
    assert refuted(made.partitioned) == []


def test_a_multiplier_of_its_own_is_counted_apart() -> None:
    """The scales of a file are no reason to trust it: without them nothing is recomputed."""

    def named(call: Call) -> Call | None:
        if not is_op_call(call, "qnn.requantize"):
            return None
        attrs: Any = call.attrs
        return call.with_fields(attrs=attrs.with_values(own_factor=True))

    mod = module()
    (claim,) = (c for c in derive_static(with_core(mod, named)).claims if "scales" in c.name)
    told, many = map(int, re.findall(r"(\d+) of (\d+) multipliers", claim.detail)[0])
    assert told == many - 1
