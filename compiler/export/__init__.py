"""Writers of model files."""
