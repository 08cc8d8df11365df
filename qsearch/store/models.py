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
    type_annotation_map = {dict[str, Any]: JSON, float: Double}  # noqa: RUF012 (SQLAlchemy API)


class StudyRow(Table):
    """One search: a model, its data, the space, the seed, and how far it came.

    ``spec`` holds everything that decides which trials are made and what they score; ``spec_hash``
    is its canonical sha256. A run with another spec is another study.
    """

    __tablename__ = "qs_study"

    id: Mapped[int] = mapped_column(primary_key=True)
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


class TrialRow(Table):
    """One configuration and what became of it.

    ``state`` is waiting, running, complete, pruned, failed or infeasible. ``config_hash`` is
    unique in the study; ``work_hash`` names the same work in any study of the storage.
    """

    __tablename__ = "qs_trial"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        UniqueConstraint("study_id", "config_hash"),
        Index(None, "study_id", "state"),
        Index(None, "work_hash"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("qs_study.id", ondelete="CASCADE"))
    number: Mapped[int]
    batch: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    params: Mapped[dict[str, Any]]
    qconfig: Mapped[dict[str, Any]]
    config_hash: Mapped[str] = mapped_column(String(64))
    work_hash: Mapped[str] = mapped_column(String(64))
    score: Mapped[dict[str, Any] | None]
    samples: Mapped[int | None]
    collapsed: Mapped[bool] = mapped_column(default=False)
    outputs_sha256: Mapped[str | None] = mapped_column(String(64))
    error_what: Mapped[str | None] = mapped_column(Text)
    error_where: Mapped[str | None] = mapped_column(Text)
    error_fix: Mapped[str | None] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(default=0)
    from_store: Mapped[bool] = mapped_column(default=False)
    compile_cpu_s: Mapped[float | None]
    run_cpu_s: Mapped[float | None]
    peak_rss_bytes: Mapped[int | None] = mapped_column(BigInteger)
    seconds: Mapped[float | None]
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class ArtifactRow(Table):
    """A file of the artefact store that belongs to a study, found again by kind and key."""

    __tablename__ = "qs_artifact"
    __table_args__ = (UniqueConstraint("study_id", "kind", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("qs_study.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(32))
    key: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    cpu_s: Mapped[float]
    created_at: Mapped[float]


class EventRow(Table):
    """What happened when: started, resumed, batch proposed, trial finished, stopped, …"""

    __tablename__ = "qs_event"
    __table_args__ = (Index(None, "study_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("qs_study.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(32))
    trial: Mapped[int | None]
    data: Mapped[dict[str, Any] | None]
    at: Mapped[float]
