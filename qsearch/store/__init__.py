"""What outlives the process: tables, migrations, artifacts."""
