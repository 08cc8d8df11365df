"""Metrics of restored images and sounds, whose labels are what they should be.

PSNR and SSIM by scikit-image; the range is 255 where a label exceeds 1, else 1. SI-SDR in dB:
Le Roux et al., "SDR - half-baked or well done?", ICASSP 2019, equation 3. A value per sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from workers.metrics.library import flat, needed
from workers.metrics.protocol import Outputs

_MOST_DB = 120.0
"""Stands for infinity: outputs that are equal to the labels."""


def psnr(outputs: Outputs, labels: NDArray[Any] | None) -> NDArray[Any]:
    """Peak signal to noise ratio of every image, in dB."""
    found, wanted = flat(outputs[0], labels)
    most = _range(wanted)
    with np.errstate(divide="ignore"):
        each = [peak_signal_noise_ratio(w, f, data_range=most) for f, w in zip(found, wanted)]
    return np.minimum(each, _MOST_DB)


def ssim(outputs: Outputs, labels: NDArray[Any] | None) -> NDArray[Any]:
    """Structural similarity of every image, (channels, height, width) or channels last."""
    wanted = needed(labels)
    found = np.asarray(outputs[0], np.float64)
    if found.shape != wanted.shape or found.ndim < 3:
        raise ValueError(f"labels of shape {wanted.shape} for images of shape {found.shape}")
    if found.ndim == 3:
        axis = None
    elif found.shape[1] <= found.shape[-1]:
        axis = 0
    else:
        axis = -1
    most = _range(wanted)
    return np.asarray(
        [
            structural_similarity(np.float64(w), f, data_range=most, channel_axis=axis)
            for f, w in zip(found, wanted)
        ]
    )


def si_sdr(outputs: Outputs, labels: NDArray[Any] | None) -> NDArray[Any]:
    """Scale-invariant signal to distortion ratio of every sound, in dB."""
    found, wanted = flat(outputs[0], labels)
    power = (wanted**2).sum(axis=1, keepdims=True)
    target = (found * wanted).sum(axis=1, keepdims=True) / np.maximum(power, 1e-12) * wanted
    signal = (target**2).sum(axis=1)
    noise = ((found - target) ** 2).sum(axis=1)
    with np.errstate(divide="ignore"):
        ratio = 10 * np.log10(signal / np.maximum(noise, 1e-300))
    return np.asarray(ratio.clip(-_MOST_DB, _MOST_DB))


def _range(wanted: NDArray[Any]) -> float:
    if wanted.max() > 1:
        return 255.0
    return 1.0
