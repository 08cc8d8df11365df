"""best.qmod: what is saved comes back, the same bytes every time, and nothing else is opened."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compiler import quantize, relay, structural_equal
from compiler.errors import ArtifactError, CodegenError, EvaluationError
from compiler.ir.dataflow import Step
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.proof.replay import replay_samples
from compiler.runtime import exact_executor
from compiler.runtime.archive import read_archive, write_archive
from compiler.runtime.artifact import (
    OutputHash,
    QModule,
    StoredSample,
    fitting_samples,
    load_qmod,
)
from compiler.runtime.npy import npy_bytes
from compiler.span import SequentialSpan, Span
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.planner import Planner, rules
from compiler.targets.engine.values import Item

op = relay.op
CONFIG = quantize.QConfig.recommended()


def integer_module() -> IRModule:
    rng = np.random.default_rng(0)
    x = relay.var("input:0", (1, 2, 5, 5))
    rounded = op.round(op.multiply(x, relay.const(np.float32(16))))
    q = op.cast(op.clip(rounded, a_min=-127, a_max=127), dtype="int8")
    weight = relay.const(rng.integers(-127, 128, (3, 2, 3, 3)).astype("int8"))
    total = op.nn.conv2d(q, weight, out_dtype="int32")
    body = op.multiply(op.cast(total, dtype="float32"), relay.const(np.float32(0.001)))
    return relay.module(relay.Function((x,), body))


def batch(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"input:0": rng.normal(size=(count, 2, 5, 5)).astype("float32")}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    mod = integer_module()
    path = tmp_path / "best.qmod"
    samples = [(batch(1), evaluate(mod, batch(1)))]
    QModule(mod, qconfig=CONFIG, provenance={"seed": 7}, samples=samples).save(path)
    return path


def rewritten(path: Path, change: dict[str, bytes | None]) -> Path:
    """A copy with members replaced or dropped, its hashes left as they were."""
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    members.update({k: v for k, v in change.items() if v is not None})
    for name in (k for k, v in change.items() if v is None):
        del members[name]
    copy = path.with_name("copy.qmod")
    with zipfile.ZipFile(copy, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return copy


def test_a_loaded_module_is_the_saved_one(saved: Path) -> None:
    found = load_qmod(saved)
    assert structural_equal(found.module, integer_module())
    assert found.qconfig == CONFIG
    assert found.provenance == {"seed": 7}
    ((inputs, outputs),) = found.samples
    np.testing.assert_array_equal(inputs["input:0"], batch(1)["input:0"])
    np.testing.assert_array_equal(outputs[0], found.run(inputs)[0])
    assert found.functions == ["main"]
    assert found.input_names == ("input:0",)


def pictures(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Bytes with mean and scale of each channel, as a preprocessing gives them."""
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype("float32")
    places = (1, -1, *[1] * (len(shape) - 2))
    mean, scale = (np.arange(shape[1], dtype="float32").reshape(places) + k for k in (-1, 1))
    return (pixels / np.float32(255) - mean) / scale


def copied(sample: np.ndarray) -> IRModule:
    x = relay.var("x", sample.shape)
    return relay.module(relay.Function((x,), op.add(x, relay.const(np.float32(0)))))


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        (pictures((1, 3, 96, 96)), 0.35),
        (np.random.default_rng(1).normal(size=(1, 3, 96, 96)).astype("float32"), 1.1),
        (np.full((2, 3, 64, 64), -0.0, "float32"), 0.4),
        (np.where(pictures((1, 1, 96, 96)) > 0, np.nan, np.inf).astype("float32"), 0.4),
        (pictures((1, 3, 4, 4)), 20.0),
    ],
)
def test_pictures_are_stored_as_bytes_and_read_bit_for_bit(
    tmp_path: Path, sample: np.ndarray, share: float
) -> None:
    mod = copied(sample)
    QModule(mod, samples=[({"x": sample}, [sample])]).save(tmp_path / "with.qmod")
    QModule(mod).save(tmp_path / "without.qmod")
    ((inputs, outputs),) = load_qmod(tmp_path / "with.qmod").samples
    for found in (inputs["x"], *outputs):
        assert found.dtype == sample.dtype
        assert found.tobytes() == sample.tobytes()
    grown = (tmp_path / "with.qmod").stat().st_size - (tmp_path / "without.qmod").stat().st_size
    assert grown <= share * 2 * sample.nbytes


def test_samples_behind_the_first_take_a_share_of_the_constants() -> None:
    weight = np.random.default_rng(0).integers(-128, 128, (40, 2500)).astype("int8")
    x = relay.var("x", (1, 2500))
    made_of = op.nn.dense(op.cast(x, dtype="int8"), relay.const(weight))
    mod, asked = relay.module(relay.Function((x,), made_of)), []

    def samples(values: int) -> list[StoredSample]:
        asked.clear()

        def run(given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            asked.append(given)
            return []

        rng = np.random.default_rng(0)
        runs = [{"x": rng.normal(size=values).astype("float32")} for _ in range(4)]
        return fitting_samples(mod, runs, run)

    assert len(samples(100)) == 4
    assert len(samples(1300)) == len(asked) == 1
    assert len(samples(600)) == len(asked) == 2


def test_samples_of_a_small_module_with_large_inputs_stay_below_64_kilobytes(
    tmp_path: Path,
) -> None:
    """States of zeros take an element, a large output its hash, a large input its beginning."""
    x, state = relay.var("x", (1, 3, 128, 128)), relay.var("state", (1, 5000))
    mod = relay.module(relay.Function((x, state), relay.Tuple([op.exp(x), op.exp(state)])))
    given = {"x": np.random.default_rng(0).normal(size=(1, 3, 128, 128)).astype("float32")}
    given["state"] = np.zeros((1, 5000), "float32")
    ((inputs, outputs),) = fitting_samples(mod, [given], partial(evaluate, mod))
    QModule(mod, samples=[(inputs, outputs)]).save(tmp_path / "with.qmod")
    QModule(mod).save(tmp_path / "without.qmod")
    grown = (tmp_path / "with.qmod").stat().st_size - (tmp_path / "without.qmod").stat().st_size
    assert grown < 1 << 16
    ((found, wanted),) = load_qmod(tmp_path / "with.qmod").samples
    assert found["x"].tobytes() == inputs["x"].tobytes()
    assert not found["state"].any()
    assert isinstance(wanted[0], OutputHash)
    assert not isinstance(wanted[1], OutputHash)
    assert replay_samples(mod, [(found, wanted)], 1).differing == 0
    changed = replace(wanted[0], sha256="0" * 64)
    assert replay_samples(mod, [(found, [changed, wanted[1]])], 1).differing == found["x"].size


def test_codes_that_do_not_fit_their_table_are_refused(tmp_path: Path) -> None:
    sample = pictures((1, 3, 96, 96))
    path = tmp_path / "m.qmod"
    QModule(copied(sample), samples=[({"x": sample}, [sample])]).save(path)
    members = read_archive(path)
    write_archive(path, {**members, "samples/s0_input0_values.npy": npy_bytes(np.zeros((2, 256)))})
    with pytest.raises(ArtifactError, match="does not fit"):
        load_qmod(path)


def test_a_printed_module_is_short(saved: Path) -> None:
    found = repr(load_qmod(saved))
    assert found.startswith("QModule(module=<IRModule")
    assert "array(" not in found
    assert "sha256" not in found


def test_the_same_module_writes_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.qmod"
    load_qmod(saved).save(again)
    assert again.read_bytes() == saved.read_bytes()


def test_members_are_sorted_and_undated(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        infos = archive.infolist()
    names = [i.filename for i in infos]
    assert names == sorted(names)
    assert {i.date_time for i in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {"manifest.json", "module.relay", "qconfig.json", "provenance.json"} <= set(names)


def test_the_text_shows_no_place_it_was_read_from(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        text = archive.read("module.relay").decode()
    assert "span=" not in text


def onnx_module() -> IRModule:
    """Calls that came from one ONNX node, from two, and from a place in a text."""
    x = relay.var("x", (2, 3))
    first = op.exp(x).with_fields(span=Span("onnx:Exp_0"))
    second = op.tanh(first).with_fields(span=SequentialSpan((Span("onnx:a"), Span("onnx:b/*"))))
    third = op.negative(second).with_fields(span=Span("/home/of/somebody.relay", 3, 3, 1, 9))
    return relay.module(relay.Function((x,), third))


def test_calls_keep_the_onnx_nodes_they_came_from(tmp_path: Path) -> None:
    path, again = tmp_path / "m.qmod", tmp_path / "again.qmod"
    QModule(onnx_module()).save(path)
    found = load_qmod(path)
    third = found.main.body
    (second,) = third.args
    assert str(second.span) == "ONNX node 'a'; ONNX node 'b/*'"
    assert str(second.args[0].span) == "ONNX node 'Exp_0'"
    assert str(third.span).startswith("module.relay:")
    found.save(again)
    assert again.read_bytes() == path.read_bytes()
    assert b"somebody" not in path.read_bytes()


def test_text_and_spans_name_a_constant_and_a_first_node_by_a_number(tmp_path: Path) -> None:
    x = relay.var("x", (2, 3))
    weight = relay.const(np.arange(6, dtype=np.float32).reshape(2, 3))
    body = op.add(op.add(x, weight).with_fields(span=Span("onnx:Add_0")), weight)
    QModule(relay.module(relay.Function((x,), body))).save(tmp_path / "m.qmod")
    members = read_archive(tmp_path / "m.qmod")
    assert b"add(%x, meta[0])" in members["module.relay"]
    assert b"metadata" not in members["module.relay"]
    assert json.loads(members["spans.json"]) == {"spans": ["Add_0"], "calls": [1, 0]}
    found = load_qmod(tmp_path / "m.qmod").main.body
    assert found.args[1] is found.args[0].args[1]
    assert str(found.args[0].span) == "ONNX node 'Add_0'"


@pytest.mark.parametrize(
    "listed",
    [
        {},
        {"spans": [], "calls": [0, 0, 0]},
        {"spans": [], "calls": [-1]},
        {"spans": [[["onnx:a", 0, 0, 0]]], "calls": [0, 0, 0]},
        {"spans": [[["onnx:a", 0, 0, 0, "0"]]], "calls": [0, 0, 0]},
        {"spans": [["onnx:a"]], "calls": [0, 0, True]},
        {"spans": "onnx:a", "calls": 3},
        {"spans": ["a"], "calls": [2, 0, 0]},
        {"spans": ["a"], "calls": [1, 1, 0]},
        {"spans": ["a"], "calls": [[0], True, 0]},
        {"spans": ["a"], "calls": [10**30, -1, 0]},
    ],
)
def test_a_list_of_onnx_nodes_that_does_not_fit_names_nothing(
    listed: object, tmp_path: Path
) -> None:
    path = tmp_path / "m.qmod"
    QModule(onnx_module()).save(path)
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist() if n != "manifest.json"}
    members["spans.json"] = json.dumps(listed).encode()
    write_archive(path, members)
    found = load_qmod(path)
    assert str(found.main.body.args[0].span).startswith("module.relay:")
    assert structural_equal(found.module, onnx_module())


def test_a_batch_is_run_sample_by_sample(saved: Path) -> None:
    found = load_qmod(saved)
    (whole,) = found.run(batch(3))
    single = [found.run({"input:0": batch(3)["input:0"][i : i + 1]})[0] for i in range(3)]
    np.testing.assert_array_equal(whole, np.concatenate(single))


def test_onnxruntime_gives_the_integers_of_the_reference(saved: Path) -> None:
    found = load_qmod(saved)
    (expected,), (other,) = found.run(batch(2)), found.run(batch(2), executor="integer")
    assert expected.tobytes() == other.tobytes()


def quantized(partition: str, tmp_path: Path) -> QModule:
    """A small network, quantized; saved and loaded again."""
    weight = relay.const(np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype("float32"))
    data = relay.var("x", (1, 3, 8, 8))
    mod = relay.module(op.nn.relu(op.nn.conv2d(data, weight, padding=1)))
    fields = {"calibrate_mode": "global_scale", "partition_conversions": partition}
    with quantize.QConfig.recommended(**fields):
        QModule(quantize.quantize(mod)).save(tmp_path / "m.qmod")
    return load_qmod(tmp_path / "m.qmod")


@pytest.mark.parametrize("partition", ["fully_integral", "disabled"])
def test_the_default_executor_gives_the_bits_of_the_reference(
    partition: str, tmp_path: Path
) -> None:
    found = quantized(partition, tmp_path)
    rows = np.random.default_rng(1).normal(size=(5, 3, 8, 8)).astype("float32")
    (fast,), (exact,) = found.run({"x": rows}), found.run({"x": rows}, "reference")
    assert fast.tobytes() == exact.tobytes()
    fastest = "integer" if find_compiler() is None else "engine"
    assert (fastest in found._executors) == (partition == "fully_integral")


def test_threads_share_the_samples_of_a_batch(tmp_path: Path) -> None:
    found = quantized("fully_integral", tmp_path)
    rows = np.random.default_rng(1).normal(size=(7, 3, 8, 8)).astype("float32")
    (shared,), (alone,) = found.run({"x": rows}, threads=3), found.run({"x": rows}, "reference")
    assert shared.tobytes() == alone.tobytes()


@pytest.mark.parametrize("executor", ["engine", "reference"])
def test_samples_whose_outputs_have_no_axis_are_no_batch(executor: str) -> None:
    x = relay.var("x", (1, 4), "int32")
    found = QModule(relay.module(relay.Function([x], op.sum(x))))
    rows = np.arange(8, dtype="int32").reshape(2, 4)
    assert [int(out) for out in found.run([rows[:1]], executor)] == [6]
    with pytest.raises(EvaluationError, match="the parameter is"):
        found.run([rows], executor)


def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(isa: str | None = None) -> None:
        raise CodegenError("no C compiler found", fix="install one")

    monkeypatch.setattr("compiler.targets.engine.executor.load_library", refuse)
    exact_executor._say_once.cache_clear()  # another test of this process may have heard it


def test_without_a_compiler_the_default_executor_is_the_integer_onnx_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_a_compiler(monkeypatch)
    for _ in range(2):
        found = quantized("fully_integral", tmp_path)
        found.run({"x": np.zeros((1, 3, 8, 8), "float32")})
        assert set(found._executors) == {"auto", "integer"}
    assert [r.getMessage() for r in caplog.records if "compiler" in r.getMessage()] == [
        "no C compiler found: onnxruntime runs the module in integers, up to 8 times slower than "
        "the engine; install one"
    ]


def test_onnxruntime_runs_what_the_engine_cannot_plan_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defect(planner: Planner, step: Step, args: Sequence[Item]) -> bool:
        return args[99].is_integer

    monkeypatch.setitem(rules, "nn.conv2d", defect)
    found = quantized("fully_integral", tmp_path)
    found.run({"x": np.zeros((1, 3, 8, 8), "float32")})
    assert set(found._executors) == {"auto", "integer"}
    (said,) = (r.getMessage() for r in caplog.records if "cannot plan" in r.getMessage())
    assert said.startswith("the engine cannot plan nn.conv2d: IndexError")
    assert "onnxruntime runs the module in integers" in said


def test_a_module_whose_operators_have_no_kernels_of_their_own_stays_on_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules, "nn.relu", lambda planner, step, args: False)
    monkeypatch.setitem(rules, "nn.conv2d", lambda planner, step, args: False)
    found = quantized("fully_integral", tmp_path)
    rows = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype("float32")
    (fast,), (exact,) = found.run({"x": rows}), found.run({"x": rows}, "reference")
    assert fast.tobytes() == exact.tobytes()
    assert set(found._executors) == {"auto", "engine", "reference"}


def test_without_compiler_and_onnxruntime_the_default_executor_is_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = quantized("fully_integral", tmp_path)
    without_a_compiler(monkeypatch)
    monkeypatch.setitem(sys.modules, "compiler.targets.ort.integer_executor", None)
    found.run({"x": np.zeros((1, 3, 8, 8), "float32")})
    assert set(found._executors) == {"auto", "reference"}


def test_an_input_that_does_not_fit_names_both_sides(saved: Path) -> None:
    with pytest.raises(EvaluationError) as error:
        load_qmod(saved).run({"input:0": np.ones((1, 2, 5, 6), "float32")})
    assert "(1, 2, 5, 6)" in str(error.value)


def test_an_unknown_executor_lists_the_ones_there_are(saved: Path) -> None:
    with pytest.raises(EvaluationError, match="unknown executor 'gird'"):
        load_qmod(saved).run(batch(1), executor="gird")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no file"):
        load_qmod(tmp_path / "none.qmod")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + b"\0" * 40])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.qmod"
    path.write_bytes(content)
    with pytest.raises(ArtifactError):
        load_qmod(path)


def test_a_foreign_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.qmod"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(ArtifactError, match="it has no manifest"):
        load_qmod(path)


def test_every_cut_and_every_flipped_byte_is_noticed(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "bad.qmod"
    for length in range(0, len(data), 997):
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            load_qmod(path)
    with zipfile.ZipFile(saved) as archive:
        sample = archive.getinfo("samples/s0_output0.npy")
    flipped = bytearray(data)
    flipped[data.index(b"\x93NUMPY", sample.header_offset) + 130] ^= 1
    path.write_bytes(bytes(flipped))
    with pytest.raises(ArtifactError, match="damaged"):
        load_qmod(path)


def test_a_changed_member_is_noticed(saved: Path) -> None:
    with pytest.raises(ArtifactError, match=r"damaged: 'qconfig.json'"):
        load_qmod(rewritten(saved, {"qconfig.json": b"{}"}))


@pytest.mark.parametrize("change", [{"qconfig.json": None}, {"samples/more.npy": b"x"}])
def test_members_more_or_less_are_noticed(saved: Path, change: dict[str, bytes | None]) -> None:
    with pytest.raises(ArtifactError, match="manifest"):
        load_qmod(rewritten(saved, change))


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/passwd", "a/b/c.npy", "UPPER.TXT", "a\\b.c"])
def test_names_that_could_leave_the_archive_are_refused(saved: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="which no "):
        load_qmod(rewritten(saved, {name: b"x"}))


def test_another_format_version_is_told(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["format_version"] = 99
    changed = rewritten(saved, {"manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(ArtifactError, match="format version 99"):
        load_qmod(changed)


def test_a_packed_member_is_not_unpacked(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.qmod"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("module.relay", b"\0" * 10_000_000)
    with pytest.raises(ArtifactError, match="packed"):
        load_qmod(path)


def test_an_array_of_objects_is_not_read() -> None:
    from compiler.runtime.npy import array_of

    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ArtifactError, match="not an array"):
        array_of(stream.getvalue(), "samples/s0_input0.npy")


def test_an_array_with_less_data_than_its_header_says_is_refused() -> None:
    from compiler.runtime.npy import array_of

    with pytest.raises(ArtifactError, match="not an array"):
        array_of(npy_bytes(np.arange(10))[:-1], "samples/s0_input0.npy")


def test_a_module_without_qconfig_is_legal(tmp_path: Path) -> None:
    path = tmp_path / "plain.qmod"
    QModule(integer_module()).save(path)
    assert load_qmod(path).qconfig is None


def test_inputs_of_one_name_are_run_in_order_and_cannot_have_samples(tmp_path: Path) -> None:
    x, y = relay.var("x", (1, 3)), relay.var("x", (1, 3))
    mod = relay.module(relay.Function((x, y), relay.op.subtract(relay.op.multiply(x, 2.0), y)))
    module = QModule(mod)
    first, second = np.arange(6, dtype="f").reshape(2, 3), np.ones((2, 3), "f")
    (got,) = module.run([first, second])
    np.testing.assert_array_equal(got, 2 * first - second)
    with pytest.raises(EvaluationError, match="2 parameters are named 'x'"):
        module.run({"x": first})
    with pytest.raises(ArtifactError, match="two inputs have one name"):
        QModule(mod, samples=[({"x": first}, [first])]).save(tmp_path / "n.qmod")


@pytest.mark.parametrize("executor", ["auto", "engine", "reference"])
def test_a_prepared_call_gives_what_run_gives(executor: str, tmp_path: Path) -> None:
    found = quantized("fully_integral", tmp_path)
    call = found.prepare(executor, threads=2)
    rows = np.random.default_rng(2).normal(size=(6, 3, 8, 8)).astype("float32")
    (wanted,) = found.run({"x": rows}, "reference")
    still = rows[:1].copy()
    still.flags.writeable = False
    turned = np.ascontiguousarray(rows[:1].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for given in ({"x": rows[:1]}, [rows[:1]], rows[:1], (still,), {"x": turned}):
        np.testing.assert_array_equal(call(given)[0], wanted[:1])
    np.testing.assert_array_equal(call({"x": rows})[0], wanted)
    for wrong in ({"y": rows[:1]}, [rows[:1]] * 2, rows[:1, :2], rows[:1].astype("int8")):
        with pytest.raises(EvaluationError):
            call(wrong)


def test_what_a_call_gave_stays_as_it_was_after_the_next(tmp_path: Path) -> None:
    call = quantized("fully_integral", tmp_path).prepare()
    rows = np.random.default_rng(3).normal(size=(2, 1, 3, 8, 8)).astype("float32")
    (first,) = call(rows[0])
    kept = first.copy()
    (second,) = call(rows[1])
    np.testing.assert_array_equal(first, kept)
    assert (first != second).any()


def test_a_copy_of_a_module_that_ran_gives_the_same(saved: Path) -> None:
    module = load_qmod(saved)
    first = module.run(batch(1))
    copy = deepcopy(module)
    np.testing.assert_array_equal(copy.run(batch(1))[0], first[0])


def test_a_module_is_called_with_inputs_in_order_by_name_or_as_a_mapping() -> None:
    x, y = relay.var("x", (1, 3)), relay.var("y", (1, 3))
    module = QModule(relay.module(relay.Function((x, y), relay.op.subtract(x, y))))
    first, second = np.arange(3, dtype="f")[None], np.ones((1, 3), "f")
    inputs = {"y": second, "x": first}
    for found in (module(first, second), module(**inputs), module(inputs)):
        np.testing.assert_array_equal(found, first - second)
