"""The history of the schema, run by alembic from inside the package."""
