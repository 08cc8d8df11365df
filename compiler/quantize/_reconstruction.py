"""Integers for the rows of a weight whose output errs least on measured data.

    minimise  (w - q)^T H (w - q)  over whole numbers q of the grid,   H = columns^T columns

row by row; rounding to the nearest minimises |w - q| instead, as if all products of columns but
their squares were 0. Columns are decided one after the other, each error being made up for by the
columns that are still free; then single integers are moved as long as that helps. A row for which
the nearest integers are better keeps them, so no row is ever worse than with them.
Source: Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained
transformers", 2022, sections 3 and 4; Behdin et al., "QuantEase: optimization-based quantization
for language models", 2023, section 3 (the moves).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DAMPING: Final = 0.01
"""Part of the mean diagonal that is added to it, against data that say too little."""

_BLOCK: Final = 64
_SWEEPS: Final = 8


def reconstructed(rows: Floats, gram: Floats, limit: int) -> Floats:
    """Whole numbers within ±limit for the weights of one or more groups.

    Args:
        rows: weights in units of their scale, (groups, outputs, taps).
        gram: products of columns, (groups, taps, taps), symmetric, no negative eigenvalues.
        limit: largest magnitude of the grid.
    Returns:
        (groups, outputs, taps).
    """
    nearest = _on_grid(rows, limit)
    hessian = _damped(gram)
    order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")
    columns = order[:, None, :]
    sorted_rows = np.take_along_axis(rows, columns, axis=2)
    both = np.take_along_axis(np.take_along_axis(hessian, order[:, :, None], 1), columns, 2)
    found = _moved(sorted_rows, _made_up_for(sorted_rows, both, limit), both, limit)
    result = np.empty_like(found)
    np.put_along_axis(result, np.broadcast_to(columns, found.shape), found, axis=2)
    worse = _error(rows - result, hessian) >= _error(rows - nearest, hessian)
    return np.asarray(np.where(worse[:, :, None], nearest, result))


def _on_grid(values: Floats, limit: int) -> Floats:
    """Nearest whole numbers, halves away from zero, as realization rounds."""
    return np.clip(np.trunc(values + np.copysign(0.5, values)), -limit, limit)


def _damped(gram: Floats) -> Floats:
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    mean = diagonal.mean(axis=1)
    # A group that has seen zeros only: every choice is as good, so the nearest is taken.
    extra = np.where(mean > 0, _DAMPING * mean, 1.0)
    return gram + extra[:, None, None] * np.eye(gram.shape[1])


def _error(difference: Floats, hessian: Floats) -> Floats:
    return np.asarray(np.einsum("gok,gok->go", difference @ hessian, difference))


def _made_up_for(rows: Floats, hessian: Floats, limit: int) -> Floats:
    """Column by column, the rest moving to make up for what rounding has changed."""
    taps = rows.shape[2]
    factor = np.swapaxes(np.linalg.cholesky(np.linalg.inv(hessian)), 1, 2)
    free = rows.copy()
    found = np.empty_like(rows)
    for first in range(0, taps, _BLOCK):
        last = min(first + _BLOCK, taps)
        errors = np.empty((*rows.shape[:2], last - first))
        for k in range(first, last):
            found[:, :, k] = _on_grid(free[:, :, k], limit)
            error = (free[:, :, k] - found[:, :, k]) / factor[:, k, k][:, None]
            free[:, :, k + 1 : last] -= error[:, :, None] * factor[:, None, k, k + 1 : last]
            errors[:, :, k - first] = error
        free[:, :, last:] -= errors @ factor[:, first:last, last:]
    return found


def _moved(rows: Floats, found: Floats, hessian: Floats, limit: int) -> Floats:
    """Every integer moved to where it is best beside the others, until none moves."""
    taps = rows.shape[2]
    found = found.copy()
    slope = (rows - found) @ hessian
    diagonal = np.diagonal(hessian, axis1=1, axis2=2)
    for _ in range(_SWEEPS):
        moves = 0
        for first in range(0, taps, _BLOCK):
            last = min(first + _BLOCK, taps)
            local = slope[:, :, first:last]
            block = hessian[:, first:last, first:last]
            changes = np.zeros_like(local)
            for k in range(last - first):
                wish = found[:, :, first + k] + local[:, :, k] / diagonal[:, first + k][:, None]
                change = _on_grid(wish, limit) - found[:, :, first + k]
                if change.any():
                    found[:, :, first + k] += change
                    local -= change[:, :, None] * block[:, None, k]
                    changes[:, :, k] = change
            if changes.any():
                moves += int(np.count_nonzero(changes))
                slope[:, :, :first] -= changes @ hessian[:, first:last, :first]
                slope[:, :, last:] -= changes @ hessian[:, first:last, last:]
        if moves == 0:
            break
    return found
