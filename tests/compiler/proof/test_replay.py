"""Comparing outputs bit by bit, and the inputs on which executors are compared."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.ir.ty import integer_range
from compiler.ops.number_format import storage_dtype
from compiler.pipeline import C_LOWERING
from compiler.proof import replay
from compiler.proof.derive import derive
from compiler.proof.replay import (
    c_flags,
    compare_runs,
    differing_elements,
    extreme_inputs,
    main_inputs,
    random_inputs,
)
from compiler.proof.replay import replay as replay_module
from compiler.proof.steps import built_in_c
from compiler.runtime.artifact import Sample
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.library import is_available
from compiler.targets.reference.executor import ReferenceExecutor
from tests.needs import NEEDS_C


def test_elements_differ_by_bits_and_not_by_value() -> None:
    zeros = np.array([0.0, np.nan, 1.0], "float32")
    assert differing_elements([zeros], [zeros.copy()]) == (3, 0)
    assert differing_elements([zeros], [np.array([-0.0, np.nan, 1.0], "float32")]) == (3, 1)
    assert differing_elements([zeros], [zeros.astype("float64")]) == (3, 3)
    assert differing_elements([zeros], []) == (3, 3)
    empty = np.zeros((0, 2), "int8")
    assert differing_elements([empty], [empty]) == (0, 0)


def test_extremes_are_the_ends_of_each_parameter(integral: IRModule) -> None:
    params = integral["quantized_main"].params
    found = list(extreme_inputs(params, [(-127, 127)], np.random.default_rng(0)))
    values = [set(np.unique(one["x"]).tolist()) for one in found]
    assert values == [{-127}, {127}, {0}, {-127, 127}, {-127, 127}]
    for one in random_inputs(params, [(-3, 2)], np.random.default_rng(0)):
        assert one["x"].dtype == np.int8
        assert (one["x"].min(), one["x"].max()) == (-3, 2)


RANGES = [(-127, 127)]


def replayed(mod: IRModule, samples: list[Sample], **how: Any):  # type: ignore[no-untyped-def]
    return replay_module(mod, RANGES, samples, np.random.default_rng(0), **how)


def test_main_and_core_run_in_every_onnx_form_that_ships(
    integral: IRModule, samples: list[Sample]
) -> None:
    comparisons, findings = replayed(integral, samples)
    assert findings == ()
    assert {c.differing for c in comparisons} == {0}
    assert all(c.elements == 10 * c.runs for c in comparisons)
    assert [c.runs for c in comparisons] == [2, *(2, 2, 1, 2, 4, 5) * (1 + is_available())]
    assert {c.what for c in comparisons[1:]} == {
        f"@{function}, reference and {form}, {kind}"
        for form in ("integer ONNX", *["engine"] * is_available())
        for function, kind in [
            ("main", "real inputs"),
            ("main", "random inputs"),
            ("main", "ties of rounding"),
            ("main", "special floats"),
            ("quantized_main", "random integers"),
            ("quantized_main", "extreme integers"),
        ]
    }


@pytest.mark.parametrize(
    ("most", "runs"),
    [(1, {"real": 1}), (3, {"real": 1, "special": 1, "extreme": 1}), (8, None), (64, None)],
)
def test_a_large_module_runs_as_many_inputs_as_its_work_allows(
    most: int, runs: dict[str, int] | None, integral: IRModule, samples: list[Sample]
) -> None:
    comparisons, findings = replayed(integral, samples, most=most)
    assert findings == ()
    stored, exact = comparisons[0], [c for c in comparisons[1:] if "integer ONNX" in c.what]
    assert sum(c.runs for c in exact) == min(most, 16)
    assert {c.what.split(", ")[-1]: c.of for c in exact} == {
        "real inputs": 2,
        "special floats": 2,
        "extreme integers": 5,
        "ties of rounding": 1,
        "random integers": 4,
        "random inputs": 2,
    }
    if runs is not None:
        taken = {c.what.split(", ")[-1].split()[0]: c.runs for c in exact if c.runs}
        assert taken == runs
    assert (stored.runs, stored.of) == (next(c.runs for c in exact if "real" in c.what), 2)


@NEEDS_C
def test_the_generated_c_is_compared_as_well(integral: IRModule, samples: list[Sample]) -> None:
    comparisons, findings = replayed(
        integral, samples, in_c=built_in_c(integral, c_flags(integral), C_LOWERING)
    )
    assert findings == ()
    in_c = [c for c in comparisons if "generated C" in c.what]
    assert [(c.runs, c.differing) for c in in_c] == [(n, 0) for n in (2, 2, 1, 2, 4, 5)]


class Off(ReferenceExecutor):
    """One element of the result is too large by one."""

    def run(self, inputs):  # type: ignore[no-untyped-def]
        (only,) = super().run(inputs)
        only = only.copy()
        only[0, 3] += 1
        return [only]


@pytest.mark.parametrize("form", ["IntegerExecutor", "EngineExecutor"])
def test_a_form_that_computes_otherwise_is_a_finding(
    form: str, integral: IRModule, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, form, Off)
    monkeypatch.setattr(replay, "is_available", lambda: True)
    comparisons, findings = replayed(integral, samples)
    wrong = [c for c in comparisons if c.differing]
    # NaN + 1 is NaN; everything else differs in every run.
    assert len(wrong) == 6
    assert [(f.check, f.node) for f in findings] == [("executors", c.what) for c in wrong]


@pytest.mark.parametrize(
    "rows",
    [
        "clip(round(multiply(%x, 16f)), a_min=-127f, a_max=127f)",
        "round(clip(multiply(%x, 16f), a_min=-127f, a_max=127f))",
        "add(clip(round(multiply(%x, 16f)), a_min=-150f, a_max=100f), 23f)",
        "clip(round_even(multiply(%x, 16f)), a_min=0f, a_max=127f)",
        "add(round(multiply(%x, 16f)), 3f)",
    ],
)
@pytest.mark.parametrize("given", ["float32", "float16"])
def test_special_floats_become_the_same_integers_in_every_form(rows: str, given: str) -> None:
    suffix = "" if given == "float32" else "16"
    rows = re.sub(r"f([,)])", rf"f{suffix}\1", rows)
    mod = infer_module(
        parse(f"""#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(2, 50), {given}]) {{
  (cast({rows}, dtype="int8"),)
}}
def @quantized_main(%q: Tensor[(2, 50), int8]) {{
  cast(%q, dtype="int32")
}}
def @dequantize_outputs(%r: Tensor[(2, 50), int32]) {{
  multiply(cast(%r, dtype="float32"), 0.5f)
}}
def @main(%x: Tensor[(2, 50), {given}]) {{
  let %a = @quantize_inputs(%x);
  let %b = @quantized_main(%a.0);
  @dequantize_outputs(%b)
}}
""")
    )
    compiled = find_compiler() is not None and given == "float32"
    in_c = built_in_c(mod, c_flags(mod), C_LOWERING) if compiled else None
    found, findings = replay_module(mod, [(-128, 127)], [], np.random.default_rng(1), in_c)
    assert findings == ()
    engine = is_available() and given == "float32"
    assert sum("special floats" in one.what for one in found) == 1 + compiled + engine


@pytest.mark.parametrize(
    "core",
    [
        'where(%q, 7, cast(%q, dtype="int32"))',
        'cast(where(%q, %q, cast(9, dtype="int8")), dtype="int32")',
        """%0 = cast(%q, dtype="bool");
  cast(where(%q, logical_not(%0), True), dtype="int32")""",
    ],
)
def test_a_condition_that_is_an_integer_is_true_where_it_is_not_0_in_every_form(core: str) -> None:
    mod = infer_module(
        parse(
            """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(2, 50), float32]) {
  (cast(clip(round(%x), a_min=-2f, a_max=2f), dtype="int8"),)
}
def @quantized_main(%q: Tensor[(2, 50), int8]) {
  CORE
}
def @dequantize_outputs(%r: Tensor[(2, 50), int32]) {
  cast(%r, dtype="float32")
}
def @main(%x: Tensor[(2, 50), float32]) {
  let %a = @quantize_inputs(%x);
  let %b = @quantized_main(%a.0);
  @dequantize_outputs(%b)
}
""".replace("CORE", core)
        )
    )
    found, findings = replay_module(mod, [(-2, 2)], [], np.random.default_rng(1))
    assert findings == ()
    assert len(found) == 7 + 6 * is_available()


@pytest.mark.parametrize(("dtype", "against"), [("int64", 0), ("uint64", 1)])
def test_wide_integers_beside_floats_are_run(dtype: str, against: int) -> None:
    """uint64 has no exact integer form, which is said; where it has one, nothing differs."""
    mod = infer_module(
        parse(f"""#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(2, 50), float32], %t: Tensor[(2, 50), {dtype}]) {{
  (cast(clip(round(multiply(%x, 8f)), a_min=-9f, a_max=9f), dtype="int8"), %t)
}}
def @quantized_main(%q: Tensor[(2, 50), int8], %u: Tensor[(2, 50), {dtype}]) {{
  (cast(%q, dtype="int32"), clip(%u, a_min=0f, a_max=7f))
}}
def @dequantize_outputs(%r: Tensor[(2, 50), int32], %s: Tensor[(2, 50), {dtype}]) {{
  (cast(%r, dtype="float32"), %s)
}}
def @main(%x: Tensor[(2, 50), float32], %t: Tensor[(2, 50), {dtype}]) {{
  let %a = @quantize_inputs(%x, %t);
  let %b = @quantized_main(%a.0, %a.1);
  @dequantize_outputs(%b.0, %b.1)
}}
""")
    )
    proof = derive(mod, [])
    assert len(proof.findings) == against
    assert all("has no exact" in finding.what for finding in proof.findings)
    assert {one.differing for one in proof.comparisons} == {0}


@pytest.mark.parametrize("dtype", ["uint64", "int64", "int4", "uint4", "bool", "uint8"])
def test_every_integer_dtype_has_random_and_extreme_inputs(dtype: str) -> None:
    low, high = (0, 1) if dtype == "bool" else integer_range(dtype)
    x = relay.var("x", (2, 3), dtype)
    (param,) = infer_module(relay.module(relay.Function((x,), x)))["main"].params
    rng = np.random.default_rng(0)
    drawn = list(random_inputs([param], [(low, high)], rng))
    ends = list(extreme_inputs([param], [(low, high)], rng))
    assert {str(one["x"].dtype) for one in (*drawn, *ends)} == {str(storage_dtype(dtype))}
    assert [sorted({int(v) for v in one["x"].reshape(-1)}) for one in ends[:4]] == [
        [low],
        [high],
        [0],
        [low, high],
    ]


def test_floats_beside_ties_are_among_the_inputs(integral: IRModule) -> None:
    (scale,) = (
        node.args[1].data
        for node in post_order(integral["quantize_inputs"].body)
        if isinstance(node, Call) and node.op.name == "multiply"
    )
    kinds = main_inputs(integral, RANGES, np.random.default_rng(0))
    scaled = kinds["ties of rounding"][0]["x"].astype("float64") * float(scale)
    distance = np.abs(scaled - np.floor(scaled) - 0.5)
    nearest = ((np.floor(scaled) + 0.5) / float(scale)).astype("float32")
    assert 0.2 < np.mean(kinds["ties of rounding"][0]["x"] == nearest) < 0.6
    assert distance.max() < 1e-4
    assert distance.max() > 0
    special = kinds["special floats"][-1]["x"]
    assert np.isnan(special).any()
    assert {-np.inf, np.inf, 0.0} <= set(special.reshape(-1).tolist())
    assert (np.signbit(special) & (special == 0)).any()


def test_a_module_whose_ranges_are_refuted_is_not_run(
    integral: IRModule, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors: dict[str, np.ndarray] = {}
    source = text(integral, show_types=False, external_data=tensors)
    edited = re.sub(
        r"add\((%\d+), (meta\[[^)]*)\)", r"left_shift(add(\1, \2), 31)", source, count=1
    )
    assert edited != source
    monkeypatch.setattr(ReferenceExecutor, "run", None)
    proof = derive(infer_module(parse(edited, external_data=tensors)), samples)
    assert {f.check for f in proof.findings} == {"ranges"}
    assert proof.comparisons == ()


def test_executors_that_disagree_are_a_finding(integral: IRModule) -> None:
    batches = [{"x": np.zeros((1, 3, 8, 8), "int8")}] * 2
    ours, theirs = (kind(integral, "quantized_main") for kind in (ReferenceExecutor, Off))
    found = compare_runs("x", ((ours.run(each), theirs.run(each)) for each in batches), 2)
    assert (found.runs, found.elements, found.differing) == (2, 20, 2)
    assert found.finding("executors")[0].what == "2 of 20 elements differ in 2 runs"
