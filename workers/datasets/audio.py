"""Dataset kind "audio": .wav and .flac files in class folders, read by soundfile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from pathlib import Path

import numpy as np

from compiler.errors import raised_as
from workers.datasets.image_folder import labelled_files
from workers.datasets.listed import Array, ListedDataset, known_fields, optional_package
from workers.datasets.log_mel import LogMel
from workers.datasets.protocol import Dataset, InputSpec, Options
from workers.datasets.registry import datasets
from workers.errors import DatasetError

SUFFIXES = (".wav", ".flac")
FIELDS = ("rate", "log_mel")
_HELD = 256
"""Files whose samples stay in memory."""


@datasets.register("audio")
def open_audio(inputs: Sequence[InputSpec], path: Path, preprocess: Options) -> Dataset:
    """Options: ``path`` of the folder, and ``preprocess`` with ``rate``, the model's samples a
    second. Channels become one, other rates are resampled, and the length is cut or filled with
    zeros at the end. With ``log_mel`` the model takes features of these names (``LogMel``) in place
    of samples: frames by bands, or bands by frames. Folders are classes as those of images.

    Raises:
        DatasetError: no rate, no file, a file that cannot be read, or an input that is no sound.
    """
    fields = known_fields(preprocess, FIELDS)
    rate = fields.get("rate")
    if not isinstance(rate, int) or isinstance(rate, bool) or not 1000 <= rate <= 400_000:
        raise DatasetError(
            "sounds need the rate that the model takes"
            if rate is None
            else f"preprocess rate cannot be {rate!r}",
            where=str(path),
            fix="give --preprocess pre.yaml with 'rate: 16000', in samples a second",
        )
    spec = inputs[0]
    sizes = [size for size in spec.shape[1:] if size != 1]
    if "log_mel" in fields:
        mel = LogMel.of(fields["log_mel"], rate)
    else:
        mel = None
    if len(inputs) != 1 or not spec.dtype.startswith("float") or len(sizes) != (2 if mel else 1):
        raise DatasetError(
            f"sounds feed models with one float input of {'features' if mel else 'samples'}, not "
            f"{', '.join(map(str, inputs))}",
            where=str(path),
            fix="log_mel in pre.yaml is for a model that takes features, frames by bands",
        )
    if mel and mel.width not in sizes:
        raise DatasetError(
            f"the model takes {sizes[0]} by {sizes[1]} features, and log_mel gives {mel.width} of "
            "each frame",
            where=str(path),
            fix=f"set n_mels, or n_mfcc, to {sizes[1]}",
        )
    across = mel is not None and sizes[0] == mel.width  # bands by frames
    if mel:
        length = mel.samples(sizes[1 if across else 0])
    else:
        length = sizes[0]
    most = length + (mel.hop_length - 1 if mel and mel.center else 0)
    paths, labels = labelled_files(path, SUFFIXES, "sound")
    soundfile = optional_package("soundfile", "audio", "a data set of sounds")

    @lru_cache(_HELD)
    def sample(place: int) -> dict[str, Array]:
        file = paths[place]
        # soundfile raises RuntimeError of its own kinds
        with raised_as(DatasetError, "cannot read the sound", Exception, where=str(file)):
            wave, own_rate = soundfile.read(file, dtype="float32", always_2d=True)
        if not len(wave):
            raise DatasetError("the sound is empty", where=str(file))
        mono = wave.mean(axis=1)
        if own_rate != rate:
            from scipy.signal import resample_poly

            common = gcd(own_rate, rate)
            mono = resample_poly(mono, rate // common, own_rate // common)
        # Samples behind the middle of the last frame are a part of it.
        kept = len(mono) if len(mono) <= most else length
        mono = np.pad(mono[:kept], (0, max(length - kept, 0)))
        found = mono if mel is None else mel.features(mono)
        found = found.T if across else found
        return {spec.name: found.astype(spec.dtype).reshape(spec.shape[1:])}

    return ListedDataset(sample, labels, [paths], inputs, len(paths))
