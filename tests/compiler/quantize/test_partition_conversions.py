"""partition_conversions: where modules are cut, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import assert_structural_equal, evaluate, infer_module, parse, text
from compiler.errors import NotFullyIntegralError
from compiler.ir.blob import ModuleBlob
from compiler.ir.expr import Call, Op
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of, operators_of, post_order
from compiler.proof.derive import derive_static
from compiler.proof.wiring import check_wiring
from compiler.qtypes.errors import ModuleShapeError
from compiler.quantize import (
    QConfig,
    QuantizeContext,
    has_only_conversion_ops,
    partition_conversions,
    partition_prefix,
    partition_suffix,
    quantize,
)

Graph = Callable[..., IRModule]
DTYPES = {"int8", "int32"}

CONV = """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %0
}
"""

G1_PREFIX = """
def @quantize_inputs(%x: (1,2,4,4) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  let %x1 = %3;
  (%x1,)
}
"""

G1_CORE = """
def @quantized_main(%x: (1,2,4,4) int8) {
  %0 = nn.conv2d(%x, const<W' (3,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %1 = add(%0, 64);
  %2 = right_shift(%1, 7);
  %3 = clip(%2, a_max=127, a_min=-127);
  %4 = cast(%3, dtype=int8);
  %5 = annotation.stop_fusion(%4);
  %5
}
"""

G1_SUFFIX = """
def @dequantize_outputs(%input: (1,3,4,4) int8) {
  %0 = cast(%input, dtype=float32);
  %1 = multiply(%0, 0.0625f);
  %1
}
"""

TWO_INPUTS = """
def @main(%x: (1,2,4,4) float32, %y: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %1 = nn.conv2d(%y, const<W2 (3,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %2 = add(%0, %1);
  %2
}
"""

G2_CORE = """
def @quantized_main(%x: (1,2,4,4) int8, %y: (1,2,4,4) int8) {
  %0 = nn.conv2d(%x, const<W' (3,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %1 = add(%0, 64);
  %2 = right_shift(%1, 7);
  %3 = clip(%2, a_max=127, a_min=-127);
  %4 = cast(%3, dtype=int8);
  %5 = annotation.stop_fusion(%4);
  %6 = cast(%5, dtype=int32);
  %7 = nn.conv2d(%y, const<W2' (3,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %8 = add(%7, 64);
  %9 = right_shift(%8, 7);
  %10 = clip(%9, a_max=127, a_min=-127);
  %11 = cast(%10, dtype=int8);
  %12 = annotation.stop_fusion(%11);
  %13 = cast(%12, dtype=int32);
  %14 = add(%6, %13);
  %15 = clip(%14, a_max=127, a_min=-127);
  %16 = cast(%15, dtype=int8);
  %17 = annotation.stop_fusion(%16);
  %17
}
"""

G2_SUFFIX = """
def @dequantize_outputs(%input: (1,3,4,4) int8) {
  %0 = cast(%input, dtype=float32);
  %1 = multiply(%0, 0.0625f);
  %1
}
"""

MAIN_OF_TWO = """
#[version = "0.0.5"]
def @main(%x: Tensor[(1, 2, 4, 4), float32], %y: Tensor[(1, 2, 4, 4), float32]) {
  let %quantized_inputs = @quantize_inputs(%x, %y);
  let %quantized_outputs = @quantized_main(%quantized_inputs.0, %quantized_inputs.1);
  let %dequantized_outputs = @dequantize_outputs(%quantized_outputs);
  %dequantized_outputs
}
"""

RNG = np.random.default_rng(3)
WEIGHTS = {n: RNG.uniform(0, 1, (3, 2, 3, 3)).astype(np.float32) for n in ("W", "W2")}
X, Y = (RNG.normal(0, 1, (1, 2, 4, 4)).astype(np.float32) for _ in "xy")


def cut(mod: IRModule, how: str = "fully_integral", **config: Any) -> IRModule:
    run = QuantizeContext(QConfig(skip_conv_layers=[], partition_conversions=how, **config))
    return quantize(mod, dataset=[{"x": X, "y": Y}], context=run)


def whole(mod: IRModule, **config: Any) -> IRModule:
    run = QuantizeContext(QConfig(skip_conv_layers=[], **config))
    return quantize(mod, dataset=[{"x": X, "y": Y}], context=run)


def only(mod: IRModule, name: str) -> IRModule:
    return IRModule({"main": mod[name]})


def renamed(graph: Graph, notation: str, name: str, **constants: Any) -> IRModule:
    return graph(notation.replace(f"@{name}", "@main"), **constants)


def check_same_bits(mod: IRModule, integer_tables: bool = False, **inputs: Any) -> None:
    parts = evaluate(cut(mod, integer_tables=integer_tables), inputs)
    expect = evaluate(whole(mod, integer_tables=integer_tables), inputs)
    for part, expected in zip(parts, expect, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_a_single_convolution_becomes_three_functions(graph: Graph, folded: Any) -> None:
    mod = graph(CONV, **WEIGHTS)
    result = cut(mod)
    assert [gv.name_hint for gv in result.functions] == [
        "dequantize_outputs",
        "main",
        "quantize_inputs",
        "quantized_main",
    ]
    assert_structural_equal(
        only(result, "quantize_inputs"), renamed(graph, G1_PREFIX, "quantize_inputs")
    )
    core = only(result, "quantized_main")
    assert_structural_equal(core, folded(G1_CORE.replace("@quantized_main", "@main"), core))
    assert_structural_equal(
        only(result, "dequantize_outputs"), renamed(graph, G1_SUFFIX, "dequantize_outputs")
    )
    check_same_bits(mod, x=X)


def test_two_converted_inputs(graph: Graph, folded: Any) -> None:
    mod = graph(TWO_INPUTS, **WEIGHTS)
    result = cut(mod)
    core = only(result, "quantized_main")
    assert_structural_equal(core, folded(G2_CORE.replace("@quantized_main", "@main"), core))
    assert [p.name_hint for p in result["quantized_main"].params] == ["x", "y"]
    assert_structural_equal(
        only(result, "dequantize_outputs"), renamed(graph, G2_SUFFIX, "dequantize_outputs")
    )
    parts = text(result, show_types=False, show_meta=False)
    assert "@quantized_main(%0, %1)" in parts
    check_same_bits(mod, x=X, y=Y)


ADD = """
def @main(%x: (10,10) float32, %y: (10,10) float32) {
  %0 = add(%x, %y);
  %0
}
"""


def test_nothing_quantized_passes_everything_through(graph: Graph) -> None:
    result = partition_conversions(graph(ADD), DTYPES, ensure_fully_integral=False)
    body = result["quantize_inputs"].body
    assert [f.name_hint for f in body.fields] == ["x", "y"]
    assert_structural_equal(only(result, "quantized_main"), graph(ADD))
    suffix = result["dequantize_outputs"]
    assert suffix.body is suffix.params[0]
    assert suffix.params[0].name_hint == "input"
    ones = np.ones((10, 10), np.float32)
    np.testing.assert_array_equal(evaluate(result, {"x": ones, "y": ones})[0], ones + ones)


def test_a_float_core_is_no_fully_integral_module(graph: Graph) -> None:
    with pytest.raises(NotFullyIntegralError, match=r"quantized_main.*float32") as caught:
        partition_conversions(graph(ADD), DTYPES, ensure_fully_integral=True)
    assert isinstance(caught.value, AssertionError)
    assert "add" in str(caught.value)


G5_CORE = """
def @quantized_main(%x: (1,2,4,4) int8) {
  %0 = nn.conv2d(%x, const<W' (3,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %1 = cast(%0, dtype=int64);
  %2 = fixed_point_multiply(%1, multiplier=1489004800, shift=-8);
  %3 = clip(%2, a_max=127, a_min=-127);
  %4 = cast(%3, dtype=int32);
  %5 = cast(%4, dtype=int8);
  %6 = annotation.stop_fusion(%5);
  %6
}
"""


def test_int64_requantization_is_integral(
    graph: Graph, folded: Any, assert_close_graphs: Any
) -> None:
    r = np.random.default_rng(92)
    W = r.uniform(-1, 1, (3, 2, 3, 3)).astype(np.float32)
    x = r.normal(0.0, 1, (1, 2, 4, 4)).astype(np.float32)
    config = {"calibrate_mode": "percentile", "weight_scale": "max", "skip_conv_layers": []}
    run = QuantizeContext(QConfig(partition_conversions="fully_integral", **config))
    result = quantize(graph(CONV, W=W), dataset=[{"x": x}], context=run)
    core = only(result, "quantized_main")
    assert_close_graphs(core, folded(G5_CORE.replace("@quantized_main", "@main"), core))


def test_a_sum_of_two_inputs_is_no_conversion(graph: Graph) -> None:
    """It is computed by the core, on integers; without integer tables it stays in float."""
    mod = graph(
        """
def @main(%x: (1,2,4,4) float32, %y: (1,2,4,4) float32) {
  %0 = add(%x, %y);
  %1 = nn.conv2d(%0, const<W (3,2,3,3) float32>);
  %1
}
""",
        **WEIGHTS,
    )
    result = cut(mod, integer_tables=True)
    assert [p.name_hint for p in result["quantized_main"].params] == ["x", "y"]
    assert [p.name_hint for p in result["quantize_inputs"].params] == ["x", "y"]
    assert derive_static(infer_module(result)).findings == ()
    check_same_bits(mod, x=X, y=Y, integer_tables=True)
    with pytest.raises(NotFullyIntegralError, match="call of add"):
        cut(mod)


def test_equal_conversions_of_one_input_are_one_parameter(graph: Graph) -> None:
    mod = graph(
        """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>);
  %1 = nn.conv2d(%x, const<W2 (3,2,3,3) float32>);
  %2 = add(%0, %1);
  %2
}
""",
        **WEIGHTS,
    )
    result = cut(mod)
    assert [p.name_hint for p in result["quantized_main"].params] == ["x"]
    check_same_bits(mod, x=X)


QUANTIZED = """
def @main(%x: (2,3) float32, %unused: (5,) float32, %y: (2,3) float32) {
  %0 = clip(round(multiply(%x, 16f)), a_min=-127, a_max=127);
  %1 = cast(%0, dtype=int8);
  %2 = cast(%0, dtype=int32);
  %3 = cast(%1, dtype=int32);
  %4 = add(%3, nn.relu(%2));
  %5 = multiply(cast(%4, dtype=float32), 0.0625f);
  %5
}
"""


def test_distinct_conversions_of_one_input_are_numbered(graph: Graph) -> None:
    result = partition_conversions(graph(QUANTIZED), DTYPES, ensure_fully_integral=True)
    core = result["quantized_main"]
    assert [(p.name_hint, str(p.checked_type)) for p in core.params] == [
        ("x", "Tensor[(2, 3), int8]"),
        ("x_1", "Tensor[(2, 3), int32]"),
    ]


def test_all_inputs_stay_in_their_order_and_unused_ones_too(graph: Graph) -> None:
    mod = graph(QUANTIZED)
    result = partition_conversions(mod, DTYPES, ensure_fully_integral=True)
    for name in ("main", "quantize_inputs"):
        assert [p.name_hint for p in result[name].params] == ["x", "unused", "y"]
    x = np.linspace(-9, 9, 6, dtype=np.float32).reshape(2, 3)
    inputs = {"x": x, "unused": np.zeros(5, np.float32), "y": x}
    np.testing.assert_array_equal(evaluate(result, inputs)[0], evaluate(mod, inputs)[0])


def test_a_residual_on_a_converted_input_stays_in_the_core(graph: Graph) -> None:
    mod = graph(
        """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.max_pool2d(%x, pool_size=[1, 1]);
  %1 = nn.conv2d(%x, const<W (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %2 = nn.relu(%1);
  %3 = nn.conv2d(%2, const<W2 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %4 = add(%3, %x);
  %4
}
""",
        W=WEIGHTS["W"][:2],
        W2=WEIGHTS["W2"][:2],
    )
    result = cut(mod)
    assert has_only_conversion_ops(result["quantize_inputs"])
    assert not has_only_conversion_ops(result["quantized_main"])
    check_same_bits(mod, x=X)


def test_a_tuple_of_results_gives_one_border_each(graph: Graph) -> None:
    mod = graph(
        """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>);
  %1 = nn.relu(%0);
  (%0, %1)
}
""",
        **WEIGHTS,
    )
    result = cut(mod)
    assert [p.name_hint for p in result["dequantize_outputs"].params] == ["input0", "input1"]
    assert len(result["quantized_main"].checked_type.ret_type.fields) == 2
    check_same_bits(mod, x=X)


def test_a_call_that_returns_integers_in_a_tuple_is_one_border(graph: Graph) -> None:
    mod = graph("""
def @main(%x: (1,2,4,4) int8) {
  %0 = nn.relu(%x);
  %1 = split(%0, indices_or_sections=2, axis=1);
  %1
}
""")
    core, suffix = partition_suffix(mod, DTYPES)
    assert_structural_equal(core, mod)
    (whole,) = suffix["main"].params
    assert suffix["main"].body is whole


FLOAT_TAIL = """
def @main(%x: (1,2,4,4) float32, %y: (1,3,2,2) float32) {
  %0 = nn.conv2d(%x, const<W (3,2,3,3) float32>);
  %1 = nn.relu(%0);
  %2 = sigmoid(%1);
  %3 = multiply(%2, %y);
  %3
}
"""


def test_a_suffix_that_reads_an_input_gets_it_through_the_core(graph: Graph) -> None:
    mod = graph(FLOAT_TAIL, **WEIGHTS)
    result = cut(mod, "enabled")
    assert [p.name_hint for p in result["quantized_main"].params] == ["x", "y"]
    inputs = {"x": X, "y": Y[:, :1, :2, :2].repeat(3, axis=1)}
    np.testing.assert_array_equal(evaluate(result, inputs)[0], evaluate(whole(mod), inputs)[0])


def test_a_float_tail_is_named(graph: Graph) -> None:
    with pytest.raises(NotFullyIntegralError, match=r"dequantize_outputs.*sigmoid"):
        cut(graph(FLOAT_TAIL, **WEIGHTS))


def test_a_skipped_first_convolution_is_named(graph: Graph) -> None:
    run = QuantizeContext(QConfig(partition_conversions="fully_integral"))
    with pytest.warns(UserWarning, match="skip_conv_layers"), pytest.raises(NotFullyIntegralError):
        quantize(graph(CONV, **WEIGHTS), context=run)


def test_lets_are_fine_anywhere() -> None:
    mod = parse("""
#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) {
  let %a = multiply(%x, 16f);
  let %b = cast(clip(round(%a), a_min=-127f, a_max=127f), dtype="int8");
  let %c = nn.relu(%b);
  multiply(cast(%c, dtype="float32"), 0.0625f)
}
""")
    result = partition_conversions(mod, DTYPES, ensure_fully_integral=True)
    x = np.array([-3, 0.5, 100, 2.03], np.float32)
    np.testing.assert_array_equal(evaluate(result, [x])[0], evaluate(mod, [x])[0])


def test_an_argmax_of_integers_belongs_to_the_core() -> None:
    mod = parse("""
#[version = "0.0.5"]
def @main(%x: Tensor[(2, 4), float32]) {
  %0 = cast(clip(round(multiply(%x, 16f)), a_min=-127f, a_max=127f), dtype="int8");
  argmax(%0, axis=[1], dtype="int64")
}
""")
    result = partition_conversions(mod, DTYPES, ensure_fully_integral=True)
    assert str(result["quantized_main"].checked_type.ret_type) == "Tensor[(2), int64]"


PASSED_ON = """
#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) {{
  %0 = cast(clip(round(multiply(%x, 16f)), a_min=-127f, a_max=127f), dtype="int8");
  %1 = {inner};
  (multiply(cast(%1, dtype="float32"), 0.0625f), {output})
}}
"""


@pytest.mark.parametrize("output", ["copy(%x)", "%x", "copy(copy(%x))", "2f", "copy(2f)"])
@pytest.mark.parametrize("integral", [True, False])
def test_an_output_that_is_an_input_or_a_constant_stays_outside_the_core(
    output: str, integral: bool
) -> None:
    mod = infer_module(parse(PASSED_ON.format(inner="nn.relu(%0)", output=output)))
    result = partition_conversions(mod, DTYPES, ensure_fully_integral=integral)
    source = "input:x" if "x" in output else "constant"
    assert result.attrs["passthrough"] == {"1": source}
    assert check_wiring(result) == ()
    assert str(result["quantized_main"].checked_type.ret_type) == "Tensor[(4), int8]"
    assert len(result["quantize_inputs"].checked_type.ret_type.fields) == 1
    read = ModuleBlob.pack(result).unpack()
    x = np.array([-3, 0.5, 100, 2.03], np.float32)
    for one in (result, read):
        for found, wanted in zip(evaluate(one, [x]), evaluate(mod, [x]), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_module_that_passes_nothing_on_has_no_such_attribute(graph: Graph) -> None:
    result = partition_conversions(whole(graph(CONV, **WEIGHTS)), DTYPES, True)
    assert "passthrough" not in result.attrs


def test_an_input_that_is_only_reshaped_is_told_by_its_name() -> None:
    mod = parse(PASSED_ON.format(inner="nn.relu(%0)", output="reshape(%x, newshape=[2, 2])"))
    with pytest.raises(NotFullyIntegralError) as error:
        partition_conversions(mod, DTYPES, ensure_fully_integral=True)
    assert "an output of the model is its input %x, only converted" in error.value.what
    assert "leave this output out of the model" in error.value.what
    assert "computes in float32" not in error.value.what
    result = partition_conversions(mod, DTYPES, ensure_fully_integral=False)
    x = np.array([-3, 0.5, 100, 2.03], np.float32)
    for found, wanted in zip(evaluate(result, [x]), evaluate(mod, [x]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_float_operator_beside_a_returned_input_is_told_alone() -> None:
    inner = 'cast(exp(cast(%0, dtype="float32")), dtype="int8")'
    mod = parse(PASSED_ON.format(inner=inner, output="copy(%x)"))
    with pytest.raises(NotFullyIntegralError, match="computes in float32: call of exp") as error:
        partition_conversions(mod, DTYPES, ensure_fully_integral=True)
    assert "its input" not in error.value.what


def test_prefix_and_suffix_are_modules_of_their_own(graph: Graph) -> None:
    mod = whole(graph(CONV, **WEIGHTS))
    prefix, rest = partition_prefix(mod, DTYPES)
    core, suffix = partition_suffix(rest, DTYPES)
    (converted,) = evaluate(prefix, [X])
    (inner,) = evaluate(core, [converted])
    np.testing.assert_array_equal(evaluate(suffix, [inner])[0], evaluate(mod, [X])[0])


@pytest.mark.parametrize(
    "suffix",
    [
        'multiply(cast(%2, dtype="float32"), 0.5f)',
        'multiply(0.5f, cast(nn.relu(%2), dtype="float32"))',
        '(cast(%2, dtype="float32"), cast(%1, dtype="float32"))',
        '(multiply(%x, 2f), cast(%2, dtype="float32"))',
        'tanh(cast(%2, dtype="float32"))',
        "%2",
    ],
)
def test_the_core_keeps_the_order_that_a_walk_of_it_has(suffix: str) -> None:
    mod = parse(f"""
#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) {{
  %0 = cast(clip(round(multiply(%x, 16f)), a_min=-127f, a_max=127f), dtype="int8");
  %1 = cast(clip(cast(%0, dtype="int32"), a_min=0f, a_max=9f), dtype="int8");
  %2 = nn.relu(%1);
  {suffix}
}}
""")
    core = partition_suffix(partition_prefix(mod, DTYPES)[1], DTYPES)[0]["main"]
    kept, walked = nodes_of(core), list(post_order(core.body))
    assert [node for node in kept if not isinstance(node, Op)] == [
        node for node in walked if not isinstance(node, Op)
    ]
    assert operators_of(core) == {node for node in walked if isinstance(node, Op)}
    assert all(kept.index(n.op) < kept.index(n) for n in walked if isinstance(n, Call))


def test_a_module_with_two_functions_is_refused() -> None:
    mod = parse("""
#[version = "0.0.5"]
def @f(%x: float32) { %x }
def @main(%x: float32) { @f(%x) }
""")
    with pytest.raises(ModuleShapeError, match="@f"):
        partition_conversions(mod, DTYPES, ensure_fully_integral=False)
