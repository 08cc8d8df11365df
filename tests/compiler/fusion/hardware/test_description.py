"""Descriptions in files: what they mean, and the one error that a wrong one gets."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.errors import HDFGError
from compiler.fusion.hardware.description import load_hdfg, parse_hdfg, shipped_descriptions

OPU_LINKS = """concat→add_pre, add_pre→mul_pre, mul_pre→pad, pad→ipa, ipa→mul, mul→add, add→compare,
add→pool_pad, add→res_add, pool_pad→pool, compare→pool, compare→res_add, pool→compare,
pool→res_add, res_add→compare, res_add→pool, compare→upsample, pool→upsample, res_add→upsample"""

SMALL = """\
name = "eng"
root = "mac"
free_ops = ["reshape"]
links = [
  ["mac", "act"],  # a comment with [brackets] and "quotes"
  ["act", "pool"],
]

[[stages]]
name = "mac"
accepts."nn.conv2d" = ["const_operand(1)", "attr(groups, ==, 1)"]
limits = { max_kernel = 3 }

[[stages]]
name = "act"
max_uses = "unbounded"
accepts."nn.relu" = []
[stages.limits]
max_channels = 64

[[stages]]
name = "pool"
optional = true
cycles_per_element = 0.5
accepts."nn.max_pool2d" = ["attr(pool_size, in, [[2, 2], [3, 3]])"]
"""

# What is written in place of what, the message, the fix, and the key that is named.
MISTAKES = {
    "unknown unit in a link": (
        '["act", "pool"]',
        '["act", "pol"]',
        "unknown unit 'pol'",
        "'pool'",
        "links[1]",
    ),
    "unknown root": ('root = "mac"', 'root = "max"', "unknown unit 'max'", "'mac'", "root"),
    "unknown operator": (
        "nn.max_pool2d",
        "nn.max_pool",
        "unknown operator 'nn.max_pool'",
        "nn.max_pool2d",
        "stages[2].accepts.nn.max_pool",
    ),
    "unknown free operator": (
        '["reshape"]',
        '["reshap"]',
        "unknown operator 'reshap'",
        "reshape",
        "free_ops[0]",
    ),
    "a unit no path reaches": (
        '  ["act", "pool"],\n',
        "",
        "to unit 'pool'",
        '["mac", "pool"]',
        "stages[2].name",
    ),
    "a limit of the wrong type": (
        "max_kernel = 3",
        'max_kernel = "3"',
        "stages[0].limits.max_kernel",
        "a whole number",
        "stages[0].limits.max_kernel",
    ),
    "a limit of the wrong type in a table": (
        "= 64",
        "= 6.4",
        "stages[1].limits.max_channels",
        "a whole number",
        "stages[1].limits.max_channels",
    ),
    "a limit of nothing": (
        "max_kernel = 3",
        "max_kernel = 0",
        "got 0",
        "from 1 on",
        "stages[0].limits.max_kernel",
    ),
    "unknown limit": (
        "max_channels",
        "max_chanels",
        "unknown key 'max_chanels'",
        "'max_channels'",
        "stages[1].limits.max_chanels",
    ),
    "unknown key of a unit": (
        "optional = true",
        "optinal = true",
        "unknown key 'optinal'",
        "'optional'",
        "stages[2].optinal",
    ),
    "unknown key": ("free_ops", "free_op", "unknown key 'free_op'", "'free_ops'", "free_op"),
    "unknown condition": (
        "const_operand(1)",
        "const_operands(1)",
        "'const_operands'",
        "'const_operand'",
        "stages[0].accepts.nn.conv2d",
    ),
    "unknown attribute": (
        "groups, ==",
        "group, ==",
        "no attribute 'group'",
        "'groups'",
        "stages[0].accepts.nn.conv2d",
    ),
    "malformed condition": (
        "[3, 3]])",
        "[3, 3])",
        "is not closed",
        "name(argument",
        "stages[2].accepts.nn.max_pool2d",
    ),
    "condition without arguments": (
        "const_operand(1)",
        "const_operand",
        "takes 1 arguments, got 0",
        "const_operand(1)",
        "stages[0].accepts.nn.conv2d",
    ),
    "two units of one name": (
        'name = "pool"',
        'name = "act"',
        "two units are named 'act'",
        None,
        "stages[2].name",
    ),
    "a link twice": (
        '["act", "pool"],',
        '["act", "pool"], ["act", "pool"]',
        "is there twice",
        "remove one",
        "links[2]",
    ),
    "a link with one end": ('["act", "pool"]', '["act"]', "two ends", None, "links[1]"),
    "max_uses of zero": (
        '"unbounded"',
        "0",
        "max_uses must be at least 1",
        "unbounded",
        "stages[1].max_uses",
    ),
    "max_uses as a word": (
        '"unbounded"',
        '"many"',
        "stages[1].max_uses must be a whole number",
        None,
        "stages[1].max_uses",
    ),
    "cycles as a word": (
        "0.5",
        '"half"',
        "stages[2].cycles_per_element",
        "a number",
        "stages[2].cycles_per_element",
    ),
    "a marker": (
        '"nn.relu" = []',
        '"annotation.stop_fusion" = []',
        "ends a group",
        "leave it out",
        "stages[1].accepts.annotation.stop_fusion",
    ),
    "a name that begins no symbol": (
        'name = "eng"',
        'name = "my eng"',
        "cannot name a description",
        "letters",
        "name",
    ),
    "a missing name": ('name = "eng"\n', "", "'name' is missing", "add name", "the description"),
    "a unit without operators": (
        'accepts."nn.relu" = []\n',
        "",
        "'accepts' is missing",
        "add accepts",
        "stages[1]",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_file_key_and_nearest_name(
    mistake: tuple[str, str, str, str | None, str], tmp_path: Path
) -> None:
    written, instead, message, fix, key = mistake
    assert written in SMALL
    path = tmp_path / "eng.toml"
    path.write_text(SMALL.replace(written, instead, 1))
    with pytest.raises(HDFGError) as caught:
        load_hdfg(path)
    shown = str(caught.value)
    assert message in shown
    assert fix is None or fix in (caught.value.fix or "")
    assert f"{path}, {key}" in shown, shown


def test_text_that_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "eng.toml"
    path.write_text(SMALL.replace('name = "act"', "name = act"))
    with pytest.raises(HDFGError, match="not TOML") as caught:
        load_hdfg(path)
    assert "line 15" in str(caught.value)
    assert str(path) in str(caught.value)


def test_json_has_the_same_keys_and_the_same_errors(tmp_path: Path) -> None:
    values = tomllib.loads(SMALL)
    values["stages"][1]["max_uses"] = None
    path = tmp_path / "eng.json"
    path.write_text(json.dumps(values, indent=1))
    hdfg = load_hdfg(path)
    assert [stage.name for stage in hdfg.stages] == ["mac", "act", "pool"]
    assert hdfg.stage("act").max_uses is None
    values["links"][1][1] = "pol"
    path.write_text(json.dumps(values, indent=1))
    with pytest.raises(HDFGError, match="unknown unit 'pol'") as caught:
        load_hdfg(path)
    assert f"{path}, links[1]" in str(caught.value)


def test_a_file_that_is_not_there_names_the_shipped_descriptions(tmp_path: Path) -> None:
    with pytest.raises(HDFGError, match="cannot be read") as caught:
        load_hdfg("opu_k")
    assert "did you mean 'opu" in (caught.value.fix or "")
    with pytest.raises(HDFGError, match="cannot be read"):
        load_hdfg(tmp_path)


def test_the_opu_is_the_note_s_pipeline() -> None:
    opu = load_hdfg("opu")
    links = [tuple(link.split("→")) for link in OPU_LINKS.replace("\n", " ").split(", ")]
    assert list(opu.links) == [(a.strip(), b.strip()) for a, b in links]
    assert len(opu.stages) == 12
    assert opu.root == "concat"
    assert [stage.name for stage in opu.op_map["add"]] == ["add_pre", "add", "res_add"]


def test_opu_q_is_the_opu_with_a_requantizer_behind_its_links() -> None:
    opu, opu_q = load_hdfg("opu"), load_hdfg("opu_q")
    assert [s.name for s in opu_q.stages] == [*(s.name for s in opu.stages), "requant"]
    assert opu_q.links[: len(opu.links)] == opu.links
    assert all("requant" in link for link in opu_q.links[len(opu.links) :])
    for unit in ("ipa", "pool", "res_add"):
        for conditions in opu_q.stage(unit).accepts.values():
            assert any("dtype_in" in condition.text for condition in conditions)


def test_the_npu_shares_no_unit_with_the_opu() -> None:
    units = {name: {s.name for s in load_hdfg(name).stages} for name in shipped_descriptions()}
    assert set(units) == {"npu", "opu", "opu_q"}
    assert units["npu"] & units["opu"] == {"pool"}


def test_a_search_passes_optional_units_only(description_text: Callable[[str], str]) -> None:
    opu = load_hdfg("opu")
    order = [stage.name for stage in opu.search_order(opu.stage("add"))]
    assert order == ["compare", "pool_pad", "res_add", "pool", "upsample"]
    text = description_text("opu").replace('name = "ipa"\n', 'name = "ipa"\noptional = false\n')
    fixed = parse_hdfg(text)
    names = [stage.name for stage in fixed.search_order(None)]
    assert names == ["concat", "add_pre", "mul_pre", "pad", "ipa"]
