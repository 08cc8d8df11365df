"""qsearch verify: what ships is proved, and whatever was changed in it is refuted."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.ir.structural import structural_equal
from compiler.proof.checker import RULES, check, range_of
from compiler.proof.record import FORMAT, compare_record, record_of, record_state
from compiler.runtime.archive import MANIFEST, json_bytes, write_archive
from compiler.runtime.artifact import TENSORS, load_qmod
from compiler.runtime.npy import npy_bytes
from compiler.runtime.packed import pack, unpack
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.library import is_available
from qsearch.cli.main import run
from qsearch.opening.model_file import find_model

pytestmark = pytest.mark.usefixtures("quick_space")

Members = dict[str, bytes]
Change = Callable[[Members], None]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model, quantized with its own calibration data."""
    path = tmp_path_factory.mktemp("shipped") / "digits.qmod"
    qsearch.quantize("digits").save(path)
    return path


def test_the_bounds_are_derived_again_from_a_certificate(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.npz"
    assert run(["verify", str(shipped), "--certificate", str(file)]) == 0
    assert f"by compiler.proof.checker: {check(file)} bounds follow" in capsys.readouterr().out


def test_a_bound_that_does_not_follow_refutes_and_writes_no_certificate(
    shipped: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RULES, "nn.conv2d", lambda attrs, args, result: range_of("int64"))
    file = tmp_path / "m.npz"
    assert run(["verify", str(shipped), "-o", str(tmp_path / "proof.json")]) == 1
    assert "nn.conv2d: " in capsys.readouterr().out
    assert run(["verify", str(shipped), "--certificate", str(file)]) == 2
    assert "a refuted module has no certificate" in capsys.readouterr().err
    assert not file.exists()


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_stale(path: Path, members: Members) -> None:
    """All members as they are, the manifest of before among them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), members[name])


def write_rehashed(path: Path, members: Members) -> None:
    """Every hash of the manifest made to match."""
    write_archive(path, {name: data for name, data in members.items() if name != MANIFEST})


def edit_array(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(members: Members) -> None:
        array = np.load(io.BytesIO(members[name]))
        members[name] = npy_bytes(edit(array))

    return change


def edit_text(old: str, new: str) -> Change:
    def change(members: Members) -> None:
        source = members["module.relay"].decode()
        edited, count = re.subn(old, new, source, count=1)
        assert count == 1
        members["module.relay"] = edited.encode()

    return change


def tensor_named(members: Members, op: str, argument: int) -> str:
    """The name of a constant argument of the first call of an operator."""
    source = members["module.relay"].decode()
    call = next(line for line in source.splitlines() if f" {op}(" in line)
    number = re.findall(r"meta\[(\d+)", call)[argument]
    return f"k{number}"


def edit_tensor(
    members: Members, name: str, edit: Callable[[np.ndarray], np.ndarray], member: str = TENSORS
) -> None:
    tensors = unpack(members[member], member)
    members[member] = pack({**tensors, name: edit(tensors[name])})


def edit_constant(op: str, argument: int, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(members: Members) -> None:
        edit_tensor(members, tensor_named(members, op, argument), edit)

    return change


def moved(index: int, step: Any) -> Callable[[np.ndarray], np.ndarray]:
    """One element changed by ``step``."""

    def edit(array: np.ndarray) -> np.ndarray:
        flat = array.copy().reshape(-1)
        flat[index] = flat[index] - step if flat[index] > 0 else flat[index] + step
        return flat.reshape(array.shape)

    return edit


FIXED_POINT = "qnn.requantize"
CHANGES: dict[str, Change] = {
    "one weight by one step": edit_constant("nn.conv2d", 0, moved(40, 1)),
    "one weight by much": edit_constant("nn.conv2d", 0, moved(40, 100)),
    "one weight of the classifier": edit_constant("nn.dense", 0, moved(7, 1)),
    "two weights exchanged": edit_constant("nn.dense", 0, lambda w: w[:, ::-1].copy()),
    "one bias": edit_constant("add", 0, moved(3, 50)),
    "dtype of a weight": edit_constant("nn.conv2d", 0, lambda w: w.astype("int16")),
    "dtype of a result": edit_text(r'cast\((%\d+), dtype="uint8"\)', r'cast(\1, dtype="int16")'),
    "dtype of an accumulator": edit_text(r'out_dtype="int32"', 'out_dtype="int16"'),
    "one multiplier by one": edit_constant(FIXED_POINT, 0, moved(2, 1)),
    "one multiplier by half": edit_constant(FIXED_POINT, 0, moved(2, 1 << 29)),
    "one shift": edit_constant(FIXED_POINT, 1, moved(2, 1)),
    "scale of an output": edit_constant(
        "multiply", 0, lambda s: np.nextafter(s, np.float32(np.inf)).astype("float32")
    ),
    "scale of the input": edit_text(r"multiply\(%input, [^ ]*f\)", "multiply(%input, 130f)"),
    "bound of a clip": edit_text(r"(qnn\.requantize.*)high=255", r"\1high=254"),
    "edge skips an operator": edit_text("relu=True, low=0", "low=-255"),
    "padding": edit_text(r"padding=\[1, 1, 1, 1\]", "padding=[2, 0, 1, 1]"),
    "an output of a sample": edit_array("samples/s1_output0.npy", moved(3, np.float32(0.001))),
    "an input of a sample": edit_array("samples/s2_input0.npy", moved(30, np.float32(1.0))),
}
# Too small for the outputs of four samples: only the record shows these.
NEEDS_THE_RECORD = {
    *("one multiplier by one", "one weight by one step", "bound of a clip"),
    "dtype of a weight",
}


def test_what_compile_writes_is_proved(shipped: Path) -> None:
    found = qsearch.verify(shipped)
    assert found.findings == ()
    assert found.proved
    assert found.record == "agrees"
    assert found.acceptable(require_record=True)
    tested = found.to_dict()["tested"]
    # Stored samples; four kinds of inputs of main, two of the core, on each of the other executors.
    executors = 1 + (find_compiler() is not None) + is_available()
    assert [row["differing"] for row in tested] == [0] * (1 + 6 * executors)
    assert found.evaluation is None


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_with_stale_hashes_is_refuted(
    name: str, shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = members_of(shipped)
    CHANGES[name](members)
    write_stale(tmp_path / "m.qmod", members)
    assert run(["verify", str(tmp_path / "m.qmod")]) == 1
    assert "REFUTED" in capsys.readouterr().out
    assert [f.check for f in qsearch.verify(tmp_path / "m.qmod").findings] == ["hashes"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_with_every_hash_rewritten_is_refuted(
    name: str, shipped: Path, tmp_path: Path
) -> None:
    members = members_of(shipped)
    CHANGES[name](members)
    write_rehashed(tmp_path / "m.qmod", members)
    found = qsearch.verify(tmp_path / "m.qmod")
    assert not found.acceptable()
    assert {f.check for f in found.findings} <= {"types", "ranges", "samples"}
    # Samples are no part of the module; an ill-typed module cannot be compared.
    compared = "agrees" if name.endswith("a sample") else "disagrees"
    assert found.record == ("missing" if found.proof is None else compared)
    # What the record says is no finding.
    assert not found.proved or name in NEEDS_THE_RECORD


@pytest.mark.parametrize("name", ["padding", "two weights exchanged"])
def test_most_changes_show_without_the_record(name: str, shipped: Path, tmp_path: Path) -> None:
    members = members_of(shipped)
    CHANGES[name](members)
    del members["proof.json"]
    write_rehashed(tmp_path / "m.qmod", members)
    found = qsearch.verify(tmp_path / "m.qmod")
    assert found.record == "missing"
    assert not found.proved


def weights_that_keep_every_sum(weights: np.ndarray) -> np.ndarray:
    """+1, −2, +1 on three neighbours that no sample notices: sums and weighted sums stay."""
    flat = weights.copy().reshape(-1).astype(np.int64)
    at = next(
        i
        for i in range(flat.size - 2)
        if flat[i : i + 3].min() > -126 and flat[i : i + 3].max() < 126
    )
    flat[at : at + 3] += (1, -2, 1)
    return flat.reshape(weights.shape).astype(weights.dtype)


def test_weights_changed_by_1_minus_2_1_disagree_with_the_record(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = members_of(shipped)
    edit_constant("nn.conv2d", 0, weights_that_keep_every_sum)(members)
    # Nothing but the record is left to notice it.
    for name in [name for name in members if name.startswith("samples/")]:
        del members[name]
    data = tmp_path / "data.npz"
    np.savez(data, input=np.zeros((1, 1, 8, 8), "float32"))
    write_rehashed(tmp_path / "m.qmod", members)
    assert run(["verify", str(tmp_path / "m.qmod"), "--eval", str(data)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("m.qmod: proved")
    assert lines[1].startswith("record: the writer's record DISAGREES")
    found = qsearch.verify(tmp_path / "m.qmod", data)
    assert "@quantized_main" in [finding.node for finding in found.record_findings]
    assert all(finding.what.startswith("has SHA-256 ") for finding in found.record_findings)


def with_record(path: Path, change: Callable[[dict[str, Any]], None] | None) -> Path:
    """The file with another record, or without one."""
    members = members_of(path)
    record = json.loads(members.pop("proof.json"))
    if change is not None:
        change(record)
        members["proof.json"] = json_bytes(record)
    copy = path.with_name(f"changed_{path.name}")
    write_archive(copy, {n: d for n, d in members.items() if n != MANIFEST})
    return copy


def test_a_record_of_a_format_nobody_wrote_disagrees(shipped: Path) -> None:
    found = qsearch.verify(with_record(shipped, lambda record: record.update(format=99)))
    assert found.proved
    assert found.record == "disagrees"
    assert not found.acceptable()
    assert found.proof is not None
    derived = found.proof.to_dict()
    for value in (99, str(FORMAT), float(FORMAT), True, None, 0, -1, [FORMAT]):
        record = {**record_of(derived), "format": value}
        assert record_state(record) == "disagrees"
        (finding,) = compare_record(record, derived)
        assert "a newer qsearch wrote it, or it was changed" in finding.what


PARTS = ("@quantized_main", "@main", "bounds of values", "conversions")


@pytest.mark.parametrize("how", ["dropped", "added", "another kind", "another digest"])
def test_a_record_that_was_edited_alone_disagrees(how: str, shipped: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        digests = record["sha256"]
        if how == "dropped":
            record["sha256"] = {part: digests[part] for part in digests if part not in PARTS}
        elif how == "added":
            digests |= {f"{part} too": digests[part] for part in PARTS}
        elif how == "another kind":
            record["sha256"] = list(digests)
        else:
            digests |= dict.fromkeys(PARTS, "0" * 64)

    found = qsearch.verify(with_record(shipped, change))
    assert found.record == "disagrees"
    said = "".join(f"{finding.node} {finding.what}" for finding in found.record_findings)
    assert all(part in said for part in (PARTS if how != "another kind" else ["no digests"]))


def test_a_missing_record_is_said_and_refused_on_request(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(with_record(shipped, None))
    assert run(["verify", path]) == 0
    assert "record: the writer's record is missing" in capsys.readouterr().out
    assert run(["verify", path, "--require-record"]) == 1
    assert run(["verify", path, "--record"]) == 0
    assert run(["verify", path, "--require-record"]) == 0
    assert members_of(Path(path))["proof.json"] == members_of(shipped)["proof.json"]


def test_a_proof_that_no_file_takes_is_told_all_the_same(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(shipped), "-o", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert ": proved\n" in out
    assert "name another file with -o" in err
    assert "trials" not in err


def test_a_record_that_disagrees_is_not_replaced(shipped: Path) -> None:
    path = with_record(shipped, lambda record: record.update(verdict="refuted"))
    before = path.read_bytes()
    assert qsearch.verify(path, record=True).record == "disagrees"
    assert path.read_bytes() == before


def test_data_is_scored_and_compared_on_both_executors(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    data = tmp_path / "data.npz"
    images = rng.uniform(0, 1, (5, 1, 8, 8)).astype("float32")
    np.savez(data, input=images, labels=np.arange(5))
    out = tmp_path / "p.json"
    words = ["verify", str(shipped), "--eval", str(data), "-o", str(out), "--json"]
    assert run(words) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads(out.read_text())
    evaluation = printed["evaluation"]
    assert evaluation["samples"] == 5
    assert evaluation["outputs_sha256"] == qsearch.run_module(shipped, data)["outputs_sha256"]
    assert printed["tested"][-1]["elements"] == 50


@pytest.mark.slow
def test_the_hash_that_the_search_stored_is_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = qsearch.launch("digits", trials=1, pool="inline", out=folder)
    data = find_model("digits").eval
    found = qsearch.verify(folder, data)
    assert found.proved
    assert found.record == "agrees"
    assert found.evaluation is not None
    stored = found.evaluation["stored_outputs_sha256"]
    assert stored == found.evaluation["outputs_sha256"]
    assert stored == result.summary["emitted"]["outputs_sha256"]
    members = members_of(folder / "best.qmod")
    provenance = json.loads(members["provenance.json"])
    provenance["outputs_sha256"] = hashlib.sha256(b"other outputs").hexdigest()
    members["provenance.json"] = json_bytes(provenance)
    write_rehashed(folder / "best.qmod", members)
    assert [f.check for f in qsearch.verify(folder, data).findings] == ["eval"]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "not a zip", "other zip"])
def test_what_is_no_module_cannot_be_read(
    damage: str, shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.qmod"
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(shipped.read_bytes()[:5000])
    elif damage == "not a zip":
        path.write_text("hello")
    elif damage == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "hello")
    assert run(["verify", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "proof.json").exists()


def test_a_module_without_its_entry_point_cannot_be_read(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = members_of(shipped)
    edit_text(r"def @main", "def @other")(members)
    write_rehashed(tmp_path / "m.qmod", members)
    assert run(["verify", str(tmp_path / "m.qmod")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_module_with_float_left_in_it_is_refuted(tmp_path: Path) -> None:
    path = tmp_path / "m.qmod"
    config = {"partition_conversions": "enabled", "skip_conv_layers": [1]}
    qsearch.quantize("digits", qconfig=config).save(path)
    found = qsearch.verify(path)
    assert found.record == "missing"
    assert {f.check for f in found.findings} == {"dtypes"}


OTHERS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "zero points": {"activation_scheme": "asymmetric", "rounding": "TONEAREST"},
    "shifts": {"requantization": "power_of_two", "weight_granularity": "tensor"},
}


@pytest.fixture(scope="module")
def modules(shipped: Path) -> dict[str, Path]:
    found = {"recommended": shipped}
    for name, config in OTHERS.items():
        if name not in found:
            found[name] = shipped.with_name(f"{name}.qmod")
            qsearch.quantize("digits", qconfig=config).save(found[name])
    return found


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("seed", range(12))
def test_any_edit_is_refuted_or_unreadable_unless_it_changes_nothing(
    seed: int,
    name: str,
    modules: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(seed)
    shipped = modules[name]
    members = members_of(shipped)
    if seed % 2:
        source = members["module.relay"].decode()
        words = list(re.finditer(r"[a-z_]+|\d+|[(),=\[\]%]", source))
        here, there = (words[i] for i in rng.integers(len(words), size=2))
        edited = source[: here.start()] + there.group() + source[here.end() :]
        members["module.relay"] = edited.encode()
    else:
        tensors = sorted(unpack(members[TENSORS], TENSORS))
        name = tensors[rng.integers(len(tensors))]
        edit_tensor(members, name, moved(int(rng.integers(10)), 1))
    path = tmp_path / "m.qmod"
    write_rehashed(path, members)
    code = run(["verify", str(path)])
    assert code in (0, 1, 2), capsys.readouterr().err
    if code == 0:
        assert structural_equal(load_qmod(path).module, load_qmod(shipped).module)


def wide_network(path: Path, side: int, channels: int) -> Path:
    """A file of 20 kB whose activations are those of a detector: convolutions with swish."""
    rng = np.random.default_rng(5)
    shapes = [(channels, 3, 3, 3), *[(channels, channels, 1, 1)] * 2]
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.2, shape).astype("float32"), f"w{place}")
        for place, shape in enumerate(shapes)
    ]
    nodes, x = [], "x"
    for place, shape in enumerate(shapes):
        pads = [shape[2] // 2] * 4
        nodes += [
            helper.make_node("Conv", [x, f"w{place}"], [f"c{place}"], pads=pads),
            helper.make_node("Sigmoid", [f"c{place}"], [f"s{place}"]),
            helper.make_node("Mul", [f"c{place}", f"s{place}"], [f"m{place}"]),
        ]
        x = f"m{place}"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 3, side, side)), ("y", (1, channels, 1, 1)))
    ]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.slow
def test_a_module_with_activations_of_true_size_verifies_without_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its work is beyond what a small file may take in all runs, so verify takes fewer."""
    model, out = wide_network(tmp_path / "wide.onnx", 384, 16), tmp_path / "wide.qmod"
    np.save(tmp_path / "c.npy", np.random.default_rng(1).normal(size=(1, 3, 384, 384)))
    words = ["compile", "--model", str(model), "--calib", str(tmp_path / "c.npy"), "-o", str(out)]
    assert run(words) == 0
    assert "--allow-large" not in capsys.readouterr().err
    assert run(["verify", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{out}: proved" in said
    taken = re.search(r"reference and integer ONNX, extreme integers: (\d) of 5 runs", said)
    assert taken is not None
    assert 1 <= int(taken[1]) < 5


def test_a_network_that_cannot_be_verified_is_told_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = wide_network(tmp_path / "wide.onnx", 2560, 64)
    monkeypatch.setattr("qsearch.commands.quantization.Calibration", None)
    with pytest.raises(TypeError):  # of the calibration, which was about to begin
        qsearch.quantize(model)
    assert "`qsearch verify` will refuse the module without --allow-large" in caplog.text
    assert "CPU seconds for one run" in caplog.text
    (told,) = qsearch.doctor(model).warnings
    assert "`qsearch verify` will refuse the module without --allow-large" in told
