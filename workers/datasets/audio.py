"""Dataset kind "audio": .wav and .flac files in class folders, read by soundfile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from workers.datasets.image_folder import labelled_files
from workers.datasets.listed import Array, ListedDataset, known_fields, optional_package
from workers.datasets.protocol import Dataset, InputSpec
from workers.datasets.registry import datasets, take_options
from workers.errors import DatasetError

SUFFIXES = (".wav", ".flac")
FIELDS = ("rate",)
_HELD = 256
"""Files whose samples stay in memory."""


@datasets.register("audio")
def open_audio(options: Mapping[str, Any], inputs: Sequence[InputSpec]) -> Dataset:
    """Options: ``path`` of the folder, and ``preprocess`` with ``rate``, the model's samples a
    second. Channels become one, other rates are resampled, and the length is cut or filled with
    zeros at the end. Folders are classes as those of images.

    Raises:
        DatasetError: no rate, no file, a file that cannot be read, or an input that is no sound.
    """
    given, preprocess = take_options("audio", options, path=..., preprocess=None)
    root, fields = Path(given), known_fields(preprocess, FIELDS)
    rate = fields.get("rate")
    if not isinstance(rate, int) or isinstance(rate, bool) or not 1000 <= rate <= 400_000:
        raise DatasetError(
            "sounds need the rate that the model takes"
            if rate is None
            else f"preprocess rate cannot be {rate!r}",
            where=str(root),
            fix="give --preprocess pre.yaml with 'rate: 16000', in samples a second",
        )
    spec = inputs[0]
    sizes = [size for size in spec.shape[1:] if size != 1]
    if len(inputs) != 1 or not spec.dtype.startswith("float") or len(sizes) != 1:
        raise DatasetError(
            f"sounds feed models with one float input of samples, not "
            f"{', '.join(map(str, inputs))}",
            where=str(root),
            fix="for a model of features (log-mel), write the features to an .npz",
        )
    found = labelled_files(root, SUFFIXES, "sound")
    soundfile = optional_package("soundfile", "audio", "a data set of sounds")

    @lru_cache(_HELD)
    def sample(place: int) -> dict[str, Array]:
        path = found[place][0]
        try:
            wave, own_rate = soundfile.read(path, dtype="float32", always_2d=True)
        except Exception as error:  # soundfile raises RuntimeError of its own kinds
            raise DatasetError(f"cannot read the sound: {error}", where=str(path)) from error
        if not len(wave):
            raise DatasetError("the sound is empty", where=str(path))
        mono = wave.mean(axis=1)
        if own_rate != rate:
            from scipy.signal import resample_poly

            common = gcd(own_rate, rate)
            mono = resample_poly(mono, rate // common, own_rate // common)
        mono = np.pad(mono[: sizes[0]], (0, max(sizes[0] - len(mono), 0)))
        return {spec.name: mono.astype(spec.dtype).reshape(spec.shape[1:])}

    labels = None if found[0][1] is None else np.asarray([label for _, label in found], np.int64)
    return ListedDataset(sample, labels, [path for path, _ in found], inputs, len(found))
