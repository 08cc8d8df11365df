"""The tables: a column for each field of a record, and what binds the rows to one another.

Times are UTC seconds since 1970 (REAL); durations are measured monotonically.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import sqlalchemy as sa

from qsearch.store import records

VERSION_TABLE = "qs_alembic_version"

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
METADATA: Final = sa.MetaData(naming_convention=NAMING)

_TYPES: Final[dict[Any, Any]] = {int: sa.Integer, float: sa.Double, bool: sa.Boolean, str: sa.Text}
"""Types of columns by those of fields; all others are JSON."""
_LARGE: Final = ("seed", "bytes", "beat", "peak_rss_bytes")
_LETTERS: Final = {
    "state": 16,
    **dict.fromkeys(("kind", "stage", "server"), 32),
    **dict.fromkeys(("key", "sha256", "model_sha256", "outputs_sha256", "spec_hash"), 64),
    **dict.fromkeys(("config_hash", "work_hash", "code_version", "owner"), 64),
    **dict.fromkeys(("name", "layer"), 255),
}
"""Longest text of a column, by its name; of others any."""


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    """Names and types of the columns of a record; an outcome and a failure are several."""
    for name, kind in get_type_hints(record).items():
        if kind is records.Outcome:
            yield from _fields(kind)
        elif records.Failure in get_args(kind):
            yield from ((column, str | None) for column in records.failure_columns(None))
        else:
            yield name, kind


def _column(name: str, kind: Any, letters: Mapping[str, int]) -> sa.Column[Any]:
    if NoneType in get_args(kind):
        parts = get_args(kind)
    else:
        parts = (kind,)
    plain = str if get_origin(parts[0]) is Literal else parts[0]
    if name in letters:
        held = sa.String(letters[name])
    else:
        held = _TYPES.get(plain, sa.JSON)
    return sa.Column(name, sa.BigInteger if name in _LARGE else held, nullable=len(parts) > 1)


def _table(
    name: str, record: Any, /, *more: sa.schema.SchemaItem, of: str = "", **letters: int
) -> sa.Table:
    """Declare a table.

    Args:
        more: columns, constraints and indices beside the fields of the record.
        of: table to a row of which each row belongs; it is deleted with that row.
        letters: of columns whose longest text is not that of ``_LETTERS``.
    """
    own = [sa.Column("id", sa.Integer, primary_key=True)]
    if of:
        there = sa.ForeignKey(f"qs_{of}.id", ondelete="CASCADE")
        own.append(sa.Column(f"{of}_id", sa.Integer, there, nullable=False))
    made = {column.name for column in own}
    fields = (field for field in _fields(record) if field[0] not in made)
    columns = [_column(*field, {**_LETTERS, **letters}) for field in fields]
    return sa.Table(f"qs_{name}", METADATA, *own, *columns, *more)


def _created() -> sa.Column[Any]:
    return sa.Column("created_at", sa.Double, nullable=False)


_unique = sa.UniqueConstraint

# One search: a model, its data, the space, the seed, and how far it came.
STUDY: Final = _table("study", records.Study, _unique("name"))

# A configuration and its outcome. ``config_hash`` is unique in the study; ``work_hash`` names the
# same work in any study of the storage. A running trial is leased to the driver ``driver_id``: when
# the driver has no heartbeat, it waits again.
TRIAL: Final = _table(
    "trial",
    records.Trial,
    _unique("study_id", "number"),
    _unique("study_id", "config_hash"),
    sa.Index(None, "study_id", "state"),
    sa.Index(None, "work_hash"),
    of="study",
)

# A file of the artefact store that belongs to a study, found again by kind and key.
_BY_KEY: Final = _unique("study_id", "kind", "key")
ARTIFACT: Final = _table("artifact", records.StoredArtifact, _created(), _BY_KEY, of="study")

# What happened when: started, resumed, batch proposed, trial finished, stopped, …
EVENT: Final = _table("event", records.Event, sa.Index(None, "study_id", "id"), of="study")

# A process that drives a study. ``beat`` grows while it lives; its running trials are leased.
# Observers measure with their own monotonic clock how long ``beat`` has not changed, so no two
# machines need to agree on the time; ``beat_at`` is for people.
DRIVER: Final = _table("driver", records.DriverRecord, sa.Index(None, "study_id"), of="study")

# What one part of a trial's evaluation found: the sums that add up to its score.
SHARD: Final = _table("shard", records.Shard, _unique("trial_id", "shard"), of="trial")

# Figures about one layer: its sensitivity, what its calibration saw, what it costs.
_BY_LAYER: Final = _unique("study_id", "kind", "layer")
LAYER: Final = _table("layer", records.LayerFigures, _BY_LAYER, of="study")

# A stage of a search: what it is for, how many trials it wants, how it ended.
STAGE: Final = _table("stage", records.Stage, _unique("study_id", "name"), of="study", name=32)

# A command for the drivers of a study: pause, resume or stop. Every driver reads all.
_NEWEST: Final = sa.Index(None, "study_id", "id")
COMMAND: Final = _table("command", records.Command, _NEWEST, of="study", kind=16)

# The end of a log that explains a failure: a worker's output, a traceback.
LOG: Final = _table("log", records.LogExcerpt, sa.Index(None, "study_id", "trial"), of="study")

# A study that a server runs for one of its users. An id is never used again: files have it.
JOB: Final = _table(
    "job", records.Job, _unique("server", "name"), sa.Index(None, "server", "state"), name=64
)
JOB.dialect_options["sqlite"]["autoincrement"] = True

# A file that a user of a server uploaded; equal files of several users are stored once.
UPLOAD: Final = _table(
    "upload",
    records.Upload,
    *(sa.Column(name, sa.String(_LETTERS[name]), nullable=False) for name in ("server", "owner")),
    _unique("server", "owner", "sha256", "kind"),
    kind=8,
)
