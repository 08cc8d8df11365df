"""The audit of built modules: which planted faults are found and repaired, and what gets worse.

    python -m tests.benchmarks.bench_audit [--networks N] [--seed S] [--json FILE]

Networks are drawn by seed. Each is built as ``compile`` builds it; then one quantize point of it
gets a fault, again and again in all builds, unless the configuration chooses something for the
point: the range halved, a constant, 4 bits, steps 16 times as large, the grid of another point.
Outputs are compared with the float network on samples that neither calibration nor the audit saw.

A fault that costs less than 1 dB is harmless. Of the others, *found* means that the audit names the
point, *repaired* that the outputs come within 1 dB of those without the fault, or that 80 % of the
decibels lost come back. Goals, which set the exit code: 90 % of the planted faults found and
repaired; no module with the audit is more than 0.1 dB below the same without.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.load import load
from compiler.insight.audit import Repaired, repaired
from compiler.ir.module import IRModule
from compiler.quantize import (
    Calibration,
    Candidate,
    measured_points,
    point_names,
    prerequisite_optimize,
)
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.runtime.exact_executor import exact_executor
from tests.benchmarks.unseen_networks import Network
from tests.compiler.quantize.planting import FAULTS, planted

CALIBRATED: Final = 32
FRESH: Final = 32
HARMLESS_DB: Final = 1.0
REGAINED: Final = 0.8
FOUND_GOAL: Final = 0.9
WORSE_DB: Final = 0.1

Samples = list[dict[str, NDArray[np.float32]]]


def drawn(seed: int) -> Any:
    """A small network: stages of images, sequences or tables, drawn by seed."""
    rng = np.random.default_rng(seed)
    g = Network(seed)
    return g.model((_image, _sequence, _table)[seed % 3](g, rng))


def _image(g: Network, rng: np.random.Generator) -> str:
    width = int(rng.choice([8, 12, 16]))
    x = g.conv(g.input(1, 3, 16, 16), (width, 3, 3, 3), _act(rng))
    for _ in range(int(rng.integers(2, 5))):
        kind = rng.integers(5)
        if kind == 0:
            x = g(
                "Add",
                x,
                g.conv(g.conv(x, (width, width, 3, 3), _act(rng)), (width, width, 1, 1), ""),
            )
        elif kind == 1:
            x = g.conv(x, (width, 1, 3, 3), _act(rng), group=width)
        elif kind == 2:
            x = g.squeeze(x, width, 4, str(rng.choice(["Sigmoid", "HardSigmoid"])))
        elif kind == 3:
            y = g.conv(x, (width, width, 1, 1), _act(rng))
            x = g.conv(g("Concat", x, y, axis=1), (width, 2 * width, 1, 1), _act(rng))
        else:
            x = g.conv(g.norm(x, width), (width, width, 3, 3), _act(rng))
    return g.head(x, width, 10)


def _sequence(g: Network, rng: np.random.Generator) -> str:
    width, tokens = int(rng.choice([16, 24])), 12
    x = g.dense(g.input(1, tokens, 8), 8, width)
    for _ in range(int(rng.integers(1, 3))):
        y = g.layer_norm(x, width)
        if rng.integers(2):
            q, k, v = (g.dense(y, width, width) for _ in range(3))
            scores = g("MatMul", q, g("Transpose", k, perm=[0, 2, 1]))
            soft = g("Softmax", g("Mul", scores, g.weight(width**-0.5)), axis=-1)
            y = g.dense(g("MatMul", soft, v), width, width)
        else:
            y = g.dense(g.dense(y, width, 2 * width, "Gelu"), 2 * width, width)
        x = g("Add", x, y)
    if rng.integers(2):
        total = g("ReduceSum", x, g.weight([1], np.int64), keepdims=0)
        return g.dense(g("Tanh", g("Mul", total, g.weight(0.2))), width, 6)
    return g.dense(g("ReduceMean", x, axes=[1], keepdims=0), width, 6)


def _table(g: Network, rng: np.random.Generator) -> str:
    width = int(rng.choice([16, 32]))
    x = g.dense(g.input(1, 12), 12, width, _act(rng))
    for _ in range(int(rng.integers(2, 5))):
        kind = rng.integers(3)
        y = g.dense(x, width, width, _act(rng))
        if kind == 0:
            x = g("Add", x, y)
        elif kind == 1:
            x = g("Mul", y, g.dense(x, width, width, "Sigmoid"))
        else:
            x = g.dense(g("Concat", x, y, axis=1), 2 * width, width, _act(rng))
    return g.dense(x, width, 5)


def _act(rng: np.random.Generator) -> str:
    return str(rng.choice(["Relu", "Silu", "Gelu", "Tanh", "LeakyRelu", "HardSwish"]))


@dataclass(frozen=True, slots=True)
class Case:
    """One network with its data, prepared."""

    module: IRModule
    calib: Samples
    fresh: Samples

    @staticmethod
    def of(seed: int) -> Case:
        """Draw it."""
        module = prerequisite_optimize(*load(drawn(seed).SerializeToString()), 3)
        rng = np.random.default_rng(seed + 1)
        shape = module["main"].params[0].tensor_type.concrete_shape
        name = module["main"].params[0].name_hint
        rows = [
            {name: (rng.normal(0, 1, shape) * rng.lognormal(0, 0.3)).astype(np.float32)}
            for _ in range(CALIBRATED + FRESH)
        ]
        return Case(module, rows[:CALIBRATED], rows[CALIBRATED:])

    def build(self, audits: bool) -> tuple[Candidate, Repaired | None, float]:
        """Build as ``compile`` does; return the seconds as well."""
        began = time.perf_counter()
        calibration = Calibration(self.module, self.calib)
        qconfig, _ = calibration.choose()
        candidate, found = calibration.candidate(qconfig), None
        if audits:
            found = repaired(calibration, qconfig, candidate, self.calib[:16])
            candidate = found.candidate
        return candidate, found, time.perf_counter() - began

    def db(self, candidate: Candidate) -> float:
        """SQNR on fresh samples of what ships."""
        exact = float_executor(self.module)
        assert candidate.integer is not None
        integers = exact_executor(candidate.integer).executor
        signal = noise = 0.0
        for one in self.fresh:
            for wanted, found in zip(exact.run(one), integers.run(one), strict=True):
                signal += float(np.square(wanted, dtype=np.float64).sum())
                noise += float(np.square(np.subtract(wanted, found, dtype=np.float64)).sum())
        return 10 * float(np.log10(max(signal, 1e-30) / max(noise, 1e-30)))


def examined(seed: int) -> list[dict[str, Any]]:
    """The rows of one network: without a fault, and with each of them."""
    case = Case.of(seed)
    plain, _, alone_s = case.build(audits=False)
    names = list(map(point_names(plain.annotated).get, measured_points(plain.annotated)))
    rng = np.random.default_rng(seed + 2)
    rows = []
    sound = case.db(plain)
    for fault in ("none", *FAULTS):
        place, other = (int(p) for p in rng.integers(len(names), size=2))
        if fault == "none":
            bad, (candidate, found, both_s) = sound, case.build(audits=True)
        else:
            with planted(fault, place, other):
                bad = case.db(case.build(audits=False)[0])
                candidate, found, both_s = case.build(audits=True)
        assert found is not None
        with_db, name = case.db(candidate), names[place]
        rows.append(
            {
                "seed": seed,
                "fault": fault,
                "point": name,
                "sound_db": round(sound, 2),
                "without_db": round(bad, 2),
                "with_db": round(with_db, 2),
                "harmless": bad > sound - HARMLESS_DB,
                "found": name in found.to_dict()["doubts"],
                "repairs": [str(one) for one in found.repairs],
                "repaired": with_db >= min(sound - 1, bad + REGAINED * (sound - bad)),
                "seconds": round(both_s - alone_s, 2),
            }
        )
    return rows


def main() -> int:
    """Run all, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--networks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(asked.seed, asked.seed + asked.networks):
        for row in examined(seed):
            rows.append(row)
            print(json.dumps(row), flush=True)
    faults = [row for row in rows if row["fault"] != "none"]
    harmful = [row for row in faults if not row["harmless"]]
    mended = [row for row in harmful if row["found"] and row["repaired"]]
    worse = [row for row in rows if row["with_db"] < row["without_db"] - WORSE_DB]
    told = {
        "planted": len(faults),
        "harmful": len(harmful),
        "found": sum(row["found"] for row in harmful),
        "found_and_repaired": len(mended),
        "worse": len(worse),
        "by_fault": {
            fault: f"{sum(r['fault'] == fault for r in mended)} of "
            f"{sum(r['fault'] == fault for r in harmful)}"
            for fault in FAULTS
        },
    }
    print(json.dumps(told, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps({"rows": rows, **told}, indent=1) + "\n")
    return 0 if len(mended) >= FOUND_GOAL * len(harmful) and not worse else 1


if __name__ == "__main__":
    sys.exit(main())
