"""``qsearch compile`` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

import qsearch
from qsearch.cli.main import run


def test_the_passes_leave_their_modules_in_a_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "ir", tmp_path / "digits.qmod"
    assert run(["compile", "--model", "digits", "-o", str(out), "--dump-ir", str(folder)]) == 0
    assert out.exists()
    assert capfd.readouterr().out.strip() == str(out)
    report = (folder / "fuse_report.txt").read_text("utf-8")
    assert "call of nn.conv2d" not in report, "every convolution takes what follows it"
    assert "@quantized_main" in report
    names = [p.name.partition("_")[2] for p in sorted(folder.glob("*.relay"))]
    assert names[0] == "input.relay"
    assert names.index("QuantizeAnnotate.relay") < names.index("QuantizeRealize.relay")
    texts = [p.read_text("utf-8") for p in sorted(folder.glob("*.relay"))]
    assert "int8" not in texts[0]
    assert "int8" in texts[-1]


def test_several_qconfig_options_add_up_and_the_folder_is_made(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "digits.qmod"
    changes = ["--qconfig", "calibrate_mode=max", "--qconfig", "weight_granularity=tensor"]
    assert run(["compile", "--model", "digits", "-o", str(out), *changes]) == 0
    qconfig = qsearch.load(out).qconfig
    assert qconfig is not None
    assert (qconfig.calibrate_mode, qconfig.weight_granularity) == ("max", "tensor")


def test_a_close_module_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "digits.qmod"
    assert run(["compile", "digits", "-o", str(out)]) == 0
    said = capfd.readouterr().err
    sqnr_db = qsearch.load(out).provenance["closeness"]["sqnr_db"]
    assert sqnr_db > 30
    assert f"close to float: {sqnr_db:.1f} dB SQNR on 128 samples of the calibration data" in said
    assert "far from" not in said


def test_an_int8_file_keeps_its_float_parts_and_what_that_costs_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Path(__file__).parents[2] / "compiler" / "frontend" / "from_onnx" / "tool_files"
    out = tmp_path / "mixed.qmod"
    asked = ["compile", str(files / "nncf.attention.mixed.onnx"), "--keep-float-parts"]
    assert run([*asked, "-o", str(out)]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "operators stay in float, as in the file" in said
    assert "bounds the integers alone and exits 1" in said
    assert said.endswith(f"qsearch export {out} --format onnx")
    assert qsearch.load(out).provenance["closeness"]["sqnr_db"] > 60
    assert run(["export", str(out), "--format", "onnx", "-o", str(tmp_path / "x.onnx")]) == 0


USELESS = "calibrate_mode=global_scale,global_scale=0.01"


def test_a_module_far_from_float_is_written_and_ends_with_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digits.qmod"
    assert run(["compile", "digits", "-o", str(out), "--qconfig", USELESS]) == 1
    said = capfd.readouterr().err
    assert "far from float" in said
    assert "close to float" not in said
    assert qsearch.load(out).provenance["closeness"]["sqnr_db"] < 6


def test_fewer_bits_of_the_users_choice_end_with_0(tmp_path: Path) -> None:
    out = tmp_path / "digits.qmod"
    few = f"{USELESS},nbit_weight=2"
    assert run(["compile", "digits", "-o", str(out), "--qconfig", few]) == 0
    assert qsearch.load(out).provenance["closeness"]["sqnr_db"] < 6
