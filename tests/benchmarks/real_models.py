"""The models and images of ../shared/data for benchmarks that are run by name."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "fashion_vit",
    "efficientnet_lite0",
)


@dataclass(frozen=True, slots=True)
class Split:
    """Inputs as the model takes them, float32 (N, C, H, W), and labels (N,)."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def read_split(folder: Path, model: str, split: str, limit: int | None, multiple: int = 1) -> Split:
    """The first samples of "calib", "dev" or "train", preprocessed for the model.

    Args:
        limit: at most so many; None takes all.
        multiple: the count is rounded down to a multiple of this, but not to zero.
    """
    reader = _reader(folder)
    if model.startswith("efficientnet"):
        raw, labels = reader.load_imagenet(f"imagenet_{split}.npz", limit=limit)
    elif model.startswith("fashion"):
        raw, labels = reader.load_fashion(split, limit)
    else:
        raw, labels = reader.load_digits(split, limit)
    count = max(len(labels) // multiple, 1) * multiple
    return Split(reader.preprocess(raw[:count], model), labels[:count])


def unseen_split(folder: Path, model: str, held_back: Split, multiple: int) -> Split:
    """These samples, then those the network was trained with, where the folder has them."""
    if model.startswith("efficientnet"):
        return held_back
    train = read_split(folder, model, "train", None, multiple)
    return Split(
        np.concatenate([held_back.images, train.images]),
        np.concatenate([held_back.labels, train.labels]),
    )


def batch_of(model: str) -> int:
    """Samples per run: what is fastest, and divides the calib and the dev split."""
    return 1 if model.startswith("efficientnet") else 16


def _reader(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("shared_data_load", folder / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
