"""derive: everything that is proved or tested of a module, from the module alone.

Proved, for every input: dtypes and ranges. Tested, on the inputs that are named: that the stored
samples give their stored outputs, and that two independent executors agree. Nothing that the
search wrote down is believed; what it recorded is compared with what is derived here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from compiler.errors import CompilerError
from compiler.ir.blob import module_sha256
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.proof.dtypes import check_dtypes, count_values
from compiler.proof.ranges import Ranges, ValueRange, analyse
from compiler.proof.record import FORMAT, contents_of, conversion_record
from compiler.proof.replay import Comparison, c_flags, replay, replay_samples
from compiler.proof.scales import wrong_conversions
from compiler.proof.steps import Tested, built_in_c, check_forms, rounds_of
from compiler.proof.wiring import CORE, PREFIX, SUFFIX, check_wiring, passed_through
from compiler.proof.work import KINDS, known_work, replay_inputs
from compiler.ranges.analysis import Intermediate
from compiler.ranges.finding import Finding
from compiler.runtime.artifact import StoredSample
from compiler.targets.c.stepwise import Lowering

# The forms that a product with a real scale takes on integers.
_RESCALING = (
    "qnn.requantize",
    "fixed_point_multiply",
    "fixed_point_multiply_per_axis",
    "multiply",
    "left_shift",
    "right_shift",
    "lookup",
)
_SEED = 20


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement, whether it holds for every input, and the numbers behind it."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Findings about one module.

    Attributes:
        module_sha256: over the packed module.
        inputs: name, lowest and highest value of each integer parameter of quantized_main.
        claims: proved for every input, or refuted.
        comparisons: tested on the inputs they name.
        steps: what single steps of each form were tested on; see ``steps``.
        findings: why the module is refuted; empty when it is proved.
        values: every value of quantized_main with its bounds.
        intermediates: what operators compute on their way, with its bounds.
        conversions: what quantize_inputs and dequantize_outputs are made of, scales included.
        passthrough: outputs that are no results of the core but copies, a sentence each.
        contents: every node of the module with the SHA-256 of what it holds.
    """

    module_sha256: str
    inputs: tuple[tuple[str, int, int], ...]
    claims: tuple[Claim, ...]
    comparisons: tuple[Comparison, ...]
    findings: tuple[Finding, ...]
    values: tuple[ValueRange, ...] = field(repr=False)
    conversions: tuple[str, ...] = ()
    intermediates: tuple[Intermediate, ...] = field(default=(), repr=False)
    passthrough: tuple[str, ...] = ()
    contents: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    steps: tuple[Tested, ...] = ()

    @property
    def holds(self) -> bool:
        """True when there is nothing against the module."""
        return not self.findings

    def with_findings(self, *findings: Finding) -> Proof:
        """The same with more against it."""
        return replace(self, findings=(*self.findings, *findings))

    def with_comparison(self, comparison: Comparison, check: str) -> Proof:
        """The same with one more test."""
        return replace(
            self,
            comparisons=(*self.comparisons, comparison),
            findings=(*self.findings, *comparison.finding(check)),
        )

    def to_dict(self) -> dict[str, Any]:
        """proof.json: plain JSON values, equal for equal modules."""
        return {
            "format": FORMAT,
            "verdict": "proved" if self.holds else "refuted",
            "module_sha256": self.module_sha256,
            "inputs": [{"name": name, "low": low, "high": high} for name, low, high in self.inputs],
            "proved": [
                {"claim": c.name, "holds": c.holds, "detail": c.detail} for c in self.claims
            ],
            "tested": list(map(asdict, self.comparisons)),
            "steps": list(map(asdict, self.steps)),
            "findings": list(map(asdict, self.findings)),
            "contents": [dict(row) for row in self.contents],
            "conversions": list(self.conversions),
            "passthrough": list(self.passthrough),
            "intermediates": list(map(asdict, self.intermediates)),
            "values": list(map(asdict, self.values)),
        }


def derive(mod: IRModule, samples: Sequence[StoredSample], in_c: Lowering | None = None) -> Proof:
    """Prove what can be proved and test the rest.

    Args:
        mod: typed; partitioned, or it is refuted for that.
        samples: inputs of main with the outputs that were recorded for them.
        in_c: also test the C that export writes, ``compiler.pipeline.C_LOWERING``; needs a C
            compiler.

    A module that is refuted for its wiring or its ranges is not run.
    """
    proof = derive_static(mod)
    if not proof.values or any(finding.check != "dtypes" for finding in proof.findings):
        # Numbers that leave their dtype say nothing, whatever an executor makes of them.
        return proof
    bounds = [(low, high) for _, low, high in proof.inputs]
    return _tested(proof, mod, bounds, samples, in_c)


@collector_rests
def derive_static(mod: IRModule) -> Proof:
    """Derive the claims that hold for every input: dtypes and ranges, without running anything.

    This is what a search records in the file it writes; ``record.compare_record`` reads it.

    Args:
        mod: typed; partitioned, or it is refuted for that.
    """
    sha256 = module_sha256(mod)
    findings = list(check_dtypes(mod))
    if any(f.what.startswith("is missing") for f in findings):
        claim = Claim("integers only", False, f"there is no @{CORE} to look at")
        return Proof(sha256, (), (claim,), (), tuple(findings), ())
    counts = count_values(mod)
    shown = ", ".join(f"{count} {dtype}" for dtype, count in counts.items())
    whole = not findings
    claims = [Claim("integers only", whole, f"tensors of @{CORE}: {shown}")]
    unjoined = check_wiring(mod)
    if unjoined:
        findings.extend(unjoined)
        claims.append(Claim("no overflow", False, "@main does not join the three parts in order"))
        return Proof(sha256, (), tuple(claims), (), tuple(findings), ())
    try:
        prefix = analyse(mod, PREFIX)
        ranges = analyse(mod, CORE, prefix.outputs)
        suffix = analyse(mod, SUFFIX, ranges.outputs)
    except CompilerError as error:
        findings.append(Finding("ranges", f"@{CORE}", f"cannot be analysed: {error}"))
        claims.append(Claim("no overflow", False, "ranges could not be derived"))
        return Proof(sha256, (), tuple(claims), (), tuple(findings), ())
    findings.extend((*prefix.findings, *ranges.findings, *suffix.findings))
    wrong = (*ranges.multipliers, *wrong_conversions(mod))
    claims.insert(1, _integer_scales(ranges, whole and not wrong))
    claims.append(_no_overflow(ranges, not findings))
    findings.extend(wrong)
    inputs = tuple(
        (param.name_hint, given.lowest, given.highest)
        for param, given in zip(mod[CORE].params, prefix.outputs, strict=True)
        if given is not None
    )
    conversions = (*conversion_record(mod, PREFIX), *conversion_record(mod, SUFFIX))
    return Proof(
        module_sha256=sha256,
        inputs=inputs,
        claims=tuple(claims),
        comparisons=(),
        findings=tuple(findings),
        values=ranges.values,
        conversions=conversions,
        intermediates=ranges.intermediates,
        passthrough=passed_through(mod),
        contents=tuple(contents_of(mod)),
    )


def _tested(
    proof: Proof,
    mod: IRModule,
    bounds: Sequence[tuple[int, int]],
    samples: Sequence[StoredSample],
    lowering: Lowering | None,
) -> Proof:
    try:
        work = known_work(mod)
        inputs = KINDS if work is None else replay_inputs(work)
        if proof.findings:
            # Floats need not agree to the last bit, so there is nothing to compare.
            found = replay_samples(mod, samples, inputs)
            return proof.with_comparison(found, "samples")
        rng = np.random.default_rng(_SEED)
        if lowering is None:
            in_c = None
        else:
            in_c = built_in_c(mod, c_flags(mod), lowering)
        comparisons, findings = replay(mod, bounds, samples, rng, in_c, inputs)
        rounds = 1 if work is None else rounds_of(work)
        steps, more = check_forms(mod, rounds, _SEED, in_c)
    except CompilerError as error:
        return proof.with_findings(Finding("samples", "a stored sample", f"cannot be run: {error}"))
    return replace(
        proof,
        comparisons=(*proof.comparisons, *comparisons),
        findings=(*proof.findings, *findings, *more),
        steps=steps,
    )


def _integer_scales(ranges: Ranges, holds: bool) -> Claim:
    """Count each integer form of a scale."""
    counts = Counter(value.op for value in ranges.values)
    shown = ", ".join(f"{counts[op]} {op}" for op in _RESCALING if counts[op])
    told, many = ranges.scaled
    if many:
        shown += f"; {told} of {many} multipliers are those of the scales that values carry"
    return Claim("integer scales", holds, shown or "nothing is rescaled")


def _no_overflow(ranges: Ranges, holds: bool) -> Claim:
    """Count the bounded numbers, and name the accumulator that comes nearest to the end of its
    dtype."""
    detail = f"{len(ranges.values)} values and {len(ranges.intermediates)} intermediates bounded"
    sums = [one for one in ranges.intermediates if one.what.startswith(("the accum", "the sum"))]
    if sums:
        worst = max(sums, key=lambda one: one.share)
        detail += f"; widest is {worst.what} of {worst.node}, in [{worst.low}, {worst.high}]"
        detail += f", {100 * worst.share:.2f} % of {worst.dtype}"
    return Claim("no overflow", holds, detail)
