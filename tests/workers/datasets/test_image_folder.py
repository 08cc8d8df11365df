from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.errors import DatasetError
from workers.messages import DatasetRef

SPEC = InputSpec("input", (1, 3, 8, 8), "float32")
PLAIN = {"crop": 8, "mean": 0, "std": 1}


def draw(path: Path, height: int = 8, width: int = 8, seed: int = 0) -> np.ndarray[Any, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def opened(root: Path, preprocess: Any = PLAIN, spec: InputSpec = SPEC) -> Any:
    return open_dataset(
        DatasetRef("image_folder", {"path": str(root), "preprocess": preprocess}), [spec]
    )


def test_numeric_folder_names_are_class_indices(tmp_path: Path) -> None:
    for name in ("7", "0010", "2"):
        draw(tmp_path / name / "a.png")
    dataset = opened(tmp_path)
    assert dataset.batch(range(3)).labels.tolist() == [10, 2, 7], "in order of paths"


def test_other_folder_names_count_in_sorted_order(tmp_path: Path) -> None:
    for name in ("dog", "cat", "1"):
        draw(tmp_path / name / "a.png")
        draw(tmp_path / name / "b.png")
    assert opened(tmp_path).batch(range(6)).labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_classes_txt_gives_the_index_by_line(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        draw(tmp_path / name / "a.png")
    (tmp_path / "classes.txt").write_text("ant\ndog\ncat\n")
    assert opened(tmp_path).batch(range(2)).labels.tolist() == [2, 1]
    draw(tmp_path / "emu" / "a.png")
    with pytest.raises(DatasetError, match="'emu' is no class of"):
        opened(tmp_path)


def test_classes_txt_may_begin_with_a_mark_and_is_utf8(tmp_path: Path) -> None:
    draw(tmp_path / "café" / "a.png")
    (tmp_path / "classes.txt").write_text("café\r\n", encoding="utf-8-sig")
    assert opened(tmp_path).batch(range(1)).labels.tolist() == [0]
    (tmp_path / "classes.txt").write_text("café\n", encoding="latin-1")
    with pytest.raises(DatasetError, match=r"classes\.txt is no UTF-8"):
        opened(tmp_path)


def test_loose_images_have_no_labels(tmp_path: Path) -> None:
    draw(tmp_path / "b.png", seed=1)
    first = draw(tmp_path / "a.png", seed=2)
    (tmp_path / "notes.txt").write_text("not an image")
    dataset = opened(tmp_path)
    assert (len(dataset), dataset.has_labels) == (2, False)
    batch = dataset.batch(range(1))
    assert batch.labels is None
    np.testing.assert_array_equal(batch.inputs["input"][0], first.transpose(2, 0, 1))


def test_pixels_are_cropped_ordered_and_normalised_as_asked(tmp_path: Path) -> None:
    pixels = draw(tmp_path / "a.png", height=12, width=11)
    bgr = {"crop": [8, 8], "channel_order": "BGR", "mean": [10, 20, 30], "std": [2, 4, 8]}
    found = opened(tmp_path, bgr).batch(range(1)).inputs["input"][0]
    centre = pixels[2:10, 1:9, ::-1].astype(np.float32)
    expected = (centre - np.float32([10, 20, 30])) / np.float32([2, 4, 8])
    np.testing.assert_array_equal(found, expected.transpose(2, 0, 1))


def test_layout_nhwc_and_grey_images(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    nhwc = opened(tmp_path, PLAIN, InputSpec("input", (1, 8, 8, 3), "float32"))
    assert nhwc.batch(range(1)).inputs["input"].shape == (1, 8, 8, 3)
    grey = opened(tmp_path, PLAIN, InputSpec("input", (1, 1, 8, 8), "float32"))
    expected = np.asarray(Image.open(tmp_path / "a.png").convert("L"), np.float32)
    np.testing.assert_array_equal(grey.batch(range(1)).inputs["input"][0, 0], expected)


def test_resize_acts_on_the_short_side_with_antialias(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", height=32, width=64)
    found = opened(tmp_path, {"resize": 8, "mean": 0, "std": 1}).batch(range(1))
    image = Image.open(tmp_path / "a.png").resize((16, 8), Image.Resampling.BICUBIC)
    expected = np.asarray(image.crop((4, 0, 12, 8)), np.float32).transpose(2, 0, 1)
    np.testing.assert_array_equal(found.inputs["input"][0], expected)


def test_images_are_stretched_or_filled_to_any_size(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", height=32, width=64)
    image = Image.open(tmp_path / "a.png")
    spec = InputSpec("input", (1, 3, 12, 8), "float32")
    fields = {"stretch": [12, 8], "interpolation": "bilinear"}
    found = opened(tmp_path, fields, spec).batch(range(1)).inputs["input"][0]
    expected = np.asarray(image.resize((8, 12), Image.Resampling.BILINEAR), np.float32)
    np.testing.assert_array_equal(found, expected.transpose(2, 0, 1))
    fields = {"letterbox": {"size": [12, 8], "value": 114}}
    found = opened(tmp_path, fields, spec).batch(range(1)).inputs["input"][0]
    inner = np.asarray(image.resize((8, 4), Image.Resampling.BICUBIC), np.float32)
    np.testing.assert_array_equal(found[:, 4:8], inner.transpose(2, 0, 1))
    assert np.unique(found[:, :4]) == np.unique(found[:, 8:]) == 114


def test_pixels_feed_uint8_inputs_as_they_are_and_gray_ones_without_channels(
    tmp_path: Path,
) -> None:
    pixels = draw(tmp_path / "a.png")
    spec = InputSpec("input", (1, 8, 8, 3), "uint8")
    found = opened(tmp_path, {"crop": 8}, spec).batch(range(1)).inputs["input"]
    np.testing.assert_array_equal(found, pixels[None])
    assert found.dtype == np.uint8
    with pytest.raises(DatasetError, match="leave mean and std out"):
        opened(tmp_path, {"mean": 127}, spec)
    gray = opened(tmp_path, {"std": 255}, InputSpec("input", (1, 8, 8), "float32"))
    assert gray.batch(range(1)).inputs["input"].shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("preprocess", "message"),
    [
        (None, "need to know how they become the input"),
        ({"rezise": 8}, "unknown preprocess field 'rezise'"),
        ({"crop": 9}, r"crop makes \(9, 9\), the input takes \(8, 8\)"),
        ({"crop": "big"}, "crop cannot be 'big'"),
        ({"resize": [8, 8]}, r"the short side, one number(.|\n)*'stretch: \[8, 8\]'"),
        ({"resize": 8, "stretch": [8, 8]}, "both resize and stretch"),
        ({"letterbox": {"size": [8, 9]}}, r"letterbox makes \(8, 9\)"),
        ({"letterbox": {"size": 8, "value": 300}}, "letterbox value cannot be 300"),
        ({"interpolation": "cubic"}, "interpolation cannot be 'cubic'"),
        ({"std": [1, 0, 1]}, "std holds 0"),
        ({"mean": [1, 2]}, "mean cannot be"),
        ({"std": [float("nan")]}, "std cannot be"),
        ({"resize": 99_999_999_999}, "resize cannot be 99999999999"),
        ({"resize": float("nan")}, "resize cannot be nan"),
        ({"crop": 99_999_999_999}, "crop cannot be 99999999999"),
        ({"channel_order": "CMYK"}, "channel_order 'CMYK'"),
        ({"layout": "CHWN"}, "layout 'CHWN'"),
    ],
)
def test_preprocess_mistakes_are_told(tmp_path: Path, preprocess: Any, message: str) -> None:
    draw(tmp_path / "a.png")
    with pytest.raises(DatasetError, match=message):
        opened(tmp_path, preprocess)


@pytest.mark.parametrize(
    ("shape", "preprocess", "fix"),
    [
        ((1, 1, 16, 12), None, "'stretch: [16, 12]', 'mean: [127]', 'std: [128]'"),
        ((1, 3, 224, 224), None, "'resize: 256', 'crop: [224, 224]', 'mean: [127, 127, 127]'"),
        ((1, 1, 8, 8), {"channel_order": "RGB"}, "fix: channel_order: GRAY"),
        ((1, 3, 8, 8), {"channel_order": "GRAY"}, "fix: channel_order: RGB or channel_order: BGR"),
        ((1, 4, 8, 8), {}, "4 channels takes arrays: give an .npz"),
        ((1, 3, 8, 8), {"crop": 9}, "leave crop out, or crop: [8, 8]"),
    ],
)
def test_the_fix_names_what_the_input_needs(
    tmp_path: Path, shape: tuple[int, ...], preprocess: Any, fix: str
) -> None:
    draw(tmp_path / "a.png")
    with pytest.raises(DatasetError) as caught:
        opened(tmp_path, preprocess, InputSpec("input", shape, "float32"))
    assert fix in str(caught.value)


def test_folders_without_usable_images_are_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no image folder"):
        opened(tmp_path / "missing")
    with pytest.raises(DatasetError, match="no image in"):
        opened(tmp_path)
    draw(tmp_path / "cat" / "a.png")
    draw(tmp_path / "loose.png")
    with pytest.raises(DatasetError, match="both images and class folders"):
        opened(tmp_path)


def test_a_damaged_or_small_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG not really")
    with pytest.raises(DatasetError, match="cannot decode") as caught:
        opened(tmp_path).batch(range(1))
    assert str(caught.value.where).endswith("a.png")
    draw(tmp_path / "a.png", height=4, width=20)
    with pytest.raises(DatasetError, match="4x20 is smaller than the crop 8x8"):
        opened(tmp_path).batch(range(1))


def test_two_inputs_cannot_be_fed_from_images(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    ref = DatasetRef("image_folder", {"path": str(tmp_path), "preprocess": PLAIN})
    with pytest.raises(DatasetError, match="one input of float32 or uint8"):
        open_dataset(ref, [SPEC, InputSpec("mask", (1, 8), "float32")])


@pytest.mark.parametrize(("dtype", "name"), [("<u2", "a.png"), ("<i4", "a.tif"), ("<f4", "a.tif")])
def test_values_beyond_eight_bits_are_refused(tmp_path: Path, dtype: str, name: str) -> None:
    Image.fromarray(np.arange(64).reshape(8, 8).astype(dtype)).save(tmp_path / name)
    with pytest.raises(DatasetError, match="not 0 to 255"):
        opened(tmp_path)
