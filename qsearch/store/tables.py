"""The tables. Times are UTC seconds since 1970 (REAL); durations are measured monotonically."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

VERSION_TABLE = "qs_alembic_version"

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Table(DeclarativeBase):
    """Declarative root of every qs_ table."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy API)
        dict[str, Any]: JSON,
        list[float]: JSON,
        float: Double,
    }

    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-2)


class OfStudy:
    """What belongs to one study, and goes with it."""

    study_id: Mapped[int] = mapped_column(
        ForeignKey("qs_study.id", ondelete="CASCADE"), sort_order=-1
    )


class StudyRow(Table):
    """One search: a model, its data, the space, the seed, and how far it came.

    ``spec`` holds everything that decides which trials are made and what they score; ``spec_hash``
    is its canonical sha256. A run with another spec is another study.
    """

    __tablename__ = "qs_study"

    name: Mapped[str] = mapped_column(String(255), unique=True)
    model_name: Mapped[str] = mapped_column(Text)
    model_sha256: Mapped[str] = mapped_column(String(64))
    spec: Mapped[dict[str, Any]]
    spec_hash: Mapped[str] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))
    stopped: Mapped[str | None] = mapped_column(Text)
    target_trials: Mapped[int]
    baseline: Mapped[dict[str, Any] | None]
    emitted: Mapped[dict[str, Any] | None]
    code_version: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
    updated_at: Mapped[float]


class TrialRow(OfStudy, Table):
    """A configuration and its outcome.

    ``state`` is waiting, running, complete, pruned, failed or infeasible. ``config_hash`` is
    unique in the study; ``work_hash`` names the same work in any study of the storage. A running
    trial is leased to the driver ``driver_id``: when the driver has no heartbeat, it waits again.
    ``objective_values`` are the metric and the costs as they were measured.
    """

    __tablename__ = "qs_trial"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        UniqueConstraint("study_id", "config_hash"),
        Index(None, "study_id", "state"),
        Index(None, "work_hash"),
    )

    number: Mapped[int]
    batch: Mapped[int]
    stage: Mapped[str] = mapped_column(String(32), default="global", server_default="global")
    state: Mapped[str] = mapped_column(String(16))
    params: Mapped[dict[str, Any]]
    qconfig: Mapped[dict[str, Any]]
    config_hash: Mapped[str] = mapped_column(String(64))
    work_hash: Mapped[str] = mapped_column(String(64))
    score: Mapped[dict[str, Any] | None]
    objective_values: Mapped[list[float] | None]
    samples: Mapped[int | None]
    collapsed: Mapped[bool] = mapped_column(default=False)
    outputs_sha256: Mapped[str | None] = mapped_column(String(64))
    error_what: Mapped[str | None] = mapped_column(Text)
    error_where: Mapped[str | None] = mapped_column(Text)
    error_fix: Mapped[str | None] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(default=0)
    lost_workers: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    driver_id: Mapped[int | None]
    from_store: Mapped[bool] = mapped_column(default=False)
    compile_cpu_s: Mapped[float | None]
    run_cpu_s: Mapped[float | None]
    peak_rss_bytes: Mapped[int | None] = mapped_column(BigInteger)
    seconds: Mapped[float | None]
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class ArtifactRow(OfStudy, Table):
    """A file of the artefact store that belongs to a study, found again by kind and key."""

    __tablename__ = "qs_artifact"
    __table_args__ = (UniqueConstraint("study_id", "kind", "key"),)

    kind: Mapped[str] = mapped_column(String(32))
    key: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    cpu_s: Mapped[float]
    created_at: Mapped[float]


class EventRow(OfStudy, Table):
    """What happened when: started, resumed, batch proposed, trial finished, stopped, …"""

    __tablename__ = "qs_event"
    __table_args__ = (Index(None, "study_id", "id"),)

    kind: Mapped[str] = mapped_column(String(32))
    trial: Mapped[int | None]
    data: Mapped[dict[str, Any] | None]
    at: Mapped[float]


class DriverRow(OfStudy, Table):
    """A process that drives a study. ``beat`` grows while it lives; its running trials are leased.

    Observers measure with their own monotonic clock how long ``beat`` has not changed, so no two
    machines need to agree on the time; ``beat_at`` is for people.
    """

    __tablename__ = "qs_driver"
    __table_args__ = (Index(None, "study_id"),)

    name: Mapped[str] = mapped_column(String(255))
    code_version: Mapped[str] = mapped_column(String(64))
    workers: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    beat: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[float]
    beat_at: Mapped[float]


class ShardRow(Table):
    """What one part of a trial's evaluation found: the sums that add up to its score."""

    __tablename__ = "qs_shard"
    __table_args__ = (UniqueConstraint("trial_id", "shard"),)

    trial_id: Mapped[int] = mapped_column(ForeignKey("qs_trial.id", ondelete="CASCADE"))
    shard: Mapped[int]
    shards: Mapped[int]
    samples: Mapped[int]
    sums: Mapped[dict[str, Any]]
    cpu_s: Mapped[float]


class LayerRow(OfStudy, Table):
    """A figure about one layer: its sensitivity, what its calibration saw, what it costs."""

    __tablename__ = "qs_layer"
    __table_args__ = (UniqueConstraint("study_id", "kind", "layer"),)

    kind: Mapped[str] = mapped_column(String(32))
    layer: Mapped[str] = mapped_column(String(255))
    position: Mapped[int]
    figures: Mapped[dict[str, Any]]


class StageRow(OfStudy, Table):
    """A stage of a search: what it is for, how many trials it wants, how it ended."""

    __tablename__ = "qs_stage"
    __table_args__ = (UniqueConstraint("study_id", "name"),)

    name: Mapped[str] = mapped_column(String(32))
    position: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    planned: Mapped[int | None]
    data: Mapped[dict[str, Any] | None]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class CommandRow(OfStudy, Table):
    """A command for the drivers of a study: pause, resume or stop. Every driver reads all."""

    __tablename__ = "qs_command"
    __table_args__ = (Index(None, "study_id", "id"),)

    kind: Mapped[str] = mapped_column(String(16))
    at: Mapped[float]


class LogRow(OfStudy, Table):
    """The end of a log that explains a failure: a worker's output, a traceback."""

    __tablename__ = "qs_log"
    __table_args__ = (Index(None, "study_id", "trial"),)

    trial: Mapped[int | None]
    source: Mapped[str] = mapped_column(Text)
    excerpt: Mapped[str] = mapped_column(Text)
    at: Mapped[float]


class JobRow(Table):
    """A study that a server runs for one of its users; ``server`` names the server's folder.

    ``state`` is queued, running, done, failed, cancelled or deleted. ``settings`` are those of
    ``launch``, with hashes of uploads for files. ``attempts`` counts drivers that died one after
    the other. ``study_id`` is the study that its driver made in a database of several studies. A
    deleted job keeps what its owner's quota counts. An id is never used again: files have it.
    """

    __tablename__ = "qs_job"
    __table_args__ = (
        UniqueConstraint("server", "name"),
        Index(None, "server", "state"),
        {"sqlite_autoincrement": True},
    )

    server: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(64))
    owner: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    settings: Mapped[dict[str, Any]]
    trials: Mapped[int]
    attempts: Mapped[int]
    pid: Mapped[int | None]
    study_id: Mapped[int | None]
    seconds: Mapped[float]
    cancelled: Mapped[bool]
    exit_code: Mapped[int | None]
    error_what: Mapped[str | None] = mapped_column(Text)
    error_where: Mapped[str | None] = mapped_column(Text)
    error_fix: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    retry_at: Mapped[float | None]


class UploadRow(Table):
    """A file that a user of a server uploaded; equal files of several users are stored once."""

    __tablename__ = "qs_upload"
    __table_args__ = (UniqueConstraint("server", "owner", "sha256", "kind"),)

    server: Mapped[str] = mapped_column(String(32))
    owner: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(8))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float]
