"""A proof says what is proved and what is tested, and finds what was changed."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from compiler import relay
from compiler.ir.blob import ModuleBlob
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.proof.derive import derive, derive_static
from compiler.proof.record import compare_record, contents_of, record_of
from compiler.quantize import QConfig, build_candidate
from compiler.runtime.artifact import Sample
from compiler.targets.engine.library import is_available
from tests.compiler.inner_values import whole_module


def changed(mod: IRModule, old: str, new: str) -> IRModule:
    """The module with the first match of a pattern replaced in its text."""
    tensors: dict[str, np.ndarray] = {}
    source = text(mod, show_types=False, external_data=tensors)
    edited, count = re.subn(old, new, source, count=1)
    assert count == 1
    return infer_module(parse(edited, external_data=tensors))


def test_a_module_of_the_flow_is_proved(integral: IRModule, samples: list[Sample]) -> None:
    proof = derive(integral, samples)
    assert proof.findings == ()
    assert [claim.name for claim in proof.claims] == [
        "integers only",
        "integer scales",
        "no overflow",
    ]
    assert all(claim.holds for claim in proof.claims)
    # Which forms there are depends on the rounding.
    assert re.search(r"\d+ qnn.requantize", proof.claims[1].detail)
    assert {test.differing for test in proof.comparisons} == {0}
    assert [test.runs for test in proof.comparisons] == [
        2,
        *(2, 2, 1, 2, 4, 5) * (1 + is_available()),
    ]
    assert proof.inputs == (("x", -127, 127),)
    sums = [one.node.split()[1] for one in proof.intermediates if one.what == "the accumulator"]
    assert sums == ["nn.conv2d", "nn.conv2d", "nn.dense"]
    assert all(one.share < 1 for one in proof.intermediates)


def test_the_claim_of_no_overflow_names_the_widest_sum_and_its_share() -> None:
    core = '  sum(cast(%x, dtype="int32"), axis=[1])'
    proof = derive_static(whole_module(core, {"x": np.zeros((1, 60000), "int16")}, {}))
    (claim,) = (one for one in proof.claims if one.name == "no overflow")
    assert claim.detail.endswith(f"{100 * 60000 / (1 << 16):.2f} % of int32")


def test_a_core_whose_ranges_cannot_be_derived_is_not_proved(integral: IRModule) -> None:
    core = integral["quantized_main"]
    chosen = relay.If(relay.const(np.bool_(True)), core.body, core.body)
    proof = derive_static(
        infer_module(integral.with_function("quantized_main", relay.Function(core.params, chosen)))
    )
    assert [f.check for f in proof.findings] == ["dtypes", "ranges"]
    claims = {claim.name: claim for claim in proof.claims}
    assert not claims["no overflow"].holds
    assert claims["no overflow"].detail == "ranges could not be derived"


def test_proof_json_is_plain_and_equal_for_equal_modules(
    integral: IRModule, samples: list[Sample]
) -> None:
    first, again = (json.dumps(derive(integral, samples).to_dict()) for _ in range(2))
    assert first == again
    record = json.loads(first)
    assert record["verdict"] == "proved"
    assert {"proved", "tested", "findings", "values", "inputs"} <= set(record)
    assert all({"dtype", "low", "high"} <= set(value) for value in record["values"])
    assert not any(value["dtype"].startswith("float") for value in record["values"])


def test_the_record_of_a_module_agrees_with_what_is_derived_after_it_was_read_again(
    integral: IRModule,
) -> None:
    record = json.loads(json.dumps(record_of(derive_static(integral).to_dict())))
    tensors: dict[str, np.ndarray] = {}
    source = text(integral, external_data=tensors)
    read = infer_module(parse(source, external_data=tensors))
    assert compare_record(record, derive_static(read).to_dict()) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"add\(%(\d+), %(\d+)\)", r"add(%\1, %\1)"),
        (r"a_max=127f", "a_max=126f"),
        (r" round\(%0\)", " annotation.stop_fusion(%0)"),
        (r"padding=\[1, 1, 1, 1\]", "padding=[2, 0, 1, 1]"),
        (r"multiply\(%x, [^)]*\)", "multiply(%x, 42f)"),
    ],
)
def test_a_changed_edge_or_attribute_is_not_what_was_recorded(
    integral: IRModule, old: str, new: str
) -> None:
    record = json.loads(json.dumps(record_of(derive_static(integral).to_dict())))
    found = compare_record(record, derive_static(changed(integral, old, new)).to_dict())
    assert [f.check for f in found][:1] == ["record"]


def test_the_record_of_conversions_holds_their_numbers_to_the_last_bit(integral: IRModule) -> None:
    other = changed(integral, r"multiply\(%x, [^)]*\)", "multiply(%x, 42f)")
    before, after = (set(derive_static(mod).conversions) for mod in (integral, other))
    assert any(line.endswith(float(42).hex()) for line in after - before)


def test_a_module_has_the_same_contents_however_often_it_was_written_and_read(
    integral: IRModule,
) -> None:
    read = ModuleBlob.pack(integral).unpack()
    again = ModuleBlob.pack(read).unpack()
    assert contents_of(integral) == contents_of(read) == contents_of(again)


def test_a_node_that_is_shared_and_two_equal_nodes_have_the_same_contents() -> None:
    x = relay.var("x", (2,), "int32")
    shared = relay.op.nn.relu(x)
    once = relay.module(relay.Function((x,), relay.op.add(shared, shared)))
    twice = relay.module(
        relay.Function((x,), relay.op.add(relay.op.nn.relu(x), relay.op.nn.relu(x)))
    )
    assert contents_of(once) == contents_of(twice)


@pytest.mark.parametrize(
    "other",
    [
        "fn (%x: Tensor[(2), int32]) { add(%x, 3) }",
        "fn (%x: Tensor[(2), int32]) { add(2, %x) }",
        "fn (%x: Tensor[(2), int32]) { subtract(%x, 2) }",
        "fn (%y: Tensor[(2), int32]) { add(%y, 2) }",
        "fn (%x: Tensor[(2), int64]) { add(%x, 2i64) }",
        "fn (%x: Tensor[(2), int32], Primitive=1) { add(%x, 2) }",
        "fn (%x: Tensor[(2), int32]) { (add(%x, 2),) }",
        "fn (%x: Tensor[(2), int32]) { let %a = add(%x, 2); %a }",
        "fn (%x: Tensor[(2), int32]) { clip(add(%x, 2), a_min=0f, a_max=9f) }",
    ],
)
def test_whatever_differs_in_a_function_differs_in_its_contents(other: str) -> None:
    def contents(source: str) -> list[dict[str, object]]:
        return contents_of(infer_module(parse(f'#[version = "0.0.5"]\n{source}')))

    assert contents(other) != contents("fn (%x: Tensor[(2), int32]) { add(%x, 2) }")


def test_attributes_of_functions_and_of_the_module_are_contents(integral: IRModule) -> None:
    assert contents_of(integral.with_attr("passthrough", 1)) != contents_of(integral)


def test_a_record_is_the_same_whatever_order_keys_stand_in(integral: IRModule) -> None:
    derived = derive_static(integral).to_dict()
    turned = {
        key: [dict(reversed(row.items())) if isinstance(row, dict) else row for row in value]
        if isinstance(value, list)
        else value
        for key, value in derived.items()
    }
    assert record_of(turned) == record_of(derived)


def test_a_changed_sample_is_found(integral: IRModule, samples: list[Sample]) -> None:
    inputs, outputs = samples[0]
    wrong = [np.nextafter(outputs[0], np.float32(np.inf))]
    finding = derive(integral, [(inputs, wrong), samples[1]]).findings[0]
    assert finding.check == "samples"
    assert finding.what == "10 of 20 elements differ in 2 runs"


def test_a_float_network_is_refused_for_having_no_core(float_network: IRModule) -> None:
    proof = derive(float_network, [])
    assert not proof.holds
    assert "is missing, so the module is not partitioned" in proof.findings[0].what
    assert [claim.holds for claim in proof.claims] == [False]


def test_a_float_layer_inside_is_found_by_name(float_network: IRModule) -> None:
    config = QConfig.recommended(
        calibrate_mode="global_scale", partition_conversions="enabled", skip_conv_layers=[1]
    )
    mixed = build_candidate(float_network, config, None).partitioned
    assert mixed is not None
    proof = derive(mixed, [])
    assert not proof.claims[0].holds
    assert any("nn.conv2d" in f.node and "is float32" in f.what for f in proof.findings)


def test_a_proof_is_shown_without_its_long_lists(
    integral: IRModule,
) -> None:
    shown = repr(derive_static(integral))
    assert "claims=" in shown
    assert not any(f" {name}=" in shown for name in ("values", "intermediates", "contents"))
