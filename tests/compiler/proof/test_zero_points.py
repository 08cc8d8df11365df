"""A zero point that was changed is refuted: padding, correction of the sums, conversion."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from compiler import parse, relay, text
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Function, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import substitute
from compiler.pipeline import evaluate
from compiler.proof.derive import derive, derive_static
from compiler.proof.record import compare_record
from compiler.quantize import QConfig, quantize

op = relay.op


@pytest.fixture(scope="module")
def shipped() -> tuple[IRModule, list[Any]]:
    """Convolutions with padding over data from -0.4 to 2, and a residual add of such."""
    rng = np.random.default_rng(3)
    x = relay.var("x", (1, 3, 6, 6))

    def conv(data: Any, channels: int) -> Any:
        weight = rng.standard_normal((channels, 3, 3, 3)).astype(np.float32)
        return op.nn.conv2d(data, relay.const(weight * np.float32(0.2)), padding=(1,) * 4)

    raised = op.clip(conv(x, 3), a_min=-0.3, a_max=3.0)
    result = conv(op.add(raised, conv(raised, 3)), 3)
    mod = infer_module(IRModule.from_expr(Function((x,), result)))
    data = [{"x": rng.uniform(-0.4, 2, (1, 3, 6, 6)).astype(np.float32)} for _ in range(3)]
    config = QConfig.recommended(activation_scheme="asymmetric", calibrate_mode="max")
    with config:
        module = quantize(mod, dataset=data)
    return module, [(batch, evaluate(module, batch)) for batch in data]


def with_other_padding(module: IRModule) -> IRModule:
    """The module with the value of the first padding made larger by one."""
    core = module["quantized_main"]
    pad = next(n for n in post_order(core.body) if isinstance(n, Call) and is_op_call(n, "nn.pad"))
    value = pad.args[1]
    assert isinstance(value, Constant)
    body = substitute(core.body, {value: Constant(value.data + value.data.dtype.type(1))})
    return infer_module(module.with_function("quantized_main", core.with_fields(body=body)))


def changed(module: IRModule, pattern: str) -> IRModule:
    """The module with the first integer that ``pattern`` finds made larger by one."""
    source = text(module)
    found = re.search(pattern, source)
    assert found is not None, source
    begin, end = found.span(1)
    return infer_module(parse(source[:begin] + str(int(found[1]) + 1) + source[end:]))


PLACES = {
    "padding": "",
    "conversion of the input": r"def @quantize_inputs(?s:.*?)add\(%\d+, (-\d+)f",
    "storage": r"def @quantized_main(?s:.*?)zero_point=(-\d+)",
    "zero point of an operand": r"def @quantized_main(?s:.*?)bias=(\d+)",
}


def test_the_module_with_zero_points_is_proved(shipped: tuple[IRModule, list[Any]]) -> None:
    module, samples = shipped
    proof = derive(module, samples)
    assert proof.findings == ()


@pytest.mark.parametrize("place", PLACES)
def test_a_changed_zero_point_is_refuted_with_and_without_the_record(
    place: str, shipped: tuple[IRModule, list[Any]]
) -> None:
    module, samples = shipped
    pattern = PLACES[place]
    other = changed(module, pattern) if pattern else with_other_padding(module)
    assert {f.check for f in derive(other, samples).findings} & {"samples", "ranges"}
    record = derive_static(module).to_dict()
    assert compare_record(record, derive_static(other).to_dict()) != ()
