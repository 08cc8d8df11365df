"""The winner, once more from the start: built, checked, run by the exact integers, written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import NotFullyIntegralError
from compiler.ir.analysis import post_order
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, Type
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import ChannelStats, build_candidate
from qsearch.progress import Progress
from qsearch.search.baseline import SplitEvaluation, evaluate_split, shards
from qsearch.search.gathering import await_workers
from qsearch.search.judging import Judging
from qsearch.search.scoring import score_of
from qsearch.store.records import Trial
from workers.messages import EvaluationRequest, Judge
from workers.pool.protocol import WorkerPool

MAIN = "quantized_main"


@dataclass(frozen=True, slots=True)
class Emitted:
    """What the written module scores, run by the exact integer reference.

    Attributes:
        score: as for trials.
        equal_outputs: fraction of samples all of whose outputs equal the judge's, bit for bit.
        outputs_sha256: over these outputs; `qsearch verify --eval` computes it again.
        cpu_s: what the check cost.
    """

    score: Mapping[str, float | None]
    equal_outputs: float
    outputs_sha256: str
    cpu_s: float

    def report(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            **self.score,
            "equal_outputs": self.equal_outputs,
            "outputs_sha256": self.outputs_sha256,
        }


def build_winner(
    module: IRModule,
    qconfig: QConfig,
    scales: Sequence[float] | None,
    channels: ChannelStats | None,
) -> tuple[IRModule, tuple[str, ...]]:
    """The module to ship, partitioned where the configuration says so, and what stayed float.

    Raises:
        NotFullyIntegralError: ``fully_integral`` was asked for and float is left.
    """
    candidate = build_candidate(module, qconfig, scales, channels)
    shipped = candidate.partitioned or candidate.integer or candidate.simulated
    if qconfig.partition_conversions == "fully_integral":
        check_integers_only(shipped)
    left = candidate.report.float_ops
    return shipped, tuple(f"{call.op}: {call.reason} ({call.where})" for call in left)


def check_integers_only(module: IRModule) -> int:
    """Walk every type of ``quantized_main``; how many there were.

    Raises:
        NotFullyIntegralError: the function is missing, or a type in it is not an integer.
    """
    names = {var.name_hint: function for var, function in module.functions.items()}
    if MAIN not in names:
        raise NotFullyIntegralError(
            f"the module has no function {MAIN!r}", where=f"functions {sorted(names)}"
        )
    seen = 0
    for node in post_order(names[MAIN].body):
        for dtype in _dtypes(node.checked_type):
            seen += 1
            if not dtype.startswith(("int", "uint", "bool")):
                raise NotFullyIntegralError(
                    f"{MAIN} computes a {dtype}",
                    where=str(node),
                    fix="allow float parts with --allow-float",
                )
    return seen


def _dtypes(ty: Type) -> list[str]:
    found: list[str] = []
    stack: list[Type] = [ty]
    while stack:
        one = stack.pop()
        if isinstance(one, TensorType):
            found.append(one.dtype)
        elif isinstance(one, TupleType):
            stack.extend(one.fields)
    return found


def check_winner(
    pool: WorkerPool,
    judging: Judging,
    reference: Sequence[NDArray[Any]],
    best: Trial,
    scales: tuple[float, ...] | None,
    progress: Progress,
) -> Emitted:
    """Score the winner by the exact reference and compare its outputs with the judge's.

    The judge runs again only where the hash of its outputs says that some of them differ.

    Args:
        reference: outputs of the float model for all samples.
    """

    def run(judge: Judge) -> SplitEvaluation:
        progress.phase(f"check, {judge}", len(judging.samples))
        requests = [
            EvaluationRequest(
                blob=judging.blob,
                qconfig=dict(best.qconfig),
                activation_scales=scales,
                judge=judge,
                dataset=judging.dataset,
                samples=part,
                metrics=judging.metrics,
                reference=tuple(out[part.start : part.stop] for out in reference),
                return_outputs=True,
                channels=judging.channels_of(best.qconfig),
            )
            for part in shards(judging.samples)
        ]
        return evaluate_split(pool, requests, progress, f"final {judge}")

    await_workers(pool, progress)
    judge = judging.judge_of(best.qconfig)
    exact = run("reference")
    equal, cpu_s = 1.0, exact.cpu_s
    digest = outputs_sha256(exact.outputs)
    if digest != best.outcome.outputs_sha256:
        judged = run(judge)
        equal = equal_fraction(exact.outputs, judged.outputs)
        cpu_s += judged.cpu_s
    return Emitted(score_of(exact.sums), equal, digest, cpu_s)


def outputs_sha256(outputs: Sequence[NDArray[Any]]) -> str:
    """sha256 over the little-endian float32 outputs, sample after sample, as workers hash them."""
    digest = hashlib.sha256()
    for sample in range(len(outputs[0])):
        for rows in outputs:
            digest.update(np.ascontiguousarray(rows[sample], "<f4").tobytes())
    return digest.hexdigest()


def equal_fraction(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> float:
    """Fraction of samples (axis 0) for which all outputs are equal."""
    count = len(ours[0])
    equal = np.ones(count, bool)
    for one, other in zip(ours, theirs, strict=True):
        equal &= (one == other).reshape(count, -1).all(axis=1)
    return float(equal.mean())
