"""Texts, sounds, tables, boxes and masks: what becomes of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import soundfile
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from workers.datasets.log_mel import LogMel
from workers.datasets.protocol import Dataset, InputSpec
from workers.datasets.registry import open_dataset
from workers.errors import DatasetError
from workers.messages import DatasetRef

TOKENS = InputSpec("input_ids", (1, 6), "int64")
MASK = InputSpec("attention_mask", (1, 6), "int64")
TYPES = InputSpec("token_type_ids", (1, 6), "int64")
ROW = InputSpec("x", (1, 2), "float32")
BYTES = InputSpec("x", (1, 2), "int8")
WAVE = InputSpec("wave", (1, 1, 800), "float32")
FRAMES = InputSpec("x", (1, 5, 8), "float32")
IMAGE = InputSpec("image", (1, 3, 8, 8), "float32")
RATE = {"rate": 8000}


def opened(kind: str, path: Path, *inputs: InputSpec, preprocess: Any = None) -> Dataset:
    return open_dataset(DatasetRef(kind, {"path": str(path), "preprocess": preprocess}), inputs)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    words = {word: place for place, word in enumerate(["<unk>", "<pad>", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "t.txt").write_text("a b\n\na b c a b c a b c\n")
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "z", "label": 0}\n')
    (tmp_path / "t.csv").write_text('one,two,label\n"a, b",c,1\nb,c,0\n')
    return tmp_path


def test_texts_are_padded_cut_and_masked_by_the_names_of_the_inputs(texts: Path) -> None:
    batch = opened("text", texts / "t.txt", TOKENS, MASK).batch(range(2))
    assert batch.inputs["input_ids"].tolist() == [[2, 3, 1, 1, 1, 1], [2, 3, 4, 2, 3, 4]]
    assert batch.inputs["attention_mask"].sum(axis=1).tolist() == [2, 6]
    assert batch.labels is None


def test_pairs_of_columns_and_labels_are_read(texts: Path) -> None:
    fields = {"text": "one", "pair": "two"}
    data = opened("text", texts / "t.csv", TOKENS, TYPES, preprocess=fields)
    batch = data.batch(range(1, 2))
    assert batch.inputs["input_ids"][0, :2].tolist() == [3, 4]
    assert batch.inputs["token_type_ids"][0, :2].tolist() == [0, 1]
    labels = opened("text", texts / "t.jsonl", TOKENS).labels(range(2))
    assert labels is not None
    assert labels.tolist() == [1, 0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_padded_where_and_with_what_the_tokenizer_says(texts: Path, side: str) -> None:
    tokenizer = Tokenizer.from_file(str(texts / "tokenizer.json"))
    tokenizer.enable_padding(direction=side, pad_id=1, pad_token="<pad>")
    tokenizer.save(str(texts / "tokenizer.json"))
    (texts / "t.jsonl").write_text('{"text": ""}\n{"text": "a b c a"}')
    fields = {"label": "next", "length": 3}
    batch = opened("text", texts / "t.jsonl", TOKENS, preprocess=fields).batch(range(2))
    words, wanted = [2, 3, 4], [3, 4, -1]
    ids = [1, 1, 1, *words] if side == "left" else [*words, 1, 1, 1]
    labels = [-1, -1, -1, *wanted] if side == "left" else [*wanted, -1, -1, -1]
    assert batch.inputs["input_ids"].tolist() == [[1] * 6, ids]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[-1] * 6, labels]


def test_only_line_feeds_end_a_text(texts: Path) -> None:
    (texts / "t.txt").write_text("a\u2028b\x0cc\x85a\r\nb\n")
    (texts / "t.jsonl").write_text(json.dumps({"text": "a\u2028b"}, ensure_ascii=False))
    assert len(opened("text", texts / "t.txt", TOKENS)) == 2
    assert len(opened("text", texts / "t.jsonl", TOKENS)) == 1


def test_the_label_of_a_token_may_be_the_next_token(texts: Path) -> None:
    data = opened("text", texts / "t.txt", TOKENS, preprocess={"label": "next"})
    labels = data.labels(range(2))
    assert labels is not None
    assert labels.tolist() == [[3, -1, -1, -1, -1, -1], [3, 4, 2, 3, 4, -1]]


def test_sounds_become_mono_of_one_rate_and_length(tmp_path: Path) -> None:
    for name, rate, samples in (("0", 8000, 500), ("1", 16000, 3200)):
        (tmp_path / name).mkdir()
        wave = np.tile(np.sin(np.arange(samples) / rate * 2000)[:, None], 2)
        soundfile.write(tmp_path / name / "s.wav", wave, rate)
    data = opened("audio", tmp_path, WAVE, preprocess=RATE)
    batch = data.batch(range(2))
    wave = batch.inputs["wave"]
    assert wave.shape == (2, 1, 800)
    assert not wave[0, 0, 500:].any()
    np.testing.assert_allclose(wave[1, 0, 50:500], wave[0, 0, 50:500], atol=0.02)
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1]


MEL = {"n_fft": 512, "win_length": 400, "hop_length": 320, "n_mels": 8, "f_min": 60, "f_max": 7600}
THIRD_FRAME = {
    "htk": [7.7966, 7.7697, -5.317, -10.8688, 4.0383, 7.0414, -1.3883, -13.7549],
    "slaney": [8.2815, 6.7438, -7.5998, -11.0495, -8.6446, 6.8886, 5.3891, -13.6479],
}
"""As librosa 0.11 has it: melspectrogram(power=2, norm=None), the logarithm with 1e-6 added."""
FOURTH_COSINES = {
    "htk": [-1.6557, 9.4889, 1.2939, 18.2678],
    "slaney": [-4.8221, 7.058, 9.0762, 16.7577],
}


def tones(folder: Path) -> Path:
    time = np.arange(1600) / 16000
    wave = 0.5 * np.sin(2 * np.pi * 440 * time) + 0.25 * np.sin(2 * np.pi * 3000 * time)
    soundfile.write(folder / "s.wav", wave.astype(np.float32), 16000, subtype="FLOAT")
    return folder


@pytest.mark.parametrize("scale", THIRD_FRAME)
def test_sounds_become_the_features_that_others_compute(tmp_path: Path, scale: str) -> None:
    fields = {"rate": 16000, "log_mel": {**MEL, "mel_scale": scale}}
    for shape, frame in (((1, 6, 8), (0, 2)), ((1, 1, 8, 6), (0, 0, slice(None), 2))):
        spec = InputSpec("x", shape, "float32")
        found = opened("audio", tones(tmp_path), spec, preprocess=fields).batch(range(1))
        np.testing.assert_allclose(found.inputs["x"][frame], THIRD_FRAME[scale], atol=2e-3)
    fields["log_mel"] |= {"n_mfcc": 4, "mean": 1, "std": 2}
    spec = InputSpec("x", (1, 6, 4), "float32")
    found = opened("audio", tones(tmp_path), spec, preprocess=fields).batch(range(1))
    wanted = (np.array(FOURTH_COSINES[scale]) - 1) / 2
    np.testing.assert_allclose(found.inputs["x"][0, 3], wanted, atol=2e-3)


@pytest.mark.parametrize("samples", [600, 640, 700, 767])
def test_the_last_centred_frame_hears_the_whole_sound(tmp_path: Path, samples: int) -> None:
    wave = np.random.default_rng(0).uniform(-0.5, 0.5, samples).astype(np.float32)
    soundfile.write(tmp_path / "s.wav", wave, 8000, subtype="FLOAT")
    mel = {"n_fft": 256, "hop_length": 128, "n_mels": 8}
    spec = InputSpec("x", (1, 6, 8), "float32")
    fields = {"rate": 8000, "log_mel": mel}
    found = opened("audio", tmp_path, spec, preprocess=fields).batch(range(1)).inputs["x"][0]
    wanted = LogMel.of(mel, 8000).features(np.pad(wave, (0, max(640 - samples, 0))))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_frames_that_are_not_centred_fill_the_sound(tmp_path: Path) -> None:
    """A second of the usual keyword spotter: 49 frames; a shorter sound ends in silence."""
    mel = {"center": False, "n_fft": 1024, "win_length": 640, "hop_length": 320, "n_mels": 10}
    spec = InputSpec("x", (1, 49, 10), "float32")
    fields = {"rate": 16000, "log_mel": mel}
    found = opened("audio", tones(tmp_path), spec, preprocess=fields).batch(range(1))
    silent = (found.inputs["x"][0] == np.float32(np.log(1e-6))).all(axis=1)
    assert silent.tolist() == [False] * 5 + [True] * 44


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_a_table_become_the_inputs(tmp_path: Path, suffix: str) -> None:
    frame = pandas.DataFrame({"a": [1.5, 2.0], "n": [3, 4], "b": [0.0, 1.0], "target": [0.5, 2.0]})
    path = tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    fields = {"columns": {"x": ["b", "a"]}}
    batch = opened("table", path, ROW, preprocess=fields).batch(range(2))
    assert batch.inputs["x"].tolist() == [[0.0, 1.5], [1.0, 2.0]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [0.5, 2.0]
    by_name = opened(
        "table", path, InputSpec("n", (1, 1), "int64"), InputSpec("a", (1,), "float32")
    )
    assert by_name.batch(range(1, 2)).inputs["n"].tolist() == [[4]]


def test_boxes_move_with_the_resize_and_the_crop(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((16, 32, 3), np.uint8)).save(tmp_path / "i.png")
    coco = {
        "images": [{"id": 7, "file_name": "i.png"}],
        "categories": [{"id": 3, "name": "b"}, {"id": 1, "name": "a"}],
        "annotations": [
            {"image_id": 7, "category_id": 3, "bbox": [8, 4, 8, 4]},
            {"image_id": 7, "category_id": 1, "bbox": [0, 0, 4, 4]},
            {"image_id": 7, "category_id": 3, "bbox": [8, 0, 16, 16], "iscrowd": 1},
        ],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(coco))
    fields = {"boxes": "boxes.json", "resize": 8}
    labels = opened("detection", tmp_path, IMAGE, preprocess=fields).labels(range(1))
    assert labels is not None
    assert labels.tolist() == [[[1, 0, 2, 4, 4], [-3, 0, 0, 8, 8]]], "one box is beside the crop"


def test_masks_are_resized_without_new_classes(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "i.png")
    mask = np.zeros((16, 16), np.uint8)
    mask[:, 8:], mask[0:2, 0:2] = 2, 255
    Image.fromarray(mask).save(tmp_path / "m" / "i.png")
    data = opened("segmentation", tmp_path, IMAGE, preprocess={"masks": "m", "resize": 8})
    labels = data.batch(range(1)).labels
    assert labels is not None
    assert (labels.shape, set(labels.ravel().tolist())) == ((1, 8, 8), {-1, 0, 2})


REFUSED: dict[str, tuple[str, str, InputSpec, Any, str]] = {
    "no tokenizer": ("text", "alone.txt:a", TOKENS, None, "needs? the tokenizer"),
    "no tokens": ("text", "t.txt:a", ROW, None, "one input of tokens"),
    "length": ("text", "t.txt:a", TOKENS, {"length": 9}, "1 to 6 tokens"),
    "field": ("text", "t.txt:a", TOKENS, {"lenght": 3}, "did you mean 'length'"),
    "column": ("text", "t.csv:u,v\na,b", TOKENS, None, "which column is the text"),
    "json": ("text", "t.jsonl:{}\n{", TOKENS, {"text": "t"}, "line 2 is no JSON"),
    "no text": ("text", "t.txt:", TOKENS, None, "0 texts"),
    "word label": ("text", "t.csv:text,label\na,1\nb,x", TOKENS, None, "line 3: the label 'x'"),
    "short line": ("table", "t.csv:a,b\n1,2\n3", ROW, None, "line 3 has fewer"),
    "long line": ("table", "t.csv:a,b\n1,2,3", ROW, None, "line 2 has more"),
    "word": ("table", "t.csv:a,b\n1,x", ROW, None, "line 2: 'x' in column 'b'"),
    "not finite": ("table", "t.csv:a,b\n1,nan", ROW, None, "line 2: column 'b' holds nan"),
    "many": ("table", "t.csv:a,b,c\n1,2,3", ROW, None, "3 columns for the input"),
    "unknown": ("table", "t.csv:a,b\n1,2", ROW, {"columns": ["a", "z"]}, "no column 'z'"),
    "parquet": ("table", "t.parquet:no", ROW, None, "cannot read t.parquet"),
    "too large": ("table", "t.csv:a,b\n1,2\n300,2", BYTES, None, "line 3: the input x: int8"),
    "half": ("table", "t.csv:a,b\n1.5,2", BYTES, None, "line 2: the input x: int8"),
    "twice": ("table", "t.csv:a,a\n1,2", ROW, None, "several columns are named 'a'"),
    "no label": (
        *("text", 't.jsonl:{"text": "a"}\n{"text": "b", "label": 1}', TOKENS, None),
        "line 1: the label None is no number",
    ),
    "no row": ("table", "t.csv:a,b", ROW, None, "0 rows"),
    "rate": ("audio", "w/a.wav:no", WAVE, None, "'rate: 16000'"),
    "no wave": ("audio", "w/a.wav:no", WAVE, RATE, "cannot read the sound"),
    "features": ("audio", "w/a.wav:no", IMAGE, RATE, "log_mel in pre.yaml"),
    "bands": ("audio", "w/a.wav:no", FRAMES, {**RATE, "log_mel": {"n_mels": 9}}, "gives 9 of"),
    "mel": ("audio", "w/a.wav:no", FRAMES, {**RATE, "log_mel": {"mels": 8}}, "mean 'n_mels'"),
    "hop": ("audio", "w/a.wav:no", FRAMES, {**RATE, "log_mel": {"hop_length": "1"}}, "one int"),
    "window": ("audio", "w/a.wav:no", FRAMES, {**RATE, "log_mel": {"win_length": 401}}, "to 400"),
    "scale": ("audio", "w/a.wav:no", FRAMES, {**RATE, "log_mel": {"mel_scale": "x"}}, "slaney"),
    "mean": ("audio", "w/a.wav:no", FRAMES, {**RATE, "log_mel": {"mean": np.nan}}, "mean cannot"),
    "no band": (
        *("audio", "w/a.wav:no", FRAMES),
        {**RATE, "log_mel": {"f_min": 4.0, "f_max": 4.0}},
        "no bands",
    ),
    "samples": ("audio", "w/a.wav:no", WAVE, {**RATE, "log_mel": {}}, "input of features"),
    "coco": ("detection", "d/a.json:{}", IMAGE, {"boxes": "a.json", "mean": 0}, "no COCO file"),
    "boxes": ("detection", "d/a.json:{}", IMAGE, {"boxes": "b.json"}, "no b.json"),
    "masks": ("segmentation", "d/i.png:no", IMAGE, {"masks": "m"}, "no m in the folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_told_when_it_is_opened(texts: Path, case: str) -> None:
    kind, file, spec, preprocess, told = REFUSED[case]
    name, _, content = file.partition(":")
    path = texts / name
    path.parent.mkdir(exist_ok=True)
    if name.startswith("alone"):
        (texts / "tokenizer.json").unlink()
    path.write_text(content)
    given = path if path.parent == texts else path.parent
    with pytest.raises(DatasetError, match=told):
        opened(kind, given, spec, preprocess=preprocess)


def test_an_image_without_a_mask_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "i.png")
    with pytest.raises(DatasetError, match=r"i\.png has no mask m/i\.png"):
        opened("segmentation", tmp_path, IMAGE, preprocess={"masks": "m"})


def test_boxes_belong_to_the_image_of_exactly_their_path(tmp_path: Path) -> None:
    for name, level in (("1.png", 10), ("thumbs/1.png", 20), ("thumbs/2.png", 30)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (level, level, level)).save(tmp_path / name)
    coco: dict[str, Any] = {"categories": [], "annotations": []}
    fields = {"boxes": "a.json", "mean": 0}

    def levels(*names: str) -> list[float]:
        coco["images"] = [{"id": n, "file_name": name} for n, name in enumerate(names)]
        (tmp_path / "a.json").write_text(json.dumps(coco))
        data = opened("detection", tmp_path, IMAGE, preprocess=fields)
        return [float(one.max()) for one in data.batch(range(len(names))).inputs["image"]]

    assert levels("1.png", "thumbs/1.png", "2.png") == [10, 20, 30]
    (tmp_path / "1.png").rename(tmp_path / "thumbs" / "3.png")
    (tmp_path / "other").mkdir()
    (tmp_path / "thumbs" / "1.png").rename(tmp_path / "other" / "2.png")
    with pytest.raises(DatasetError, match=r"2\.png of a\.json is in 2 folders"):
        levels("2.png")


def test_masks_of_black_and_white_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for name, white in (("a", 0), ("b", 255)):
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / f"{name}.png")
        mask = np.zeros((16, 16), np.uint8)
        mask[4:9] = white
        Image.fromarray(mask).save(tmp_path / "m" / f"{name}.png")
    with pytest.raises(DatasetError, match="masks hold 0 and 255 only"):
        opened("segmentation", tmp_path, IMAGE, preprocess={"masks": "m"})


def test_a_mask_of_two_images_is_refused(tmp_path: Path) -> None:
    for name in ("m/i.png", "i.png", "other/i.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / name)
    with pytest.raises(DatasetError, match=r"several images have the mask m/i\.png"):
        opened("segmentation", tmp_path, IMAGE, preprocess={"masks": "m", "mean": 0})


def test_endings_of_files_may_be_capitals(texts: Path) -> None:
    np.save(texts / "d.npy", np.zeros((3, 2), np.float32))
    (texts / "t2.csv").write_text("a,b\n1,2\n")
    given = (("npz", "d.npy", ROW), ("table", "t2.csv", ROW), ("text", "t.txt", TOKENS))
    for kind, name, spec in (*given, ("text", "t.csv", TOKENS)):
        path = (texts / name).rename((texts / name).with_suffix(Path(name).suffix.upper()))
        preprocess = {"text": "one"} if name == "t.csv" else None
        options = {"path": str(path)} | ({} if kind == "npz" else {"preprocess": preprocess})
        assert len(open_dataset(DatasetRef(kind, options), [spec])) > 0


def test_boxes_of_an_image_that_exif_turns_are_refused(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 8))
    image.getexif()[0x0112] = 6
    image.save(tmp_path / "i.jpg", exif=image.getexif())
    fields = {"boxes": "a.json", "mean": 0}
    for width, height in ((16, 8), (8, 16)):
        drawn = {"id": 0, "file_name": "i.jpg", "width": width, "height": height}
        coco = {"images": [drawn], "annotations": [], "categories": []}
        (tmp_path / "a.json").write_text(json.dumps(coco))
        if width == 16:
            assert len(opened("detection", tmp_path, IMAGE, preprocess=fields)) == 1
    with pytest.raises(DatasetError, match="as its EXIF turns it"):
        opened("detection", tmp_path, IMAGE, preprocess=fields)


def test_boxes_and_masks_move_with_a_letterbox(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 16, 3), np.uint8)).save(tmp_path / "i.png")
    coco = {
        "images": [{"id": 7, "file_name": "i.png"}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [{"image_id": 7, "category_id": 1, "bbox": [0, 0, 8, 8]}],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(coco))
    (tmp_path / "m").mkdir()
    Image.fromarray(np.ones((8, 16), np.uint8)).save(tmp_path / "m" / "i.png")
    box: dict[str, Any] = {"letterbox": {"size": [8, 8]}}
    found = opened("detection", tmp_path, IMAGE, preprocess={"boxes": "boxes.json", **box})
    labels = found.labels(range(1))
    assert labels is not None
    assert labels.tolist() == [[[0, 0, 2, 4, 6]]]
    found = opened("segmentation", tmp_path, IMAGE, preprocess={"masks": "m", **box})
    labels = found.labels(range(1))
    assert labels is not None
    assert labels[0, :, 0].tolist() == [-1, -1, 1, 1, 1, 1, -1, -1]


def test_a_size_of_boxes_that_is_told_the_wrong_way_turns_no_upright_image(tmp_path: Path) -> None:
    Image.new("RGB", (16, 8)).save(tmp_path / "i.jpg")
    drawn = {"id": 0, "file_name": "i.jpg", "width": 8, "height": 16}
    coco = {"images": [drawn], "annotations": [], "categories": []}
    (tmp_path / "a.json").write_text(json.dumps(coco))
    fields = {"boxes": "a.json", "mean": 0}
    assert len(opened("detection", tmp_path, IMAGE, preprocess=fields)) == 1


def test_a_column_that_is_named_and_not_there_is_refused_with_those_that_are(texts: Path) -> None:
    with pytest.raises(DatasetError, match="no column 'price'") as refused:
        opened("table", texts / "t.csv", ROW, preprocess={"label": "price"})
    assert "has one, two, label" in str(refused.value)
