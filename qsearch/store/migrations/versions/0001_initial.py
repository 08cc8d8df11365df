"""The first schema: studies, trials, artefacts, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the four tables."""
    op.create_table(
        "qs_study",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("model_name", sa.Text, nullable=False),
        sa.Column("model_sha256", sa.String(64), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stopped", sa.Text),
        sa.Column("target_trials", sa.Integer, nullable=False),
        sa.Column("baseline", sa.JSON),
        sa.Column("emitted", sa.JSON),
        sa.Column("code_version", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_qs_study"),
        sa.UniqueConstraint("name", name="uq_qs_study_name"),
    )
    op.create_table(
        "qs_trial",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("qconfig", sa.JSON, nullable=False),
        sa.Column("config_hash", sa.String(64), nullable=False),
        sa.Column("work_hash", sa.String(64), nullable=False),
        sa.Column("score", sa.JSON),
        sa.Column("samples", sa.Integer),
        sa.Column("collapsed", sa.Boolean, nullable=False),
        sa.Column("outputs_sha256", sa.String(64)),
        sa.Column("error_what", sa.Text),
        sa.Column("error_where", sa.Text),
        sa.Column("error_fix", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("from_store", sa.Boolean, nullable=False),
        sa.Column("compile_cpu_s", sa.Double),
        sa.Column("run_cpu_s", sa.Double),
        sa.Column("peak_rss_bytes", sa.BigInteger),
        sa.Column("seconds", sa.Double),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_qs_trial"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["qs_study.id"], name="fk_qs_trial_study_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("study_id", "number", name="uq_qs_trial_study_id_number"),
        sa.UniqueConstraint("study_id", "config_hash", name="uq_qs_trial_study_id_config_hash"),
    )
    op.create_index("ix_qs_trial_study_id_state", "qs_trial", ["study_id", "state"])
    op.create_index("ix_qs_trial_work_hash", "qs_trial", ["work_hash"])
    op.create_table(
        "qs_artifact",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("cpu_s", sa.Double, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_qs_artifact"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["qs_study.id"], name="fk_qs_artifact_study_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("study_id", "kind", "key", name="uq_qs_artifact_study_id_kind_key"),
    )
    op.create_table(
        "qs_event",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("trial", sa.Integer),
        sa.Column("data", sa.JSON),
        sa.Column("at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_qs_event"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["qs_study.id"], name="fk_qs_event_study_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_qs_event_study_id_id", "qs_event", ["study_id", "id"])


def downgrade() -> None:
    """Drop the four tables."""
    for table in ("qs_event", "qs_artifact", "qs_trial", "qs_study"):
        op.drop_table(table)
