"""The error function on arrays, to double precision.

Source: W. J. Cody, "Rational Chebyshev approximations for the error function",
Math. Comp. 23, 1969.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Rational approximations on |x| <= 0.46875, <= 4 and beyond; highest power first.
_NEAR_P = (
    1.85777706184603153e-1,
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
)
_NEAR_Q = (
    1.0,
    2.36012909523441209e01,
    2.44024637934444173e02,
    1.28261652607737228e03,
    2.84423683343917062e03,
)
_MID_P = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
)
_MID_Q = (
    1.0,
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)
_FAR_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_FAR_Q = (
    1.0,
    2.56852019228982242e00,
    1.87295284992346725e00,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """2/sqrt(pi) times the integral of exp(-t*t) from 0 to x, in the dtype of x (any float)."""
    wide = np.asarray(x, np.float64)
    size = np.abs(wide)
    near = size <= 0.46875
    square = wide * wide
    result = np.asarray(wide * _ratio(_NEAR_P, _NEAR_Q, np.where(near, square, 0.0)))
    if not near.all():
        tail = np.clip(size, 0.46875, 6.0)
        decay = np.exp(-tail * tail)
        mid = decay * _ratio(_MID_P, _MID_Q, tail)
        inverse = 1.0 / (tail * tail)
        far = decay * (1 / np.sqrt(np.pi) - inverse * _ratio(_FAR_P, _FAR_Q, inverse)) / tail
        complement = np.where(size <= 4.0, mid, far)
        result = np.where(near, result, np.copysign(1.0 - complement, wide))
        result = np.where(np.isnan(wide), wide, result)
    return result.astype(x.dtype)


def _ratio(top: Sequence[float], bottom: Sequence[float], x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(_polynomial(top, x) / _polynomial(bottom, x))


def _polynomial(coefficients: Sequence[float], x: NDArray[Any]) -> NDArray[Any]:
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value
