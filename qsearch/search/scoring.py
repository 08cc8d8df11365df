"""Evaluate candidates: requests, and scores and outcomes from their results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from compiler.errors import CompilerError, NotFullyIntegralError
from compiler.qtypes.qconfig import QConfig
from compiler.runtime.exact_executor import SLOWER
from compiler.targets.c.cores import CORES
from qsearch.data.prepared_data import content_hash
from qsearch.errors import SettingsError
from qsearch.search.context import PreparedStudy, StudyContext
from qsearch.search.objectives import (
    UNCERTAIN,
    WORST_OUTPUT,
    Score,
    comparisons,
    expected_scores,
)
from qsearch.search.pruner import LOOKS, Sums
from qsearch.settings.launch_settings import Settings, is_import_path
from qsearch.store.records import Failure, Outcome
from workers.batching import hash_outputs
from workers.errors import LostWorkerError, WorkerError
from workers.messages import Build, EvaluationRequest, EvaluationResult, EvaluatorName
from workers.metrics.costs import DEVICE, TIMED, timed_by
from workers.metrics.custom import named_values
from workers.metrics.registry import (
    Measure,
    by_option,
    find_metric,
    known_measures,
    merge_sums,
    results,
)
from workers.metrics.sqnr import worst_output

CHECKED_ONE_OF: Final = 8
"""One trial of so many is compared with the exact reference on one run of the model."""
_HASHED_BYTES: Final = 64 << 20
COLLAPSE_AFTER: Final = 32
"""Samples after which a configuration that lost nearly everything is stopped."""


def evaluator_of_flag(flag: str) -> EvaluatorName:
    """The evaluator behind the flag: the integers that ship, or their float simulation.

    Raises:
        CodegenError: the engine is asked for and there is no C compiler.
    """
    # Kernels and compilers are looked for by a search, not by whoever reads its scores.
    from compiler.targets.c.toolchain import required_compiler
    from compiler.targets.engine.library import is_available

    if flag == "engine" and not is_available():
        required_compiler()
    if flag == "simulated":
        return "simulated"
    return "engine"


def slow_evaluator(evaluator: EvaluatorName) -> tuple[str, ...]:
    """A warning if the engine cannot run the integers here, with the factor and the cure."""
    from compiler.targets.c.toolchain import CURE
    from compiler.targets.engine.library import is_available

    if evaluator != "engine" or is_available():
        return ()
    return (f"no C compiler found: trials run {SLOWER}, with the same scores; {CURE}",)


def check_core(settings: Settings, costs: Sequence[str]) -> None:
    """Refuse a cost of a core where ``--for`` names none.

    Args:
        costs: options of the metric and of all costs.
    Raises:
        SettingsError: there is one.
    """
    counted = [name for name in costs if by_option(name).needs == "core"]
    if counted and settings.for_ not in CORES:
        raise SettingsError(
            f"{counted[0]} is counted on a core, and none is named",
            where="--metric, --minimize, --at-most",
            fix=f"add --for cortex-m4, or another one: {', '.join(CORES)}",
        )


def hardware_of(settings: Settings, costs: Sequence[str]) -> tuple[str, str] | None:
    """Text and name of the description that ``--hw`` names, checked before anything runs.

    Args:
        costs: options of the metric and of all costs.
    Raises:
        SettingsError: a cost needs ``--hw``.
        HDFGError: the description is wrong.
    """
    if settings.hw is None:
        needs = [name for name in costs if by_option(name).needs == "hardware"]
        if needs:
            raise SettingsError(
                f"the metric {needs[0]} needs an accelerator",
                where="--metric, --minimize, --at-most",
                fix="add --hw opu_q, --hw npu, or a description of your own",
            )
        return None
    from compiler.fusion.hardware.description import parse_hdfg, read_description

    described = read_description(settings.hw)
    parse_hdfg(*described)
    return described


def timed_on(settings: Settings, cost: str) -> str:
    """A hash of the machine that candidates are timed on; figures of other machines differ.

    Raises:
        SettingsError: nothing can be compiled here, where the workers are.
        CodegenError: the board cannot be reached, or has no compiler.
    """
    if settings.address is not None and settings.measure is None:
        return "cluster"
    facts = timed_by(cost, settings.measure)
    if facts is None:
        raise SettingsError(
            f"{cost} is measured on compiled code, and there is no C compiler",
            where="--metric, --minimize, --at-most",
            fix="install one (apt-get install gcc, or pip install ziglang), or minimise "
            "bit_operations",
        )
    return content_hash(facts)


ScoreOf = Callable[[Sums], dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class Scorer:
    """The part of a request that is the same for all trials of a study.

    Attributes:
        whole: the request; what it builds has no configuration yet.
        score_of: merged metric sums → score.
        channels: gives the pool's handle of the channel statistics that a configuration needs.
        parts: requests of one trial, that idle workers may share; see ``merge``.
        compared: what a score of so many samples holds beside the module's own figures.
        seed: of the study; chooses the trials that are spot-checked.
    """

    whole: EvaluationRequest
    score_of: ScoreOf
    channels: Callable[[QConfig], Any] | None = None
    parts: int = 1
    compared: Callable[[Score, int], Mapping[str, float]] | None = None
    seed: int = 0

    def is_checked(self, number: int) -> bool:
        """True where the reference runs beside it: for the first, and one of eight by the seed."""
        return number == 0 or (number + self.seed) % CHECKED_ONE_OF == 0

    def requests(
        self,
        qconfig: QConfig,
        scales: tuple[float, ...] | None,
        spot_check: bool = False,
    ) -> list[EvaluationRequest]:
        """Evaluate one candidate on all samples, in parts; a collapsed candidate stops early.

        Args:
            spot_check: compare a few outputs with the reference's.
        """
        request = replace(
            self.whole,
            build=self.build(qconfig, scales),
            collapse_after=COLLAPSE_AFTER if len(self.whole.samples) > COLLAPSE_AFTER else None,
            spot_check=spot_check,
            return_rounding=True,
        )
        return split(request, self.parts)

    def build(self, qconfig: QConfig, scales: tuple[float, ...] | None) -> Build:
        """Build of a configuration with its activation ranges."""
        if self.channels and qconfig.needs_channels:
            channels = self.channels(qconfig)
        else:
            channels = None
        return replace(
            self.whole.build,
            qconfig=qconfig.to_dict(),
            activation_scales=scales,
            channels=channels,
        )

    def outcome(
        self,
        result: EvaluationResult,
        seconds: float,
        stopped: str | None = None,
        rival: tuple[Sums, Score] | None = None,
    ) -> Outcome:
        """Return the outcome of the trial.

        Args:
            result: of the whole evaluation, or of the parts before it was stopped.
            stopped: why it was stopped early by choice.
            rival: sums over the same samples of the trial that is better, and its score on all.
        """
        score = self.score_of(result.sums)
        if rival is not None:
            score.update(expected_scores(score, self.score_of(rival[0]), rival[1]))
        score.update(costs_of([result]))
        if self.compared is not None:
            score.update(self.compared(score, result.samples))
        return Outcome(
            state="pruned" if result.collapsed or stopped is not None else "complete",
            score=score,
            samples=result.samples,
            collapsed=result.collapsed,
            outputs_sha256=result.outputs_sha256,
            failure=None if stopped is None else Failure(stopped),
            compile_cpu_s=result.compile_cpu_s,
            run_cpu_s=result.run_cpu_s,
            peak_rss_bytes=result.peak_rss_bytes,
            seconds=seconds,
        )


def study_scorer(
    prepared: PreparedStudy,
    context: StudyContext,
    handles: tuple[Any, Any],
    reference: tuple[Any, ...],
    channels: Callable[[QConfig], Any],
) -> Scorer:
    """The scorer of a study.

    Args:
        handles: of the float module in the pool, and of the float parts around it.
        reference: outputs of the float model on the evaluation data.
        channels: gives the handle of the statistics of channels that a configuration reads.
    """
    blob, head = handles
    settings = prepared.settings
    samples = prepared.evaluation.samples
    costs = (*prepared.objective.names, *prepared.objective.limited)
    costs += DEVICE if settings.for_ in CORES else ()
    asked = ((DEVICE, costs), (TIMED, prepared.spec))
    whole = EvaluationRequest(
        build=Build(blob, {}, None, prepared.spec["evaluator"], form=settings.for_),
        dataset=prepared.evaluation.ref,
        samples=samples,
        metrics=metric_names(prepared.has_labels, prepared.metric, prepared.decides),
        reference=context.pool.put(reference),
        hardware=prepared.hardware,
        asked=tuple(name for names, there in asked for name in names if name in there),
        board=settings.measure,
        head=head,
    )
    # Parts return their outputs to be hashed in order; large ones stay where they are.
    large = sum(output.nbytes for output in reference) > _HASHED_BYTES
    of_float = context.repository.study(context.study.name).baseline or {}
    if "max_drop" in prepared.spec:
        max_drop = settings.max_drop
    else:
        max_drop = None
    return Scorer(
        whole,
        score_of,
        channels=channels,
        parts=1 if large else parts_of(len(samples), prepared.run_samples),
        compared=lambda score, samples: comparisons(score, of_float, samples, max_drop),
        seed=settings.seed,
    )


def costs_of(parts: Sequence[EvaluationResult]) -> dict[str, float]:
    """Costs of a candidate, in the words of a score.

    The first part knows; of times the shortest counts: what runs beside makes them longer.
    """
    costs = [part.cost for part in parts]
    found = dict(costs[0])
    for key in (f"{name}_ms" for name in TIMED if f"{name}_ms" in found):
        found[key] = min(cost[key] for cost in costs if key in cost)
    return found


def failed(error: Exception, attempts: int = 1, seconds: float | None = None) -> Outcome:
    """The outcome of a trial that ended with an error; infeasible when it left float parts."""
    if isinstance(error, LostWorkerError):
        attempts = 0  # each lost worker was counted when it died
    if isinstance(error, CompilerError):
        where = "; ".join(filter(None, (error.where, *error.notes))) or None
        failure = Failure(error.what, where, error.fix)
    else:
        failure = Failure(f"{type(error).__name__}: {error}".strip()[:2000])
    return Outcome(
        state="infeasible" if isinstance(error, NotFullyIntegralError) else "failed",
        failure=failure,
        attempts=attempts,
        seconds=seconds,
    )


def metric_names(has_labels: bool, metric: str = "", decides: bool = True) -> tuple[str, ...]:
    """Metrics of ``workers.metrics`` that every candidate is scored with, and the user's own.

    Args:
        decides: the model's answers are compared.
    """
    names = tuple(m.option for m in _accuracies() if has_labels or m.needs != "labels")
    names = tuple(name for name in names if decides or name != "agreement")
    if is_import_path(metric):
        return (*names, metric)
    return names


def score_of(sums: Sums) -> dict[str, float | None]:
    """The score of merged sums: the value of each metric, and its standard error if it has one."""
    values = results(sums)
    score: dict[str, float | None] = {}
    for each in _accuracies():
        score[each.name] = values.get(each.option)
        if each.interval == "error" and each.option in sums:
            error = find_metric(each.option).standard_error(sums[each.option])
            score[each.name + UNCERTAIN] = error
    for name in ("lost", "won"):
        if name in sums.get("top1", {}):
            score[f"answers_{name}"] = sums["top1"][name]
    worst = worst_output(sums["sqnr"]) if "sqnr" in sums else None
    if worst is not None:
        score[WORST_OUTPUT], score["worst_output_db"] = float(worst[0]), worst[1]
    return score | _custom(sums)


def _accuracies() -> list[Measure]:
    """Measures that candidates are scored by, costs left out."""
    return [m for m in known_measures() if m.option and not m.smaller_is_better]


def _custom(sums: Sums) -> dict[str, float | None]:
    """Scores of metrics of libraries under their word, of the user's own under their import path,
    and what else these gave; None where they are not finite."""
    found: dict[str, float | None] = {}
    for name, state in sums.items():
        if is_import_path(name):
            key = by_option(name).name
            found[key] = results({name: state})[name]
            found[key + UNCERTAIN] = find_metric(name).standard_error(state)
            found.update(named_values(name, state))
    return {name: v if v is not None and math.isfinite(v) else None for name, v in found.items()}


def baseline_score(sums: Sums, decides: bool) -> dict[str, float | None]:
    """The float model's score; its agreement with itself is 1 and its SQNR infinite."""
    values = results(sums)
    score = {m.name: values.get(m.option, m.perfect if decides else None) for m in _accuracies()}
    return score | _custom(sums)


PART_SAMPLES: Final = 32
"""Fewest samples of a part: as many as a collapse is looked for in."""

MOST_PARTS: Final = 32
_TIMED_PARTS: Final = LOOKS[0]
"""The first ones, by which a search may stop a trial, measure times."""


def parts_of(samples: int, run_samples: int = 1) -> int:
    """The number of parts of an evaluation.

    Args:
        samples: that are scored.
        run_samples: samples of one run of the model; a run is never cut.
    """
    runs = -(-samples // run_samples)
    return max(1, min(MOST_PARTS, samples // PART_SAMPLES, runs))


def split(request: EvaluationRequest, parts: int) -> list[EvaluationRequest]:
    """The parts of a request, in order; the first looks for a collapse and asks for costs, the
    others do not, but the first few measure times.

    Parts return their outputs, whose hash must be taken in the order of the samples.
    """
    if parts == 1:
        return [request]
    first = replace(request, return_outputs=True)
    plain = replace(
        first, collapse_after=None, spot_check=False, hardware=None, return_rounding=False, asked=()
    )
    timed = replace(plain, asked=tuple(name for name in request.asked if name in TIMED))
    of_part = [first, *[timed] * (_TIMED_PARTS - 1), *[plain] * (parts - _TIMED_PARTS)]
    return [replace(of_part[part], part=(part, parts)) for part in range(parts)]


def merge(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """The result of all parts in order, or of the first ones where a search stopped early.

    Sums are added in order. The outputs are hashed as those of one evaluation of all samples; of
    an evaluation that was stopped, as they come.

    Raises:
        WorkerError: no part, or parts without outputs.
    """
    if len(results) == 1:
        return results[0]
    if not results or any(result.outputs is None for result in results):
        raise WorkerError("parts of an evaluation cannot be put together without their outputs")
    first = results[0]
    return replace(
        first,
        sums=merge_sums(result.sums for result in results),
        samples=sum(result.samples for result in results),
        collapsed=any(result.collapsed for result in results),
        outputs_sha256=_outputs_sha256(results),
        outputs=None,
        compile_cpu_s=sum(result.compile_cpu_s for result in results),
        run_cpu_s=sum(result.run_cpu_s for result in results),
        cost=costs_of(results),
        peak_rss_bytes=max(result.peak_rss_bytes for result in results),
    )


def _outputs_sha256(results: Sequence[EvaluationResult]) -> str:
    """sha256 over the outputs in the order of the samples: the parts take turns, run by run."""
    size = results[0].run_samples
    digest = hashlib.sha256()
    for start in range(0, max(result.samples for result in results), size):
        for result in results:
            hash_outputs(digest, [out[start : start + size] for out in result.outputs or ()])
    return digest.hexdigest()
