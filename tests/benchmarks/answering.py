"""What runs in the workers of the benchmarks of the driver; light, so that many start quickly."""

from __future__ import annotations

import hashlib
import time

from workers.messages import EvaluationRequest, EvaluationResult
from workers.worker import Fetch


class Answering:
    """Runs in a worker: answers after ``sleep_s`` with a score made from the configuration."""

    sleep_s = 0.0

    def __init__(self, _fetch: Fetch) -> None:
        """Needs no stored value."""

    def run(self, request: EvaluationRequest) -> EvaluationResult:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        digest = hashlib.sha256(repr(sorted(request.build.qconfig.items())).encode()).hexdigest()
        return EvaluationResult(
            sums={"agreement": {"right": int(digest[:4], 16) / 65536, "total": 1.0}},
            samples=len(request.samples),
            collapsed=False,
            outputs_sha256=digest,
            outputs=None,
            compile_cpu_s=0.0,
            run_cpu_s=0.0,
            peak_rss_bytes=1,
        )


class Sleeping(Answering):
    """Two seconds a trial, as the scale benchmark asks for."""

    sleep_s = 2.0
