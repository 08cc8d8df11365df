"""Scores of points of the default space, kept on disk: policies are compared by reading them.

A point is built, run and scored once. What is kept is the squared error and the answer of every
image, so scores of fewer images are known too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CompilerError
from compiler.frontend.from_onnx.load import load
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import (
    Calibration,
    prerequisite_optimize,
)
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.quantize.calibration.collectors import DEFAULT_PERCENTILES
from compiler.runtime.exact_executor import exact_executor
from compiler.runtime.executor import Executor
from qsearch.search.objectives import KEEPS_ACCURACY, Objective, sqnr_value
from qsearch.search.sampler import Proposal, SamplerSpec, StudySampler, first_points
from qsearch.search.space import Params, Space, config_hash, to_qconfig
from qsearch.search.space_file import searched_space
from qsearch.settings.launch_settings import Settings
from qsearch.store.records import Outcome, Trial
from tests.benchmarks.real_models import batch_of, read_split

OBJECTIVE = Objective("sqnr")
MAX_DROP = 0.01


class KnownScores:
    """Scores of one model by configuration.

    Args:
        path: JSON lines, appended to; the first line says what was measured.
        data: folder of models and images.
        name: of the model.
        calib, images: how many images.
    """

    def __init__(self, path: Path, data: Path, name: str, calib: int, images: int) -> None:
        self.name, self.batch = name, batch_of(name)
        calibration = read_split(data, name, "calib", calib, self.batch)
        self.dev = read_split(data, name, "dev", images, self.batch)
        mod, params = load(data / f"{name}.onnx", dims={"N": self.batch})
        self.module = prerequisite_optimize(mod, params, opt_level=3, simplify=True)
        batches = [
            {"input": calibration.images[i : i + self.batch]}
            for i in range(0, len(calibration), self.batch)
        ]
        self.calibration = Calibration(self.module, batches, percentiles=DEFAULT_PERCENTILES)
        asked = searched_space(Settings(), self.module, OBJECTIVE.metric)
        self.space: Space = asked.space
        self.start: QConfig = asked.start
        self.chosen = self.calibration.choose()[0]
        self.reference = self._outputs(float_executor(self.module))
        self.signal = np.square(self.reference.astype(np.float64)).sum(1)
        self._path = path
        self._rows: dict[str, dict[str, Any]] = {}
        self.measured = 0
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._rows[row["hash"]] = row

    @property
    def float_top1(self) -> float:
        """Share of right answers of the float model."""
        return float((self.reference.argmax(1) == self.dev.labels).mean())

    @property
    def best_known(self) -> float:
        """The best SQNR of all that is known and keeps its accuracy."""
        return best_db([self.trial_of(row["params"], n) for n, row in enumerate(self.rows())])

    def rows(self) -> Iterable[dict[str, Any]]:
        """All that is known."""
        return self._rows.values()

    def row(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Noise and answer of every image at a point, measured now unless it is known."""
        qconfig = to_qconfig(params, self.start)
        key = config_hash(qconfig.to_dict())
        if key not in self._rows:
            self._rows[key] = self._measured(key, dict(params), qconfig)
            with self._path.open("a") as file:
                file.write(json.dumps(self._rows[key]) + "\n")
        return self._rows[key]

    def score(self, params: Mapping[str, Any], images: int | None = None) -> dict[str, float]:
        """Top-1, agreement and SQNR on the first images; empty where nothing could be built."""
        row = self.row(params)
        if "error" in row:
            return {}
        some = slice(0, images)
        noise = float(np.sum(row["noise"][some]))
        answers = np.asarray(row["answer"][some])
        return {
            "top1": float((answers == self.dev.labels[some]).mean()),
            "agreement": float((answers == self.reference[some].argmax(1)).mean()),
            "sqnr_db": float(10 * np.log10(self.signal[some].sum() / max(noise, 1e-300))),
        }

    def trial_of(self, params: Params, number: int) -> Trial:
        """A point as a trial that ended."""
        qconfig = to_qconfig(params, self.start)
        key = config_hash(qconfig.to_dict())
        return self.trial(Proposal(params, qconfig, key), number, 0)

    def trial(self, proposal: Proposal, number: int, batch: int) -> Trial:
        """A proposal that ended with its known score."""
        score: dict[str, float | None] = dict(self.score(proposal.params))
        if score:
            kept = (score["top1"] or 0.0) >= self.float_top1 - MAX_DROP - 1e-9
            score[KEEPS_ACCURACY] = float(kept)
        return Trial(
            id=number + 1,
            study_id=1,
            number=number,
            batch=batch,
            params=proposal.params,
            qconfig=proposal.qconfig.to_dict(),
            config_hash=proposal.config_hash,
            work_hash=proposal.config_hash,
            outcome=Outcome(state="complete" if score else "failed", score=score or None),
            stage=proposal.stage,
            created_at=0.0,
            started_at=0.0,
            finished_at=0.0,
        )

    def _measured(self, key: str, params: Params, qconfig: QConfig) -> dict[str, Any]:
        begin = time.process_time()
        self.measured += 1
        try:
            candidate = self.calibration.candidate(qconfig)
            built = time.process_time()
            assert candidate.integer is not None
            outputs = self._outputs(exact_executor(candidate.integer).executor).astype(np.float64)
        except CompilerError as error:
            return {"hash": key, "params": params, "error": str(error)}
        noise = np.square(outputs - self.reference).sum(1)
        return {
            "hash": key,
            "params": params,
            "noise": [float(f"{value:.6g}") for value in noise],
            "answer": outputs.argmax(1).tolist(),
            "build_cpu_s": round(built - begin, 3),
            "run_cpu_s": round(time.process_time() - built, 3),
        }

    def _outputs(self, executor: Executor) -> NDArray[Any]:
        starts = range(0, len(self.dev), self.batch)
        runs = (self.dev.images[i : i + self.batch] for i in starts)
        return np.concatenate([executor.run({"input": images})[0] for images in runs])


ARMS = ("policy", "no refinement")
"""That of new studies, and one that draws all trials behind the guesses at random."""


def replayed(known: KnownScores, arm: str, seed: int, trials: int) -> list[Trial]:
    """The trials of a study whose scores are looked up.

    Args:
        arm: one of ``ARMS``.
    """
    space = known.space
    if arm == "no refinement":
        points = list(space.points())
        order = np.random.default_rng(seed).permutation(len(points))
        first = first_points(space, known.start, known.chosen)
        drawn = [*first, *(points[place] for place in order)][:trials]
        return [known.trial_of(point, number) for number, point in enumerate(drawn)]
    spec = SamplerSpec("auto", seed, 4, waits=True)
    sampler = StudySampler(space, known.start, OBJECTIVE, spec, chosen=known.chosen)
    done: list[Trial] = []
    while len(done) < trials:
        batch = len(done) // sampler.spec.batch_size
        proposals = sampler.propose(batch)[: trials - len(done)]
        if not proposals:
            break
        ended = [known.trial(p, len(done) + n, batch) for n, p in enumerate(proposals)]
        sampler.add_pending(ended)
        sampler.add_history(ended)
        done += ended
    return done


def best_db(trials: Iterable[Trial]) -> float:
    """SQNR of the best trial that keeps its accuracy; minus infinity where none does."""
    best = OBJECTIVE.best(trials)
    score = None if best is None else best.outcome.score
    return sqnr_value(score) if score and OBJECTIVE.feasible(score) else -np.inf
