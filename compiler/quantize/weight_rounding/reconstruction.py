"""Integers for the rows of a weight with the least error of the output on measured data.

    minimise  (w - q)^T H (w - q)  over whole numbers q of the grid,   H = columns^T columns

row by row; rounding to the nearest minimises |w - q| instead, as if all products of columns but
their squares were 0. Columns are decided one after the other, each error being made up for by the
columns that are still free. A row for which the nearest integers are better keeps them, so no row
is ever worse than with them.
Source: Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained
transformers", 2022, sections 3 and 4.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import scipy  # loads its parts when they are first used
from numpy.typing import NDArray

from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.kernels.numpy_kernels import on_grid

Products = NDArray[np.floating[Any]]

_DAMPING: Final = 0.01
"""Part of the mean diagonal that is added to it, against data that say too little."""

_BLOCK: Final = 64


def reconstructed(rows: Products, gram: Products, ends: tuple[int, int]) -> Products:
    """Whole numbers of a grid for the weights of one or more groups.

    Args:
        rows: weights in units of their scale, (groups, outputs, taps). Their dtype is that of
            making up for errors.
        gram: products of columns, (groups, taps, taps), symmetric, no negative eigenvalues.
        ends: smallest and largest number of the grid.
    Returns:
        (groups, outputs, taps).
    """
    hessian = damped(gram)
    order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")[:, ::-1]
    # In place where that can be: layers of many taps are as large as all else.
    rows = np.stack([one.take(some, axis=1) for one, some in zip(rows, order)])
    for one, some in zip(hessian, order):
        one[:] = one[some].take(some, axis=1)
    found = _made_up_for(rows, hessian, ends)
    nearest = on_grid(rows, ends)
    # Of errors a and b of a row, a H a - b H b is (a - b) H (a + b).
    apart = (nearest - found).astype(gram.dtype) @ hessian
    rows *= 2
    rows -= found
    rows -= nearest
    more = np.einsum("gok,gok->go", apart, rows)
    np.copyto(found, nearest, where=more[:, :, None] >= 0)
    for one, other, some in zip(rows, found, order):
        one[:, some] = other
    return rows


def damped(gram: Products, part: float = _DAMPING) -> Products:
    """The products with a part of each group's mean diagonal added to its diagonal."""
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    mean = diagonal.mean(axis=1)
    # A group that has seen zeros only: every choice is as good, so the nearest is taken.
    found = gram.copy()
    np.einsum("gkk->gk", found)[:] += np.where(mean > 0, part * mean, 1.0)[:, None]
    return found


def _made_up_for(rows: Products, hessian: Products, ends: tuple[int, int]) -> Products:
    """Round column by column, the last one first; the others compensate the errors.

    The products are L L^T, L lower triangular, so the error of the output is the sum of squares of
    (w - q) L. Its column k is w - q at k and behind, where all is rounded by then: in units of the
    diagonal of L, the nearest number to what makes it 0 has the least square.
    """
    taps = rows.shape[2]
    kernels = choose_kernels()
    factor = hessian.astype(rows.dtype)
    (factorize,) = scipy.linalg.get_lapack_funcs(("potrf",), (factor,))
    for one in factor:
        refused = factorize(one.T, overwrite_a=1)[1]  # in place: transposed, it is Fortran's
        if refused:
            raise np.linalg.LinAlgError(f"column {refused} depends on the columns before it")
    factor /= np.einsum("gkk->gk", factor)[:, None].copy()
    free = rows.copy()
    found = np.empty_like(rows)
    for end in range(taps, 0, -_BLOCK):
        some = slice(max(end - _BLOCK, 0), end)
        values, targets, own = (
            np.array(part, np.float64, order="C")
            for part in (rows[:, :, some], free[:, :, some], factor[:, some, some])
        )
        found[:, :, some] = kernels.round_columns(values, targets, own, ends)
        errors = (values - found[:, :, some]).astype(free.dtype)
        free[:, :, : some.start] += errors @ factor[:, some, : some.start]
    return found
