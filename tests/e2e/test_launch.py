"""The main job: one command, a module that runs on integers only, and what lies beside it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from compiler.proof.dtypes import check_dtypes
from compiler.qtypes.qconfig import QConfig
from qsearch.cli.main import run
from tests.e2e.conftest import ALL_TRIALS, TRIALS, Launch

FILES = {
    "artifacts",
    "best.qmod",
    "config.resolved.yaml",
    "qconfig.json",
    "report.json",
    "run.log",
    "study.db",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, digits: tuple[str, ...]) -> Launch:
    """A search of the model that ships with the package."""
    done = Launch(tmp_path_factory.mktemp("found") / "digits", (*digits, *ALL_TRIALS))
    done.finish("--pool", "inline")
    return done


def test_the_folder_holds_the_winner_and_how_it_was_found(found: Launch) -> None:
    files = {path.name for path in found.folder.iterdir()}
    assert files >= FILES
    report = json.loads((found.folder / "report.json").read_text())
    counts = report["trials"]
    assert counts.pop("from_store") < TRIALS // 2, (
        "equal ranges are found more than once, but not always"
    )
    assert counts.pop("complete") + counts.pop("pruned") == TRIALS
    assert counts == {"failed": 0, "infeasible": 0}
    assert report["baseline"]["agreement"] == 1.0
    assert report["baseline"]["top1"] > 0.95
    assert report["best"]["top1"] >= report["baseline"]["top1"] - 0.01
    assert report["emitted"]["equal_outputs"] == 1.0
    assert report["emitted"]["top1"] == report["best"]["top1"]
    assert QConfig.from_dict(json.loads((found.folder / "qconfig.json").read_text()))


def test_the_module_computes_integers_only_and_scores_what_was_said(found: Launch) -> None:
    module = qsearch.load(found.folder / "best.qmod")
    assert check_dtypes(module.module) == ()
    report = json.loads((found.folder / "report.json").read_text())
    data = np.load(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    answers = [
        int(np.argmax(module.run({"input": data["input"][i : i + 1]})[0])) for i in range(40)
    ]
    assert np.mean(np.array(answers) == data["labels"][:40]) > 0.9
    assert "def @quantized_main" in module.text()
    assert module.qconfig.to_dict() == report["best"]["qconfig"]


@pytest.mark.slow
def test_the_same_command_again_repeats_no_work(found: Launch) -> None:
    before = found.trials()
    module = (found.folder / "best.qmod").read_bytes()
    summary = found.finish("--pool", "inline")
    assert found.trials() == before
    assert (found.folder / "best.qmod").read_bytes() == module
    assert summary["trials"]["complete"] + summary["trials"]["pruned"] == TRIALS
    assert summary["trials_per_min"] == 0


def test_run_scores_the_module_and_hashes_its_outputs(
    found: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = found.folder / "best.qmod"
    data = Path(qsearch.__file__).parent / "models" / "digits_dev.npz"
    assert run(["run", str(path), "--eval", str(data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    report = json.loads((found.folder / "report.json").read_text())
    assert told["n"] == 400
    assert told["top1"] == report["emitted"]["top1"]
    module = qsearch.load(path)
    digest = hashlib.sha256()
    with np.load(data) as arrays:
        for image in arrays["input"]:
            (out,) = module.run({"input": image[np.newaxis]})
            digest.update(np.asarray(out, "<f4").tobytes())
    assert told["outputs_sha256"] == digest.hexdigest()


def test_status_and_trials_tell_what_happened(
    found: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", str(found.folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["study"], row["state"]) == ("digits", "complete")
    assert row["trials"] == f"{TRIALS}/{TRIALS}"
    # A search by top-1 stops trials early whose SQNR cannot become the best.
    ended = 0
    for state in ("complete", "pruned"):
        assert run(["trials", str(found.folder), "-f", "json", "--filter", f"state={state}"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {row["state"] for row in rows} <= {state}
        ended += len(rows)
    assert ended == TRIALS
    assert run(["trials", str(found.folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == TRIALS + 1
    assert run(["show", str(found.folder / "best.qmod")]) == 0
    assert "def @quantized_main" in capsys.readouterr().out


def test_compile_quantizes_with_one_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.qmod"
    words = ["compile", "--model", "digits", "-o", str(path), "--qconfig"]
    assert run([*words, "calibrate_mode=max,weight_scale=power2"]) == 0
    module = qsearch.load(path)
    assert (module.qconfig.calibrate_mode, module.qconfig.weight_scale) == ("max", "power2")
    assert check_dtypes(module.module) == ()


def searched(search: Launch, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """A launch in this process; what --json prints."""
    assert run([*search.words, "--pool", "inline", *more]) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.mark.slow
def test_a_missed_target_is_exit_code_1_and_all_is_written(
    digits: tuple[str, ...], tmp_path: Path
) -> None:
    # Noise lies near the borders between classes: eight bits cannot agree on all of it.
    noise = np.abs(np.random.default_rng(0).normal(size=(400, 1, 8, 8))).astype(np.float32)
    np.savez(tmp_path / "noise.npz", input=noise)
    search = Launch(tmp_path / "digits", (*digits, "--trials", "2", "--pool", "inline"))
    summary = search.finish("--max-drop", "0", "--eval", str(tmp_path / "noise.npz"), code=1)
    assert summary["best"]["agreement"] < 1
    assert summary["best"]["top1"] is None
    assert {path.name for path in search.folder.iterdir()} >= FILES
    report = json.loads((search.folder / "report.json").read_text())
    assert report["target"]["kept"] is False


@pytest.mark.slow
def test_a_study_in_another_folder_is_answered_from_a_shared_storage(
    launch: Callable[..., Launch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--trials", "4", "--storage", f"sqlite:///{tmp_path / 's.db'}")
    first, second = (searched(launch(name, *options), capsys) for name in ("one", "two"))
    assert first["trials"]["from_store"] < 4
    assert second["trials"]["from_store"] == second["trials"]["complete"] == 4
    assert second["best"] == first["best"]
    assert second["emitted"] == first["emitted"]


@pytest.mark.slow
def test_other_settings_are_another_study(
    launch: Callable[..., Launch], capsys: pytest.CaptureFixture[str]
) -> None:
    search = launch("small", "--trials", "1")
    searched(search, capsys)
    process = search.start("--pool", "inline", "--seed", "5", "--metric", "sqnr")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert 'metric: "top1" → "sqnr"' in err
    assert "seed: 0 → 5" in err
    assert searched(search, capsys, "--seed", "5", "--fresh")["trials"]["complete"] == 1


def test_five_lines_of_python_do_the_main_job(tmp_path: Path) -> None:
    data = np.load(Path(qsearch.__file__).parent / "models" / "digits_dev.npz")
    model = Path(qsearch.__file__).parent / "models" / "digits_cnn.onnx"
    items = ({"input": x} for x in data["input"][:32])
    result = qsearch.launch(
        model,
        calib=items,
        eval={"input": data["input"][:64], "labels": data["labels"][:64]},
        trials=2,
        pool="inline",
        out=tmp_path / "run",
    )
    assert result.best_trial.user_attrs["score"]["top1"] == result.summary["best"]["top1"]
    assert result.best_trial.value == result.summary["best"]["top1"]
    assert result.best_trial.value * 64 == round(result.best_trial.value * 64)
    assert result.best_params["weight_granularity"] == "channel"
    assert len(result.trials_dataframe()) == len(result.study.trials) == 2
    assert result.best_module().run({"input": data["input"][:1]})[0].shape == (1, 10)
    assert result.exit_code == 0


def test_without_data_a_launch_warns_what_its_score_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(qsearch.__file__).parent / "models" / "digits_cnn.onnx"
    words = ["launch", "--model", str(model), "-o", str(tmp_path / "run"), "--pool", "inline"]
    run([*words, "--trials", "1"])
    captured = capsys.readouterr()
    assert "random inputs" in captured.err
    assert "not accuracy" in captured.err
    assert "SQNR" in captured.out


def test_a_quantized_module_is_made_without_a_search() -> None:
    module = qsearch.quantize("digits", None, {"calibrate_mode": "kl_divergence"})
    assert module.qconfig == QConfig.recommended(calibrate_mode="kl_divergence")
    exact = QConfig.recommended(weight_granularity="tensor")
    assert qsearch.quantize("digits", None, exact).qconfig == exact


def test_the_module_runs_as_python_dash_m() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "qsearch", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert found.stdout.strip() == f"qsearch {qsearch.__version__}"


@pytest.mark.slow
def test_a_model_that_cannot_become_integers_is_exit_code_1_and_names_the_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = [1, 2, 4, 4]
    weights = [
        onnx.numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), name) for name in ("w", "v")
    ]
    weights.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Conv", ["x", "w"], ["c"]),
            onnx.helper.make_node("Mod", ["c", "half"], ["p"], name="keeps_float", fmod=1),
            onnx.helper.make_node("Conv", ["p", "v"], ["y"], name="last"),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    words = ["launch", "--model", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "run")]
    # A cut by hand holds the operator; by itself the model would be cut beside it.
    assert run([*words, "--until", "last", "--trials", "2", "--pool", "inline"]) == 1
    message = capsys.readouterr().err
    assert "none of 2 trials gave a module: 2 keep operators in float" in message
    assert "keeps_float" in message
    assert "--allow-float" in message
    loose = ("--allow-float", "--fresh", "--max-drop", "1")
    assert run([*words, "--trials", "8", "--pool", "inline", *loose]) == 0
