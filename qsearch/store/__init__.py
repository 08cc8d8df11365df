"""What outlives the process: our tables are the truth, artefacts are files named by sha256."""
