from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.relay import const, module, op, var
from workers.batching import model_batches
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs, open_dataset
from workers.errors import DatasetError
from workers.messages import DatasetRef

IMAGE = InputSpec("image", (1, 3, 4, 4), "float32")
IDS = InputSpec("ids", (1, 5), "int64")


def samples(count: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.standard_normal((count, 3, 4, 4)).astype(np.float32),
        "labels": np.arange(count, dtype=np.int32),
    }


def npz(path: Path) -> DatasetRef:
    return DatasetRef("npz", {"path": str(path)})


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_ranges_of_an_npz_are_its_samples(tmp_path: Path, write: Any) -> None:
    arrays = samples()
    write(tmp_path / "d.npz", **arrays)
    dataset = open_dataset(npz(tmp_path / "d.npz"), [IMAGE])
    assert len(dataset) == 6
    assert dataset.has_labels
    batch = dataset.batch(range(2, 5))
    np.testing.assert_array_equal(batch.inputs["image"], arrays["image"][2:5])
    assert batch.labels is not None
    assert (batch.labels.dtype, batch.labels.tolist()) == (np.int64, [2, 3, 4])


def test_uncompressed_members_are_read_sample_by_sample(tmp_path: Path) -> None:
    big = np.zeros((2000, 3, 64, 64), np.float32)
    np.savez(tmp_path / "d.npz", image=big)
    import resource

    spec = InputSpec("image", (1, 3, 64, 64), "float32")
    dataset = open_dataset(npz(tmp_path / "d.npz"), [spec])
    del big
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset.batch(range(1000, 1001))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 20_000, "98 MB of images were read for one sample"


def test_an_npy_feeds_the_only_input(tmp_path: Path) -> None:
    arrays = samples()
    np.save(tmp_path / "d.npy", arrays["image"])
    dataset = open_dataset(npz(tmp_path / "d.npy"), [IMAGE])
    assert not dataset.has_labels
    np.testing.assert_array_equal(dataset.batch(range(6)).inputs["image"], arrays["image"])


def test_wider_and_narrower_floats_and_narrower_integers_fit(tmp_path: Path) -> None:
    arrays = {"image": samples()["image"].astype(np.float64), "ids": np.ones((6, 5), np.int32)}
    np.savez(tmp_path / "d.npz", **arrays)
    batch = open_dataset(npz(tmp_path / "d.npz"), [IMAGE, IDS]).batch(range(1))
    assert {name: a.dtype.name for name, a in batch.inputs.items()} == {
        "image": "float32",
        "ids": "int64",
    }


@pytest.mark.parametrize(
    ("arrays", "message", "details"),
    [
        (
            {"picture": np.zeros((2, 3, 4, 4), "f4"), "other": np.zeros((2, 1), "f4")},
            "no array 'image'",
            ["'picture'", "image: "],
        ),
        (
            {"image": np.zeros((2, 4, 4, 3), "f4")},
            r"'image' is \[2, 4, 4, 3\] in the data and \[1, 3, 4, 4\] in the model",
            ["the data are NHWC"],
        ),
        (
            {"image": np.zeros((2, 3, 4, 4), "u1")},
            "'image' is uint8 in the data and float32 in the model",
            ["store it as float32"],
        ),
        ({"image": np.zeros((0, 3, 4, 4), "f4")}, "the data is empty: 0 samples", []),
        (
            {"image": np.zeros((2, 3, 4, 4), "f4"), "labels": np.zeros(3, int)},
            "arrays of unequal length: 'image' 2, 'labels' 3 samples",
            [],
        ),
        (
            {"image": np.zeros((2, 3, 4, 4), "f4"), "labels": np.array([1j, 2j])},
            "labels are complex128",
            ["one class index (or number, or word) per sample"],
        ),
    ],
)
def test_data_that_does_not_fit_names_both_sides(
    tmp_path: Path, arrays: dict[str, Any], message: str, details: list[str]
) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(DatasetError, match=message) as caught:
        open_dataset(npz(tmp_path / "d.npz"), [IMAGE])
    for detail in details:
        assert detail in str(caught.value)


def test_samples_are_whole_where_an_axis_of_their_own_counts_them(tmp_path: Path) -> None:
    specs = [InputSpec("x", (1, 6), "float32"), InputSpec("state", (2, 1, 4), "float32")]
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": rng.standard_normal((5, 6), np.float32),  # a batch of one may be left out
        "state": rng.standard_normal((5, 2, 1, 4), np.float32),
        "labels": np.arange(5),
    }
    np.savez(tmp_path / "d.npz", **arrays)
    dataset = open_dataset(npz(tmp_path / "d.npz"), specs)
    runs = list(model_batches(dataset, range(1, 4), specs, 2))
    assert [(run.start, run.count) for run in runs] == [(1, 1), (2, 1), (3, 1)]
    for run in runs:
        np.testing.assert_array_equal(run.inputs["x"], arrays["x"][run.start][None])
        np.testing.assert_array_equal(run.inputs["state"], arrays["state"][run.start])
        assert run.labels is not None
        assert run.labels.tolist() == [run.start]


def test_states_that_are_no_whole_samples_are_told_how_to_be(tmp_path: Path) -> None:
    specs = [InputSpec("x", (1, 6), "float32"), InputSpec("state", (2, 1, 4), "float32")]
    np.savez(tmp_path / "d.npz", x=np.zeros((5, 6), "f4"), state=np.zeros((5, 2, 4), "f4"))
    with pytest.raises(DatasetError, match=r"give state as \[samples, 2, 1, 4\]"):
        open_dataset(npz(tmp_path / "d.npz"), specs)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_reported_with_its_sample(
    tmp_path: Path, value: float
) -> None:
    arrays = samples()
    arrays["image"][4, 1, 2, 3] = value
    np.savez(tmp_path / "d.npz", **arrays)
    dataset = open_dataset(npz(tmp_path / "d.npz"), [IMAGE])
    dataset.batch(range(4))
    with pytest.raises(DatasetError, match=f"sample 4 of 'image' holds {value}"):
        dataset.batch(range(3, 6))


def test_a_place_that_no_row_of_a_table_has_is_reported_with_its_sample(tmp_path: Path) -> None:
    ids = var("ids", (1, 5), "int64")
    table = const(np.ones((9, 4), np.float32))
    small = const(np.ones((7, 4), np.float32))
    rows = [
        op.take(each, places, axis=0, mode="wrap")
        for each, places in ((table, ids), (small, op.cast(ids, dtype="int32")))
    ]
    (spec,) = input_specs(module(op.add(*rows)))
    given = np.array([[0, 1, 2, 3, -7], [0, 1, 2, 3, 7]])
    np.savez(tmp_path / "d.npz", ids=given)
    dataset = open_dataset(npz(tmp_path / "d.npz"), [spec])
    assert dataset.batch(range(1)).inputs["ids"].tolist() == given[:1].tolist()
    with pytest.raises(DatasetError, match=r"sample 1 of 'ids' holds 7; .* table of 7 rows"):
        dataset.batch(range(2))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no data file"):
        open_dataset(npz(tmp_path / "missing.npz"), [IMAGE])
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DatasetError, match=r"cannot read text\.npz"):
        open_dataset(npz(tmp_path / "text.npz"), [IMAGE])
    np.savez(tmp_path / "objects.npz", image=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DatasetError, match=r"cannot read objects\.npz"):
        open_dataset(npz(tmp_path / "objects.npz"), [IMAGE])


def test_a_range_outside_the_data_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **samples())
    with pytest.raises(DatasetError, match="samples 4 to 9 were asked for, there are 6"):
        open_dataset(npz(tmp_path / "d.npz"), [IMAGE]).batch(range(4, 9))


def test_an_unknown_kind_lists_the_legal_ones() -> None:
    with pytest.raises(DatasetError, match="unknown dataset kind 'npy'") as caught:
        open_dataset(DatasetRef("npy"), [IMAGE])
    assert "did you mean 'npz'" in str(caught.value)


def npy_with(header: str, body: bytes = b"") -> bytes:
    """An .npy of this header, whatever it says."""
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def header(shape: str, descr: str = "'<f4'", fortran: bool = False) -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}"


BROKEN_HEADERS = [
    header("(3,")[:-1],
    header("(3, 4)").replace("}", ", "),
    "{'descr': (((",
    '"""',
    "\x00" * 20,
    header("(" + "9" * 5000 + ",)"),
    header("(-3, 3)"),
    header("(True, 3)"),
    header("(10**9,)"),
    header("(999999999999, 3, 4, 4)"),
    header("(999999999999, 3, 4, 4)", fortran=True),
    header("(1,)", "'<f99999999999999'"),
    header("(1,)", "'O'"),
    header("(1,)", "(" * 200 + ")" * 200),
    "if x:\n\ty\n  z",
]


@pytest.mark.parametrize("text", BROKEN_HEADERS)
@pytest.mark.parametrize("kind", ["npy", "stored", "packed"])
def test_a_broken_header_is_refused_in_any_file(tmp_path: Path, text: str, kind: str) -> None:
    data = npy_with(text, b"\0" * 256)
    path = tmp_path / ("d.npy" if kind == "npy" else "d.npz")
    if kind == "npy":
        path.write_bytes(data)
    else:
        method = zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("image.npy", data)
    with pytest.raises(DatasetError, match="cannot read d"):
        open_dataset(npz(path), [IMAGE])


def test_arrays_that_would_unpack_to_gigabytes_are_refused_before_they_do(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("image.npy", npy_with(header("(16777216, 3, 4, 4)"), bytes(1 << 20)))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (0xC0000000).to_bytes(4, "little")  # claims 3 GiB
    path.write_bytes(bytes(data))
    with pytest.raises(DatasetError, match=r"unpack to 3\.0 GiB") as caught:
        open_dataset(npz(path), [IMAGE])
    assert "numpy.savez" in str(caught.value)


def test_a_member_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("image.npy", npy_with(header("(8388608, 3, 4, 4)"), bytes(1 << 10)))
    with pytest.raises(DatasetError, match="ends before its data does"):
        open_dataset(npz(path), [IMAGE])


def test_an_encrypted_or_damaged_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez_compressed(path, **samples())
    whole = path.read_bytes()
    central = whole.rindex(b"PK\x01\x02")
    for at, value in ((6, 1), (8, 1), (10, 99), (central + 8, 1), (central + 10, 99), (60, 255)):
        data = bytearray(whole)
        data[at] = value
        path.write_bytes(bytes(data))
        with contextlib.suppress(DatasetError):
            open_dataset(npz(path), [IMAGE])


def test_fortran_order_in_a_compressed_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    arrays = {"image": np.asfortranarray(samples()["image"])}
    np.savez_compressed(tmp_path / "d.npz", **arrays)
    batch = open_dataset(npz(tmp_path / "d.npz"), [IMAGE]).batch(range(6))
    np.testing.assert_array_equal(batch.inputs["image"], arrays["image"])


def test_an_array_of_the_only_input_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, features=np.ones((3, 2), np.float32), y=np.array([0, 1, 0]))
    dataset = open_dataset(npz(path), (InputSpec("input_1", (1, 2), "float32"),))
    read = dataset.batch(range(3))
    np.testing.assert_array_equal(read.inputs["input_1"], np.ones((3, 2)))
    np.testing.assert_array_equal(read.labels, [0, 1, 0])


def test_a_column_of_classes_is_one_class_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((3, 2), np.float32), labels=np.array([[2], [1], [0]], np.uint8))
    dataset = open_dataset(npz(path), (InputSpec("x", (1, 2), "float32"),))
    np.testing.assert_array_equal(dataset.labels(range(1, 3)), [1, 0])


def test_an_input_without_a_batch_axis_is_the_same_for_all_samples(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    x = np.arange(64 * 20 * 16, dtype=np.float32).reshape(64, 20, 16)
    pos = np.arange(20 * 16, dtype=np.float32).reshape(20, 16)
    np.savez(path, x=x, pos=pos)
    inputs = (InputSpec("x", (1, 20, 16), "float32"), InputSpec("pos", (20, 16), "float32"))
    dataset = open_dataset(npz(path), inputs)
    assert len(dataset) == 64
    read = dataset.batch(range(5, 7)).inputs
    np.testing.assert_array_equal(read["x"], x[5:7, np.newaxis])
    np.testing.assert_array_equal(read["pos"], [pos, pos])
