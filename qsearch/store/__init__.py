"""The store: SQL tables (models), queries per subject, migrations, artefact files by sha256."""
