"""Drivers with leases, shard scores, layer figures, stages, commands, log excerpts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_TABLES = ("qs_log", "qs_command", "qs_stage", "qs_layer", "qs_shard", "qs_driver")
_NEW_COLUMNS = ("driver_id", "lost_workers", "objective_values", "stage")


def upgrade() -> None:
    """Add the columns of trials and six tables; trials of before belong to the stage "global"."""
    stage = sa.Column("stage", sa.String(32), nullable=False, server_default="global")
    lost = sa.Column("lost_workers", sa.Integer, nullable=False, server_default=sa.text("0"))
    op.add_column("qs_trial", stage)
    op.add_column("qs_trial", sa.Column("objective_values", sa.JSON))
    op.add_column("qs_trial", lost)
    op.add_column("qs_trial", sa.Column("driver_id", sa.Integer))
    _of_study(
        "qs_driver",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("code_version", sa.String(64), nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("beat_at", sa.Double, nullable=False),
    )
    op.create_index("ix_qs_driver_study_id", "qs_driver", ["study_id"])
    op.create_table(
        "qs_shard",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("shard", sa.Integer, nullable=False),
        sa.Column("shards", sa.Integer, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("sums", sa.JSON, nullable=False),
        sa.Column("cpu_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_qs_shard"),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["qs_trial.id"], name="fk_qs_shard_trial_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("trial_id", "shard", name="uq_qs_shard_trial_id_shard"),
    )
    _of_study(
        "qs_layer",
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("layer", sa.String(255), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("figures", sa.JSON, nullable=False),
        sa.UniqueConstraint("study_id", "kind", "layer", name="uq_qs_layer_study_id_kind_layer"),
    )
    _of_study(
        "qs_stage",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("planned", sa.Integer),
        sa.Column("data", sa.JSON),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.UniqueConstraint("study_id", "name", name="uq_qs_stage_study_id_name"),
    )
    _of_study(
        "qs_command",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("ix_qs_command_study_id_id", "qs_command", ["study_id", "id"])
    _of_study(
        "qs_log",
        sa.Column("trial", sa.Integer),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("excerpt", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_index("ix_qs_log_study_id_trial", "qs_log", ["study_id", "trial"])


def downgrade() -> None:
    """Drop what was added."""
    for table in _TABLES:
        op.drop_table(table)
    for column in _NEW_COLUMNS:
        op.drop_column("qs_trial", column)


def _of_study(name: str, *parts: sa.Column[object] | sa.Constraint) -> None:
    """A table whose rows belong to a study and go with it."""
    op.create_table(
        name,
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["qs_study.id"], name=f"fk_{name}_study_id", ondelete="CASCADE"
        ),
    )
