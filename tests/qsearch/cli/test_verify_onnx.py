"""``qsearch verify FILE.onnx`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from compiler.judgement.exact import evaluate
from compiler.judgement.layers import read_network
from qsearch.cli.main import run
from tests.benchmarks.bench_judgement import chain, plant
from tests.compiler.judgement.small_files import dense, node, packed, random_weights, softmax
from tests.each import each

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


def joined_head(folder: Path, lost: bool) -> tuple[str, str, str]:
    """A float head of boxes and scores, an int8 file of it, and data; every score may be 0."""
    rng = np.random.default_rng(4)
    stored = {
        "w": np.abs(rng.normal(size=(8, 4))).astype("f") * 60,
        "v": rng.normal(size=(8, 6)).astype("f"),
        "s": np.float32(8.0 if lost else 8e-3),
        "z": np.uint8(0),
    }
    head = [
        helper.make_node("MatMul", ["x", "w"], ["boxes"], name="boxes"),
        helper.make_node("MatMul", ["x", "v"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["scores"], name="scores"),
    ]
    rounded = [
        helper.make_node("QuantizeLinear", ["scores", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    ]
    files = []
    for name, nodes, score in (("float", head, "scores"), ("int8", [*head, *rounded], "d")):
        last = helper.make_node("Concat", ["boxes", score], ["y"], axis=1)
        graph = helper.make_graph(
            [*nodes, last],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 8])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 10])],
            [numpy_helper.from_array(np.asarray(a), key) for key, a in stored.items()],
        )
        files.append(str(folder / f"{name}.onnx"))
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), files[-1])
    np.savez(folder / "x.npz", x=rng.uniform(0, 1, (40, 8)).astype("f"))
    return files[0], files[1], str(folder / "x.npz")


def test_a_file_whose_scores_are_all_zero_is_wrong(tmp_path: Path, capfd: Output) -> None:
    plain, file, data = joined_head(tmp_path, lost=True)
    assert run(["verify", file, "--eval", data, "--against", plain]) == 1
    shown = " ".join(capfd.readouterr().out.split())
    assert f"{file}: WRONG" in shown
    assert "lost, nearly constant in integers: scores (channels 4–9)" in shown
    found = judged(file, capfd, "--eval", data, "--against", plain, code=1)
    assert found["verdict"] == "wrong"


def test_a_file_that_keeps_its_scores_is_right(tmp_path: Path, capfd: Output) -> None:
    plain, file, data = joined_head(tmp_path, lost=False)
    assert run(["verify", file, "--eval", data, "--against", plain]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "right or wrong: " in shown
    assert "scores (channels 4–9), the worst" in shown
    assert run(["verify", file, "--eval", data]) == 0
    assert "not judged: without --against" in capfd.readouterr().out


def test_outputs_are_those_of_the_file_as_it_is(tmp_path: Path, capfd: Output) -> None:
    """Int8 activations: onnxruntime fuses the file, and not a copy with further outputs."""
    rng = np.random.default_rng(0)
    stored = {
        "ws": (np.abs(rng.normal(size=8)) * 0.01 + 0.001).astype("f"),
        "w": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
        "s": np.float32(0.02),
        "t": np.float32(0.05),
        "z": np.int8(0),
        "wz": np.zeros(8, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Conv", ["d", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 8, 6, 6])],
        [numpy_helper.from_array(np.asarray(a), key) for key, a in stored.items()],
    )
    file = str(tmp_path / "m.onnx")
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    x = rng.normal(size=(8, 3, 8, 8)).astype("f")
    np.savez(tmp_path / "x.npz", x=x)
    found = judged(file, capfd, "--eval", str(tmp_path / "x.npz"))
    outputs = {}
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        outputs[level] = np.stack([session.run(None, {"x": one[None]})[0] for one in x])
    network = read_network(file)
    exact = np.stack([evaluate(network, {"x": one[None]}).values["y"] for one in x])
    rows = [row for row in found["measured"] if row["threads"] == 1]  # type: ignore[attr-defined]
    for row in each(rows):
        level = "ORT_ENABLE_ALL" if row["optimized"] else "ORT_DISABLE_ALL"
        direct = int((np.abs(outputs[level] - exact) > 1e-5 * np.abs(exact).max()).sum())
        assert row["differing"] == direct
