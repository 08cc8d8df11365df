"""The datasets of this package; each registers itself when it is imported."""

# ruff: noqa: F401

from workers.datasets import (
    annotated,
    audio,
    image_folder,
    npz,
    prepared,
    synthetic,
    table,
    text,
    variant,
)
