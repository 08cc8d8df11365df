"""Stages of a real search: what the store says of them, and that they come out the same twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qsearch
from compiler.ir.analysis import post_order
from compiler.ir.expr import Constant
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import FLOAT_BITS
from compiler.runtime.archive import read_archive
from compiler.runtime.artifact import TENSORS
from compiler.runtime.packed import member_bytes
from qsearch.report.html import write_report
from qsearch.run.progress import Progress
from qsearch.search.context import StudyContext
from qsearch.search.layer_space import LayerSpace
from qsearch.search.objectives import sqnr_value
from qsearch.search.result import SearchResult
from qsearch.search.scoring import Scorer
from qsearch.search.stages import Damage, Sensitivities
from qsearch.store.engine import open_engine
from qsearch.store.records import NewStudy
from qsearch.store.repository import Repository
from tests.qsearch.search.test_driver import FakePool, made_up
from workers.messages import Build, DatasetRef, EvaluationRequest, EvaluationResult

TRIALS = 20


def search(folder: Path, **settings: Any) -> SearchResult:
    return qsearch.launch("digits", out=str(folder), pool="inline", metric="sqnr", **settings)


def story(result: SearchResult) -> list[Any]:
    return [(t.number, t.stage, t.state, t.config_hash, t.outcome.score) for t in result.trials]


@pytest.fixture(scope="module")
def two_objectives(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> SearchResult:
    """A search for accuracy and size."""
    folder = tmp_path_factory.mktemp("stages") / "first"
    return search(folder, calib=few_digits, trials=TRIALS, minimize=["size"], seed=3)


@pytest.mark.slow
def test_all_stages_and_sensitivities_are_in_the_store(two_objectives: SearchResult) -> None:
    repository = Repository(open_engine(f"sqlite:///{two_objectives.folder / 'study.db'}"))
    try:
        study = repository.studies()[0]
        stages = {stage.name: stage for stage in repository.stages_of(study.id)}
        layers = repository.layers_of(study.id, "sensitivity")
    finally:
        repository.close()
    assert [(s.name, s.state) for s in stages.values()] == [
        ("sensitivity", "complete"),
        ("global", "complete"),
        ("layers", "complete"),
    ]
    assert [row.layer for row in layers] == ["conv_0", "conv_1", "conv_2", "gemm_0"]
    for row in layers:
        damage = {int(bits): value for bits, value in row.figures["damage"].items()}
        assert damage[4] > damage[8] == 0.0


def alone(noise: float) -> dict[str, float]:
    """Sums of a model with one output."""
    return {"signal": 1.0, "noise": noise}


def in_the_second(noise: float) -> dict[str, float]:
    """Sums of a model with two outputs, where the second one, of small values, errs."""
    return {"signal": 1.0, "noise": 0.0, "signal.1": 0.001, "noise.1": 0.002 * noise}


def damages(
    folder: Path,
    noise: Callable[[QConfig], float],
    bits: tuple[int, ...],
    sums_of: Callable[[float], dict[str, float]] = alone,
) -> Damage:
    """What is measured of layers a and b where a configuration errs by ``noise``."""
    start = QConfig.recommended(partition_conversions="enabled")
    ranges: dict[QConfig, tuple[float, ...]] = {start: (1.0,)}
    ranges[start.with_overrides(calibrate_mode="mse")] = (2.0,)
    bases = list(ranges.items())

    def ranges_of(qconfig: QConfig) -> tuple[float, ...]:
        assert qconfig.layers.float_layers
        return ranges.setdefault(qconfig, (float(len(ranges)),))

    def answer(request: EvaluationRequest) -> EvaluationResult:
        qconfig = QConfig.from_dict(request.build.qconfig)
        owner = qconfig if qconfig.layers.float_layers else qconfig.with_overrides(layers={})
        assert request.build.activation_scales == ranges[owner]
        sums = {**made_up(request).sums, "sqnr": sums_of(noise(qconfig))}
        return replace(made_up(request), sums=sums)

    repository = Repository(open_engine(f"sqlite:///{folder / 'study.db'}"))
    try:
        study = repository.create_study(
            NewStudy("study", "m.onnx", "a" * 64, {}, "b" * 64, 3, TRIALS, "c" * 16)
        )
        build, samples = Build(b"", {}, None, "engine"), (DatasetRef("npz"), range(300))
        return Sensitivities(
            StudyContext(repository, study, FakePool(answer=answer), Progress()),
            Scorer(EvaluationRequest(build, *samples, ("sqnr",), ()), lambda _: {}),
            LayerSpace({"a": 100, "b": 100}, bits),
            bases,
            ranges_of,
            flash=False,
        ).damages()
    finally:
        repository.close()


def noise_of_layers(qconfig: QConfig) -> float:
    """The recommended configuration loses all; in the other, layers add up."""
    if qconfig.calibrate_mode == "percentile":
        return 4.0  # nothing is left of the signal, whatever the bits are
    added = {"a": 0.2, "b": 0.1}
    choices = qconfig.layers
    return sum(
        0.0
        if name in choices.float_layers
        else part / (choices[name].nbit_weight or 8 if name in choices else 8)
        for name, part in added.items()
    )


@pytest.mark.parametrize("sums_of", [alone, in_the_second])
def test_what_a_layer_adds_is_measured_in_the_base_that_errs_least(
    tmp_path: Path, sums_of: Callable[[float], dict[str, float]]
) -> None:
    assert damages(tmp_path, noise_of_layers, (4, 8), sums_of) == {
        "a": {4: pytest.approx(0.025), 8: 0.0},
        "b": {4: pytest.approx(0.0125), 8: 0.0},
    }


def test_one_choice_of_a_layer_is_measured_and_the_others_follow(tmp_path: Path) -> None:
    asked = set[int | None]()

    def noise(qconfig: QConfig) -> float:
        asked.update(choice.nbit_weight for choice in qconfig.layers.values())
        # What b adds is lost among the few samples.
        return 0.5 if "b" in qconfig.layers else 1.0 + 0.8 * ("a" in qconfig.layers)

    found = damages(tmp_path, noise, (2, 4, 5, 8))
    assert asked == {4}
    assert found["a"] == {
        2: pytest.approx(12.8),
        4: pytest.approx(0.8),
        5: pytest.approx(0.2),
        8: 0,
    }
    # No layer is taken to add nothing.
    assert found["b"] == {
        2: pytest.approx(0.8),
        4: pytest.approx(0.05),
        5: pytest.approx(0.0125),
        8: 0,
    }


def test_where_layers_may_stay_in_float_damages_count_from_there(tmp_path: Path) -> None:
    assert damages(tmp_path, noise_of_layers, (4, 8, FLOAT_BITS)) == {
        "a": {4: pytest.approx(0.05), 8: pytest.approx(0.025), FLOAT_BITS: 0.0},
        "b": {4: pytest.approx(0.025), 8: pytest.approx(0.0125), FLOAT_BITS: 0.0},
    }


@pytest.mark.slow
def test_the_front_has_modules_smaller_than_eight_bits(two_objectives: SearchResult) -> None:
    front = two_objectives.summary["front"]
    sizes, decibels = [one["size"] for one in front], [one["sqnr"] for one in front]
    assert sizes == sorted(sizes, reverse=True)
    assert decibels == sorted(decibels, reverse=True)
    assert "layers" in {one["stage"] for one in front}


@pytest.mark.slow
def test_a_search_in_two_runs_is_that_of_one_to_the_last_byte(
    two_objectives: SearchResult, few_digits: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"calib": few_digits, "minimize": ["size"], "seed": 3}
    search(tmp_path / "run", trials=TRIALS - 3, **settings)
    longer = search(tmp_path / "run", trials=TRIALS, **settings)
    assert story(longer) == story(two_objectives)
    for name in ("best.qmod", "qconfig.json"):
        assert (longer.folder / name).read_bytes() == (two_objectives.folder / name).read_bytes()


@pytest.mark.slow
def test_pruned_trials_say_who_was_better(two_objectives: SearchResult) -> None:
    stopped = [t for t in two_objectives.trials if t.state == "pruned" and not t.outcome.collapsed]
    assert stopped
    for trial in stopped:
        assert trial.outcome.failure is not None
        assert trial.outcome.failure.what.startswith("worse than trial ")
        assert 0 < (trial.outcome.samples or 0) < 400
    run = [trial.outcome.samples or 0 for trial in two_objectives.trials]
    saved = 1 - sum(run) / (400 * len(run))
    assert two_objectives.summary["evaluations_saved"] == pytest.approx(saved, abs=1e-6)
    assert f"early stopping saved {saved:.0%} of the evaluations" in two_objectives.text()


@pytest.mark.slow
def test_a_space_of_ones_own_under_a_limit_of_bytes(few_digits: Path, tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(
        "fields:\n  weight_scale: [mse, max]\n  calibrate_mode: [mse]\n"
        "layers:\n  nbit_weight: [4, 6, 8]\n  except: [conv_0]\n"
    )
    result = search(tmp_path / "run", calib=few_digits, trials=5, space=str(space), max_size=8000)
    assert {t.qconfig["calibrate_mode"] for t in result.trials} == {"mse"}
    # Two points for all layers; the other trials are those of the layers.
    assert [t.stage for t in result.trials] == ["global"] * 2 + ["layers"] * 3
    assert "conv_0" not in {name for t in result.trials for name in t.qconfig["layers"]}
    # Close to the limit: the programme fills the budget.
    assert 7000 < result.summary["best"]["model_bytes"] <= 8000


@pytest.mark.slow
def test_layers_get_bits_or_float_under_a_limit_of_bytes(few_digits: Path, tmp_path: Path) -> None:
    space = {
        "fields": {
            "partition_conversions": ["enabled"],
            "calibrate_mode": ["mse"],
            "weight_scale": ["mse", "max"],
        },
        "layers": {"nbit_weight": [4, 8, "float"]},
    }
    result = search(tmp_path / "run", calib=few_digits, trials=6, space=space, max_size=20_000)
    assert {t.state for t in result.trials} <= {"complete", "pruned"}
    best = result.objective.best(result.trials)
    assert best is not None
    floats = QConfig.from_dict(best.qconfig).layers.float_layers
    assert floats
    assert best.stage == "layers"
    size = (best.outcome.score or {})["model_bytes"]
    module = qsearch.load(result.folder / "best.qmod").module
    quants = [n.quant for f in module.functions.values() for n in post_order(f) if n.quant]
    scales = dict.fromkeys(q.scale for q in quants if isinstance(q.scale, Constant))
    tensors = read_archive(result.folder / "best.qmod")[TENSORS]
    assert scales, "of channels, which the size does not count"
    assert size + member_bytes(one.data for one in scales) == len(tensors) <= 20_000
    all_eight = max(sqnr_value(t.outcome.score or {}) for t in result.trials if t.stage == "global")
    assert sqnr_value(best.outcome.score or {}) > all_eight
    assert 'dtype="float32"' in qsearch.load(result.folder / "best.qmod").text()


@pytest.mark.slow
def test_a_limit_of_bytes_that_no_module_keeps_is_a_missed_target(tmp_path: Path) -> None:
    result = search(tmp_path / "run", trials=2, max_size=1000)
    assert result.exit_code == 1
    assert "no trial stayed within --max-drop and --max-size" in result.text()
    assert "with 2 bits everywhere they take 2,708 bytes" in " ".join(result.warnings)
    assert f", size {result.summary['best']['model_bytes']:,.0f}  (trial" in result.text()
    target = json.loads((result.folder / "report.json").read_text())["target"]
    assert (target["kept"], target["max_size"], target["fits"]) == (True, 1000, False)


def test_the_trial_that_stays_within_a_missed_limit_is_named(
    few_digits: Path, tmp_path: Path
) -> None:
    """Without labels the winner has the most SQNR, whatever its agreement is."""
    with np.load(files("qsearch.models").joinpath("digits_dev.npz").open("rb")) as data:
        np.savez(tmp_path / "unlabelled.npz", input=data["input"])
    space = {
        "fields": {
            "nbit_input": [4, 8],
            "nbit_weight": [5],
            "calibrate_mode": ["mse"],
            "partition_conversions": ["fully_integral"],
        }
    }
    result = search(
        tmp_path / "run",
        calib=few_digits,
        eval=tmp_path / "unlabelled.npz",
        trials=2,
        space=space,
        max_drop=0.014,
    )
    of = {t.qconfig["nbit_input"]: t for t in result.trials}
    assert (of[8].outcome.score or {})["agreement"] < 0.986 <= of[4].outcome.score["agreement"]
    assert (result.exit_code, result.summary["best"]["trial"]) == (1, of[8].number)
    assert result.summary["within"]["trial"] == of[4].number
    said = result.text()
    assert "no trial stayed" not in said
    assert f"qsearch best {result.folder} --trial {of[4].number} -o within.qmod" in said
    write_report(result.folder, tmp_path / "page.html")
    assert f"trial {of[4].number} is within limits" in (tmp_path / "page.html").read_text()


def test_patience_ends_a_search_without_layers_whose_stages_say_why_they_are_skipped(
    few_digits: Path, tmp_path: Path
) -> None:
    result = search(tmp_path / "run", calib=few_digits, trials=60, patience=3)
    best = result.objective.best(result.trials)
    assert best is not None
    assert result.summary["stopped"] == "nothing better in 3 trials"
    assert best.number + 3 < len(result.trials) < 60
    repository = Repository(open_engine(f"sqlite:///{result.folder / 'study.db'}"))
    try:
        stages = repository.stages_of(repository.studies()[0].id)
    finally:
        repository.close()
    assert [s.state for s in stages] == ["skipped", "complete", "skipped"]
    assert "--minimize" in (stages[0].data or {})["why"]


def test_a_score_is_of_the_module_that_ships_whatever_its_parts(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("fields: {partition_conversions: [enabled, disabled, fully_integral]}")
    result = search(tmp_path / "run", space=space, trials=3)
    hashes = {trial.outcome.outputs_sha256 for trial in result.trials if trial.outcome}
    assert len(result.trials) == 3
    assert len(hashes) == 1
    tried = 'partition_conversions=enabled,layers={"conv_0":{"float":true}}'
    mixed = search(tmp_path / "mixed", trials=1, allow_float=True, try_=[tried])
    assert [trial.stage for trial in mixed.trials] == ["tried"]
    for found in (result, mixed):
        assert found.summary["emitted"]["equal_outputs"] == 1.0
