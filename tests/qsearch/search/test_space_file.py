"""The search space as a file: what it may say, what it may not, and that it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

import qsearch
from compiler import relay
from compiler.errors import TfliteExportError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.qtypes.layer_choices import OTHERS, SUMS, TABLES, layer_choices
from compiler.qtypes.qconfig import QConfig
from compiler.targets.engine.library import load_library
from qsearch.errors import SettingsError
from qsearch.opening.model_file import find_model
from qsearch.search.preparation import prepare_study
from qsearch.search.space import (
    Space,
    default_space,
    input_parameter,
    layer_parameter,
    to_qconfig,
)
from qsearch.search.space_file import (
    SpaceFile,
    fitting_start,
    read_space,
    searched_space,
    write_space,
)
from qsearch.settings.config import resolve
from qsearch.store.engine import open_engine
from qsearch.store.repository import Repository
from tests.needs import NEEDS_C, missing

LAYERS = ("conv_0", "conv_1", "gemm_0")


def read(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return read_space(path, LAYERS)


def test_the_default_space_comes_back_from_its_file(tmp_path: Path) -> None:
    inputs = layer_choices("layers", {"gemm_0": {"nbit_input": 16}})
    for asked in (
        SpaceFile(default_space(), (4, 8), LAYERS, inputs),
        SpaceFile(default_space(), inputs=inputs),
        SpaceFile(default_space(costly=True)),
        SpaceFile(default_space(inputs=[{SUMS: 16}, {"conv_0": 16, "conv_1": 14}]), inputs=inputs),
        SpaceFile(default_space()),
    ):
        assert read(tmp_path, write_space(asked, "a heading")) == asked


def test_ranges_conditions_and_layers(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
fields:
  calibrate_mode: [mse, percentile]
  percentile: {values: [0.999], when: {calibrate_mode: percentile}}
  smooth_alpha: {from: 0.3, to: 0.9, step: 0.2}
  nbit_weight: {from: 6, to: 8, step: 1}
layers:
  nbit_weight: [8, 4]
  except: [conv_0]
""",
    )
    choices = {p.name: p.choices for p in found.space.parameters}
    assert choices["smooth_alpha"] == (0.3, 0.5, 0.7, 0.9)
    assert choices["nbit_weight"] == (6, 7, 8)
    assert found.space.parameters[1].when == (("calibrate_mode", ("percentile",)),)
    assert (found.weight_bits, found.layers) == ((4, 8), ("conv_1", "gemm_0"))


def test_layers_may_stay_in_float_where_modules_may_have_float_parts(tmp_path: Path) -> None:
    fields = "fields:\n  partition_conversions: [enabled, disabled]\n"
    found = read(tmp_path, fields + "layers:\n  nbit_weight: [float, 8]\n")
    assert found.weight_bits == (8, 32)
    again = write_space(found)
    assert "nbit_weight: [8, float]" in again
    assert read(tmp_path, again) == found


@pytest.mark.parametrize(
    "fields", ["weight_scale: [max]", "partition_conversions: [enabled, fully_integral]"]
)
def test_float_layers_in_modules_of_integers_are_refused(tmp_path: Path, fields: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(tmp_path, f"fields:\n  {fields}\nlayers:\n  nbit_weight: [8, float]\n")
    assert "fully_integral" in refused.value.what
    assert "partition_conversions: [enabled]" in str(refused.value.fix)


def test_a_mapping_says_the_same_as_a_file(tmp_path: Path) -> None:
    given = {
        "fields": {"weight_scale": ["max", "mse"], "weight_rounding": ["nearest"]},
        "layers": {"nbit_weight": [4, 8], "only": "conv_1"},
    }
    assert read_space(given, LAYERS) == read(tmp_path, yaml.safe_dump(given, sort_keys=False))
    with pytest.raises(SettingsError, match="unknown name 'field'"):
        read_space({"field": {}}, LAYERS)


def test_a_space_can_be_given_in_python_and_in_a_configuration_file(tmp_path: Path) -> None:
    space = {"fields": {"weight_scale": ("max", "mse"), "rounding": ["UPWARD"]}}
    out = tmp_path / "run"
    options = {"pool": "inline", "trials": 9}
    result = qsearch.launch("digits", out=out, space=space, **options)
    assert [trial.params["weight_scale"] for trial in result.trials] == ["max", "mse"]
    again = qsearch.launch("digits", out=out, config=out / "config.resolved.yaml")
    assert again.trials == result.trials


def test_one_layer_needs_no_list(tmp_path: Path) -> None:
    fields = "fields: {rounding: [UPWARD]}\nlayers: {nbit_weight: [4, 8], "
    assert read(tmp_path, fields + "only: conv_1}").layers == ("conv_1",)
    assert read(tmp_path, fields + "except: conv_1}").layers == ("conv_0", "gemm_0")


def test_the_start_takes_a_value_that_the_space_has(tmp_path: Path) -> None:
    found = read(tmp_path, "fields: {calibrate_mode: [mse, max], weight_scale: [max, mse]}")
    start = fitting_start(found.space, QConfig.recommended())
    assert (start.calibrate_mode, start.weight_scale) == ("mse", "max")


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("fields: {weight_scal: [max]}", "unknown name 'weight_scal'", "weight_scale"),
        ("fields: {weight_scale: [maxi]}", "maxi", "max"),
        ("field: {weight_scale: [max]}", "unknown name 'field'", "fields"),
        ("fields: {}", "no field", "fields"),
        ("fields: {smooth_alpha: {from: 0, to: 1}}", "cannot be used", "step"),
        ("fields: {smooth_alpha: []}", "0 values", "1 to"),
        (
            "fields: {percentile: {values: [0.9], when: {calibrate_mode: [max]}}}",
            "fields before",
            "above it",
        ),
        (
            "fields: {calibrate_mode: [max], percentile: {values: [0.9], "
            "when: {calibrate_mod: [max]}}}",
            "fields before",
            "did you mean 'calibrate_mode'",
        ),
        ("fields: [rounding]", "expected names with values", "name: value"),
        ("layers: {nbit_weight: [4, 8]}", "no field", "doctor --space-out"),
        ("fields: {rounding: [UPWARD]}\nlayers: {nbit_weight: []}", "cannot be []", "2 to 16"),
        (
            "fields: {calibrate_mode: [max], percentile: {values: [0.9], "
            "when: {calibrate_mode: [mse]}}}",
            "never 'mse'",
            "max",
        ),
        ("fields: {rounding: [UPWARD]}\nlayers: {nbit_weight: [1]}", "[1]", "2 to 16"),
        (
            "fields: {rounding: [UPWARD]}\nlayers: {nbit_input: {conv0: 16}}",
            "no layer 'conv0'",
            "conv_0",
        ),
        ("fields: {rounding: [UPWARD]}\nlayers: {nbit_input: {gemm_0: 17}}", "17", "2 to 16"),
        ("fields: {rounding: [UPWARD]}\nlayers: {nbit_input: {gemm_0: [8, 17]}}", "17", "2 to 16"),
        (
            "fields: {rounding: [UPWARD]}\n"
            "layers: {nbit_input: {gemm_0: {values: [8, 16], costly: [12]}}}",
            "[12] cannot be",
            "[8, 16]",
        ),
        (
            "fields: {rounding: [UPWARD]}\nlayers: {nbit_input: {gemm_0: {value: [8]}}}",
            "'value'",
            "values",
        ),
        (
            "fields: {rounding: [UPWARD]}\nlayers: {nbit_weight: [4], only: [conv0]}",
            "no layer 'conv0'",
            "conv_0",
        ),
    ],
)
def test_a_wrong_name_or_value_is_one_error_with_the_nearest(
    tmp_path: Path, text: str, what: str, fix: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert what in caught.value.what
    assert fix in str(caught.value.fix)
    assert "space.yaml" in str(caught.value.where)


@pytest.mark.slow
def test_doctor_writes_the_space_that_a_study_stores(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    qsearch.doctor("digits", space_out=path)
    options: Any = {
        "trials": 1,
        "pool": "inline",
        "max_drop": 1,
        "storage": f"sqlite:///{tmp_path}/s.db",
    }
    specs = []
    for name, space in (("without", None), ("with", path)):
        qsearch.launch("digits", out=tmp_path / name, space=space, **options)
        engine = open_engine(f"sqlite:///{tmp_path}/s.db")
        specs.append(Repository(engine).study(name).spec)
        engine.dispose()
    space = read_space(path, ("conv_1", "conv_2", "gemm_0")).space
    assert space == default_space(inputs=[{"conv_1": 16, "conv_2": 16}])
    assert Space.from_dict(specs[0]["space"]) == space
    assert specs[0] == specs[1]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"allow_float": True},
        {"minimize": "size"},
        {"max_size": "8k", "allow_float": True},
        {"minimize": "size", "sampler": "tpe"},
    ],
    ids=str,
)
def test_the_written_space_is_what_the_settings_search(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    path = tmp_path / "space.yaml"
    qsearch.doctor("digits", space_out=path, **asked)
    settings = [resolve({"space": space, **asked}).settings for space in (None, str(path))]
    found = [prepare_study(each, find_model("digits")).spec for each in settings]
    assert found[0] == found[1]
    assert ("layers" in found[0]) == bool({"minimize", "max_size"} & set(asked) - {"sampler"})


def test_layers_of_a_search_for_qdq_have_the_bits_that_it_stores() -> None:
    asked = {"minimize": "size", "for": "qdq"}
    spec = prepare_study(resolve(asked).settings, find_model("digits")).spec
    assert (spec["layers"]["bits"], spec["for"]) == ([2, 4, 8], "qdq")
    own = {"fields": {"calibrate_mode": ["mse"]}, "layers": {"nbit_weight": [3, 4, 8]}}
    with pytest.raises(SettingsError, match="no 3 bits"):
        prepare_study(resolve({**asked, "space": own}).settings, find_model("digits"))


def test_a_search_for_tflite_holds_only_what_has_such_a_file(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason=missing("the Python packages of the tests"))
    study = prepare_study(resolve({"for": "tflite"}).settings, find_model("digits"))
    assert study.start.nbit_input == 8
    (named,) = (p for p in study.space.parameters if p.name == "requantization")
    assert named.choices == ("tflite",)
    assert study.start.requantization == "tflite"
    assert study.start.layers.to_dict() == {}
    own = {"for": "tflite", "space": {"fields": {"calibrate_mode": ["mse"]}}}
    with pytest.raises(SettingsError, match="no requantization float_product"):
        prepare_study(resolve(own).settings, find_model("digits"))


def test_a_model_without_a_litert_file_is_refused_before_a_search_for_one(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ai_edge_litert", reason=missing("the Python packages of the tests"))
    x = relay.var("x", (1, 4, 5, 5))
    weight = relay.const(np.ones((4, 4, 1, 1), "float32"))
    made = relay.op.nn.log_softmax(relay.op.nn.conv2d(x, weight), axis=1)
    mod = relay.module(relay.Function([x], relay.op.nn.conv2d(made, weight)))
    onnx.save(to_onnx(mod), str(tmp_path / "m.onnx"))
    with pytest.raises(TfliteExportError, match="has no form in a LiteRT file"):
        prepare_study(resolve({"for": "tflite"}).settings, find_model(str(tmp_path / "m.onnx")))


def test_last_layers_read_more_bits_where_no_accelerator_is_named() -> None:
    study = prepare_study(resolve({}).settings, find_model("digits"))
    assert study.start.layers.input_bits == {"gemm_0": 16}
    accelerated = prepare_study(resolve({"hw": "opu_q"}).settings, find_model("digits"))
    assert not accelerated.start.layers


@pytest.mark.parametrize("names", [["Relu", "Erf", "Relu"], ["Relu", "Neg"]])
def test_the_written_space_fits_models_without_weights(tmp_path: Path, names: list[str]) -> None:
    path, model = tmp_path / "space.yaml", tmp_path / "model.onnx"
    nodes = [
        onnx.helper.make_node(name, [f"t{place}"], [f"t{place + 1}"])
        for place, name in enumerate(names)
    ]
    shaped = [
        onnx.helper.make_tensor_value_info(f"t{place}", onnx.TensorProto.FLOAT, [1, 8])
        for place in (0, len(names))
    ]
    graph = onnx.helper.make_graph(nodes, "chain", shaped[:1], shaped[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), model)
    qsearch.doctor(model, space_out=path)
    settings = [resolve({"space": space}).settings for space in (None, str(path))]
    found = [prepare_study(each, find_model(model)).spec for each in settings]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("seconds", "size_counts", "there", "costly"),
    [
        (1.0, False, True, False),
        (5.0, False, True, True),
        (5.0, True, True, False),
        (60.0, False, True, True),
        (60.0, True, False, False),
        (200.0, False, False, False),
    ],
)
def test_a_large_network_is_rounded_sequentially_in_few_trials_or_where_it_decides(
    monkeypatch: pytest.MonkeyPatch, seconds: float, size_counts: bool, there: bool, costly: bool
) -> None:
    monkeypatch.setattr("qsearch.search.space_file.sequential_seconds", lambda _: seconds)
    weight = relay.const(np.ones((2, 16, 1, 1), np.float32))
    data = relay.var("x", (1, 16, 4, 4))
    module = relay.module(relay.Function([data], relay.op.nn.conv2d(data, weight)))
    settings = resolve({"minimize": ["size"]} if size_counts else {}).settings
    space = searched_space(settings, module, "top1").space
    (rounding,) = (p for p in space.parameters if p.name == "weight_rounding")
    assert ("sequential" in rounding.choices) is there
    assert rounding.costly == (("sequential",) if costly else ())


@NEEDS_C
@pytest.mark.parametrize("asked", ["latency", "size", None])
def test_layers_that_four_bits_make_faster_may_have_them_where_time_counts(
    asked: str | None,
) -> None:
    """Products of one row by many weights, where the instruction set gains by it."""
    least = load_library().nibbles
    wide = max(least // 64, 64)
    data = relay.var("x", (1, 64))
    hidden = relay.op.nn.dense(data, relay.const(np.ones((wide, 64), np.float32)))
    out = relay.op.nn.dense(hidden, relay.const(np.ones((2, wide), np.float32)))
    module = relay.module(relay.Function([data], out))
    settings = resolve({"minimize": [asked]} if asked else {}).settings
    layers = searched_space(settings, module, "top1").layers
    if asked == "latency":
        assert (layers is None) == (least == 0)
        assert layers is None or layers.bits == (4, 8)
        assert layers is None or list(layers.elements.values()) == [64 * wide]
    else:
        assert (None if layers is None else len(layers.elements)) == {"size": 2, None: None}[asked]


def test_a_table_may_have_few_bits_where_size_counts() -> None:
    """Of rows that a layer norm reads it has 16 at the start; its points have no more than 8."""
    ids, one = relay.var("x", (1, 4), "int64"), relay.const(np.ones(8, np.float32))
    rows = relay.op.take(relay.const(np.ones((100, 8), np.float32)), ids, axis=0)
    summed = relay.op.add(rows, relay.const(np.ones((1, 4, 8), np.float32)))
    read = relay.op.reshape(relay.op.nn.layer_norm(summed, one, one), newshape=(4, 8))
    out = relay.op.nn.dense(read, relay.const(np.ones((2, 8), np.float32)))
    module = relay.module(relay.Function([ids], out))
    found = searched_space(resolve({"minimize": ["size"]}).settings, module, "top1")
    assert found.layers is not None
    assert found.layers.elements == {"dense_0": 16, "take_0": 800}
    assert found.start.layers == {"take_0": {"nbit_weight": 16}}
    narrow = found.layers.within(found.start)
    assert narrow.layers == {"take_0": {"nbit_weight": 8}}
    point = {layer_parameter("dense_0"): 8, layer_parameter("take_0"): 8}
    assert to_qconfig(point, found.start) == narrow


@pytest.mark.parametrize("size_counts", [False, True])
def test_tables_of_functions_may_be_small_where_size_counts(size_counts: bool) -> None:
    """They have 12 bits where that costs little time: 4,096 entries."""
    op, data = relay.op, relay.var("x", (1, 256))
    wide = op.nn.dense(data, relay.const(np.ones((256, 256), np.float32)))
    out = op.nn.dense(op.sigmoid(wide), relay.const(np.ones((4, 256), np.float32)))
    module = relay.module(relay.Function([data], out))
    settings = resolve({"minimize": ["size"]} if size_counts else {}).settings
    found = searched_space(settings, module, "top1")
    assert found.start.layers.input_bits[TABLES] == 12
    choices = {p.name: p.choices for p in found.space.parameters}
    assert choices.get(input_parameter(TABLES)) == ((8, 12) if size_counts else None)


@pytest.mark.parametrize("ram_counts", [False, True])
def test_what_no_layer_reads_may_have_fewer_bits_where_ram_counts(ram_counts: bool) -> None:
    op, data = relay.op, relay.var("x", (1, 16))
    both = [op.nn.dense(data, relay.const(np.ones((16, 16), np.float32))) for _ in range(2)]
    out = op.nn.dense(op.multiply(*both), relay.const(np.ones((4, 16), np.float32)))
    module = relay.module(relay.Function([data], out))
    settings = resolve({"at_most": {"ram": "64k"}} if ram_counts else {}).settings
    found = searched_space(settings, module, "top1")
    assert found.start.layers.input_bits[OTHERS] == 15
    choices = {p.name: p.choices for p in found.space.parameters}
    assert choices.get(input_parameter(OTHERS)) == ((8, 15) if ram_counts else None)
