"""A session measures once: what a resumed study asks of its workers, and what it writes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.qtypes.qconfig import QConfig
from qsearch.cli.main import run
from qsearch.errors import (
    ModelFileError,
    RunFolderError,
    SearchFailedError,
    StoreError,
    exit_code_of,
)
from qsearch.opening.model_file import find_model
from qsearch.report.html import study_data
from qsearch.run.progress import Progress
from qsearch.run.run_folder import find_study
from qsearch.search import launch
from qsearch.search.scoring import evaluator_of_flag
from qsearch.store.records import Trial
from tests.qsearch.quick import QUICK_SPACE
from workers import candidates
from workers.errors import DataChangedError, LostClusterError
from workers.messages import CalibrationRequest, EvaluationRequest
from workers.pool.queued_pool import InlinePool


class RecordingPool(InlinePool):
    """Counts what is asked of the workers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def submit(
        self, tag: Hashable, request: Any, group: Hashable = None, first: bool = False
    ) -> None:
        if isinstance(request, CalibrationRequest):
            self.asked[request.measurement.step] += 1
        elif isinstance(request, EvaluationRequest):
            first = group is not None and request.part[0] == 0
            kind = " trial" if first else " file" if request.build.module is not None else ""
            self.asked[request.build.evaluator + kind] += group is None or first
        super().submit(tag, request, group, first)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[RecordingPool]:
    """The pools of the searches that follow, in order."""
    made: list[RecordingPool] = []

    def open_pool(*_: object) -> RecordingPool:
        made.append(RecordingPool())
        return made[-1]

    monkeypatch.setattr(launch, "open_pool", open_pool)
    return made


SCORER = evaluator_of_flag("auto")
"""What scores candidates on this machine."""


def graph_variants(trials: list[Trial]) -> set[str]:
    """What is measured once each: the graphs whose points need ranges from data."""
    configs = [QConfig.from_dict(trial.qconfig) for trial in trials]
    return {
        json.dumps(config.calibration_fields())
        for config in configs
        if config.calibrate_mode != "global_scale"
    }


@pytest.mark.slow
def test_calibration_and_baseline_are_done_once_per_study(
    pools: list[RecordingPool], tmp_path: Path
) -> None:
    options = {"pool": "inline", "out": tmp_path / "run"}
    first = qsearch.launch("digits", trials=4, **options)
    graphs = graph_variants(first.trials)
    assert pools[0].asked["channels"] == pools[0].asked["sample"] == 1
    # All rescalings of the space are counted in the same two passes.
    assert pools[0].asked["ranges"] == pools[0].asked["histograms"] == 1 < len(graphs)
    # The baseline, and two other preparations: clearly worse on 8 images, and on 8 more.
    assert pools[0].asked["float"] == 20 + 3
    assert pools[0].asked[f"{SCORER} trial"] == 4
    again = qsearch.launch("digits", trials=6, **options)
    assert pools[1].asked["channels"] == pools[1].asked["float"] == 0
    assert pools[1].asked["ranges"] == 0
    fresh = [trial for trial in again.trials[4:] if not trial.outcome.from_store]
    assert pools[1].asked[f"{SCORER} trial"] == len(fresh) <= 2
    assert again.trials[:4] == first.trials
    assert again.summary["calibration_cpu_s"] >= first.summary["calibration_cpu_s"]


@pytest.mark.usefixtures("quick_space")
def test_a_winner_that_was_checked_is_not_checked_again(
    pools: list[RecordingPool], tmp_path: Path
) -> None:
    options = {"pool": "inline", "out": tmp_path / "run", "trials": 2}
    first = qsearch.launch("digits", **options)
    again = qsearch.launch("digits", **options)
    assert (pools[0].asked[f"{SCORER} file"], pools[0].asked["reference file"]) == (20, 8)
    twice = pools[0].asked[SCORER] + pools[0].asked["reference"]
    assert twice == 0, "equal hashes need no second look"
    assert sum(pools[1].asked.values()) == 0
    assert again.summary["emitted"] == first.summary["emitted"]
    assert again.best_module().text() == first.best_module().text()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_space")
def test_the_file_of_a_winner_is_written_again_only_where_it_is_another(tmp_path: Path) -> None:
    options = {"pool": "inline", "out": tmp_path / "run", "trials": 2}
    file = tmp_path / "run" / "best.qmod"

    def written() -> tuple[int, bytes]:
        qsearch.launch("digits", **options)
        return file.stat().st_mtime_ns, file.read_bytes()

    when, held = written()
    assert written() == (when, held)
    file.write_bytes(held[:-1])
    changed, mended = written()
    assert changed > when
    assert mended == held
    file.unlink()
    assert written()[1] == held
    chosen = tmp_path / "run" / "qconfig.json"
    fields = chosen.read_bytes()
    chosen.unlink()
    assert written()[1] == held
    assert chosen.read_bytes() == fields


@pytest.mark.usefixtures("quick_space")
def test_the_emitted_score_is_that_of_the_exact_integers(tmp_path: Path) -> None:
    result = qsearch.launch("digits", trials=1, pool="inline", out=tmp_path / "run")
    emitted, best = result.summary["emitted"], result.summary["best"]
    assert "front" not in result.summary  # nothing is minimised
    module = result.best_module()
    with np.load(Path(qsearch.__file__).parent / "models" / "digits_dev.npz") as data:
        outputs = [module.run({"input": x[np.newaxis]})[0][0] for x in data["input"]]
        right = np.argmax(outputs, axis=1) == data["labels"]
    assert emitted["top1"] == pytest.approx(float(np.mean(right)), abs=0)
    assert (emitted["top1"], emitted["agreement"]) == (best["top1"], best["agreement"])
    # Sums of shards are added in another order than those of one request.
    assert emitted["sqnr_db"] == pytest.approx(best["sqnr_db"], rel=1e-12)
    assert emitted["equal_outputs"] == emitted["reference_equal"] == 1.0
    assert emitted["reference_samples"] == 8


@pytest.mark.usefixtures("quick_space")
def test_a_search_that_breaks_is_no_longer_running_and_goes_on_later(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def breaks(trial: object) -> bool:
        raise ZeroDivisionError("in a callback")

    with pytest.raises(ZeroDivisionError):
        qsearch.launch("digits", trials=2, pool="inline", out=out, callbacks=[breaks])
    (row,) = qsearch.status(out)
    assert (row["state"], row["stopped"]) == ("failed", "ZeroDivisionError: in a callback")
    assert qsearch.launch("digits", trials=2, pool="inline", out=out).exit_code == 0
    (row,) = qsearch.status(out)
    assert (row["state"], row["stopped"]) == ("complete", None)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_space")
def test_other_data_is_refused_with_what_changed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    qsearch.launch("digits", trials=1, pool="inline", out=out)
    calib = np.random.default_rng(0).random((8, 1, 8, 8)).astype(np.float32)
    with pytest.raises(RunFolderError, match="calib_sha256"):
        qsearch.launch("digits", calib=calib, trials=1, pool="inline", out=out)
    fresh = qsearch.launch("digits", calib=calib, trials=1, pool="inline", out=out, fresh=True)
    assert fresh.summary["trials"]["complete"] == 1


def _remainder_model(path: Path) -> Path:
    """A model with a remainder of real numbers, which stays in float."""
    import onnx
    from onnx import TensorProto, helper

    weight = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Mod", ["h", "half"], ["p"], name="keeps_float", fmod=1),
            helper.make_node("Add", ["h", "p"], ["s"]),
            helper.make_node("MatMul", ["s", "v"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8))],
        [
            onnx.numpy_helper.from_array(weight, "w"),
            onnx.numpy_helper.from_array(weight.T.copy(), "v"),
            onnx.numpy_helper.from_array(np.float32(0.5), "half"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_model_that_cannot_be_integer_says_why_and_runs_with_allow_float(
    tmp_path: Path,
) -> None:
    path = _remainder_model(tmp_path / "m.onnx")
    data = (np.random.default_rng(2).random((40, 8)) + 0.5).astype(np.float32)
    options = {"calib": data, "eval": data, "trials": 3, "pool": "inline"}
    with pytest.raises(SearchFailedError, match="none of 3 trials gave a module: 3 keep"):
        qsearch.launch(path, out=tmp_path / "strict", **options)
    report = (tmp_path / "strict" / "report.json").read_text()
    assert '"infeasible": 3' in report
    result = qsearch.launch(path, out=tmp_path / "loose", allow_float=True, **options)
    assert result.best_params["partition_conversions"] != "fully_integral"
    assert result.best_module().run({"x": data[:1]})[0].shape == (1, 8)


@pytest.mark.slow
def test_a_model_that_stays_partly_float_is_told_first_and_tries_mixed_modules_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = _remainder_model(tmp_path / "m.onnx")
    data = (np.random.default_rng(2).random((40, 8)) + 0.5).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=data)
    words = ["launch", "--model", str(path), "--calib", str(tmp_path / "data.npz")]
    words += ["--trials", "4", "--pool", "inline", "--max-drop", "1"]
    assert run([*words, "-o", str(tmp_path / "loose"), "--allow-float"]) == 0
    shown = capfd.readouterr().err
    assert shown.index("keeps_float") < shown.index("calibration:")
    assert "modules with float parts are tried first" in shown
    report = json.loads((tmp_path / "loose" / "report.json").read_text())
    repairs = "trial" in (report["audit"] or {})  # what the audit mends is one more trial
    assert report["trials"]["complete"] == 4 + repairs
    assert run([*words, "-o", str(tmp_path / "strict")]) == 1
    shown = capfd.readouterr().err
    assert shown.index("--allow-float") < shown.index("calibration:")


QUICK = {"trials": 2, "pool": "inline", "prune": 0, "space": QUICK_SPACE}


def few_samples(folder: Path) -> Path:
    """The first evaluation samples of the shipped model, as a file of their own."""
    with np.load(str(find_model("digits").eval)) as archive:
        np.savez(folder / "eval.npz", **{name: archive[name][:40] for name in archive.files})
    return folder / "eval.npz"


def shuffled(data: Path) -> None:
    with np.load(data) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["labels"] = np.roll(arrays["labels"], 1)
    np.savez(data, **arrays)


@pytest.mark.slow
def test_evaluation_data_replaced_during_a_search_end_the_search_and_lose_nothing(
    tmp_path: Path,
) -> None:
    data, run = few_samples(tmp_path), tmp_path / "run"
    earlier = data.read_bytes()
    search = {"calib": data, "eval": data, **QUICK}

    def replace(trial: Trial) -> None:
        if trial.number == 0:
            shuffled(data)

    with pytest.raises(DataChangedError, match=r"eval\.npz was changed") as caught:
        qsearch.launch("digits", out=run, callbacks=[replace], **search)
    assert exit_code_of(caught.value) == 2
    assert str(data) in str(caught.value)
    stored = qsearch.trials(run)
    assert [row["state"] for row in stored].count("failed") == 0
    with pytest.raises(RunFolderError, match="data"):
        qsearch.launch("digits", out=run, **search)
    data.write_bytes(earlier)
    mended = qsearch.launch("digits", out=run, **search)
    whole = qsearch.launch("digits", out=tmp_path / "whole", **search)
    assert [t.outcome.score for t in mended.trials] == [t.outcome.score for t in whole.trials]


def test_calibration_data_replaced_before_a_worker_opens_them_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = few_samples(tmp_path), tmp_path / "run"

    class Replacing(InlinePool):
        def submit(self, tag: Hashable, request: Any, *args: Any, **options: Any) -> None:
            if isinstance(request, CalibrationRequest) and request.measurement.step == "ranges":
                shuffled(data)
            super().submit(tag, request, *args, **options)

    monkeypatch.setattr(launch, "open_pool", lambda *_: Replacing())
    with pytest.raises(DataChangedError, match=r"eval\.npz was changed"):
        qsearch.launch("digits", calib=data, out=run, **QUICK)
    (row,) = qsearch.status(run)
    assert row["state"] == "failed"
    assert "eval.npz was changed" in row["stopped"]


def test_a_model_replaced_during_a_search_ends_the_search_and_can_be_put_back(
    tmp_path: Path,
) -> None:
    model, run = tmp_path / "m.onnx", tmp_path / "run"
    shutil.copy(find_model("digits").path, model)
    data = few_samples(tmp_path)
    earlier = model.read_bytes()

    def replace(_: Trial) -> None:
        model.write_bytes(earlier + b"\x0a\x00")

    search = {"calib": data, "eval": data, "out": run, **QUICK}
    with pytest.raises(ModelFileError, match=r"m\.onnx was changed") as caught:
        qsearch.launch(model, callbacks=[replace], **search)
    assert exit_code_of(caught.value) == 2
    assert not (run / "best.qmod").exists()
    model.write_bytes(earlier)
    assert qsearch.launch(model, **search).summary["trials"]["complete"] >= 1


def test_a_cluster_that_ended_is_no_bad_input() -> None:
    assert exit_code_of(LostClusterError("the head of the Ray cluster ended")) == 3


def test_a_run_folder_deleted_during_a_search_is_an_error_and_is_not_made_again(
    tmp_path: Path,
) -> None:
    run, data = tmp_path / "run", few_samples(tmp_path)

    def delete(trial: Trial) -> None:
        if trial.number == 0:
            shutil.rmtree(run)

    with pytest.raises(RunFolderError, match="the run folder was deleted") as caught:
        qsearch.launch("digits", calib=data, eval=data, out=run, callbacks=[delete], **QUICK)
    assert exit_code_of(caught.value) == 2
    assert not run.exists()


def test_a_database_deleted_during_a_search_is_an_error(tmp_path: Path) -> None:
    database, data = tmp_path / "elsewhere.db", few_samples(tmp_path)

    def delete(_: Trial) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{database}{suffix}").unlink(missing_ok=True)

    with pytest.raises(StoreError, match="the database was deleted"):
        qsearch.launch(
            "digits",
            calib=data,
            eval=data,
            out=tmp_path / "run",
            **QUICK,
            storage=f"sqlite:///{database}",
            callbacks=[delete],
        )


class Told(Progress):
    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def message(self, text: str) -> None:
        self._told.append(text)

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._told.append(note)


@pytest.mark.usefixtures("quick_space")
def test_how_long_it_will_take_is_said_once_a_trial_has_ended(tmp_path: Path) -> None:
    told: list[str] = []
    qsearch.launch("digits", trials=3, pool="inline", out=tmp_path / "run", progress=Told(told))
    (estimate,) = [text for text in told if text.startswith("estimate: ")]
    assert "for the 2 other trials and the checks of the best, as the first took" in estimate
    best = [text.startswith("best top1") for text in told]
    assert best[: told.index(estimate)].count(True) == 1


@pytest.mark.slow
def test_the_end_of_a_search_says_what_compile_alone_reaches(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = qsearch.launch("digits", trials=3, pool="inline", out=folder)
    assert f"best.qmod  ({(folder / 'best.qmod').stat().st_size:,} bytes)" in result.text()
    alone = result.summary["compile"]
    (same,) = [trial for trial in result.trials if trial.number == alone["trial"]]
    config = qsearch.quantize("digits").qconfig
    assert config is not None
    assert same.qconfig == config.to_dict()
    assert alone["top1"] == (same.outcome.score or {})["top1"]
    assert "compile   alone, without a search: " in result.text()
    assert json.loads((result.folder / "report.json").read_text())["compile"] == alone


@pytest.mark.slow
def test_a_search_of_8_bits_is_predicted_to_repeat_compile(tmp_path: Path) -> None:
    told: list[str] = []
    asked: dict[str, Any] = {"pool": "inline", "trials": 2, "for_": "qdq", "progress": Told(told)}
    qsearch.launch("digits", out=tmp_path / "run", **asked)
    assert any("repeat what compile chooses; --minimize size" in text for text in told)


@pytest.mark.usefixtures("quick_space")
def test_the_float_model_is_scored_on_all_samples_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.random((300, 1, 8, 8)).astype(np.float32)
    told: list[str] = []
    evaluation = {"input": images, "labels": rng.integers(0, 10, 300)}
    options: Any = {"pool": "inline", "trials": 1, "max_drop": 1, "progress": Told(told)}
    result = qsearch.launch("digits", eval=evaluation, out=tmp_path / "run", **options)
    (line,) = [text for text in told if text.startswith("float model: ")]
    assert f"top1 {result.summary['baseline']['top1']:.1%} on 300 samples" in line


def test_a_wrong_evaluator_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    study = {"model": "digits", "pool": "inline", "space": {"fields": {"calibrate_mode": ["max"]}}}
    right = candidates._executor

    monkeypatch.setattr(candidates, "_executor", lambda *asked: Shifted(right(*asked)))
    with pytest.raises(SearchFailedError):
        qsearch.launch(**study, trials=1, out=tmp_path / "wrong", progress=Told(told))
    (row,) = qsearch.trials(tmp_path / "wrong")
    assert row["state"] == "failed"
    assert row["error"].startswith(f"{SCORER} and reference differ: ")
    assert any(text.startswith("warning: trial 0: ") and "reference" in text for text in told)


class Shifted:
    """An executor whose first output is wrong by one."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.input_names = executor.input_names

    def run(self, inputs: Any) -> Any:
        first, *others = self._executor.run(inputs)
        return [first + 1, *others]


def two_outputs(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """The file of a model with outputs of different power, and inputs."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.normal(size=(6, 8)), "v": 1e-3 * rng.normal(size=(8, 5))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("Sigmoid", ["scores"], ["a"]),
            helper.make_node("MatMul", ["a", "v"], ["boxes"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 8]),
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["N", 5]),
        ],
        [numpy_helper.from_array(np.float32(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "two.onnx"
    path.write_bytes(model.SerializeToString())
    return path, rng.normal(size=(32, 6)).astype(np.float32)


def test_the_worst_of_several_outputs_is_named(tmp_path: Path) -> None:
    model, calib = two_outputs(tmp_path)
    options: Any = {"trials": 2, "pool": "inline", "max_drop": 1, "out": tmp_path / "run"}
    result = qsearch.launch(model, calib=calib, **options)
    name = result.summary["worst_output"]
    assert name in ("scores", "boxes")
    assert f"the worst of its outputs is {name!r}" in result.text()
    score = result.best_trial.user_attrs["score"]
    assert score["worst_output_db"] <= score["sqnr_db"]
    told = study_data(find_study(tmp_path / "run"))["study"]["best"]["beside"]
    assert told[0] == f"the worst of its outputs is {name!r}"
    assert told[1].startswith("compile alone, without a search: ")


def test_insight_names_the_worst_output(tmp_path: Path) -> None:
    path, calib = two_outputs(tmp_path)
    found = qsearch.insight(path, calib=calib).insight
    assert found.simulated.worst_name in ("scores", "boxes")
    assert found.simulated.worst_told.startswith(
        f"the worst output is {found.simulated.worst_name!r}: "
    )


def test_a_scheme_that_changes_no_integer_is_not_tried_twice(tmp_path: Path) -> None:
    """Nothing in the digits network is negative, so that "asymmetric" needs no zero point."""
    space = tmp_path / "space.yaml"
    space.write_text(
        "fields:\n  activation_scheme: [unsigned, asymmetric]\n"
        "  percentile: {values: [0.9, 0.99, 0.999]}\n"
    )
    options: Any = {"pool": "inline", "trials": 5, "space": space, "max_drop": 1}
    result = qsearch.launch("digits", out=tmp_path / "run", **options)
    outputs = [trial.outcome.outputs_sha256 for trial in result.trials]
    assert len(outputs) == len(set(outputs)) == 3
