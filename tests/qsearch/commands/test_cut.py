"""Models whose head or preparation has no integer form: quantized, run, exported and verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import qsearch
from compiler.errors import CompilerError, EvaluationError
from compiler.runtime.artifact import QModule, load_qmod
from qsearch.cli.main import run
from tests.compiler.frontend.test_cut import detector
from tests.each import each

Floats = NDArray[np.float32]


def _images(count: int = 12, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).uniform(size=(count, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    onnx.save(detector(), path)
    return path


@pytest.fixture(scope="module")
def module(model: Path) -> QModule:
    return qsearch.quantize(model, _images())


def test_run_gives_what_the_float_model_gives_under_its_own_names(
    model: Path, module: QModule
) -> None:
    images = _images(5, seed=2)
    session = onnxruntime.InferenceSession(model)
    wanted, kept = session.run(None, {"image": images})
    boxes, selected = module.run({"image": images})
    noise = np.square(boxes - wanted).sum() / np.square(wanted).sum()
    assert noise < 1e-3  # 30 dB
    assert selected.dtype == kept.dtype == np.int64
    assert selected.shape[1] == 3


def test_the_core_alone_has_the_tensors_of_the_cut(module: QModule) -> None:
    (rows,) = module.run(_images(2), core=True)
    assert rows.shape == (2, 5, 4, 4)
    assert module.proof is not None
    assert module.proof["verdict"] == "proved"


def test_the_file_holds_the_head_and_gives_the_same_after_reading(
    module: QModule, tmp_path: Path
) -> None:
    module.save(tmp_path / "m.qmod")
    again = load_qmod(tmp_path / "m.qmod")
    assert again.before is None
    assert again.after == module.after
    for one, other in zip(again.run(_images(3)), module.run(_images(3)), strict=True):
        np.testing.assert_array_equal(one, other)
    again.save(tmp_path / "n.qmod")
    assert (tmp_path / "n.qmod").read_bytes() == (tmp_path / "m.qmod").read_bytes()


def test_a_module_that_does_not_say_what_its_head_takes_is_refused_but_for_its_core(
    module: QModule,
) -> None:
    known = {key: value for key, value in module.provenance.items() if key != "pipeline"}
    other = QModule(module.module, module.qconfig, known, after=module.after)
    with pytest.raises(CompilerError, match="does not say"):
        other.run(_images(1))
    assert len(other.run(_images(1), core=True)) == 1


def test_a_head_that_reads_other_files_is_not_run(module: QModule) -> None:
    head = onnx.ModelProto.FromString(module.after or b"")
    tensor = head.graph.initializer.add(name="stolen", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    other = QModule(
        module.module, module.qconfig, module.provenance, after=head.SerializeToString()
    )
    with pytest.raises(CompilerError, match="external data"):
        other.run(_images(1))


def test_verify_proves_the_core_and_says_what_stands_outside(
    module: QModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.save(tmp_path / "m.qmod")
    np.savez(tmp_path / "eval.npz", image=_images(4))
    found = qsearch.verify(tmp_path / "m.qmod", tmp_path / "eval.npz")
    assert found.proved
    assert "after.onnx" in found.outside[0]
    assert "selected int64[kept, 3]" in found.outside[0]
    assert found.to_dict()["outside"] == list(found.outside)
    assert run(["verify", str(tmp_path / "m.qmod")]) == 0
    assert "outside, in float" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["onnx", "qdq"])
def test_an_export_is_the_whole_model_with_its_names_and_free_axes(
    format: str, model: Path, module: QModule, tmp_path: Path
) -> None:
    if format == "qdq":
        module = qsearch.quantize(model, _images(), "auto,for=qdq")
    module.save(tmp_path / "m.qmod")
    made = qsearch.export(tmp_path / "m.qmod", format, tmp_path / "m.onnx")
    ours, wanted = (onnx.load(path) for path in (made.files[0], model))
    for side in ("input", "output"):
        for one, other in zip(getattr(ours.graph, side), getattr(wanted.graph, side), strict=True):
            assert one.name == other.name
            assert one.type == other.type
    session = onnxruntime.InferenceSession(made.files[0])
    for count in (1, 3):
        found = session.run(None, {"image": _images(count)})
        reach = 1e-4 if format == "onnx" else 0.1
        expected = module.run(_images(count))[0]
        np.testing.assert_allclose(found[0], expected, atol=reach * abs(expected).max())


def test_c_has_the_core_and_a_header_that_states_the_contract(
    module: QModule, tmp_path: Path
) -> None:
    module.save(tmp_path / "m.qmod")
    made = qsearch.export(tmp_path / "m.qmod", "c", tmp_path / "c")
    header = next(path for path in made.files if path.suffix == ".h").read_text()
    assert "after.onnx of the .qmod" in header
    assert "output 0 is c" in header


@pytest.fixture
def metric(monkeypatch: pytest.MonkeyPatch) -> str:
    """A metric of the boxes that the head keeps; it sees the outputs of the whole model."""

    def kept(outputs: Any, labels: NDArray[np.int64]) -> float:
        boxes, selected = outputs
        assert boxes.shape[1:] == (16, 4)
        assert selected.shape[0] == len(labels) == 1
        return float(np.isfinite(boxes).all() and selected.shape[2] == 3)

    module = ModuleType("boxes_kept")
    vars(module)["kept"] = kept
    monkeypatch.setitem(sys.modules, "boxes_kept", module)
    return "boxes_kept:kept"


def test_a_search_scores_the_whole_model_and_writes_it(
    model: Path, metric: str, tmp_path: Path
) -> None:
    result = qsearch.launch(
        model,
        calib={"image": _images()},
        eval={"image": _images(6, seed=3), "labels": np.arange(6)},
        metric=metric,
        trials=2,
        pool="inline",
        out=tmp_path / "run",
    )
    assert result.best_trial.user_attrs["score"][metric] == 1.0
    written = result.best_module()
    assert [a.shape[1:] for a in written.run(_images(2))] == [(16, 4), (3,)]
    again = qsearch.write_trial(tmp_path / "run", 0, tmp_path / "t.qmod")
    assert again.after == written.after


def test_the_part_in_front_prepares_the_data(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (uint8[n, 8, 8, 3] pixels) => (float[n, 4] y)
    <float[4, 3, 3, 3] w, int64[2] flat = {0, -1}, float[36, 4] v>
    {
      x = Cast <to = 1> (pixels)
      t = Transpose <perm = [0, 3, 1, 2]> (x)
      [odd] q = MeanVarianceNormalization (t)
      [conv] c = Conv <strides = [3, 3], pads = [1, 1, 1, 1]> (q, w)
      r = Reshape (c, flat)
      y = MatMul (r, v)
    }
    """
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("v", (36, 4))):
        values = ", ".join(f"{x:.3f}" for x in rng.normal(0, 0.4, shape).reshape(-1))
        head = f"float[{', '.join(map(str, shape))}] {name}"
        text = text.replace(head, f"{head} = {{{values}}}")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    pixels = rng.integers(0, 256, (12, 8, 8, 3), np.uint8)
    made = qsearch.quantize(tmp_path / "m.onnx", {"pixels": pixels}, from_=["conv"])
    assert made.before is not None
    assert made.after is None
    (wanted,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"pixels": pixels})
    (found,) = made.run(pixels)
    assert np.square(found - wanted).sum() / np.square(wanted).sum() < 1e-3
    made.save(tmp_path / "m.qmod")
    exported = qsearch.export(tmp_path / "m.qmod", "onnx", tmp_path / "whole.onnx").files[0]
    (again,) = onnxruntime.InferenceSession(exported).run(None, {"pixels": pixels})
    np.testing.assert_allclose(again, found, atol=1e-4)


def test_a_model_of_float16_with_float_parts_on_both_sides(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float16[n, 3, 8, 8] image) => (float16[n, 3] scores, int64[n, 3] places)
    <int64[1] three = {3}>
    {
      q = Mul (image, half)
      [conv] c = Conv <pads = [1, 1, 1, 1]> (q, w)
      [flat] f = Flatten (c)
      scores, places = TopK (f, three)
    }
    """
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(0, 0.4, (4, 3, 3, 3)).astype(np.float16)
    for name, value in (("w", weight), ("half", np.float16(0.5))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, tmp_path / "m.onnx")
    images = _images(5).astype(np.float16)
    cut: Any = {"from_": ["conv"], "until": ["flat"]}
    made = qsearch.quantize(tmp_path / "m.onnx", images, **cut)
    assert (made.before is None, made.after is None) == (False, False)
    wanted = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"image": images})
    found = made.run(images)
    assert [array.dtype for array in found] == [array.dtype for array in wanted]
    np.testing.assert_allclose(found[0], wanted[0], rtol=0.02)
    made.save(tmp_path / "m.qmod")
    exported = qsearch.export(tmp_path / "m.qmod", "onnx", tmp_path / "whole.onnx").files[0]
    again = onnxruntime.InferenceSession(exported).run(None, {"image": images})
    np.testing.assert_allclose(again[0], found[0], rtol=1e-2)


@pytest.mark.slow
def test_rows_that_a_float_ranking_chooses_leave_the_core_whole(tmp_path: Path) -> None:
    """As a masked autoencoder keeps some patches: between products, by indices from in front."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 8, 4] x, float[1, 8] noise) => (float[1, 3, 4] y)
    <int64[1] three = {3}, int64[1] last = {2}, int64[3] wide = {1, 3, 4}>
    {
      ignored, places = TopK (noise, three)
      column = Unsqueeze (places, last)
      indices = Expand (column, wide)
      rows = MatMul (x, w)
      kept = GatherElements <axis = 1> (rows, indices)
      y = MatMul (kept, w)
    }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.4, (4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    for node in model.graph.node[:2]:  # a name as PyTorch's
        for names in (node.input, node.output):
            names[:] = ["/places" if name == "places" else name for name in names]
    onnx.save(model, tmp_path / "m.onnx")
    data = {"x": (12, 8, 4), "noise": (12, 8)}
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in data.items()}
    made = qsearch.quantize(tmp_path / "m.onnx", given)
    assert (made.before is None, made.after is None) == (False, True)
    made.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
    made = qsearch.load(tmp_path / "m.qmod")
    one = {name: array[:1] for name, array in given.items()}
    (wanted,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, one)
    (found,) = made.run(one)
    assert np.square(found - wanted).sum() / np.square(wanted).sum() < 1e-3


def test_show_and_diff_take_the_same_cut(
    model: Path, module: QModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.save(tmp_path / "m.qmod")
    assert run(["show", str(model), "--until", "last"]) == 0
    shown = capsys.readouterr().out
    assert "nn.conv2d" in shown
    assert "topk" not in shown
    wide = ["--rtol", "1", "--atol", "1"]
    assert run(["diff", str(model), str(tmp_path / "m.qmod"), "--until", "last", *wide]) == 0
    assert run(["diff", str(model), str(tmp_path / "m.qmod"), *wide]) == 0
    assert run(["diff", str(tmp_path / "m.qmod"), str(model), *wide]) == 0
    assert run(["show", str(model), "--until", "nowhere"]) == 2


def test_the_choice_of_many_boxes_is_a_head(tmp_path: Path) -> None:
    """As YOLOv10 and YOLO26 are exported: 300 of the boxes, and the class of each by its place."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 3, 8, 8] image) => (float[1, 80, 2] boxes)
    <int64[1] many = {80}, int64[2] flat = {1, 256}, int64[1] last = {2}, int64 classes = {4}>
    {
      [conv] c = Conv <pads = [1, 1, 1, 1]> (image, w)
      row = Reshape (c, flat)
      scores, places = TopK (row, many)
      class = Mod (places, classes)
      real = Cast <to = 1> (class)
      score = Unsqueeze (scores, last)
      column = Unsqueeze (real, last)
      boxes = Concat <axis = 2> (score, column)
    }
    """
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(0, 0.4, (4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    found = qsearch.doctor(tmp_path / "m.onnx")
    assert found.diagnosis.fully_integral
    assert found.cut is not None
    assert (found.cut.share, found.cut.last) == (1, ("conv",))
    made = qsearch.quantize(tmp_path / "m.onnx", _images())
    (wanted,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"image": _images(1)})
    (boxes,) = made.run(_images(1))
    np.testing.assert_allclose(boxes[..., 0], wanted[..., 0], atol=0.05)


def test_a_core_that_is_cut_already_loses_its_floats_too(tmp_path: Path) -> None:
    """As RT-DETR reads the places that it computes, and ranks 300 of what it found before."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 3, 8, 8] image) => (float[1, 2] z, float[1, 4, 8, 8] y)
    <int64[1] many = {80}>
    {
      [first] c = Conv <pads = [1, 1, 1, 1]> (image, w)
      [offsets] o = Conv <pads = [1, 1, 1, 1]> (c, g)
      row = Flatten (c)
      [rank] scores, places = TopK (row, many)
      z = MatMul (scores, u)
      grid = Transpose <perm = [0, 2, 3, 1]> (o)
      read = GridSample (c, grid)
      [last] y = Conv <pads = [1, 1, 1, 1]> (read, v)
    }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "g": (2, 4, 3, 3), "v": (4, 4, 3, 3), "u": (80, 2)}
    for name, shape in shapes.items():
        weight = rng.normal(0, 0.2, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "m.onnx")
    found = qsearch.doctor(tmp_path / "m.onnx")
    assert found.diagnosis.fully_integral
    assert found.cut is not None
    assert set(found.cut.last) == {"first", "offsets"}


def _spotter(bins: int = 8, frame: int = 64) -> onnx.ModelProto:
    """Logarithms of a mel spectrum, by convolutions with sines and cosines, and a small network."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    spotter (float[n, 1, 512] wave) => (float[n, 4, 13] words)
    <float floor = {0.000001}>
    {
      [spectrum] c = Conv <strides = [32]> (wave, cosines)
      s = Conv <strides = [32]> (wave, sines)
      even = Mul (c, c)
      odd = Mul (s, s)
      power = Add (even, odd)
      lifted = Add (power, floor)
      [log] level = Log (lifted)
      [net] a = Conv (level, w)
      b = Relu (a)
      words = Conv (b, v)
    }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.outer(np.arange(1, bins + 1), np.arange(frame)) / frame
    tensors = {
        "cosines": np.cos(angle)[:, None],
        "sines": np.sin(angle)[:, None],
        "w": rng.normal(0, 0.2, (8, bins, 3)),
        "v": rng.normal(0, 0.2, (4, 8, 1)),
    }
    for name, array in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def test_logarithms_of_a_spectrum_stay_in_float_in_front(tmp_path: Path) -> None:
    onnx.save(_spotter(), tmp_path / "m.onnx")
    rng, time = np.random.default_rng(1), np.arange(512) / 512
    loud = 10 ** rng.uniform(-3, 0, (48, 1, 1))
    waves = loud * np.sin(2 * np.pi * rng.uniform(8, 64, (48, 1, 1)) * time)
    waves = waves.astype(np.float32)
    found = qsearch.doctor(tmp_path / "m.onnx").cut
    assert found is not None
    assert found.first == ("net",)
    assert "--from wave takes them in" in str(found)
    made = qsearch.quantize(tmp_path / "m.onnx", waves[:32])
    made.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
    (wanted,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"wave": waves[32:]})
    (got,) = made.run(waves[32:])
    assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()  # 30 dB
    whole = qsearch.export(tmp_path / "m.qmod", "onnx", tmp_path / "whole.onnx").files[0]
    (again,) = onnxruntime.InferenceSession(whole).run(None, {"wave": waves[32:]})
    np.testing.assert_array_equal(again, got)


_NORMALISED = """
<ir_version: 8, opset_import: ["" : 17]>
cqt (float[n, 1, 512] wave) => (float[n, 4, 15] notes)
<float floor = {0.000001}, float ten = {4.3429446}, float zero = {0}, float gain = {2.48},
 float shift = {-0.877}>
{
  c = Conv <strides = [32]> (wave, cosines)
  s = Conv <strides = [32]> (wave, sines)
  even = Mul (c, c)
  odd = Mul (s, s)
  power = Add (even, odd)
  lifted = Add (power, floor)
  [log] level = Log (lifted)
  decibel = Mul (level, ten)
  least = ReduceMin <axes = [1, 2]> (decibel)
  above = Sub (decibel, least)
  most = ReduceMax <axes = [1, 2]> (above)
  part = Div (above, most)
  silent = Equal (most, zero)
  safe = Where (silent, zero, part)
  scaled = Mul (safe, gain)
  moved = Add (scaled, shift)
  [net] a = Conv <pads = [1, 1]> (moved, w)
  b = Relu (a)
  notes = Conv (b, v)
}
"""


def test_what_scales_logarithms_for_the_first_product_stays_in_front_too(tmp_path: Path) -> None:
    """As basic-pitch normalises its spectrum: these steps multiply nothing and would lose 10 dB."""
    model = onnx.parser.parse_model(_NORMALISED)
    rng, bins, frame = np.random.default_rng(0), 16, 64
    angle = 2 * np.pi * np.outer(np.arange(1, bins + 1), np.arange(frame)) / frame
    tensors = {
        "cosines": (np.cos(angle) * np.hanning(frame) / frame)[:, None],
        "sines": (np.sin(angle) * np.hanning(frame) / frame)[:, None],
        "w": rng.normal(0, 0.2, (8, bins, 3)),
        "v": rng.normal(0, 0.2, (4, 8, 1)),
    }
    for name, array in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    loud = 10 ** rng.uniform(-3, 0, (64, 1, 1))
    waves = loud * np.sin(2 * np.pi * rng.uniform(8, 128, (64, 1, 1)) * np.arange(512) / 512)
    waves[::4, :, :200] = 0
    waves = waves.astype(np.float32)
    found, early = (qsearch.doctor(path, from_=from_).cut for from_ in ([], ["level"]))
    assert found is not None
    assert early is not None
    assert found.first == ("net",)
    assert found.multiplications == early.multiplications
    assert "Log 'log'" in str(found)
    made = qsearch.quantize(path, waves[:48])
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"wave": waves[48:]})
    (got,) = made.run(waves[48:])
    assert np.square(got - wanted).sum() < 10**-3.5 * np.square(wanted).sum()  # 35 dB
    made.save(tmp_path / "m.qmod")
    whole = qsearch.export(tmp_path / "m.qmod", "onnx", tmp_path / "whole.onnx").files[0]
    (again,) = onnxruntime.InferenceSession(whole).run(None, {"wave": waves[48:]})
    np.testing.assert_array_equal(again, got)


# Float operators between two halves --------------------------------------------------------------

_RANKED = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
m (float[n, 16] x) => (float[n, 8] y)
<int64[1] many = {80}, int32 one = {1}, int64[1] axis = {1}>
{
  [first] a = MatMul (x, w0)
  r = Relu (a)
  FRONT
  [wide] c = MatMul (b, w1)
  s = Relu (c)
  [deep] d = MatMul (s, w2)
  BEHIND
  [last] y = MatMul (f, w3)
}
"""
_RANK = "[{0}] {1}, i{0} = TopK ({2}, many)"
_ODD = "[{0}] z{0} = com.microsoft.ExpandDims ({2}, one)  [after_{0}] {1} = Squeeze (z{0}, axis)"


@pytest.mark.parametrize(
    ("node", "sizes", "first", "why"),
    [
        (_RANK, (96, 80), "wide", "TopK {!r} (no integer form of these operands)"),
        (_ODD, (16, 16), "after_one", "ExpandDims {!r} (not supported)"),
    ],
    ids=["no integer form", "not supported"],
)
def test_the_largest_part_between_float_operators_is_the_core(
    node: str,
    sizes: tuple[int, int],
    first: str,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = _RANKED.replace("FRONT", node.format("one", "b", "r"))
    model = onnx.parser.parse_model(text.replace("BEHIND", node.format("two", "f", "d")))
    rng, path = np.random.default_rng(0), tmp_path / "m.onnx"
    shapes = ((16, sizes[0]), (sizes[1], 64), (64, sizes[0]), (sizes[1], 8))
    for place, shape in enumerate(shapes):
        weight = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{place}"))
    onnx.save(model, path)
    x = rng.normal(size=(48, 16)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    found = qsearch.doctor(path).cut
    assert found is not None
    assert (found.first, found.last) == ((first,), ("deep",))
    assert 0.5 < found.share < 0.9
    words = ["--model", str(path), "--calib", str(tmp_path / "x.npz")]
    module = str(tmp_path / "m.qmod")
    assert run(["compile", *words, "-o", module]) == 0
    assert run(["verify", module, "-q"]) == 0
    assert run(["doctor", "--model", str(path)]) == 0
    assert run(["launch", *words, "-o", str(tmp_path / "run"), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(f"because of {why.format('one')}, {why.format('two')}") == 2
    made = qsearch.load(module)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    (got,) = made.run(x)
    assert np.square(got - wanted).sum() < 1e-3 * np.square(wanted).sum()  # 30 dB
    whole = qsearch.export(module, "onnx", tmp_path / "whole.onnx").files[0]
    (again,) = onnxruntime.InferenceSession(whole).run(None, {"x": x})
    np.testing.assert_allclose(again, got, rtol=1e-4, atol=1e-5)


def test_doctor_names_no_dimension_that_no_option_sets(tmp_path: Path) -> None:
    """tf2onnx names the axes of values inside a model, too."""
    model = _spotter()
    info = helper.make_tensor_value_info("level", onnx.TensorProto.FLOAT, ["unk__7", 8, "unk__8"])
    model.graph.value_info.append(info)
    onnx.save(model, tmp_path / "m.onnx")
    found = qsearch.doctor(tmp_path / "m.onnx")
    assert [spec.name for spec in found.inputs] == ["level"]
    assert not found.hints()
    assert qsearch.doctor(tmp_path / "m.onnx", from_=["wave"]).hints()


def test_logarithms_are_integers_where_the_user_begins_the_core(tmp_path: Path) -> None:
    onnx.save(_spotter(), tmp_path / "m.onnx")
    found = qsearch.doctor(tmp_path / "m.onnx", from_=["wave"])
    assert (found.cut is None, found.diagnosis.fully_integral) == (True, True)
    behind = qsearch.doctor(tmp_path / "m.onnx", until=["net"]).cut
    assert behind is not None
    assert behind.before is None


_TWO_WINDOWS = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[n, 1, 5, 12] x) => (float[n, 3, h, w] y{MORE})
<float[2, 1, 3, 3] k = {K}, float[3, 2, 5, 5] l = {L}, float[3, 3, 1, 1] o = {O},
 int64[2] s = {1, 7}>
{ [first] a = Conv (x, k)  r = Relu (a) {MIDDLE} [third] y = Conv (b, o) }
"""
_WINDOW = "[second] b = Conv {} (r, l)"
_MISFITS = {
    "window": (_WINDOW.format(""), "second"),
    "window with strides": (_WINDOW.format("<strides = [2, 2]>"), "second"),
    "pool": ("p = MaxPool <kernel_shape = [5, 5]> (r) b = Concat <axis = 1> (p, p)", "MaxPool"),
    "reshape": ("[second] q = Reshape (r, s) b = Reshape (q, s)", "second"),
    "broadcast": ("[second] q = Add (r, x) b = Concat <axis = 1> (q, q)", "second"),
    "beside a float head": (f"places = NonZero (r) {_WINDOW.format('')}", "second"),
}


@pytest.mark.parametrize("kind", _MISFITS)
@pytest.mark.parametrize("cut", [[], ["--until", "first"], ["--from", "third"]])
def test_sizes_that_do_not_fit_are_refused_in_every_part(
    kind: str, cut: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    middle, told = _MISFITS[kind]
    text = _TWO_WINDOWS.replace("{MIDDLE}", middle)
    text = text.replace("{MORE}", ", int64[4, found] places" if "places" in middle else "")
    for name, count in (("K", 18), ("L", 150), ("O", 9)):
        text = text.replace(f"{{{name}}}", f"{{{', '.join(['0.5'] * count)}}}")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert run(["doctor", "--model", str(tmp_path / "m.onnx"), *cut]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "onnxruntime" not in said


_SCALE = "p = Abs (x)  s = ReduceMax <keepdims = 0> (p)  [scale] d = Div (x, s)"
_HEADS = "h = Reshape (x, heads)  t = Mul (h, half)  [rows] d = Reshape (t, back)"
_SCALARS = "q, s, z = DynamicQuantizeLinear (x)  d = DequantizeLinear (q, s, z)"
_CROSSINGS = {
    "scalars": (_SCALARS, "Identity (b)", "", {}),
    "a scalar that the core reads": (_SCALE, "Identity (b)", "", {"from_": ["scale"]}),
    "a scalar that the head reads": (_SCALE, "Mul (b, s)", ", float s", {"from_": ["d"]}),
    "as many rows as heads": (_HEADS, "Identity (b)", "", {"from_": ["rows"]}),
    "as many places as there are": (
        "n = NonZero (x)  d = Relu (x)",
        "Identity (b)",
        ", int64[2, found] n",
        {"from_": ["d"]},
    ),
}


def _crossed(kind: str, rows: int) -> onnx.ModelProto:
    """Two products between float parts; what crosses to them has no axis of samples."""
    front, last, more, _ = _CROSSINGS[kind]
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[{rows}, 16] x) => (float[{rows}, 8] y{more})
    <int64[2] heads = {{{4 * rows}, 4}}, int64[2] back = {{{rows}, 16}}, float half = {{0.5}}>
    {{ {front}  a = MatMul (d, w)  r = Relu (a)  [second] b = MatMul (r, v)  y = {last} }}
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (16, 12)), ("v", (12, 8))):
        weight = rng.normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize("kind", _CROSSINGS)
def test_a_value_without_an_axis_of_samples_crosses_a_cut(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    cut: Any = _CROSSINGS[kind][3]
    if _CROSSINGS[kind][2]:
        cut = {**cut, "until": ["second"]}
    onnx.save(_crossed(kind, 1), path)
    x = np.random.default_rng(1).normal(size=(24, 16)).astype(np.float32)
    found = qsearch.doctor(path, **cut)
    assert (found.diagnosis.fully_integral, found.cut is None) == (True, False)
    made = qsearch.quantize(path, x, **cut)
    made.save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").proved
    session = onnxruntime.InferenceSession(path)
    wanted = [session.run(None, {"x": row[None]}) for row in x]
    ours = [made.run(row[None]) for row in x]
    right, rows = (np.concatenate([run[0] for run in runs]) for runs in (wanted, ours))
    assert np.square(rows - right).sum() < 1e-3 * np.square(right).sum()  # 30 dB
    for given, found in zip(wanted, ours, strict=True):
        assert [each.shape for each in found] == [each.shape for each in given]
    if "places" not in kind:
        np.testing.assert_array_equal(made.run(x)[0], rows)
    whole = qsearch.export(tmp_path / "m.qmod", "onnx", tmp_path / "whole.onnx").files[0]
    again = onnxruntime.InferenceSession(whole).run(None, {"x": x[:1]})
    for one, other in zip(again, ours[0], strict=True):
        np.testing.assert_array_equal(one, other)
    if "head" in kind:  # a search scores what a head makes of the scalar of each sample
        result = qsearch.launch(path, calib=x, trials=1, pool="inline", out=tmp_path / "r", **cut)
        assert result.best_trial.user_attrs["score"]["sqnr_db"] > 30


def test_a_core_that_gives_a_scalar_runs_the_samples_of_a_batch_alone(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[n, 16] x) => (float[n, 8] y, float z)
    {
      a = MatMul (x, w)
      r = Relu (a)
      [mean] s = ReduceMean <keepdims = 0> (r)
      [last] b = MatMul (r, v)
      z = Exp (s)
      y = Mul (b, z)
    }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (16, 12)), ("v", (12, 8))):
        weight = rng.normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "m.onnx")
    x = rng.normal(size=(24, 16)).astype(np.float32)
    made = qsearch.quantize(tmp_path / "m.onnx", x, until=["mean", "last"])
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    wanted = [np.stack(each) for each in zip(*(session.run(None, {"x": row[None]}) for row in x))]
    for found, right in each(zip(made.run(x), wanted, strict=True)):
        noise = np.square(found.reshape(right.shape) - right).sum()
        assert noise < 1e-3 * np.square(right).sum()  # 30 dB


def test_rows_of_heads_of_a_fixed_batch_need_data_by_runs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_crossed("as many rows as heads", 2), path)
    x = np.random.default_rng(1).normal(size=(24, 2, 16)).astype(np.float32)
    with pytest.raises(CompilerError, match=r"'t' .* is \[8, 4\] for 2 samples") as error:
        qsearch.quantize(path, x.reshape(48, 16), from_=["rows"])
    assert "one axis more" in (error.value.fix or "")
    made = qsearch.quantize(path, x, from_=["rows"])
    session = onnxruntime.InferenceSession(path)
    wanted = np.concatenate([session.run(None, {"x": run})[0] for run in x])
    found = made.run(x.reshape(48, 16))[0]
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()  # 30 dB


def test_a_fixed_batch_runs_sample_by_sample(tmp_path: Path) -> None:
    fixed = detector()
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(fixed, tmp_path / "m.onnx")
    made = qsearch.quantize(tmp_path / "m.onnx", _images())
    boxes, _ = made.run(_images(3))
    assert boxes.shape == (3, 16, 4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--until", "nms0"], "did you mean 'nms'"),
        (["--until", "image"], "leaves no product"),
        (["--from", "selected"], "leaves no product"),
        (["--set-input", "sr=1"], "no such input"),
        (["--set-input", "image"], "NAME=VALUE"),
        (["--until", "last", "--from", "nms"], "would be in both parts"),
    ],
)
def test_a_cut_that_cannot_be_made_ends_with_exit_code_2(
    options: list[str], told: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--model", str(model), *options]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "fix:" in said


def test_doctor_says_which_cut_it_took(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--model", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fully_integral"]
    assert found["cut"]["until"] == ["last"]
    assert found["cut"]["multiplications_in_core"] == found["cut"]["multiplications"]
    assert run(["doctor", "--model", str(model), "--until", "first"]) == 0
    assert "quantized until first" in capsys.readouterr().out


def test_a_missing_input_of_the_whole_model_is_named(module: QModule) -> None:
    with pytest.raises(EvaluationError, match="image"):
        module.run({"c": _images(1)})


def test_a_trained_detector_is_cut_behind_its_last_convolutions() -> None:
    found = qsearch.doctor(Path(__file__).parents[2] / "models" / "shapes_detector.onnx")
    assert found.diagnosis.fully_integral
    assert found.cut is not None
    assert len(found.cut.last) == 2
    assert found.cut.share == 1.0


SPEECH = """
<ir_version: 8, opset_import: ["" : 17]>
speech (float[n, 8] x, int64 sr) => (float[n, 4] y)
<int64 fast = {16000}>
{
  high = Equal (sr, fast)
  [rate] y = If (high) <
    then_branch = a () => (float[n, 4] p)
    <float[8, 4] v = {V}> { p = MatMul (x, v) },
    else_branch = b () => (float[n, 4] q)
    <float[8, 4] w = {V}> { t = Neg (x) q = MatMul (t, w) }
  >
}
"""


def test_a_branch_is_taken_by_an_input_that_is_set_and_refused_by_the_name_of_the_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ", ".join(f"{x:.3f}" for x in np.random.default_rng(0).normal(0, 1, 32))
    path = tmp_path / "speech.onnx"
    onnx.save(onnx.parser.parse_model(SPEECH.replace("{V}", f"{{{values}}}")), path)
    assert run(["doctor", "--model", str(path)]) == 2
    assert "takes a branch by sr: fix it with --set-input sr=VALUE" in capsys.readouterr().err
    x = np.random.default_rng(1).normal(size=(12, 8)).astype(np.float32)
    for rate in (16000, 8000):
        made = qsearch.quantize(path, {"x": x}, set_input=[f"sr={rate}"])
        feed = {"x": x, "sr": np.array(rate)}
        (wanted,) = onnxruntime.InferenceSession(path).run(None, feed)
        (found,) = made.run(x)
        assert np.square(found - wanted).sum() / np.square(wanted).sum() < 1e-3


def test_an_option_in_front_of_the_products_is_no_preparation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of 2 or of 4 by the rate: the products behind it would take one branch's sizes."""
    branches = [
        helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], [name], strides=[step])],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)],
        )
        for name, step in (("fast", 2), ("slow", 4))
    ]
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is"]),
        helper.make_node(
            "If", ["is"], ["c"], "choice", then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "head"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(4, 1, 4)).astype(np.float32),
        "head": rng.normal(size=(4, 2)).astype(np.float32),
        "rate": np.array(16000),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1, 32]),
            helper.make_tensor_value_info("sr", onnx.TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    path, data = tmp_path / "m.onnx", {"x": rng.normal(size=(16, 1, 32)).astype(np.float32)}
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    assert run(["doctor", "--model", str(path)]) == 2
    assert "choice takes a branch by sr: fix it with --set-input" in capsys.readouterr().err
    made = qsearch.quantize(path, data, set_input=["sr=16000"])
    assert "cut" not in made.provenance


def test_dir_shows_the_public_names() -> None:
    assert {"launch", "quantize", "doctor", "SearchResult"} <= set(dir(qsearch))


def test_an_axis_that_a_loop_makes_has_the_size_of_a_run(tmp_path: Path) -> None:
    """As PyTorch writes an EmbeddingBag: a loop over the bags, whose number has a name."""
    rng = np.random.default_rng(4)
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Mul", ["step", "five"], ["start"]),
            node("Add", ["start", "five"], ["end"]),
            node("Unsqueeze", ["start", "first"], ["starts"]),
            node("Unsqueeze", ["end", "first"], ["ends"]),
            node("Slice", ["flat", "starts", "ends", "first"], ["bag"]),
            node("Gather", ["table", "bag"], ["rows"]),
            node("ReduceSum", ["rows", "first"], ["sum"], keepdims=0),
            node("Identity", ["go"], ["further"]),
        ],
        "bag",
        [
            helper.make_tensor_value_info("step", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("further", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", onnx.TensorProto.FLOAT, None),
        ],
    )
    constants = {
        "all": np.array([-1]),
        "five": np.array(5),
        "first": np.array([0]),
        "go": np.array(True),
        "table": rng.normal(size=(50, 12)).astype(np.float32),
        "w": rng.normal(size=(12, 3)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            node("Reshape", ["ids", "all"], ["flat"]),
            node("Shape", ["flat"], ["shape"]),
            node("Div", ["shape", "five"], ["bags"]),
            node("Squeeze", ["bags", "first"], ["count"]),
            node("Loop", ["count", "go"], ["sums"], body=body),
            node("MatMul", ["sums", "w"], ["y"]),
        ],
        "bags",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [8, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["loop_dim_0", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
        value_info=[
            helper.make_tensor_value_info("sums", onnx.TensorProto.FLOAT, ["loop_dim_0", 12])
        ],
    )
    path = tmp_path / "bags.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    ids = rng.integers(0, 50, size=(20, 8, 5))
    module = qsearch.quantize(path, {"ids": ids})
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"ids": ids[0]})
    (found,) = module.run({"ids": ids[0]})
    assert found.shape == wanted.shape == (8, 3)
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()
