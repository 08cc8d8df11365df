"""The queue of a server: jobs, and the files that users uploaded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "qs_job",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("server", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("trials", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("pid", sa.Integer),
        sa.Column("study_id", sa.Integer),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("cancelled", sa.Boolean, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("error_what", sa.Text),
        sa.Column("error_where", sa.Text),
        sa.Column("error_fix", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("retry_at", sa.Double),
        sa.PrimaryKeyConstraint("id", name="pk_qs_job"),
        sa.UniqueConstraint("server", "name", name="uq_qs_job_server_name"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_qs_job_server_state", "qs_job", ["server", "state"])
    op.create_table(
        "qs_upload",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("server", sa.String(32), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_qs_upload"),
        sa.UniqueConstraint(
            *("server", "owner", "sha256", "kind"), name="uq_qs_upload_server_owner_sha256_kind"
        ),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("qs_upload")
    op.drop_table("qs_job")
