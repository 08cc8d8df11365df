"""QConfig.layers: what differs at single layers, as a field, as JSON and as text."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.qconfig import QConfig, qconfig, qconfig_from_text

MIXED = {"conv_0": {"nbit_weight": 6}, "gemm_0": {"nbit_weight": 4, "nbit_input": 16}}


def test_choices_are_hashable_and_equal_the_plain_mapping_in_any_order() -> None:
    one = qconfig(layers=MIXED)
    other = qconfig(layers=dict(reversed(MIXED.items())))
    assert one.layers == MIXED
    assert one == other
    assert hash(one) == hash(other)
    assert list(other.layers) == ["conv_0", "gemm_0"]
    assert one != qconfig(layers={"conv_0": {"nbit_weight": 5}})


def test_choices_that_choose_nothing_are_dropped() -> None:
    assert qconfig(layers={"conv_0": {}, "conv_1": {"float": False}}) == qconfig()
    assert qconfig(layers=None) == qconfig()


names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=8).filter(
    lambda name: not name.startswith(("@", "<"))
)
points = st.integers(0, 9).map("@conv{}".format)
ends = st.tuples(st.floats(-1e9, 0), st.floats(1e-9, 1e9)).map(list)
bits = st.integers(2, 8)
choices = st.fixed_dictionaries({}, optional={"nbit_weight": bits, "nbit_input": bits})


own = st.fixed_dictionaries({}, optional={"nbit_input": bits, "range": ends})


@given(st.dictionaries(names, choices, max_size=4), st.dictionaries(points, own, max_size=4))
def test_json_and_pickles_give_the_same_config_again(
    layers: dict[str, Any], single: dict[str, Any]
) -> None:
    config = qconfig(layers=layers | single)
    assert QConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_command_line_writes_a_mapping_in_braces() -> None:
    layers = "{conv_0:{nbit_weight:6},gemm_0:{nbit_weight:4,nbit_input:16}}"
    config = qconfig_from_text(f"layers={layers},rounding=TONEAREST")
    assert config.layers == MIXED
    assert config.rounding == "TONEAREST"


def test_names_with_colons_and_commas_go_in_quotes() -> None:
    config = qconfig_from_text("""layers={"a:0,b}":{nbit_weight:4},/block/conv:{nbit_input:16}}""")
    assert config.layers == {"a:0,b}": {"nbit_weight": 4}, "/block/conv": {"nbit_input": 16}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("layers={a:{nbit:4}}", "did you mean 'nbit_input'"),
        ("layers={a:{nbit_weight:1}}", "layers\\['a'\\]\\['nbit_weight'\\] cannot be 1"),
        ("layers={a:{nbit_weight:true}}", "from 2 to 16"),
        ("layers={a:{nbit_weight:9}}", "does not fit dtype_weight"),
        ("layers={a:{float:1}}", "True or False"),
        ("layers={a:{float:true}}", "fully_integral"),
        ("layers={a:{float:true,nbit_input:8}}", "leaves in float"),
        ("layers={a:4}", "choices by name"),
        ("layers=[a]", "a mapping such as"),
        ("layers={a}", "is not an entry of a mapping"),
        ("layers={a:{nbit_input:8},a:{}}", "given twice"),
        ("layers={a:{nbit_input:8}", "brackets do not match"),
        ("layers={'a:{nbit_input:8}}", "quotes do not match"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(ConfigValueError, match=says):
        qconfig_from_text(text)


def test_a_layer_may_stay_float_where_float_is_allowed() -> None:
    config = QConfig.recommended(layers={"a": {"float": True}}, partition_conversions="enabled")
    assert config.layers.float_layers == ("a",)
