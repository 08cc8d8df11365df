"""QuantizeRealize on whole networks: exact integers.

``realized/`` holds one file per case: the float network and the integer network.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import assert_structural_equal, evaluate, relay, text
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, TempExpr, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.op import get_op
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.quantize import QConfig, QuantizeContext, quantize

Graph = Callable[..., IRModule]
Arrays = dict[str, np.ndarray[Any, Any]]

CASES = Path(__file__).parent / "realized"
DRAWN: dict[str, tuple[int, dict[str, float], float]] = {
    "two_convolutions": (71, {"W0": 0.4, "b0": 1, "W1": 0.2, "b1": 1}, 2),
    "general_scales": (72, {"W0": 0.4, "b0": 1, "W1": 0.3}, 1.5),
    "residual_sum": (74, {"W0": 0.5, "W1": 0.25, "W2": 0.6}, 1.5),
    "average_pooling": (76, {"W0": 0.5}, 2),
    "dense_with_bias": (78, {"W0": 0.5, "b0": 1}, 2),
    "concatenate_of_equal_scales": (79, {"Wa": 0.5, "Wb": 0.1}, 2),
    "two_accumulators": (84, {"Wa": 0.5, "Wb": 0.2}, 2),
    "concatenate_of_narrow_fields": (86, {"Wa": 0.5, "Wb": 0.1}, 2),
    "add_with_a_float_side": (87, {"Wa": 0.5, "Wb": 0.5}, 2),
}
"""Of each case the seed, the largest magnitude of each constant in the order they are drawn, and
the spread of the input."""


def float_network(name: str) -> str:
    return (CASES / f"{name}.txt").read_text("utf-8").split("// becomes\n")[0]


def integer_network(name: str) -> str:
    return (CASES / f"{name}.txt").read_text("utf-8").split("// becomes\n")[1]


def drawn(name: str) -> tuple[Arrays, Arrays]:
    """Constants and input of a case; float32, of the shapes its network declares."""
    seed, largest, spread = DRAWN[name]
    network = float_network(name)

    def shape(pattern: str) -> tuple[int, ...]:
        found = re.search(pattern + r" \(([\d, ]*)\)", network)
        assert found is not None
        return tuple(int(n) for n in found[1].split(",") if n)

    rng = np.random.default_rng(seed)
    constants = {
        key: rng.uniform(-bound, bound, shape(f"<{key}")).astype(np.float32)
        for key, bound in largest.items()
    }
    return constants, {"x": rng.normal(0.0, spread, shape("%x:")).astype(np.float32)}


@pytest.fixture
def run(graph: Graph) -> Callable[..., tuple[IRModule, QuantizeContext, IRModule, Any]]:
    def quantized(name: str, **config: Any) -> Any:
        context = QuantizeContext(QConfig(**{"skip_conv_layers": [], **config}))
        constants, inputs = drawn(name)
        mod = graph(float_network(name), **constants)
        result = quantize(mod, dataset=[inputs], context=context)
        return result, context, mod, evaluate(result, inputs)[0]

    return quantized


def scales(context: QuantizeContext) -> list[tuple[str, Any, Any]]:
    return [(p.kind, p.range_s, p.dom_scale) for p in context.report.points]


def integers(output: Any, scale: float) -> list[int]:
    values = output / np.float32(scale)
    assert np.array_equal(values, np.rint(values))
    return [int(v) for v in values.ravel()]


def test_two_convolutions_with_biases(run: Any, folded: Any) -> None:
    result, context, _, output = run("two_convolutions")
    assert_structural_equal(result, folded(integer_network("two_convolutions"), result))
    assert scales(context) == [
        ("input", 8, 0.0625),
        ("weight", 0.5, 0.00390625),
        ("weight", 1, 0.0078125),
        ("input", 8, 0.0625),
        ("weight", 0.25, 0.001953125),
        ("weight", 1, 0.0078125),
        ("input", 8, 0.0625),
    ]
    assert integers(output, 0.0625) == [-15, -10, -12, -9, -3, 0, -1, 0]


def test_folded_constants_are_the_quantized_weights(run: Any) -> None:
    result, *_ = run("two_convolutions")
    held = [n.data for n in post_order(result["main"]) if isinstance(n, Constant) and n.data.ndim]
    assert [(c.shape, str(c.dtype)) for c in held] == [
        ((3, 2, 3, 3), "int8"),
        ((3, 1, 1), "int32"),
        ((2, 3, 1, 1), "int8"),
        ((2, 1, 1), "int32"),
    ]
    assert held[1].ravel().tolist() == [1472, -3584, -128]
    assert held[2].ravel().tolist() == [71, -53, 25, 45, -98, 18]
    assert held[3].ravel().tolist() == [-8128, -1984]


def test_simulation_has_no_integers_and_nearly_the_same_values(run: Any) -> None:
    result, _, _, output = run("two_convolutions", do_simulation=True)
    assert all("int" not in str(n.checked_type_or_none) for n in post_order(result["main"]))
    assert integers(output, 0.0625) == [-15, -10, -12, -9, -3, 0, -1, 0]


GENERAL = {"calibrate_mode": "percentile", "weight_scale": "max"}


def test_general_scales_use_fixed_point_products(
    run: Any, folded: Any, assert_close_graphs: Any
) -> None:
    result, context, _, output = run("general_scales", rounding="UPWARD", **GENERAL)
    assert_close_graphs(result, folded(integer_network("general_scales"), result))
    expected = [
        ("input", 3.7824986, 0.0295507703),
        ("weight", 0.394659907, 0.00308328052),
        ("weight", 0.983487308, 0.00768349459),
        ("input", 3.81798363, 0.0298279971),
        ("weight", 0.229117647, 0.00178998162),
        ("input", 0.949550331, 0.00741836196),
    ]
    assert [kind for kind, _, _ in scales(context)] == [kind for kind, _, _ in expected]
    found = [pair for _, *pair in scales(context)]
    # Ranges of convolution outputs depend on the order of float summation.
    np.testing.assert_allclose(found, [pair for _, *pair in expected], rtol=1e-6)
    steps = np.rint(output / context.report.points[-1].dom_scale).ravel()
    assert steps.tolist() == [43, 127, 9, 62, 18, -51, -29, 15]


def test_rounding_to_nearest_is_spelled_out_in_int64(run: Any, folded: Any) -> None:
    result, context, _, output = run("general_scales", rounding="TONEAREST", **GENERAL)
    upward = run("general_scales", rounding="UPWARD", **GENERAL)[3]
    step = context.report.points[-1].dom_scale
    # The two roundings differ on exact ties only, and there by one step.
    assert np.abs(output - upward).max() <= 1.001 * step
    shown = text(result, show_types=False, show_meta=False)
    assert "fixed_point_multiply" not in shown
    assert shown.count("where(") == 2
    dtypes = re.findall(r"right_shift.*\n.*dtype=(.*)\);\n.*clip.*\n.*dtype=(.*)\);", shown)
    assert dtypes == [('"int32"', '"int8"')] * 2, "clipped in the int32 that the product ends in"
    # A rescaled bias folds to one int32 constant in this mode too.
    assert "meta[relay.Constant][1]" in shown
    assert shown.count("add(") == 3


def test_bounds_of_a_clip_are_truncated_as_relays_kernels_do() -> None:
    r = np.random.default_rng(75)
    weight = relay.const(r.uniform(-0.5, 0.5, (3, 2, 1, 1)).astype("float32"))
    data = r.normal(0.0, 4, (1, 2, 4, 4)).astype("float32")
    conv = relay.op.nn.conv2d(relay.var("x", (1, 2, 4, 4)), weight)
    mod = relay.module(relay.op.clip(conv, a_min=0, a_max=2.2))  # 10401.59 steps
    config = QConfig(skip_conv_layers=[], weight_scale="max")
    result = quantize(mod, dataset=[{"x": data}], qconfig=config)
    clips = [n for n in post_order(result["main"]) if is_op_call(n, "clip")]
    assert [clip.attrs.a_max for clip in clips] == [127.0, 10401.0, 127.0]  # type: ignore[attr-defined]


def test_a_residual_sum_is_clipped_before_it_is_narrowed(run: Any, folded: Any) -> None:
    result, _, _, output = run("residual_sum")
    assert_structural_equal(result, folded(integer_network("residual_sum"), result))
    assert integers(output, 0.0625) == [
        *(28, 0, 0, 0, 10, 42, 19, 0, 34, 0, 22, 0, 8, 29, 17, 31),
        *(0, 0, 0, 4, 0, 6, 0, 0, 0, 0, 19, 0, 2, 1, 4, 5),
    ]


def test_average_pooling_truncates(run: Any, folded: Any) -> None:
    result, _, _, output = run("average_pooling")
    assert_structural_equal(result, folded(integer_network("average_pooling"), result))
    assert output.ravel().tolist() == [
        *(-0.3125, -0.6875, 1.625, -0.0625, -0.75, -0.5, -0.375, 0.625)
    ]


def test_a_dense_layer_with_bias_leaves_as_an_accumulator(run: Any, folded: Any) -> None:
    result, _, _, output = run("dense_with_bias", skip_dense_layer=False)
    assert_structural_equal(result, folded(integer_network("dense_with_bias"), result))
    assert integers(output, 0.000244140625) == [1933, 5571, 4695, 0, 3258, 0, 0, 0]


def test_a_skipped_dense_layer_changes_nothing(run: Any) -> None:
    result, context, mod, _ = run("dense_with_bias")
    assert_structural_equal(result, mod)
    assert {r.reason for r in context.report.float_ops} >= {"skipped_dense"}


def test_concatenate_of_equal_scales_needs_no_rescaling(run: Any, folded: Any) -> None:
    result, _, _, output = run("concatenate_of_equal_scales")
    assert_structural_equal(result, folded(integer_network("concatenate_of_equal_scales"), result))
    assert integers(output, 0.0625) == [
        *(-28, 32, -8, 15, 11, -14, 20, -24, 35, -28, 35, -8, 16, 12),
        *(-15, 21, -26, 37, 4, 3, 2, -1, -1, 0, 0, -4, 2),
    ]


def test_two_accumulators_meet_behind_a_narrow_round_trip(run: Any, folded: Any) -> None:
    result, context, _, output = run("two_accumulators", skip_dense_layer=False)
    assert_structural_equal(result, folded(integer_network("two_accumulators"), result))
    assert scales(context) == [
        ("input", 8, 0.0625),
        ("weight", 0.5, 0.00390625),
        ("weight", 0.25, 0.001953125),
        ("input", 8, 0.0625),
    ]
    assert integers(output, 0.000244140625) == [0, 0, 7525, 2396, 0, 610]


def test_concatenate_of_narrow_fields_takes_the_coarsest_scale(
    run: Any, folded: Any, assert_close_graphs: Any
) -> None:
    result, context, mod, output = run("concatenate_of_narrow_fields", **GENERAL)
    assert_close_graphs(result, folded(integer_network("concatenate_of_narrow_fields"), result))
    steps = np.rint(output / context.report.points[2].dom_scale).ravel()
    assert steps.tolist() == [
        *(-19, 126, -50, -79, 6, -107, -47, -9, 107),
        *(-3, 11, -3, -6, 1, -11, -4, -1, 12),
    ]
    exact = evaluate(mod, {"x": drawn("concatenate_of_narrow_fields")[1]["x"]})[0]
    assert np.abs(output - exact).max() < 0.0268


def test_an_add_with_one_float_side_runs_in_float(run: Any, folded: Any) -> None:
    result, context, _, output = run("add_with_a_float_side")
    assert_structural_equal(result, folded(integer_network("add_with_a_float_side"), result))
    expected = [
        *(1.06282341, 0.125323445, 0.812823415, 0.875323415, 0.750323415, 1.00032341),
        *(1.00032341, 1.25032341, -0.124676555, 0.625, 0.4375, 0.4375, 0.5, 0.4375),
        *(0.625, 0.5, 0.375, 0.5625),
    ]
    # Sigmoid in float32 differs in its last bits between implementations.
    np.testing.assert_allclose(output.ravel(), expected, atol=1e-5)
    assert any("only one operand" in line for line in context.report.diagnostics)
    assert [(r.op, r.status, r.reason) for r in context.report.calls] == [
        ("nn.conv2d", "integer", ""),
        ("nn.conv2d", "integer", ""),
        ("nn.global_avg_pool2d", "integer", ""),
        ("sigmoid", "float", "no_rule:QuantizeAnnotate"),
        ("add", "float", "stopped"),
    ]


def test_a_rule_that_gives_a_float_expression_leaves_its_call_in_float() -> None:
    rng = np.random.default_rng(0)
    weight = relay.const(rng.normal(size=(4, 3, 3, 3)).astype("float32"))
    conv = relay.op.nn.conv2d(relay.var("x", (1, 3, 8, 8)), weight, padding=1)
    mod = relay.module(relay.op.nn.relu(conv))
    relu = get_op("nn.relu")

    def in_float(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr:
        return relay.op.nn.relu(args[0].realize() if isinstance(args[0], TempExpr) else args[0])

    config = QConfig.recommended(calibrate_mode="global_scale", partition_conversions="disabled")
    context = QuantizeContext(config)
    with FQRealizeRewrite.replaced(relu, in_float):
        quantize(mod, context=context)
    statuses = {record.op: record.status for record in context.report.calls}
    assert statuses == {"nn.conv2d": "integer", "nn.relu": "float"}
