"""``qsearch verify FILE.onnx`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qsearch.cli.main import run
from tests.benchmarks.bench_judgement import chain, plant
from tests.compiler.judgement.small_files import dense, node, packed, random_weights, softmax

Output = pytest.CaptureFixture[str]


def saved(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def judged(file: str, capfd: Output, *options: str, code: int = 0) -> dict[str, object]:
    assert run(["verify", file, "--json", *options]) == code
    found: dict[str, object] = json.loads(capfd.readouterr().out)
    return found


def test_a_file_with_small_weights_has_nothing_refuted_and_is_exact_here(
    tmp_path: Path, capfd: Output
) -> None:
    file = saved(tmp_path / "m.onnx", dense(random_weights(8, 4, 60), np.arange(4, dtype=np.int32)))
    assert run(["verify", file]) == 0
    shown = capfd.readouterr().out
    assert f"{file}: nothing refuted" in shown
    assert "2 accumulators and biases are within int32" in shown
    assert "optimizations on, 2 threads: 0 of 32 outputs differ" in shown
    assert "saturate" not in shown.replace("sat.: can saturate", "")


def test_a_saturating_pair_is_shown_and_refuses_only_with_strict(
    tmp_path: Path, capfd: Output
) -> None:
    file = saved(tmp_path / "m.onnx", dense(np.full((8, 4), 127, np.int8)))
    assert run(["verify", file]) == 0
    shown = capfd.readouterr().out
    assert "[255, 255] by [127, 127] is 64770, 32767 with vpmaddubsw" in shown
    assert "of 8 samples saturate" in shown
    assert run(["verify", file, "--strict"]) == 1


def test_a_bias_that_was_clipped_is_refuted(tmp_path: Path, capfd: Output) -> None:
    bias = np.array([2**31 - 1, 0], np.int32)
    found = judged(saved(tmp_path / "m.onnx", dense(random_weights(8, 2, 3), bias)), capfd, code=1)
    assert found["verdict"] == "refuted"
    (claim,) = (c for c in found["overflow"] if c["what"] == "bias")  # type: ignore[attr-defined]
    assert claim["verdict"] == "refuted at the layer"


def test_a_softmax_that_wraps_and_a_tie_are_named(tmp_path: Path, capfd: Output) -> None:
    file = saved(tmp_path / "m.onnx", softmax(1 / 256))
    rules = judged(file, capfd)["rules"]
    assert isinstance(rules, dict)
    assert "#29727" in rules["softmax"]["source"]
    other = dense(random_weights(8, 4, 9), scales=(0.25, 0.5, 2.0))
    found = judged(saved(tmp_path / "t.onnx", other), capfd)
    assert "tie" in found["rules"]  # type: ignore[operator]
    assert found["ties"]


def test_data_and_a_page_are_taken(tmp_path: Path, capfd: Output) -> None:
    file = saved(tmp_path / "m.onnx", dense(np.full((8, 4), 127, np.int8)))
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 8), np.float32))
    page = tmp_path / "m.html"
    assert run(["verify", file, "--eval", str(tmp_path / "d.npz"), "-o", str(page)]) == 0
    assert "0 of 3 samples saturate" in capfd.readouterr().out
    assert "vpmaddubsw" in page.read_text()


def test_a_cure_keeps_the_outputs_of_a_file_that_saturates(tmp_path: Path, capfd: Output) -> None:
    file = saved(tmp_path / "m.onnx", dense(np.full((8, 4), 127, np.int8), conv=False))
    np.savez(tmp_path / "d.npz", x=np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8))
    assert run(["verify", file, "--eval", str(tmp_path / "d.npz")]) == 0
    shown = capfd.readouterr()
    assert f"qsearch compile {file} --calib {tmp_path / 'd.npz'} -o m.qmod" in shown.out
    assert "m.qmod keeps these grids" in shown.out
    assert "WARNING" not in shown.err


def test_the_float_model_names_grids_that_lose(tmp_path: Path, capfd: Output) -> None:
    rng = np.random.default_rng(2000)
    made = chain(rng)
    layer = plant(made, "axis", rng)
    plain = saved(tmp_path / "f.onnx", made.float_file())
    file = saved(tmp_path / "m.onnx", made.file(True))
    assert run(["verify", file, "--against", plain]) == 0
    assert f"layer{layer}, weight: its scales lie along axis 1" in capfd.readouterr().out


def test_doctor_ends_with_three_lines_of_the_judgement(tmp_path: Path, capfd: Output) -> None:
    file = saved(tmp_path / "m.onnx", dense(np.full((8, 4), 127, np.int8)))
    run(["doctor", file])
    lines = capfd.readouterr().out.splitlines()[-3:]
    assert [line.partition(":")[0] for line in lines] == [
        "overflow",
        "where answers differ",
        "measured here",
    ]
    assert "pairs saturate without VNNI (layer)" in lines[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["m.onnx", "--sign", "k"], "--sign is for a .qmod"),
        (["m.qmod", "--strict"], "--strict is for an .onnx file"),
        (["none.onnx"], "there is no model"),
        (["float.onnx"], "holds no integers"),
        (["cut.onnx"], "damaged or cut off"),
    ],
)
def test_files_and_options_that_do_not_fit_are_refused(
    words: list[str], told: str, tmp_path: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = dense(random_weights(8, 4, 60))
    saved(tmp_path / "m.onnx", data)
    saved(tmp_path / "cut.onnx", data[:-9])
    saved(tmp_path / "float.onnx", packed([node("Relu", ["x"], ["y"])], [1], {}))
    assert run(["verify", *words]) == 2
    assert told in capfd.readouterr().err


def test_an_operator_that_nobody_knows_leaves_the_rest_judged(
    tmp_path: Path, capfd: Output
) -> None:
    model = onnx.ModelProto.FromString(dense(np.full((8, 4), 127, np.int8)))
    model.graph.node[-1].output[0] = "t"
    model.graph.node.append(node("Strange", ["t"], ["y"], name="strange", domain="org.example"))
    model.opset_import.append(onnx.helper.make_opsetid("org.example", 1))
    found = judged(saved(tmp_path / "m.onnx", model.SerializeToString()), capfd)
    assert found["measured"] == []
    assert "Strange" in str(found["notes"])
    cells = {r["layer"]: r["cells"]["x86 AVX2"] for r in found["machines"]}  # type: ignore[attr-defined]
    assert cells == {"layer": "can saturate", "strange": "not examined"}


def test_an_input_that_overflows_is_shown_in_the_json(tmp_path: Path, capfd: Output) -> None:
    bias = np.array([0, 2**31 - 100], np.int32)
    file = saved(tmp_path / "m.onnx", dense(np.full((16, 2), -100, np.int8), bias))
    assert run(["verify", file]) == 1
    shown = capfd.readouterr().out
    assert "REFUTED  layer, accumulator: an input of the network makes the accumulator" in shown
    assert "--json has the input" in shown
    claims = judged(file, capfd, code=1)["overflow"]
    (claim,) = (c for c in claims if c["verdict"] == "refuted")  # type: ignore[attr-defined]
    assert len(claim["witness"]["x"]["values"][0]) == 16
