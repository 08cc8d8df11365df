"""Figures for Prometheus: studies, trials, workers, queue, seconds, bytes, losses."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from qsearch.errors import StoreError
from qsearch.store.records import LISTENING_S
from qsearch.store.view_queries import Totals

if TYPE_CHECKING:
    from qsearch.dashboard.state import Shared


class StudyFigures:
    """Sum up what the databases of a dashboard hold, whenever it is asked for.

    Deleted studies take their figures along, which readers of counters take for a restart.
    """

    def __init__(self, found: Callable[[], Shared]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Yield every figure."""
        yield from _figures(self._found())


def registry_of(found: Callable[[], Shared]) -> CollectorRegistry:
    """The figures of an application and of its process."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(StudyFigures(found))
    return registry


def _figures(found: Shared) -> Iterator[Metric]:
    total = Totals()
    unread = 0
    for source in found.sources.all():
        try:
            total += found.sources.repository(source).totals(time.time() - LISTENING_S)
        except StoreError:  # one that a search is only just making, or that does not answer
            unread += 1
    yield _by_state("qsearch_studies", "Studies by state.", total.studies)
    yield _by_state("qsearch_trials", "Trials by state.", total.trials)
    for name, told, value in (
        ("qsearch_drivers", "Processes that drive a search and send heartbeats.", total.drivers),
        ("qsearch_workers", "Workers of these drivers.", total.workers),
        ("qsearch_artifact_bytes", "Bytes of the files that studies keep.", total.artifact_bytes),
        ("qsearch_databases_unread", "Databases that did not answer.", unread),
    ):
        yield GaugeMetricFamily(name, told, value)
    for name, told, amount in (
        ("qsearch_trial_seconds", "Wall seconds of the trials that ended.", total.seconds),
        ("qsearch_trial_cpu_seconds", "CPU seconds of the trials that ended.", total.cpu_s),
        ("qsearch_trial_attempts", "Times that trials were started.", total.attempts),
        ("qsearch_workers_lost", "Workers that ended while they ran a trial.", total.lost_workers),
    ):
        yield CounterMetricFamily(name, told, amount)
    if found.queue is None:
        return
    with contextlib.suppress(StoreError):
        jobs = Counter(str(job.state) for job, _ in found.queue.jobs())
        yield _by_state("qsearch_queue_jobs", "Jobs of the queue by state.", jobs)
        yield GaugeMetricFamily(
            "qsearch_queue_studies_limit",
            "Studies that run at a time.",
            found.queue.options.max_studies,
        )


def _by_state(name: str, told: str, counts: Counter[str]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=["state"])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
