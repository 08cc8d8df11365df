"""QuantizeRealize on whole networks: integers exactly as the cases give them (F1 … F17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import assert_structural_equal, evaluate
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, QuantizeContext, quantize

Graph = Callable[..., IRModule]
Arrays = dict[str, np.ndarray[Any, Any]]


def data_f1() -> Arrays:
    r = np.random.default_rng(71)
    W0 = r.uniform(-0.4, 0.4, (3, 2, 3, 3)).astype(np.float32)
    b0 = r.uniform(-1, 1, (3, 1, 1)).astype(np.float32)
    W1 = r.uniform(-0.2, 0.2, (2, 3, 1, 1)).astype(np.float32)
    b1 = r.uniform(-1, 1, (2, 1, 1)).astype(np.float32)
    x = r.normal(0.0, 2, (1, 2, 4, 4)).astype(np.float32)
    return {"W0": W0, "b0": b0, "W1": W1, "b1": b1, "x": x}


F1 = """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W0 (3,2,3,3) float32>);
  %1 = add(%0, const<b0 (3,1,1) float32>);
  %2 = nn.relu(%1);
  %3 = nn.conv2d(%2, const<W1 (2,3,1,1) float32>);
  %4 = add(%3, const<b1 (2,1,1) float32>);
  %4
}
"""

F1_FINAL = """
def @main(%x: (1,2,4,4) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<W0' (3,2,3,3) int8>, out_dtype=int32);
  %5 = add(%4, const<b0' (3,1,1) int32>);
  %6 = nn.relu(%5);
  %7 = add(%6, 128);
  %8 = right_shift(%7, 8);
  %9 = clip(%8, a_max=127, a_min=-127);
  %10 = cast(%9, dtype=int8);
  %11 = annotation.stop_fusion(%10);
  %12 = nn.conv2d(%11, const<W1' (2,3,1,1) int8>, out_dtype=int32);
  %13 = add(%12, const<b1' (2,1,1) int32>);
  %14 = add(%13, 256);
  %15 = right_shift(%14, 9);
  %16 = clip(%15, a_max=127, a_min=-127);
  %17 = cast(%16, dtype=int8);
  %18 = annotation.stop_fusion(%17);
  %19 = cast(%18, dtype=float32);
  %20 = multiply(%19, 0.0625f);
  %20
}
"""


def data_f3() -> Arrays:
    r = np.random.default_rng(72)
    W0 = r.uniform(-0.4, 0.4, (3, 2, 3, 3)).astype(np.float32)
    b0 = r.uniform(-1, 1, (3, 1, 1)).astype(np.float32)
    W1 = r.uniform(-0.3, 0.3, (2, 3, 1, 1)).astype(np.float32)
    x = r.normal(0.0, 1.5, (1, 2, 4, 4)).astype(np.float32)
    return {"W0": W0, "b0": b0, "W1": W1, "x": x}


F3 = """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W0 (3,2,3,3) float32>);
  %1 = add(%0, const<b0 (3,1,1) float32>);
  %2 = nn.relu(%1);
  %3 = nn.conv2d(%2, const<W1 (2,3,1,1) float32>);
  %3
}
"""

F3_FINAL = """
def @main(%x: (1,2,4,4) float32) {
  %0 = multiply(%x, 33.840065f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<W0' (3,2,3,3) int8>, out_dtype=int32);
  %5 = add(%4, const<b0' (3,1,1) int32>);
  %6 = nn.relu(%5);
  %7 = cast(%6, dtype=int64);
  %8 = fixed_point_multiply(%7, multiplier=1679297280, shift=-8);
  %9 = clip(%8, a_max=127, a_min=-127);
  %10 = cast(%9, dtype=int32);
  %11 = cast(%10, dtype=int8);
  %12 = annotation.stop_fusion(%11);
  %13 = nn.conv2d(%12, const<W1' (2,3,1,1) int8>, out_dtype=int32);
  %14 = cast(%13, dtype=int64);
  %15 = fixed_point_multiply(%14, multiplier=1978356096, shift=-7);
  %16 = clip(%15, a_max=127, a_min=-127);
  %17 = cast(%16, dtype=int32);
  %18 = cast(%17, dtype=int8);
  %19 = annotation.stop_fusion(%18);
  %20 = cast(%19, dtype=float32);
  %21 = multiply(%20, 0.00741836196f);
  %21
}
"""


def data_f5() -> Arrays:
    r = np.random.default_rng(74)
    W0 = r.uniform(-0.5, 0.5, (2, 2, 3, 3)).astype(np.float32)
    W1 = r.uniform(-0.25, 0.25, (2, 2, 3, 3)).astype(np.float32)
    W2 = r.uniform(-0.6, 0.6, (2, 2, 3, 3)).astype(np.float32)
    x = r.normal(0.0, 1.5, (1, 2, 4, 4)).astype(np.float32)
    return {"W0": W0, "W1": W1, "W2": W2, "x": x}


F5 = """
def @main(%x: (1,2,4,4) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, const<W1 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %3 = nn.relu(%2);
  %4 = nn.conv2d(%3, const<W2 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %5 = add(%4, %1);
  %6 = nn.relu(%5);
  %6
}
"""

F5_FINAL = """
def @main(%x: (1,2,4,4) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<W0' (2,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %5 = nn.relu(%4);
  %6 = add(%5, 128);
  %7 = right_shift(%6, 8);
  %8 = clip(%7, a_max=127, a_min=-127);
  %9 = cast(%8, dtype=int8);
  %10 = annotation.stop_fusion(%9);
  %11 = nn.conv2d(%10, const<W1' (2,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %12 = nn.relu(%11);
  %13 = add(%12, 256);
  %14 = right_shift(%13, 9);
  %15 = clip(%14, a_max=127, a_min=-127);
  %16 = cast(%15, dtype=int8);
  %17 = annotation.stop_fusion(%16);
  %18 = nn.conv2d(%17, const<W2' (2,2,3,3) int8>, out_dtype=int32, padding=[1, 1, 1, 1]);
  %19 = add(%18, 64);
  %20 = right_shift(%19, 7);
  %21 = clip(%20, a_max=127, a_min=-127);
  %22 = cast(%21, dtype=int8);
  %23 = annotation.stop_fusion(%22);
  %24 = cast(%23, dtype=int32);
  %25 = cast(%8, dtype=int8);
  %26 = annotation.stop_fusion(%25);
  %27 = cast(%26, dtype=int32);
  %28 = add(%24, %27);
  %29 = nn.relu(%28);
  %30 = clip(%29, a_max=127, a_min=-127);
  %31 = cast(%30, dtype=int8);
  %32 = annotation.stop_fusion(%31);
  %33 = cast(%32, dtype=float32);
  %34 = multiply(%33, 0.0625f);
  %34
}
"""


def data_f7() -> Arrays:
    r = np.random.default_rng(76)
    W0 = r.uniform(-0.5, 0.5, (2, 2, 2, 2)).astype(np.float32)
    x = r.normal(0.0, 2, (1, 2, 5, 5)).astype(np.float32)
    return {"W0": W0, "x": x}


F7 = """
def @main(%x: (1,2,5,5) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,2,2) float32>);
  %1 = nn.avg_pool2d(%0, pool_size=[2, 2], strides=[2, 2]);
  %1
}
"""

F7_FINAL = """
def @main(%x: (1,2,5,5) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<W0' (2,2,2,2) int8>, out_dtype=int32);
  %5 = add(%4, 128);
  %6 = right_shift(%5, 8);
  %7 = clip(%6, a_max=127, a_min=-127);
  %8 = cast(%7, dtype=int8);
  %9 = annotation.stop_fusion(%8);
  %10 = cast(%9, dtype=int32);
  %11 = nn.avg_pool2d(%10, pool_size=[2, 2], strides=[2, 2]);
  %12 = cast(%11, dtype=float32);
  %13 = multiply(%12, 0.0625f);
  %13
}
"""


def data_f10() -> Arrays:
    r = np.random.default_rng(78)
    W0 = r.uniform(-0.5, 0.5, (4, 6)).astype(np.float32)
    b0 = r.uniform(-1, 1, (4,)).astype(np.float32)
    x = r.normal(0.0, 2, (2, 6)).astype(np.float32)
    return {"W0": W0, "b0": b0, "x": x}


F10 = """
def @main(%x: (2,6) float32) {
  %0 = nn.dense(%x, const<W0 (4,6) float32>);
  %1 = add(%0, const<b0 (4,) float32>);
  %2 = nn.relu(%1);
  %2
}
"""

F10_FINAL = """
def @main(%x: (2,6) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.dense(%3, const<W0' (4,6) int8>, out_dtype=int32);
  %5 = add(%4, const<b0' (4,) int32>);
  %6 = nn.relu(%5);
  %7 = cast(%6, dtype=float32);
  %8 = multiply(%7, 0.000244140625f);
  %8
}
"""


def data_f11() -> Arrays:
    r = np.random.default_rng(79)
    Wa = r.uniform(-0.5, 0.5, (2, 2, 1, 1)).astype(np.float32)
    Wb = r.uniform(-0.1, 0.1, (1, 2, 1, 1)).astype(np.float32)
    x = r.normal(0.0, 2, (1, 2, 3, 3)).astype(np.float32)
    return {"Wa": Wa, "Wb": Wb, "x": x}


F11 = """
def @main(%x: (1,2,3,3) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = nn.conv2d(%x, const<Wb (1,2,1,1) float32>);
  %2 = concatenate((%0, %1), axis=1);
  %2
}
"""

F11_FINAL = """
def @main(%x: (1,2,3,3) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<Wa' (2,2,1,1) int8>, out_dtype=int32);
  %5 = add(%4, 128);
  %6 = right_shift(%5, 8);
  %7 = clip(%6, a_max=127, a_min=-127);
  %8 = cast(%7, dtype=int8);
  %9 = annotation.stop_fusion(%8);
  %10 = cast(%2, dtype=int8);
  %11 = nn.conv2d(%10, const<Wb' (1,2,1,1) int8>, out_dtype=int32);
  %12 = add(%11, 512);
  %13 = right_shift(%12, 10);
  %14 = clip(%13, a_max=127, a_min=-127);
  %15 = cast(%14, dtype=int8);
  %16 = annotation.stop_fusion(%15);
  %17 = concatenate((%9, %16), axis=1);
  %18 = cast(%17, dtype=float32);
  %19 = multiply(%18, 0.0625f);
  %19
}
"""


def data_f14() -> Arrays:
    r = np.random.default_rng(84)
    Wa = r.uniform(-0.5, 0.5, (3, 5)).astype(np.float32)
    Wb = r.uniform(-0.2, 0.2, (3, 5)).astype(np.float32)
    x = r.normal(0.0, 2, (2, 5)).astype(np.float32)
    return {"Wa": Wa, "Wb": Wb, "x": x}


F14 = """
def @main(%x: (2,5) float32) {
  %0 = nn.dense(%x, const<Wa (3,5) float32>);
  %1 = nn.dense(%x, const<Wb (3,5) float32>);
  %2 = add(%0, %1);
  %3 = nn.relu(%2);
  %3
}
"""

F14_FINAL = """
def @main(%x: (2,5) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.dense(%3, const<Wa' (3,5) int8>, out_dtype=int32);
  %5 = cast(%2, dtype=int8);
  %6 = nn.dense(%5, const<Wb' (3,5) int8>, out_dtype=int32);
  %7 = add(%6, 256);
  %8 = right_shift(%7, 9);
  %9 = clip(%8, a_max=127, a_min=-127);
  %10 = cast(%9, dtype=int8);
  %11 = annotation.stop_fusion(%10);
  %12 = cast(%11, dtype=int32);
  %13 = left_shift(%12, 8);
  %14 = add(%4, %13);
  %15 = nn.relu(%14);
  %16 = cast(%15, dtype=float32);
  %17 = multiply(%16, 0.000244140625f);
  %17
}
"""


def data_f16() -> Arrays:
    r = np.random.default_rng(86)
    Wa = r.uniform(-0.5, 0.5, (1, 2, 1, 1)).astype(np.float32)
    Wb = r.uniform(-0.1, 0.1, (1, 2, 1, 1)).astype(np.float32)
    x = r.normal(0.0, 2, (1, 2, 3, 3)).astype(np.float32)
    return {"Wa": Wa, "Wb": Wb, "x": x}


F16 = """
def @main(%x: (1,2,3,3) float32) {
  %0 = nn.conv2d(%x, const<Wa (1,2,1,1) float32>);
  %1 = nn.conv2d(%x, const<Wb (1,2,1,1) float32>);
  %2 = concatenate((%0, %1), axis=1);
  %2
}
"""

F16_FINAL = """
def @main(%x: (1,2,3,3) float32) {
  %0 = multiply(%x, 26.111515f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<Wa' (1,2,1,1) int8>, out_dtype=int32);
  %5 = cast(%4, dtype=int64);
  %6 = fixed_point_multiply(%5, multiplier=1999452800, shift=-7);
  %7 = clip(%6, a_max=127, a_min=-127);
  %8 = cast(%7, dtype=int32);
  %9 = cast(%8, dtype=int8);
  %10 = annotation.stop_fusion(%9);
  %11 = cast(%2, dtype=int8);
  %12 = nn.conv2d(%11, const<Wb' (1,2,1,1) int8>, out_dtype=int32);
  %13 = cast(%12, dtype=int64);
  %14 = fixed_point_multiply(%13, multiplier=1711080448, shift=-7);
  %15 = clip(%14, a_max=127, a_min=-127);
  %16 = cast(%15, dtype=int32);
  %17 = cast(%16, dtype=int8);
  %18 = annotation.stop_fusion(%17);
  %19 = cast(%18, dtype=int64);
  %20 = fixed_point_multiply(%19, multiplier=1576306944, shift=-3);
  %21 = clip(%20, a_max=127, a_min=-127);
  %22 = cast(%21, dtype=int8);
  %23 = concatenate((%10, %22), axis=1);
  %24 = cast(%23, dtype=float32);
  %25 = multiply(%24, 0.0133535387f);
  %25
}
"""


def data_f17() -> Arrays:
    r = np.random.default_rng(87)
    Wa = r.uniform(-0.5, 0.5, (2, 2, 1, 1)).astype(np.float32)
    Wb = r.uniform(-0.5, 0.5, (2, 2, 1, 1)).astype(np.float32)
    x = r.normal(0.0, 2, (1, 2, 3, 3)).astype(np.float32)
    return {"Wa": Wa, "Wb": Wb, "x": x}


F17 = """
def @main(%x: (1,2,3,3) float32) {
  %0 = nn.conv2d(%x, const<Wb (2,2,1,1) float32>);
  %1 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %2 = nn.global_avg_pool2d(%1);
  %3 = sigmoid(%2);
  %4 = add(%0, %3);
  %4
}
"""

F17_FINAL = """
def @main(%x: (1,2,3,3) float32) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_max=127, a_min=-127);
  %3 = cast(%2, dtype=int8);
  %4 = nn.conv2d(%3, const<Wb' (2,2,1,1) int8>, out_dtype=int32);
  %5 = add(%4, 128);
  %6 = right_shift(%5, 8);
  %7 = clip(%6, a_max=127, a_min=-127);
  %8 = cast(%7, dtype=int8);
  %9 = annotation.stop_fusion(%8);
  %10 = cast(%9, dtype=float32);
  %11 = multiply(%10, 0.0625f);
  %12 = cast(%2, dtype=int8);
  %13 = nn.conv2d(%12, const<Wa' (2,2,1,1) int8>, out_dtype=int32);
  %14 = add(%13, 128);
  %15 = right_shift(%14, 8);
  %16 = clip(%15, a_max=127, a_min=-127);
  %17 = cast(%16, dtype=int8);
  %18 = annotation.stop_fusion(%17);
  %19 = cast(%18, dtype=int32);
  %20 = nn.global_avg_pool2d(%19);
  %21 = cast(%20, dtype=float32);
  %22 = multiply(%21, 0.0625f);
  %23 = sigmoid(%22);
  %24 = add(%11, %23);
  %24
}
"""


@pytest.fixture
def run(graph: Graph) -> Callable[..., tuple[IRModule, QuantizeContext, IRModule, Any]]:
    def quantized(text: str, data: Arrays, **config: Any) -> Any:
        context = QuantizeContext(QConfig(**{"skip_conv_layers": [], **config}))
        mod = graph(text, **{k: v for k, v in data.items() if k != "x"})
        result = quantize(mod, dataset=[{"x": data["x"]}], context=context)
        return result, context, mod, evaluate(result, {"x": data["x"]})[0]

    return quantized


def scales(context: QuantizeContext) -> list[tuple[str, Any, Any]]:
    return [(p.kind, p.range_s, p.dom_scale) for p in context.report.points]


def integers(output: Any, scale: float) -> list[int]:
    values = output / np.float32(scale)
    assert np.array_equal(values, np.rint(values))
    return [int(v) for v in values.ravel()]


def test_two_convolutions_with_biases(run: Any, folded: Any) -> None:
    result, context, _, output = run(F1, data_f1())
    assert_structural_equal(result, folded(F1_FINAL, result))
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
    result, *_ = run(F1, data_f1())
    from compiler.ir.analysis import post_order
    from compiler.ir.expr import Constant

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
    result, _, _, output = run(F1, data_f1(), do_simulation=True)
    from compiler.ir.analysis import post_order

    assert all("int" not in str(n.checked_type_or_none) for n in post_order(result["main"]))
    assert integers(output, 0.0625) == [-15, -10, -12, -9, -3, 0, -1, 0]


GENERAL = {"calibrate_mode": "percentile", "weight_scale": "max"}


def test_general_scales_use_fixed_point_products(
    run: Any, folded: Any, assert_close_graphs: Any
) -> None:
    result, context, _, output = run(F3, data_f3(), rounding="UPWARD", **GENERAL)
    assert_close_graphs(result, folded(F3_FINAL, result))
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
    result, context, _, output = run(F3, data_f3(), rounding="TONEAREST", **GENERAL)
    upward = run(F3, data_f3(), rounding="UPWARD", **GENERAL)[3]
    step = context.report.points[-1].dom_scale
    # The two roundings differ on exact ties only, and there by one step.
    assert np.abs(output - upward).max() <= 1.001 * step
    from compiler import text

    shown = text(result, show_types=False, show_meta=False)
    assert "fixed_point_multiply" not in shown
    assert shown.count("where(") == 2
    # A rescaled bias folds to one int32 constant in this mode too.
    assert "meta[relay.Constant][1]" in shown
    assert shown.count("add(") == 3


def test_a_residual_sum_is_clipped_before_it_is_narrowed(run: Any, folded: Any) -> None:
    result, _, _, output = run(F5, data_f5())
    assert_structural_equal(result, folded(F5_FINAL, result))
    assert integers(output, 0.0625) == [
        *(28, 0, 0, 0, 10, 42, 19, 0, 34, 0, 22, 0, 8, 29, 17, 31),
        *(0, 0, 0, 4, 0, 6, 0, 0, 0, 0, 19, 0, 2, 1, 4, 5),
    ]


def test_average_pooling_truncates(run: Any, folded: Any) -> None:
    result, _, _, output = run(F7, data_f7())
    assert_structural_equal(result, folded(F7_FINAL, result))
    assert output.ravel().tolist() == [
        *(-0.3125, -0.6875, 1.625, -0.0625, -0.75, -0.5, -0.375, 0.625)
    ]


def test_a_dense_layer_with_bias_leaves_as_an_accumulator(run: Any, folded: Any) -> None:
    result, _, _, output = run(F10, data_f10(), skip_dense_layer=False)
    assert_structural_equal(result, folded(F10_FINAL, result))
    assert integers(output, 0.000244140625) == [1933, 5571, 4695, 0, 3258, 0, 0, 0]


def test_a_skipped_dense_layer_changes_nothing(run: Any) -> None:
    result, context, mod, _ = run(F10, data_f10())
    assert_structural_equal(result, mod)
    assert {r.reason for r in context.report.float_ops} >= {"skipped_dense"}


def test_concatenate_of_equal_scales_needs_no_rescaling(run: Any, folded: Any) -> None:
    result, _, _, output = run(F11, data_f11())
    assert_structural_equal(result, folded(F11_FINAL, result))
    assert integers(output, 0.0625) == [
        *(-28, 32, -8, 15, 11, -14, 20, -24, 35, -28, 35, -8, 16, 12),
        *(-15, 21, -26, 37, 4, 3, 2, -1, -1, 0, 0, -4, 2),
    ]


def test_two_accumulators_meet_behind_a_narrow_round_trip(run: Any, folded: Any) -> None:
    result, context, _, output = run(F14, data_f14(), skip_dense_layer=False)
    assert_structural_equal(result, folded(F14_FINAL, result))
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
    result, context, mod, output = run(F16, data_f16(), **GENERAL)
    assert_close_graphs(result, folded(F16_FINAL, result))
    steps = np.rint(output / context.report.points[2].dom_scale).ravel()
    assert steps.tolist() == [
        *(-19, 126, -50, -79, 6, -107, -47, -9, 107),
        *(-3, 11, -3, -6, 1, -11, -4, -1, 12),
    ]
    exact = evaluate(mod, {"x": data_f16()["x"]})[0]
    assert np.abs(output - exact).max() < 0.0268


def test_an_add_with_one_float_side_runs_in_float(run: Any, folded: Any) -> None:
    result, context, _, output = run(F17, data_f17())
    assert_structural_equal(result, folded(F17_FINAL, result))
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
