"""Proposals: equal for equal histories, without duplicates, the whole space when it is small."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

import pytest

from compiler.qtypes.qconfig import QConfig
from qsearch.search.layer_space import BUDGET, LayerPlan, LayerSpace
from qsearch.search.objectives import KEEPS_ACCURACY, Objective
from qsearch.search.optuna_study import AUTO, samplers
from qsearch.search.sampler import Proposal, SamplerSpec, StudySampler
from qsearch.search.space import Parameter, Params, Space, config_hash, default_space, to_qconfig
from qsearch.settings.launch_settings import SAMPLERS
from qsearch.store.records import Outcome, Trial, TrialState
from tests.each import each

START = QConfig.recommended(weight_rounding="corrected")
SMALL = Space(
    (
        Parameter("weight_granularity", ("channel", "tensor")),
        Parameter("calibrate_mode", ("percentile", "max")),
        Parameter("percentile", (0.999, 0.99999), (("calibrate_mode", ("percentile",)),)),
    )
)


LAYERS = LayerSpace({f"conv_{n}": 100 * (n + 1) for n in range(8)}, (4, 6, 8))
PLAN = LayerPlan(
    LAYERS, {name: {4: 4.0 - n / 4, 6: 1.0 + n / 9, 8: 0.0} for n, name in enumerate(LAYERS.sizes)}
)


def study_sampler(
    sampler: str = "auto",
    space: Space | None = None,
    every: bool = False,
    seed: int = 5,
    plan: LayerPlan | None = None,
    objective: Objective | None = None,
) -> StudySampler:
    return StudySampler(
        space or default_space(),
        START,
        objective or Objective("sqnr"),
        SamplerSpec(sampler, seed, batch_size=4, enumerate_all=every),
        plan,
    )


def ended(
    proposal: Proposal,
    number: int,
    state: TrialState = "complete",
    sqnr_db: float | None = None,
) -> Trial:
    # Any deterministic landscape will do; the hash makes one without ties.
    noise = int(hashlib.sha256(proposal.config_hash.encode()).hexdigest()[:6], 16) / 2**24
    return Trial(
        id=number + 1,
        study_id=1,
        number=number,
        batch=number // 4,
        params=proposal.params,
        qconfig=proposal.qconfig.to_dict(),
        config_hash=proposal.config_hash,
        work_hash=proposal.config_hash,
        outcome=Outcome(
            state=state,
            score={
                "agreement": 0.5,
                "sqnr_db": 20 + 10 * noise if sqnr_db is None else sqnr_db,
                "model_bytes": 1e3 * noise,
            },
        ),
        stage=proposal.stage,
        created_at=0.0,
        started_at=0.0,
        finished_at=0.0,
    )


def play(batches: int, restart_every: int | None = None, **options: object) -> list[str]:
    """Config hashes of a study; with restarts the sampler is rebuilt from the trials."""
    current = study_sampler(**options)  # type: ignore[arg-type]
    trials: list[Trial] = []
    for batch in range(batches):
        if restart_every and batch % restart_every == 0:
            current = study_sampler(**options)  # type: ignore[arg-type]
            current.add_history(trials)
        proposals = current.propose(batch)
        states: list[TrialState] = ["complete", "pruned", "complete", "failed"]
        new = [ended(p, len(trials) + i, states[i]) for i, p in enumerate(proposals)]
        current.add_history(new)
        trials += new
    return [trial.config_hash for trial in trials]


@pytest.mark.parametrize("batch_size", [1, 4, 5])
def test_the_last_of_16_trials_is_the_best_one_with_a_costly_choice(
    batch_size: int,
) -> None:
    space, plain = default_space(costly=True), default_space({"weight_rounding": ("corrected",)})
    spec = SamplerSpec("auto", 5, batch_size)
    current = StudySampler(space, START, Objective("sqnr"), spec)
    without = StudySampler(plain, START, Objective("sqnr"), spec)
    trials: list[Trial] = []
    for batch in range(-(-24 // batch_size)):
        if batch % 3 == 2:  # as after a restart
            current = StudySampler(space, START, Objective("sqnr"), spec)
            current.add_history(trials)
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        if len(trials) + batch_size <= 15:
            assert [p.params for p in without.propose(batch)] == [t.params for t in new]
            without.add_history(new)
        current.add_history(new)
        trials += new
    costly = [t.number for t in trials if t.params["weight_rounding"] == "sequential"]
    assert costly == [15]
    before = [t for t in trials if t.number < 15 // batch_size * batch_size]
    best = Objective("sqnr").best(before)
    assert best is not None
    assert trials[15].params == {**best.params, "weight_rounding": "sequential"}
    assert len({t.config_hash for t in trials}) == len(trials)


def test_the_first_trial_has_the_costly_choice_of_the_statistics() -> None:
    space, spec = default_space(costly=True), SamplerSpec("auto", 5, 4)
    chosen = START.with_overrides(weight_rounding="sequential", calibrate_mode="mse")
    current, trials = StudySampler(space, START, Objective("sqnr"), spec, None, chosen), []
    for batch in range(5):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        current.add_history(new)
        trials += new
    costly = [t.number for t in trials if space.is_costly(t.params)]
    assert costly[0] == 0
    assert trials[0].params["calibrate_mode"] == "mse"
    assert costly[1:] in ([], [15])
    assert len({t.config_hash for t in trials}) == len(trials) == 20
    (first,) = StudySampler(
        space, START, Objective("sqnr"), SamplerSpec("tpe", 5, 1), None, chosen
    ).propose(0)
    assert not space.is_costly(first.params)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_samplers_without_stages_propose_no_costly_choice(sampler: str) -> None:
    space, trials = default_space(costly=True), list[Trial]()
    current = study_sampler(sampler, space)
    for batch in range(6):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        current.add_history(new)
        trials += new
    assert len(trials) == 24
    assert not any(space.is_costly(trial.params) for trial in trials)


def test_no_trial_is_larger_than_a_limit_of_bytes() -> None:
    plan = LayerPlan(LAYERS, PLAN.damage, most=2000.0)
    current, trials = study_sampler(plan=plan), list[Trial]()
    for batch in range(6):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        current.add_history(new)
        trials += new
    assert {trial.stage for trial in trials} == {"global", "layers"}
    assert len({trial.config_hash for trial in trials}) == 24
    for trial in trials:
        bits = {name: one.get("nbit_weight", 8) for name, one in trial.qconfig["layers"].items()}
        assert sum(LAYERS.sizes[name][bits.get(name, 8)] for name in LAYERS.sizes) <= 2000


def in_flash(trial: Trial, code: float) -> Trial:
    """With as much code beside the packed weights, and RAM that a finer grid takes."""
    assert trial.outcome.score is not None
    packed = LAYERS.packed(QConfig.from_dict(trial.qconfig))
    fine = trial.params["weight_granularity"] == "channel"
    figures = {"flash_bytes": packed + code, "ram_bytes": 900.0 if fine else 400.0}
    score = {**trial.outcome.score, **figures, "sqnr_db": 30.0 if fine else 20.0}
    return replace(trial, outcome=replace(trial.outcome, score=score))


def test_weights_have_what_the_code_of_a_built_module_leaves_and_the_base_keeps_the_ram() -> None:
    objective = Objective("sqnr", at_most=(("flash", 3400.0), ("ram", 500.0)))
    # 1,000 bytes of code were foreseen.
    plan = LayerPlan(LAYERS, PLAN.damage, most=2400.0)
    current, trials = study_sampler(plan=plan, objective=objective), list[Trial]()
    for batch in range(6):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        new = [in_flash(trial, 1300.0) for trial in new]
        current.add_history(new)
        trials += new
    fits = [objective.fits(trial.outcome.score or {}) for trial in trials]
    assert not any(fits[:4])
    layers = [fit for trial, fit in zip(trials, fits) if trial.stage == "layers"]
    assert layers
    assert all(layers)


def test_a_limit_of_bytes_that_bits_pay_for_does_not_draw_a_search_from_accuracy() -> None:
    objective = Objective("sqnr", max_size=2400.0)
    plan = LayerPlan(LAYERS, PLAN.damage, most=2400.0)
    current = study_sampler(plan=plan, objective=objective)
    # The first trials break the limit by some bytes, the least accurate one by the fewest.
    sqnr_db = {"corrected": 20.0, "sequential": 35.0}
    first = []
    for number, one in enumerate(current.propose(0)):
        trial = ended(one, number, sqnr_db=sqnr_db[str(one.params["weight_rounding"])])
        above = 8.0 if trial.params["weight_rounding"] == "sequential" else 4.0
        trial.outcome.score["model_bytes"] = 2400.0 + above  # type: ignore[index]
        first.append(trial)
    assert {trial.params["weight_rounding"] for trial in first} == {*sqnr_db}
    current.add_history(first)
    roundings = [one.params["weight_rounding"] for one in current.propose(1)]
    assert roundings.count("sequential") > roundings.count("corrected")


def test_few_bytes_are_tried_with_one_scale_for_a_tensor_and_one_for_each_channel() -> None:
    objective = Objective("sqnr", max_size=2400.0)
    plan = LayerPlan(LAYERS, PLAN.damage, most=2000.0)

    def sized(trial: Trial) -> Trial:
        fine = trial.params["weight_granularity"] == "channel"
        packed = LAYERS.packed(QConfig.stored(trial.qconfig))
        # A scale for each channel takes 400 bytes, for which weights could have more bits.
        score = {"model_bytes": packed + (500 if fine else 100)}
        score["sqnr_db"] = packed / 100 + (1 if fine else 0)
        return replace(trial, outcome=Outcome(state="complete", score=score))

    current, trials = study_sampler(plan=plan, objective=objective), list[Trial]()
    for batch in range(6):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        new = [*map(sized, new)]
        current.add_history(new)
        trials += new
    kinds = [t.params["weight_granularity"] for t in trials if t.stage == "layers"]
    assert {*kinds[:2]} == {"channel", "tensor"}
    assert {*kinds[4:]} == {"tensor"}
    best = objective.best(trials)
    assert best is not None
    assert best.params["weight_granularity"] == "tensor"
    assert objective.fits(best.outcome.score or {})


def test_the_smallest_size_is_bracketed_for_each_granularity_of_scales() -> None:
    """Trials of the layers follow one another until no budget of bits can be clearly smaller."""
    objective = Objective("sqnr", minimize=("size",))

    def sized(params: Params, qconfig: QConfig) -> dict[str, float]:
        fine = params["weight_granularity"] == "channel"
        packed = LAYERS.packed(qconfig)
        score = {"model_bytes": packed + (600.0 if fine else 100.0), "sqnr_db": packed / 100}
        score["sqnr_db"] += 6.0 * fine
        return {**score, KEEPS_ACCURACY: float(packed >= (1700 if fine else 2400))}

    current, trials = study_sampler(plan=PLAN, objective=objective), list[Trial]()
    while not current.bracketed:
        assert len(trials) < 32
        new = []
        for one in current.propose(len(trials) // 4):
            score = sized(one.params, one.qconfig)
            outcome = Outcome(state="complete", score=score)
            new.append(replace(ended(one, len(trials) + len(new)), outcome=outcome))
        current.add_history(new)
        trials += new
    layers = [t for t in trials if t.stage == "layers"]
    assert {t.stage for t in trials[8:]} == {"layers"}
    assert {t.params["weight_granularity"] for t in layers} == {"channel", "tensor"}
    fits = [t.outcome.score or {} for t in trials if objective.feasible(t.outcome.score or {})]
    every = [
        sized({"weight_granularity": kind}, to_qconfig(PLAN.params_of({BUDGET: f / 64}), START))
        for kind in ("channel", "tensor")
        for f in range(1, 65)
    ]
    least = min(one["model_bytes"] for one in every if objective.feasible(one))
    assert min(one["model_bytes"] or 0 for one in fits) <= 1.01 * least


def test_equal_bits_are_not_tried_again_because_a_limit_had_taken_them_before() -> None:
    start = START.with_overrides(layers={"conv_7": {"nbit_input": 16}})
    plan = LayerPlan(LAYERS, PLAN.damage, most=1900.0)
    assert plan.within(start).layers["conv_7"].nbit_weight == 4
    objective, spec = Objective("sqnr", max_size=3400.0), SamplerSpec("auto", 5, batch_size=4)
    current, trials = StudySampler(default_space(), start, objective, spec, plan), list[Trial]()
    for batch in range(4):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        for trial in new:  # less stands beside weights than was foreseen
            packed = LAYERS.packed(QConfig.stored(trial.qconfig))
            trial.outcome.score["model_bytes"] = packed + 10  # type: ignore[index]
        current.add_history(new)
        trials += new
    layers = [t.qconfig["layers"]["conv_7"] for t in trials if t.stage == "layers"]
    assert {"nbit_input": 16} in layers
    assert {"nbit_input": 16, "nbit_weight": 8} not in layers


def test_the_first_proposal_is_the_recommended_configuration() -> None:
    assert study_sampler().propose(0)[0].qconfig == START


@pytest.mark.parametrize("sampler", ["auto", "tpe", "random", "grid"])
def test_a_restarted_search_proposes_what_an_unbroken_one_does(sampler: str) -> None:
    unbroken = play(8, sampler=sampler)
    assert play(8, restart_every=1, sampler=sampler) == unbroken
    assert play(8, restart_every=3, sampler=sampler) == unbroken


@pytest.mark.parametrize("sampler", ["auto", "tpe"])
def test_a_restart_changes_nothing_with_several_objectives_and_layers(sampler: str) -> None:
    plan = PLAN if sampler == "auto" else None
    options = {"sampler": sampler, "plan": plan, "objective": Objective("sqnr", ("size",))}
    unbroken = play(8, **options)
    assert play(8, restart_every=1, **options) == unbroken
    assert play(8, restart_every=3, **options) == unbroken
    assert len(set(unbroken)) == 32


@pytest.mark.slow
def test_a_restart_changes_nothing_under_a_limit_of_bytes() -> None:
    plan = LayerPlan(LAYERS, PLAN.damage, most=2400.0)
    options = {"plan": plan, "objective": Objective("sqnr", max_size=2500.0)}
    unbroken = play(7, **options)
    assert play(7, restart_every=1, **options) == unbroken
    assert play(7, restart_every=3, **options) == unbroken


def test_layers_differ_once_the_global_stage_is_warm() -> None:
    current = study_sampler(plan=PLAN)
    trials: list[Trial] = []
    for batch in range(6):
        new = [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        current.add_history(new)
        trials += new
    assert [t.stage for t in trials[::4]] == [
        "global",
        "global",
        "layers",
        "layers",
        "global",
        "layers",
    ]
    in_global = [t for t in trials if t.stage == "global"]
    for trial in (t for t in trials if t.stage == "layers"):
        before = [t for t in in_global if t.batch < trial.batch]
        best = Objective("sqnr").base_for_bits(before, sum(LAYERS.elements.values()))
        assert best is not None
        assert {n: v for n, v in trial.params.items() if n in best.params} == best.params
        assert trial.qconfig["layers"] == {
            name: {"nbit_weight": bits}
            for name, bits in PLAN.bits_of(trial.params).items()
            if bits != 8
        }


def test_few_bits_start_from_accuracy_unless_bytes_beside_the_weights_cost_more() -> None:
    objective = Objective("sqnr", ("size",))
    proposals = study_sampler(plan=PLAN).propose(0)

    def base(sizes: tuple[float, ...], *sqnr_db: float) -> int:
        trials = [ended(p, n, sqnr_db=sqnr_db[n]) for n, p in enumerate(proposals[:2])]
        for trial, size in zip(trials, sizes, strict=True):
            trial.outcome.score["model_bytes"] = size  # type: ignore[index]
        found = objective.base_for_bits(trials, weights=10000)
        assert found is not None
        return found.number

    assert base((11000, 10990), 40.0, 30.0) == 0
    # 2500 bytes are two bits of each of the weights, 12 dB.
    assert base((13500, 11000), 40.0, 30.0) == 1


def test_after_the_guesses_one_or_two_values_of_a_good_trial_change() -> None:
    current = study_sampler()
    trials: list[Trial] = []
    for batch in range(2):
        trials += [ended(p, len(trials) + i) for i, p in enumerate(current.propose(batch))]
        current.add_history(trials[4 * batch :])
    ranked = sorted(trials, key=lambda t: -((t.outcome.score or {})["sqnr_db"] or 0.0))
    space = default_space()
    for near in each(current.propose(2)):
        fewest = 99
        for best in ranked[:3]:
            changed = {n for n in near.params if near.params[n] != best.params.get(n)}
            # What became active by a change of another value is no change of its own.
            depends = {p.name for p in space.parameters if {name for name, _ in p.when} & changed}
            fewest = min(fewest, len(changed - depends))
        assert 1 <= fewest <= 2


def test_values_that_add_up_are_put_together_in_few_trials() -> None:
    gains = {
        "activation_scheme": "symmetric",
        "weight_scale": "power2",
        "calibrate_mode": "kl_divergence",
        "smooth_alpha": 0.5,
    }

    def gain(proposal: Proposal) -> float:
        return sum(proposal.params.get(name) == value for name, value in gains.items())

    found = {}
    for sampler in ("auto", "random"):
        current = study_sampler(sampler)
        trials: list[Trial] = []
        for batch in range(6):
            new = [
                ended(p, len(trials) + i, sqnr_db=20 + 3 * gain(p))
                for i, p in enumerate(current.propose(batch))
            ]
            current.add_history(new)
            trials += new
        found[sampler] = max((t.outcome.score or {})["sqnr_db"] or 0.0 for t in trials)
    assert found["auto"] == 32
    assert found["random"] < 32


@pytest.mark.slow
def test_six_thousand_trials_are_not_too_many() -> None:
    points = [(params, to_qconfig(params, START)) for params in default_space().points()]
    known = [Proposal(params, one, config_hash(one.to_dict())) for params, one in points[:1000]]
    current = study_sampler()
    current.add_history(ended(known[n % 1000], n) for n in range(6_000))
    begun = time.process_time()
    assert len(current.propose(2500)) == 4
    assert time.process_time() - begun < 5.0


@pytest.mark.parametrize("sampler", ["auto", "tpe", "random"])
def test_nothing_is_proposed_twice_until_the_space_ends(sampler: str) -> None:
    hashes = play(27, sampler=sampler)
    assert len(hashes) == len(set(hashes)) == 108


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_holds_no_configuration_twice(seed: int) -> None:
    hashes = [p.config_hash for p in study_sampler("random", SMALL, seed=seed).propose(0)]
    assert len(hashes) == len(set(hashes)) == 4


def test_a_small_space_is_enumerated_from_the_recommended_configuration() -> None:
    hashes = play(3, space=SMALL, every=True)
    assert len(hashes) == len(set(hashes)) == 6
    first = study_sampler(space=SMALL, every=True).propose(0)[0]
    assert first.qconfig == START


def test_other_seeds_propose_other_trials() -> None:
    one, other = study_sampler("random", seed=5), study_sampler("random", seed=6)
    assert one.propose(2) != other.propose(2)


def test_the_names_the_settings_allow_are_those_that_are_registered() -> None:
    assert {AUTO, "grid", *samplers.names()} == set(SAMPLERS)
