"""Features of sounds: logarithms of mel bands, and cosines of them (MFCC).

    frame = win_length samples every hop_length, times a periodic Hann window, n_fft with zeros
    band  = sum of |rfft(frame)|^2 * triangle       triangles lie evenly on the mel scale
    value = (log(band + log_offset) - mean) / std
    mfcc  = (the first n_mfcc of an orthonormal DCT-II of log(band + log_offset) - mean) / std

Names, defaults and triangles are those of torchaudio's MelSpectrogram (no ``norm``). Frames that
are not centred begin every hop_length, as TensorFlow's. Sources: Davis and Mermelstein, "Comparison
of parametric representations for monosyllabic word recognition in continuously spoken sentences",
1980; Slaney, "Auditory Toolbox", 1998 (the mel scale "slaney").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import scipy  # loads its parts when they are first used
from numpy.typing import NDArray

from compiler.errors import check_known
from workers.datasets.listed import known_fields
from workers.errors import DatasetError

Array = NDArray[Any]
_MOST_FFT: Final = 1 << 16


def _htk(hertz: Array) -> Array:
    return np.asarray(2595 * np.log10(1 + hertz / 700))


def _of_htk(mel: Array) -> Array:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


_LINEAR_TO = 1000.0
_PER_HERTZ = 3 / 200
_PER_OCTAVE = np.log(6.4) / 27


def _slaney(hertz: Array) -> Array:
    above = np.log(np.maximum(hertz, _LINEAR_TO) / _LINEAR_TO) / _PER_OCTAVE
    return np.asarray(np.minimum(hertz, _LINEAR_TO) * _PER_HERTZ + above)


def _of_slaney(mel: Array) -> Array:
    linear = np.minimum(mel, _LINEAR_TO * _PER_HERTZ)
    return np.asarray(linear / _PER_HERTZ * np.exp((mel - linear) * _PER_OCTAVE))


_SCALES: Final[dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]]] = {
    "htk": (_htk, _of_htk),
    "slaney": (_slaney, _of_slaney),
}


@dataclass(frozen=True, eq=False)
class LogMel:
    """Features of sounds that a model takes; lengths in samples, frequencies in hertz.

    Raises:
        DatasetError: a value that features cannot have.
    """

    rate: int
    n_fft: int = 400
    win_length: int = 0
    hop_length: int = 0
    n_mels: int = 128
    f_min: float = 0.0
    f_max: float = 0.0
    mel_scale: str = "htk"
    center: bool = True
    log_offset: float = 1e-6
    n_mfcc: int = 0
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, options: Any, rate: int) -> LogMel:
        """From a mapping of names and values; what is left out has torchaudio's default."""
        legal = [one.name for one in fields(cls)][1:]
        if not isinstance(options, Mapping):
            raise DatasetError(f"log_mel cannot be {options!r}", fix=f"a mapping of {legal}")
        given = known_fields(options, legal, "log_mel")
        for name, value in given.items():
            kind = type(getattr(cls, name))
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise DatasetError(
                    f"log_mel {name} cannot be {value!r}", fix=f"it is one {kind.__name__}"
                )
        made = cls(rate, **given)
        win = made.win_length or made.n_fft
        hop = made.hop_length or win // 2
        f_max = float(made.f_max or rate / 2)
        found = replace(made, win_length=win, hop_length=hop, f_max=f_max)
        found._check()
        return found

    def _check(self) -> None:
        ranges = {
            "n_fft": (2, _MOST_FFT),
            "win_length": (1, self.n_fft),
            "hop_length": (1, _MOST_FFT),
            "n_mels": (1, self.n_fft),
            "n_mfcc": (0, self.n_mels),
            "f_min": (0.0, self.f_max),
            "f_max": (self.f_min, self.rate / 2),
            "log_offset": (1e-30, 1e30),
            "mean": (-1e30, 1e30),
            "std": (1e-30, 1e30),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise DatasetError(
                    f"log_mel {name} cannot be {value!r}", fix=f"from {least:g} to {most:g}"
                )
        if self.f_min == self.f_max:
            raise DatasetError(f"log_mel has no bands: f_min and f_max are {self.f_min:g}")
        what = f"log_mel mel_scale cannot be {self.mel_scale!r}"
        check_known(self.mel_scale, _SCALES, what, DatasetError)

    @property
    def width(self) -> int:
        """Numbers of a frame."""
        return self.n_mfcc or self.n_mels

    def samples(self, frames: int) -> int:
        """Count the samples of so many frames."""
        return (frames - 1) * self.hop_length + (0 if self.center else self.win_length)

    def frames(self, samples: int) -> int:
        """The number of frames that so many samples make, one at least."""
        return (
            1 + (samples if self.center else max(samples - self.win_length, 0)) // self.hop_length
        )

    @cached_property
    def filters(self) -> Array:
        """The triangles, (n_fft // 2 + 1, n_mels)."""
        mel, hertz = _SCALES[self.mel_scale]
        first, last = mel(np.array([self.f_min, self.f_max]))
        points = hertz(np.linspace(first, last, self.n_mels + 2))
        bins = np.linspace(0, self.rate / 2, self.n_fft // 2 + 1)[:, None]
        widths = np.diff(points)
        rising = (bins - points[:-2]) / widths[:-1]
        falling = (points[2:] - bins) / widths[1:]
        return np.maximum(np.minimum(rising, falling), 0)

    def features(self, wave: Array) -> Array:
        """(frames, width), float64, of a wave (samples,)."""
        if self.center:
            beside = (self.n_fft - self.win_length) // 2
            wave = np.pad(wave, self.n_fft // 2, mode="reflect")[beside:]
            wave = wave[: len(wave) - (self.n_fft - self.win_length - beside)]
        frames = np.lib.stride_tricks.sliding_window_view(wave, self.win_length)
        turns = np.arange(self.win_length) / self.win_length
        window = 0.5 - 0.5 * np.cos(2 * np.pi * turns)
        power = np.abs(np.fft.rfft(frames[:: self.hop_length] * window, self.n_fft)) ** 2
        logs = np.log(power @ self.filters + self.log_offset)
        if self.n_mfcc:
            logs = scipy.fft.dct(logs, norm="ortho")[:, : self.n_mfcc]
        return np.asarray((logs - self.mean) / self.std)
