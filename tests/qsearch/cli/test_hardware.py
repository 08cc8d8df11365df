"""``--hw`` on show, doctor and launch, as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

import qsearch
from qsearch.cli.main import run

Output = pytest.CaptureFixture[str]

ENGINE = """\
name = "eng"
root = "mac"
free_ops = ["nn.batch_flatten"]
links = [["mac", "act"], ["mac", "bias"], ["bias", "act"]]

[[stages]]
name = "mac"
accepts."nn.conv2d" = ["const_operand(1)"]
accepts."nn.dense" = ["const_operand(1)"]

[[stages]]
name = "bias"
accepts."add" = ["const_operand(any)"]

[[stages]]
name = "act"
accepts."nn.relu" = []
"""


@pytest.fixture
def engine(tmp_path: Path) -> Callable[[str, str], str]:
    """``engine(old, new)``: path of a description in which ``old`` is ``new``."""

    def write(old: str = "", new: str = "") -> str:
        path = tmp_path / "eng.toml"
        path.write_text(ENGINE.replace(old, new, 1) if old else ENGINE)
        return str(path)

    return write


def test_show_lists_the_groups_of_a_model(capfd: Output) -> None:
    assert run(["show", "digits", "--hw", "opu"]) == 0
    shown = capfd.readouterr().out
    assert "4 groups on opu" in shown
    assert "opu_1        ipa > add > compare > pool" in shown
    assert "nothing stays on the host" in shown


def test_show_takes_a_description_of_one_s_own(capfd: Output, engine: Callable[..., str]) -> None:
    assert run(["show", "digits", "--hw", engine(), "--format", "json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert [group["stages"] for group in shown["groups"]] == [["mac", "bias", "act"]] * 3 + [
        ["mac", "bias"]
    ]
    assert [(h["op"], h["reason"]) for h in shown["host"]] == [
        ("nn.max_pool2d", "no unit of eng takes nn.max_pool2d"),
        ("nn.global_avg_pool2d", "no unit of eng takes nn.global_avg_pool2d"),
    ]


def test_show_draws_the_groups(tmp_path: Path) -> None:
    path = tmp_path / "groups.dot"
    words = ["--hw", "opu", "--format", "dot", "-o", str(path)]
    assert run(["show", "digits", *words]) == 0
    page = path.read_text()
    assert all(f"opu_{k}" in page for k in range(4))


def test_a_wrong_description_is_bad_input_with_file_and_key(
    capfd: Output, engine: Callable[..., str]
) -> None:
    path = engine('["mac", "act"]', '["mac", "actt"]')
    for command in (["show", "digits"], ["doctor", "--model", "digits"]):
        assert run([*command, "--hw", path]) == 2
        message = capfd.readouterr().err
        assert "unknown unit 'actt'" in message
        assert f"{path}, links[0]" in message
        assert "did you mean 'act'" in message


def test_doctor_tells_the_groups_of_the_module_to_come(capfd: Output) -> None:
    assert run(["doctor", "--model", "digits", "--hw", "opu_q"]) == 0
    shown = capfd.readouterr().out
    assert "integers only: yes" in shown
    assert "groups on opu_q" in shown
    assert "ipa > add > compare > requant" in shown
    assert run(["doctor", "--model", "digits", "--hw", "opu_q", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["hardware"]["hw_groups"] > 4


@pytest.mark.slow
@pytest.mark.usefixtures("quick_space")
def test_a_search_can_minimise_the_traffic_of_the_groups(capfd: Output, tmp_path: Path) -> None:
    words = ["--hw", "opu_q", "--metric", "hw_traffic", "--pool", "inline", "--trials", "5"]
    data = ["--seed", "0", "--sampler", "random", "-o", str(tmp_path / "run"), "--json", "-q"]
    assert run(["launch", "--model", "digits", *words, *data]) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    rows = qsearch.trials(tmp_path / "run")
    kept = [r["hw_traffic"] for r in rows if r["state"] == "complete" and r["top1"] >= 0.975]
    assert summary["best"]["hw_traffic"] == min(kept)
    assert len(set(kept)) > 1
    # The worker that scored the trial and the reader of the file prepare the module alike.
    assert run(["show", str(tmp_path / "run"), "--hw", "opu_q", "--format", "json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["hw_traffic"] == summary["best"]["hw_traffic"]
    assert all(set(group["stages"]) != {"requant"} for group in shown["groups"][1:])


@pytest.mark.slow
@pytest.mark.usefixtures("quick_space")
def test_a_limit_of_groups_decides_the_winner(
    capfd: Output, few_digits: Path, tmp_path: Path
) -> None:
    words = ["--hw", "opu_q", "--metric", "sqnr", "--pool", "inline", "--trials", "4", "--json"]
    data = ["--calib", str(few_digits), "--seed", "0", "--sampler", "random", "-q"]
    assert run(["launch", "digits", *words, *data, "-o", str(tmp_path / "free")]) == 0
    rows = [r for r in qsearch.trials(tmp_path / "free") if r["state"] == "complete"]
    fewest = min(r["hw_traffic"] for r in rows)
    assert max(r["hw_traffic"] for r in rows) > fewest
    capfd.readouterr()
    limit = ["--at-most", f"hw_traffic={fewest}"]
    assert run(["launch", "digits", *words, *data, *limit, "-o", str(tmp_path / "few")]) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert summary["best"]["hw_traffic"] == fewest
    none = ["--at-most", "hw_traffic=1"]
    assert run(["launch", "digits", *words, *data, *none, "-o", str(tmp_path / "none")]) == 1


def test_a_cost_on_hardware_needs_the_hardware(capfd: Output, tmp_path: Path) -> None:
    words = ["--metric", "hw_groups", "--pool", "inline", "-o", str(tmp_path / "run")]
    assert run(["launch", "--model", "digits", *words]) == 2
    assert "the metric hw_groups needs an accelerator" in capfd.readouterr().err


def test_shipped_descriptions_are_named_in_the_help(capfd: Output) -> None:
    folder = files("compiler.fusion.hardware") / "descriptions"
    shipped = {entry.name.removesuffix(".toml") for entry in folder.iterdir()}
    assert run(["show", "--help"]) == 0
    told = capfd.readouterr().out
    assert all(name in told for name in shipped)
